//! Ranges reach a profiler: here a library of a few lines, in a child process.

use std::io::Write;
use std::path::PathBuf;
use std::process::Command;

use max_driver::cuda::nvtx::range;

/// A profiler that writes what it is told to a file.
const PROFILER: &str = r#"
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef void (*function)(void);
typedef const void* (*export_table)(uint32_t);
struct callbacks { size_t size; int (*table)(int, function***, unsigned*); };
struct version { size_t size; uint32_t version, reserved; void (*set)(uint32_t); };

static void say(const char* what, const char* name) {
    FILE* file = fopen(getenv("RANGES_GO_TO"), "a");
    if (file) { fprintf(file, "%s%s\n", what, name); fclose(file); }
}
static int push(const char* name) { say("push ", name); return 0; }
static int pop(void) { say("pop", ""); return 0; }

int InitializeInjectionNvtx2(export_table get) {
    const struct callbacks* callbacks = get(1);
    const struct version* version = get(3);
    if (!callbacks || callbacks->size < sizeof *callbacks || get(2) || get(99)) return 0;
    if (!version || version->size < sizeof *version || version->version != 3) return 0;
    version->set(3);
    int sizes[] = {0, 16, 9, 15, 7, 16, 7};
    if (callbacks->table(0, 0, 0) || callbacks->table(7, 0, 0) || callbacks->table(-1, 0, 0)) return 0;
    for (int module = 1; module < 7; ++module) {
        function** table; unsigned size;
        if (!callbacks->table(module, &table, &size) || size != sizes[module] || table[0] || table[size]) return 0;
        for (unsigned i = 1; i < size; ++i) *table[i] = 0;
        if (module == 1) { *table[9] = (function)push; *table[11] = (function)pop; }
    }
    say("attached", "");
    return 1;
}
"#;

/// Runs in the child only: without the variable there is no profiler, and nothing happens.
#[test]
fn ranges_of_a_child() {
    let _outer = range("outer");
    {
        let _inner = range("in\0ner \u{e9}");
    }
    let _next = range("next");
}

#[test]
fn a_profiler_sees_ranges() {
    let folder = std::env::temp_dir().join(format!("max-rs-nvtx-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (source, library, ranges) = (folder.join("tool.c"), folder.join("tool.so"), folder.join("ranges"));
    std::fs::write(&source, PROFILER).unwrap();
    let compiler = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).output();
    match compiler {
        // Not eprintln!, whose output is only shown when a test fails.
        Err(error) => drop(writeln!(std::io::stderr(), "skipped: no cc: {error}")),
        Ok(output) => {
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            assert!(run(&library, &ranges), "the child failed");
            let seen = std::fs::read_to_string(&ranges).unwrap();
            assert_eq!(seen, "attached\npush outer\npush inner \u{e9}\npop\npush next\npop\npop\n");
            std::fs::remove_file(&ranges).unwrap();
            assert!(run(&folder.join("missing.so"), &ranges), "a missing profiler changes nothing");
            assert!(run(&source, &ranges), "a file that is not a library changes nothing");
            assert!(!ranges.exists());
        }
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

fn run(library: &PathBuf, ranges: &PathBuf) -> bool {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child
        .args(["--exact", "ranges_of_a_child"])
        .env("NVTX_INJECTION64_PATH", library)
        .env("RANGES_GO_TO", ranges);
    child.output().unwrap().status.success()
}
