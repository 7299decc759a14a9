//! Dumps of what the compiler produces, requested by environment variables.
//!
//! `MAX_DUMP_IR` names passes (`fold,cse`), `program` for the kernels, or `all`; `MAX_DUMP_DIR` names a folder for the
//! files. Without it, dumps go to standard error.

use std::fmt::Display;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::settings::say;

struct Wanted {
    stages: Vec<String>,
    folder: Option<PathBuf>,
}

fn wanted() -> Option<&'static Wanted> {
    static WANTED: OnceLock<Option<Wanted>> = OnceLock::new();
    let read = || {
        let stages = std::env::var("MAX_DUMP_IR").ok().filter(|text| !text.is_empty())?;
        let folder = std::env::var_os("MAX_DUMP_DIR").filter(|path| !path.is_empty()).map(PathBuf::from);
        Some(Wanted { stages: stages.split(',').map(|stage| stage.trim().to_string()).collect(), folder })
    };
    WANTED.get_or_init(read).as_ref()
}

/// Whether anything is dumped. If so, compiled programs are not taken from the cache.
pub(crate) fn is_wanted() -> bool {
    wanted().is_some()
}

/// Dumps a stage of compiling a graph, if it was requested.
pub(crate) fn dump(graph: &str, stage: &str, text: &dyn Display) {
    let Some(wanted) = wanted() else { return };
    if !wanted.stages.iter().any(|name| name == stage || name == "all") {
        return;
    }
    let Some(folder) = &wanted.folder else {
        say(format_args!("// {graph}: after {stage}\n{text}"));
        return;
    };
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let plain: String = graph.chars().map(|c| if c.is_alphanumeric() { c } else { '_' }).take(60).collect();
    let name = format!("{:04}-{plain}-{stage}.txt", COUNT.fetch_add(1, Ordering::Relaxed));
    let written =
        std::fs::create_dir_all(folder).and_then(|()| std::fs::write(folder.join(name), text.to_string()));
    if let Err(error) = written {
        say(format_args!("[max warning] cannot dump {stage} to {}: {error}", folder.display()));
    }
}
