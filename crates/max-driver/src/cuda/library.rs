//! Libraries that are opened when they are first needed, as tables of functions.
//!
//! A library is looked up by its versioned names, newest first: where the system looks, in the folders given to
//! [`search_in`], and in the usual places of a CUDA toolkit. A missing library or function is an error that says what
//! was looked for, where, and what to install.

use std::error::Error as _;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use libloading::Library;
use max_core::{Error, Result};

static FOLDERS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Adds folders to look for libraries in, before the usual ones. Python environments have their own.
pub fn search_in(folders: impl IntoIterator<Item = PathBuf>) {
    let mut known = FOLDERS.lock().unwrap_or_else(PoisonError::into_inner);
    for folder in folders {
        if !known.contains(&folder) {
            known.push(folder);
        }
    }
}

/// Where to look in addition to the system's search path.
fn folders() -> Vec<PathBuf> {
    let mut folders = FOLDERS.lock().unwrap_or_else(PoisonError::into_inner).clone();
    for variable in ["CUDA_HOME", "CUDA_PATH"] {
        let home = std::env::var_os(variable).map(PathBuf::from).filter(|home| home.is_absolute());
        folders.extend(home.map(|home| home.join("lib64")));
    }
    folders.push("/usr/local/cuda/lib64".into());
    folders
}

/// How to find a library.
pub(crate) struct Wanted {
    /// Its name in messages.
    pub(crate) title: &'static str,
    /// Its possible file names, best first.
    pub(crate) files: &'static [&'static str],
    /// What to install if it is missing.
    pub(crate) install: &'static str,
}

/// Opens a library by the first name and in the first folder that has it.
pub(crate) fn open(wanted: &Wanted) -> Result<(Library, String)> {
    open_in(&folders(), wanted)
}

fn open_in(folders: &[PathBuf], wanted: &Wanted) -> Result<(Library, String)> {
    let mut reason = String::new();
    let mut broken = None;
    for file in wanted.files {
        let places = folders.iter().map(|folder| folder.join(file)).filter(|path| path.exists());
        for place in std::iter::once(OsString::from(file)).chain(places.map(PathBuf::into_os_string)) {
            // SAFETY: these are NVIDIA's libraries, whose initializers may run at any time.
            match unsafe { Library::new(&place) } {
                Ok(library) => return Ok((library, place.to_string_lossy().into_owned())),
                Err(error) => {
                    // The reason is in the cause, if there is one. A file that exists but does not open is more
                    // informative than one that is missing.
                    let says = || error.source().map_or_else(|| error.to_string(), ToString::to_string);
                    if broken.is_none() && place != **file {
                        broken = Some(says());
                    } else if reason.is_empty() {
                        reason = says();
                    }
                }
            }
        }
    }
    if let Some(reason) = broken {
        return Err(Error::runtime(format!(
            "{} could not be loaded: {reason}; {}",
            wanted.title, wanted.install
        )));
    }
    let looked: Vec<_> = folders.iter().map(|folder| folder.display().to_string()).collect();
    Err(Error::runtime(format!(
        "{} could not be loaded: none of {} was found where the system looks, nor in {} ({reason}); {}",
        wanted.title,
        wanted.files.join(", "),
        looked.join(", "),
        wanted.install,
    )))
}

/// A function of a library.
///
/// # Safety
///
/// `F` is the type of the function.
pub(crate) unsafe fn function<F: Copy>(
    library: &Library,
    file: &str,
    wanted: &Wanted,
    name: &str,
) -> Result<F> {
    // SAFETY: guaranteed by the caller.
    match unsafe { library.get::<F>(name) } {
        Ok(function) => Ok(*function),
        Err(_) => Err(Error::runtime(format!(
            "{} has no function {name}: {file} is too old or too new a version; {}",
            wanted.title, wanted.install
        ))),
    }
}

/// Declares a library as a table of functions under their own names, all looked up when it is loaded.
macro_rules! library {
    ($(#[$doc:meta])* $name:ident = $wanted:expr; $(fn $function:ident($($arg:ident: $type:ty),* $(,)?) -> $out:ty;)*) => {
        $(#[$doc])*
        #[allow(non_snake_case, dead_code, reason = "the library's own names; not every library's file is asked for")]
        pub(crate) struct $name {
            $($function: unsafe extern "C" fn($($type),*) -> $out,)*
            /// Keeps the functions loaded.
            _library: libloading::Library,
            /// The file it was loaded from.
            pub(crate) file: String,
        }

        #[allow(non_snake_case, dead_code, clippy::too_many_arguments, reason = "the library's own signatures")]
        impl $name {
            pub(crate) fn load() -> max_core::Result<$name> {
                let wanted = $wanted;
                let (library, file) = $crate::cuda::library::open(&wanted)?;
                // SAFETY: the declarations are those of the library's published headers.
                unsafe {
                    Ok($name {
                        $($function: $crate::cuda::library::function(&library, &file, &wanted, stringify!($function))?,)*
                        _library: library,
                        file,
                    })
                }
            }

            $(pub(crate) unsafe fn $function(&self, $($arg: $type),*) -> $out {
                // SAFETY: the caller meets the requirements of the library's documentation.
                unsafe { (self.$function)($($arg),*) }
            })*
        }
    };
}

pub(crate) use library;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_does_not_open_says_more_than_one_that_is_missing() {
        let folder = std::env::temp_dir().join(format!("max-rs-library-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let wanted = Wanted {
            title: "a library",
            files: &["libmax-nowhere.so.2", "libmax-nowhere.so.1"],
            install: "install it",
        };
        let error = || open_in(std::slice::from_ref(&folder), &wanted).err().unwrap().message().to_owned();
        let missing = error();
        assert!(missing.contains("none of libmax-nowhere.so.2, libmax-nowhere.so.1 was found"), "{missing}");
        std::fs::write(folder.join("libmax-nowhere.so.1"), "no library").unwrap();
        let broken = error();
        assert!(broken.contains(&*folder.to_string_lossy()) && broken.contains("install it"), "{broken}");
        assert!(!broken.contains("none of"), "{broken}");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
