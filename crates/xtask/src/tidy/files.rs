//! The text files the rules look at: those git tracks or would add, or all files where there is no git.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::File;
use crate::exec;

/// Folders without sources, for a tree without git's ignore rules.
const SKIPPED: &[&str] = &["target", "venv", "dist", "node_modules", "__pycache__"];

/// Reads every text file of the repository; files that are not UTF-8 are left out.
pub fn read(root: &Path) -> Result<Vec<File>, String> {
    let mut paths = match listed_by_git(root) {
        Some(paths) => paths,
        None => walked(root)?,
    };
    paths.sort();
    paths.dedup();
    let mut files = Vec::new();
    for path in paths {
        let full = root.join(&path);
        // Git lists deleted files too, and links, whose targets are listed themselves.
        if !full.symlink_metadata().is_ok_and(|metadata| metadata.is_file()) {
            continue;
        }
        let bytes = std::fs::read(&full).map_err(|error| format!("cannot read {path}: {error}"))?;
        if let Ok(text) = String::from_utf8(bytes) {
            files.push(File { path, text });
        }
    }
    Ok(files)
}

/// `None` without git, or if the folder is not a repository of its own.
fn listed_by_git(root: &Path) -> Option<Vec<String>> {
    let mut command = Command::new("git");
    command.current_dir(root).args(["ls-files", "-z", "-co", "--exclude-standard"]);
    let output = exec::probe(&mut command)?;
    let paths: Vec<_> = output.split('\0').filter(|path| !path.is_empty()).map(String::from).collect();
    (!paths.is_empty()).then_some(paths)
}

fn walked(root: &Path) -> Result<Vec<String>, String> {
    let mut paths = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        let failed = |error| format!("cannot list {}: {error}", root.join(&folder).display());
        for entry in std::fs::read_dir(root.join(&folder)).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = folder.join(&name);
            let kind = entry.file_type().map_err(failed)?;
            if kind.is_file() {
                let parts: Vec<_> = path.iter().map(|part| part.to_string_lossy()).collect();
                paths.push(parts.join("/"));
            } else if kind.is_dir() && !name.starts_with('.') && !SKIPPED.contains(&name.as_str()) {
                folders.push(path);
            }
        }
    }
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn walking_finds_this_crate() {
        let package = Path::new(env!("CARGO_MANIFEST_DIR"));
        let paths = walked(package).unwrap();
        assert!(paths.contains(&"src/tidy/files.rs".to_owned()), "{paths:?}");
        assert!(paths.contains(&"Cargo.toml".to_owned()), "{paths:?}");
    }

    #[test]
    fn a_missing_folder_is_an_error() {
        assert!(walked(Path::new("no-such-folder-anywhere")).unwrap_err().contains("no-such-folder"));
    }
}
