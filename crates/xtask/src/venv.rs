//! The private Python environment the wheel is built with and tested in.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::exec;

/// The oldest Python the package supports.
const OLDEST: (u32, u32) = (3, 10);

/// A virtual environment; it may not exist yet.
pub struct Venv {
    folder: PathBuf,
}

impl Venv {
    /// The environment in `folder`.
    pub fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// Creates the environment, unless a working one from the same Python version exists.
    pub fn create_if_needed(&self) -> Result<(), String> {
        let base = find_python()?;
        let current = version(&self.interpreter());
        if current.is_some_and(|current| current == base.version) && self.has_pip() {
            println!("{} exists, Python {}", self.folder.display(), base.version);
            return Ok(());
        }
        if exec::probe(Command::new(&base.path).args(["-c", "import venv, ensurepip"])).is_none() {
            return Err(format!(
                "`{}` has no `venv` or no `ensurepip` module; install them (Debian and Ubuntu: \
                 `apt install python3-venv`), or set PYTHON to a complete Python",
                base.path.display()
            ));
        }
        self.remove()?;
        exec::run(Command::new(&base.path).args(["-m", "venv"]).arg(&self.folder)).map_err(|error| {
            format!("{error}; on Debian and Ubuntu `apt install python3-venv` installs what is missing")
        })
    }

    /// Installs a requirements file with options of pip, unless exactly this text was installed before.
    pub fn install_requirements(&self, file: &Path, options: &[&str]) -> Result<(), String> {
        let wanted = std::fs::read_to_string(file)
            .map_err(|error| format!("cannot read {}: {error}", file.display()))?;
        let stamp = self.folder.join(file.file_name().unwrap_or_default()).with_extension("stamp");
        if std::fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
            println!("{} is already installed", file.display());
            return Ok(());
        }
        exec::run(self.pip_install().args(options).arg("-r").arg(file))?;
        std::fs::write(&stamp, wanted).map_err(|error| format!("cannot write {}: {error}", stamp.display()))
    }

    /// The folder of installed packages.
    pub fn packages(&self) -> Result<PathBuf, String> {
        let code = "import sysconfig; print(sysconfig.get_path('purelib'))";
        let folder = exec::probe(self.python().args(["-c", code]));
        folder
            .map(PathBuf::from)
            .ok_or_else(|| format!("the Python of {} does not run", self.folder.display()))
    }

    /// The environment's Python, without the variables that would let other packages in.
    pub fn python(&self) -> Command {
        let mut command = Command::new(self.interpreter());
        command.env_remove("PYTHONPATH").env_remove("PYTHONHOME");
        command
    }

    /// The start of a `pip install` into the environment.
    pub fn pip_install(&self) -> Command {
        let mut command = self.python();
        command.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
        command
    }

    /// The path of the environment's Python.
    pub fn interpreter(&self) -> PathBuf {
        self.folder.join(if cfg!(windows) { "Scripts/python.exe" } else { "bin/python" })
    }

    /// False for an environment whose creation was interrupted: pip is installed last.
    fn has_pip(&self) -> bool {
        exec::probe(self.python().args(["-c", "import pip"])).is_some()
    }

    fn remove(&self) -> Result<(), String> {
        if !self.folder.exists() {
            return Ok(());
        }
        std::fs::remove_dir_all(&self.folder)
            .map_err(|error| format!("cannot remove the old {}: {error}", self.folder.display()))
    }
}

/// A Python found on this machine.
struct Python {
    path: PathBuf,
    version: String,
}

/// `$PYTHON` when set, else the first of `python3` and `python` that is new enough.
fn find_python() -> Result<Python, String> {
    let chosen = std::env::var_os("PYTHON").filter(|python| !python.is_empty());
    let candidates = match &chosen {
        Some(python) => vec![PathBuf::from(python)],
        None => vec![PathBuf::from("python3"), PathBuf::from("python")],
    };
    let mut seen = Vec::new();
    for path in candidates {
        match version(&path) {
            Some(version) if new_enough(&version) => return Ok(Python { path, version }),
            Some(version) => seen.push(format!("`{}` is {version}", path.display())),
            None => seen.push(format!("`{}` does not run", path.display())),
        }
    }
    let (major, minor) = OLDEST;
    Err(format!(
        "the Python tests need Python {major}.{minor} or newer ({}); install one, or set PYTHON to its path, \
         or run `cargo xtask test --rust`",
        seen.join(", ")
    ))
}

/// The version an interpreter reports, such as `3.11.7`; `None` if it does not run.
fn version(python: &Path) -> Option<String> {
    exec::probe(Command::new(python).args(["-c", "import platform; print(platform.python_version())"]))
}

fn new_enough(version: &str) -> bool {
    let mut numbers = version.split('.').map_while(|part| part.parse::<u32>().ok());
    match (numbers.next(), numbers.next()) {
        (Some(major), Some(minor)) => (major, minor) >= OLDEST,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_compare_as_numbers() {
        for version in ["3.10.0", "3.14.0rc1", "3.15.0a2", "4.0.1"] {
            assert!(new_enough(version), "{version}");
        }
        for version in ["2.7.18", "3.9.20", "3", "", "pypy"] {
            assert!(!new_enough(version), "{version}");
        }
    }

    #[test]
    fn a_missing_interpreter_has_no_version() {
        assert_eq!(version(Path::new("no-such-python-anywhere")), None);
    }
}
