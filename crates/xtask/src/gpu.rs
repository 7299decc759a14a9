//! `cargo xtask gpu`: packs everything the GPU tests and the benchmark need into one folder, for a machine with a GPU but
//! without Rust.
//!
//! The folder's script, `run`, works anywhere; if this machine has a GPU, it runs right away.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::exec;
use crate::test::{Context, PACKAGE, cargo, python_environment, the_wheel, wheel};

/// The tests that need a GPU, by crate. Tests that do not exist are skipped.
const TESTS: &[(&str, &[&str])] = &[
    ("max-driver", &["cuda", "cuda_tools"]),
    ("max-kernels", &["cuda_loops", "cuda_kernels", "cuda_attention"]),
    (
        "max-engine",
        &[
            "gpu",
            "collectives_gpu",
            "op_cases_gpu",
            "paged",
            "random_graphs_gpu",
            "random_regions_gpu",
            "sizes",
        ],
    ),
    ("max-tensor", &["tensors_gpu"]),
    ("max-pipelines", &["decoders"]),
];

/// The example that the benchmark of text generation runs, and its crate.
const EXAMPLE: (&str, &str) = ("max-pipelines", "decoder_speed");

/// The models that the tests of `max-pipelines` read.
const GOLDENS: &str = "crates/max-pipelines/tests/goldens/decoders";

/// The folder must stay small enough to copy to another machine.
const MOST_BYTES: u64 = 96 << 20;

/// The script of the folder.
const RUN: &str = include_str!("gpu/run");

/// What to do after packing, and the arguments of the script.
#[derive(Debug, Default, PartialEq)]
pub struct Options {
    /// Do not run, even if the machine has a GPU.
    pub build_only: bool,
    pub run: Vec<String>,
}

impl Options {
    /// Reads the arguments after `gpu`.
    pub fn parse(arguments: &[String]) -> Result<Self, String> {
        match arguments.split_first() {
            Some((first, [])) if first == "--build" => Ok(Self { build_only: true, run: Vec::new() }),
            Some((first, _)) if first == "--build" => Err("`gpu --build` takes no further arguments".into()),
            Some((first, _)) if first.starts_with('-') => Err(format!("unknown option `{first}` for `gpu`")),
            _ => Ok(Self { build_only: false, run: arguments.to_vec() }),
        }
    }
}

/// Builds the folder, and runs it if the machine has a GPU.
pub fn run(options: &Options) -> Result<(), String> {
    let context = Context::new(false, Vec::new())?;
    let folder = context.target.join("gpu");
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(|error| format!("cannot empty {}: {error}", folder.display()))?;
    }
    python_environment(&context)?;
    test_executables(&folder.join("tests"))?;
    example(&folder.join("examples"))?;
    let pack = "import lzma, pathlib, sys
for built in [built for folder in sys.argv[1:] for built in pathlib.Path(folder).iterdir()]:
    built.with_name(built.name + '.xz').write_bytes(lzma.compress(built.read_bytes()))
    built.unlink()";
    let built = ["tests", "examples"].map(|name| folder.join(name));
    exec::run(context.venv().python().args(["-c", pack]).args(built))?;
    wheel(&context, "release")?;
    copy(&the_wheel(&context.target.join("wheels"))?, &folder.join("wheel"))?;
    exec::run(
        context
            .venv()
            .pip_install()
            .args(["--no-compile", "--target"])
            .arg(folder.join("packages"))
            .arg("pytest"),
    )?;
    for file in files("cases", |_| true)? {
        copy(&file, &folder.join("cases"))?;
    }
    let shared = ["conftest.py", "helpers.py", "op_cases.py", "scaled.py"];
    for file in
        files(&format!("{PACKAGE}/tests"), |name| name.starts_with("test_gpu") || shared.contains(&name))?
    {
        copy(&file, &folder.join("python"))?;
    }
    // The op cases read it.
    let golden = Path::new(PACKAGE).join("tests/goldens/small_floats.txt");
    copy(&golden, &folder.join("python/goldens"))?;
    for model in entries(GOLDENS)?.into_iter().filter(|path| path.is_dir()) {
        let to = folder.join("goldens").join(model.file_name().unwrap_or(model.as_os_str()));
        entries(&model)?.iter().try_for_each(|file| copy(file, &to))?;
    }
    copy_as(Path::new("benches/gpu.py"), &folder.join("bench.py"))?;
    copy(Path::new("benches/llama_gpu.py"), &folder)?;
    let script = folder.join("run");
    fs::write(&script, RUN).map_err(|error| format!("cannot write {}: {error}", script.display()))?;
    make_executable(&script)?;
    let bytes = size(&folder)?;
    println!("\n{}: {:.1} MB", folder.display(), bytes as f64 / 1e6);
    if bytes > MOST_BYTES {
        return Err(format!("{} is larger than {} MB", folder.display(), MOST_BYTES / 1_000_000));
    }
    match has_gpu() {
        _ if options.build_only => Ok(()),
        true => exec::run(Command::new(&script).args(&options.run)),
        false => {
            println!(
                "this machine has no GPU: run `sh gpu/run` on one that has (`sh gpu/run --help` says more)"
            );
            Ok(())
        }
    }
}

/// Builds the tests that need a GPU and puts their executables into a folder; each contains all CPU kernels.
fn test_executables(folder: &Path) -> Result<(), String> {
    for (package, tests) in TESTS {
        let there = |test: &&&str| {
            let sources = [format!("{test}.rs"), format!("{test}/main.rs")];
            sources.iter().any(|source| Path::new(&format!("crates/{package}/tests/{source}")).exists())
        };
        let tests: Vec<_> = tests.iter().filter(there).collect();
        if tests.is_empty() {
            continue;
        }
        let mut build = cargo();
        build.args(["test", "--locked", "--no-run", "--message-format=json-render-diagnostics"]);
        build.args(["--package", package]);
        for test in &tests {
            build.args(["--test", test]);
        }
        let output = exec::output(&mut build)?;
        let executables = executables(&output);
        for test in tests {
            let Some(built) = executables.iter().find(|path| test_name(path) == Some(test)) else {
                return Err(format!("cargo built no test `{test}` of {package}"));
            };
            let file = folder.join(test);
            copy_as(built, &file)?;
            exec::run(Command::new("strip").arg(&file))?;
        }
    }
    Ok(())
}

/// Builds the example of the benchmark and puts it into a folder.
fn example(folder: &Path) -> Result<(), String> {
    let (package, name) = EXAMPLE;
    let mut build = cargo();
    build.args(["build", "--locked", "--release", "--message-format=json-render-diagnostics"]);
    build.args(["--package", package, "--example", name]);
    let built = executables(&exec::output(&mut build)?);
    let built = built.last().ok_or_else(|| format!("cargo built no example `{name}` of {package}"))?;
    let file = folder.join(name);
    copy_as(built, &file)?;
    exec::run(Command::new("strip").arg(&file))
}

/// The executables in cargo's messages, which are one JSON object per line.
fn executables(messages: &str) -> Vec<PathBuf> {
    let executable = |line: &str| {
        let path = line.split_once("\"executable\":\"")?.1.split_once('"')?.0;
        Some(PathBuf::from(path.replace("\\\\", "\\")))
    };
    messages.lines().filter_map(executable).collect()
}

/// The name of the test that an executable was built from: everything before the last dash.
fn test_name(executable: &Path) -> Option<&str> {
    executable.file_stem()?.to_str()?.rsplit_once('-').map(|(name, _)| name)
}

fn has_gpu() -> bool {
    exec::probe(Command::new("nvidia-smi").arg("-L")).is_some_and(|found| found.contains("GPU"))
}

/// The regular files of a folder whose names match.
fn files(folder: &str, wanted: impl Fn(&str) -> bool) -> Result<Vec<PathBuf>, String> {
    let named = |path: &PathBuf| path.file_name().and_then(|name| name.to_str()).is_some_and(&wanted);
    Ok(entries(folder)?.into_iter().filter(|path| path.is_file()).filter(named).collect())
}

/// What is in a folder.
fn entries(folder: impl AsRef<Path>) -> Result<Vec<PathBuf>, String> {
    let folder = folder.as_ref();
    let entries =
        fs::read_dir(folder).map_err(|error| format!("cannot list {}: {error}", folder.display()))?;
    Ok(entries.filter_map(|entry| entry.ok().map(|entry| entry.path())).collect())
}

/// Copies a file into a folder, under its own name.
fn copy(file: &Path, folder: &Path) -> Result<(), String> {
    copy_as(file, &folder.join(file.file_name().unwrap_or(file.as_os_str())))
}

fn copy_as(file: &Path, to: &Path) -> Result<(), String> {
    let made = to.parent().map_or(Ok(()), fs::create_dir_all);
    made.and_then(|()| fs::copy(file, to).map(|_| ()))
        .map_err(|error| format!("cannot copy {} to {}: {error}", file.display(), to.display()))
}

#[cfg(unix)]
fn make_executable(file: &Path) -> Result<(), String> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(file, fs::Permissions::from_mode(0o755))
        .map_err(|error| format!("cannot make {} executable: {error}", file.display()))
}

#[cfg(not(unix))]
fn make_executable(_: &Path) -> Result<(), String> {
    Ok(())
}

/// The bytes of all files in a folder.
fn size(folder: &Path) -> Result<u64, String> {
    let mut bytes = 0;
    for path in entries(folder)? {
        bytes += if path.is_dir() { size(&path)? } else { fs::metadata(&path).map_or(0, |data| data.len()) };
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executables_are_found_among_messages() {
        let messages = "{\"reason\":\"compiler-artifact\",\"executable\":null,\"fresh\":true}\n\
            {\"reason\":\"compiler-artifact\",\"executable\":\"/t/deps/op_cases_gpu-0f3a\",\"fresh\":true}\n";
        let found = executables(messages);
        assert_eq!(found, [PathBuf::from("/t/deps/op_cases_gpu-0f3a")]);
        assert_eq!(test_name(&found[0]), Some("op_cases_gpu"));
    }

    #[test]
    fn options_are_for_the_script_or_for_us() {
        let parsed =
            |line: &str| Options::parse(&line.split_whitespace().map(String::from).collect::<Vec<_>>());
        assert_eq!(parsed(""), Ok(Options::default()));
        assert!(parsed("--build").unwrap().build_only);
        assert_eq!(parsed("rust gpu --nocapture").unwrap().run, ["rust", "gpu", "--nocapture"]);
        assert!(parsed("--fast").is_err() && parsed("--build tests").is_err());
    }
}
