//! How far long work is: a bar on standard error, if that is a terminal.

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use max_pipelines::hub::Progress;

/// Work that takes no longer than this needs no bar.
const PATIENCE: Duration = Duration::from_millis(300);

/// A bar that appears once work turns out to be long.
pub struct Bar {
    bar: ProgressBar,
    start: Instant,
    done: Cell<u64>,
}

impl Bar {
    /// Work on a number of items.
    pub fn of_items(count: usize) -> Bar {
        Bar::new(count as u64, "{wide_bar} {pos}/{len}  {eta} left")
    }

    /// Work on a number of bytes.
    pub fn of_bytes(name: &str, count: u64) -> Bar {
        let bar = Bar::new(count, "{msg} {wide_bar} {decimal_bytes}/{decimal_total_bytes}  {eta} left");
        bar.bar.set_message(name.to_string());
        bar
    }

    fn new(count: u64, template: &str) -> Bar {
        let bar = ProgressBar::new(count);
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Bar { bar, start: Instant::now(), done: Cell::new(0) }
    }

    /// More of it is done.
    pub fn advance(&self, count: usize) {
        self.set(self.done.get() + count as u64);
    }

    /// So much of it is done.
    pub fn set(&self, done: u64) {
        self.done.set(done);
        if self.start.elapsed() > PATIENCE {
            self.bar.set_position(done);
        }
    }

    /// Removes the bar.
    pub fn clear(&self) {
        self.bar.finish_and_clear();
    }
}

/// Bars of downloads, one file after the other.
pub fn downloads() -> impl Fn(Progress) {
    let current: RefCell<Option<(String, Bar)>> = RefCell::new(None);
    move |Progress { file, done, total }| {
        let mut current = current.borrow_mut();
        if current.as_ref().is_none_or(|(name, _)| name != file) {
            *current = Some((file.to_string(), Bar::of_bytes(file, total)));
        }
        let Some((_, bar)) = &*current else { return };
        bar.set(done);
        if done == total {
            bar.clear();
        }
    }
}
