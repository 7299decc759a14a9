//! Observing realization: what was computed, when and why, what was fused, and how long it took.
//!
//! A [`Trace`] records what happens while it lives, in all threads. The environment variable `MAX_TRACE_REALIZATION` does
//! the same for a whole process, without any code: `text` writes to standard error, a path that ends in `.html` names a
//! file for a page with a picture of every graph.

use std::fmt::{self, Write as _};
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, Weak};
use std::time::Duration;

use max_core::{Error, Location, Result};
use max_engine::Model;

use crate::lock;
use crate::realize::Reason;

/// One execution of recorded ops.
#[derive(Clone, Debug)]
pub struct Realization {
    /// Why it ran.
    pub reason: Reason,
    /// The line of the user's program, if known.
    pub location: Option<Location>,
    /// How many ops had been recorded.
    pub ops: usize,
    /// How many tensors it computed.
    pub tensors: usize,
    /// Whether it had to be compiled first.
    pub compiled: bool,
    /// How long it took to find or to compile its model.
    pub preparing: Duration,
    /// How long the model ran; on a GPU, how long it took to enqueue it.
    pub running: Duration,
    /// The model that ran.
    pub model: Arc<Model>,
}

/// Records realizations from its start until it is dropped.
///
/// ```
/// use max_tensor::{Tensor, Trace, functional, functions as F};
///
/// let x = Tensor::from([1.0f32, -2.0]);
/// let trace = Trace::start();
/// functional(|| F::relu((&x + 1.0)?))?;
/// let seen = trace.realizations();
/// assert_eq!(seen.len(), 1);
/// assert_eq!(seen[0].model.kernel_summaries().len(), 1); // both ops in one kernel
/// # Ok::<(), max_core::Error>(())
/// ```
#[derive(Debug)]
pub struct Trace(Arc<Mutex<Kept>>);

#[derive(Debug, Default)]
struct Kept {
    realizations: Vec<Realization>,
    left_out: usize,
}

/// The most realizations that a trace keeps.
const MOST: usize = 10_000;

/// The most pictures on a page.
const MOST_PICTURES: usize = 200;

static TRACES: Mutex<Vec<Weak<Mutex<Kept>>>> = Mutex::new(Vec::new());
/// How many traces are active.
static STARTED: AtomicUsize = AtomicUsize::new(0);

impl Trace {
    /// Starts recording realizations.
    pub fn start() -> Trace {
        let trace = Trace(Arc::default());
        lock(&TRACES).push(Arc::downgrade(&trace.0));
        STARTED.fetch_add(1, Ordering::Relaxed);
        trace
    }

    /// Stops recording.
    pub fn stop(&self) {
        let mut traces = lock(&TRACES);
        let own = traces.iter().position(|trace| std::ptr::eq(trace.as_ptr(), Arc::as_ptr(&self.0)));
        if let Some(own) = own {
            traces.swap_remove(own);
            STARTED.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// The realizations so far, in order; if there are very many, the first of them.
    pub fn realizations(&self) -> Vec<Realization> {
        lock(&self.0).realizations.clone()
    }

    /// The realizations so far, as text.
    pub fn text(&self) -> String {
        let kept = lock(&self.0);
        let mut text: String = kept.realizations.iter().map(Realization::to_string).collect();
        if kept.left_out > 0 {
            let _ = writeln!(text, "and {} more", kept.left_out);
        }
        text
    }

    /// The realizations so far, as a page with a picture of each graph and what was fused in it.
    pub fn html(&self) -> String {
        let kept = lock(&self.0);
        let mut page = page_start();
        for realization in kept.realizations.iter().take(MOST_PICTURES) {
            page += &realization.section();
        }
        let left_out = kept.left_out + kept.realizations.len().saturating_sub(MOST_PICTURES);
        if left_out > 0 {
            let _ = writeln!(page, "<p>and {left_out} more</p>");
        }
        page
    }

    /// Writes the page of [`Trace::html`] to a file.
    pub fn save(&self, path: impl Into<PathBuf>) -> Result<()> {
        let path = path.into();
        std::fs::write(&path, self.html())
            .map_err(|error| Error::runtime(format!("cannot write {}: {error}", path.display())))
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        self.stop();
    }
}

/// What the environment variable asks for.
enum Wanted {
    Nothing,
    Text,
    /// To a file, and the number of sections in it.
    Page(Mutex<(PathBuf, usize)>),
}

static WANTED: LazyLock<Wanted> = LazyLock::new(|| match std::env::var("MAX_TRACE_REALIZATION") {
    Ok(path) if path.ends_with(".html") => match std::fs::write(&path, page_start()) {
        Ok(()) => Wanted::Page(Mutex::new((path.into(), 0))),
        Err(error) => {
            complain(&format!("MAX_TRACE_REALIZATION: cannot write {path}: {error}"));
            Wanted::Nothing
        }
    },
    Ok(mode) if ["text", "1"].contains(&mode.as_str()) => Wanted::Text,
    Ok(mode) if ["", "0"].contains(&mode.as_str()) => Wanted::Nothing,
    Ok(mode) => {
        complain(&format!(
            "MAX_TRACE_REALIZATION: expected 'text' or the path of an .html file, got '{mode}'"
        ));
        Wanted::Nothing
    }
    Err(_) => Wanted::Nothing,
});

/// Writes a line to standard error; a failure is ignored, as there is nowhere to report it.
fn complain(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Whether anybody wants to know about realizations.
pub fn is_tracing() -> bool {
    STARTED.load(Ordering::Relaxed) > 0 || !matches!(*WANTED, Wanted::Nothing)
}

/// Tells every active trace.
pub(crate) fn tell(realization: Realization) {
    match &*WANTED {
        Wanted::Nothing => {}
        Wanted::Text => {
            let _ = write!(std::io::stderr(), "{realization}");
        }
        Wanted::Page(page) => add_section(&mut lock(page), &realization),
    }
    for trace in lock(&TRACES).iter().filter_map(Weak::upgrade) {
        let mut kept = lock(&trace);
        match kept.realizations.len() < MOST {
            true => kept.realizations.push(realization.clone()),
            false => kept.left_out += 1,
        }
    }
}

/// Adds a section to a page, unless it has enough already.
fn add_section((path, sections): &mut (PathBuf, usize), realization: &Realization) {
    *sections = sections.saturating_add(1);
    let section = match *sections {
        ..=MOST_PICTURES => realization.section(),
        number if number == MOST_PICTURES + 1 => "<p>and more</p>\n".to_owned(),
        _ => return,
    };
    let opened = OpenOptions::new().append(true).open(&*path);
    if let Err(error) = opened.and_then(|mut file| file.write_all(section.as_bytes())) {
        complain(&format!("MAX_TRACE_REALIZATION: cannot write {}: {error}", path.display()));
    }
}

fn count(number: usize, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}

impl Realization {
    /// What happened, in one line.
    pub fn headline(&self) -> String {
        let place = self.location.as_ref().map_or_else(String::new, |location| format!(" at {location}"));
        let kernels = self.model.kernel_summaries().len();
        format!(
            "{} realized by {}{place}: {} in {}, {} in {:.1?}, ran in {:.1?}",
            count(self.tensors, "tensor"),
            self.reason,
            count(self.ops, "op"),
            count(kernels, "kernel"),
            if self.compiled { "compiled" } else { "found" },
            self.preparing,
            self.running,
        )
    }

    /// A section of the page.
    fn section(&self) -> String {
        let title = escape(&self.headline());
        let summary = escape(&self.model.fusion_summary());
        format!("<section><h2>{title}</h2>\n<pre>{summary}</pre>\n{}\n</section>\n", self.model.picture())
    }
}

/// The headline, and a line per kernel.
impl fmt::Display for Realization {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.headline())?;
        self.model.fusion_summary().lines().try_for_each(|line| writeln!(f, "  {line}"))
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// The start of a page; it is valid without an end, so that sections can be appended.
fn page_start() -> String {
    "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>Realizations</title>\n<style>\n\
     :root { color-scheme: light dark; }\n\
     body { font: 15px/1.5 system-ui, sans-serif; max-width: 80rem; margin: 2rem auto; padding: 0 1rem; }\n\
     h2 { font-size: 1rem; margin-top: 2.5rem; }\n\
     pre { overflow-x: auto; }\n\
     svg { max-width: 100%; height: auto; }\n\
     </style>\n</head>\n<body>\n<h1>Realizations</h1>\n\
     <p>Each section is one program: the ops that were recorded, and the kernels they were fused into.</p>\n"
        .to_owned()
}
