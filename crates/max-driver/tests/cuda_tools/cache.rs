//! The disk cache, tested from outside: in child processes with a folder of their own.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use max_core::DType;

use super::{add, address, download, gpu, source, upload};

/// What a child does: it compiles functions through both entry points and runs one.
#[test]
fn work_of_a_child() {
    let Some((device, gpu)) = gpu() else { return };
    let twice = r#"extern "C" __global__ void twice(float* x) { x[0] *= 2; }"#;
    let sources = [add(), source("twice", "", twice)];
    let (x, start) = (upload(DType::Float32, &[21.0], &device), Instant::now());
    let functions = gpu.module(&sources).unwrap();
    let both = gpu.functions(&sources).unwrap();
    assert_eq!(functions.len() + both.len(), 4);
    eprintln!("both functions after {:.1} ms", start.elapsed().as_secs_f64() * 1e3);
    // SAFETY: there is one element.
    unsafe { both[1].launch(&device.default_stream(), [1; 3], [1; 3], 0, &[address(&x)]) }.unwrap();
    assert_eq!(download(&x), [42.0]);
}

#[test]
fn processes_share_compiled_code() {
    if gpu().is_none() {
        return;
    }
    let folder = std::env::temp_dir().join(format!("max-rs-cuda-tools-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    child(&folder);
    let made = entries(&folder);
    assert_eq!(made.len(), 1, "one module, and its functions are not compiled again: {made:?}");
    let (path, whole, _) = &made[0];
    assert!(whole.len() > 64, "{path:?} is empty");
    child(&folder);
    assert_eq!(entries(&folder), made, "the second process found it");
    // What is damaged is made again.
    std::fs::write(path, &whole[..whole.len() / 2]).unwrap();
    child(&folder);
    let rebuilt = entries(&folder);
    assert_eq!((rebuilt.len(), rebuilt[0].1.len()), (1, whole.len()));
    std::fs::remove_dir_all(&folder).unwrap();
    // Everything works without a folder, too.
    child(Path::new(""));
    child(Path::new("/proc/none"));
}

fn child(folder: &Path) {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "cache::work_of_a_child", "--nocapture"]).env("MAX_CACHE_DIR", folder);
    let output = child.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "with {folder:?}: {}{said}", String::from_utf8_lossy(&output.stdout));
    eprint!("{}: {said}", folder.display());
}

/// The files of a folder: name, content, and inode number, which changes when a file is written again.
fn entries(folder: &Path) -> Vec<(PathBuf, Vec<u8>, u64)> {
    let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap());
    let facts = |file: std::fs::DirEntry| {
        (file.path(), std::fs::read(file.path()).unwrap(), file.metadata().unwrap().ino())
    };
    files.map(facts).collect()
}
