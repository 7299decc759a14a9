//! Memory that a task works in: one piece a thread, kept for the next task.

use std::cell::Cell;

/// The unit of scratch memory, a cache line.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

thread_local! {
    static KEPT: Cell<Vec<Line>> = const { Cell::new(Vec::new()) };
}

/// Pieces of scratch memory, one after the other.
pub(crate) struct Scratch {
    next: *mut u8,
    left: usize,
}

/// The bytes that a piece of so many elements takes.
pub(crate) const fn bytes<T>(count: usize) -> usize {
    (count * size_of::<T>()).next_multiple_of(64)
}

impl Scratch {
    /// A piece for so many elements, at the start of a cache line. It holds old but valid bytes.
    pub(crate) fn take<T: bytemuck::Pod>(&mut self, count: usize) -> *mut T {
        let bytes = bytes::<T>(count);
        assert!(bytes <= self.left, "a task takes more scratch memory than it asked for");
        let piece = self.next.cast();
        self.next = self.next.wrapping_add(bytes);
        self.left -= bytes;
        piece
    }
}

/// Calls a function with so many bytes of scratch memory; calls may nest.
pub(crate) fn with<R>(bytes: usize, f: impl FnOnce(&mut Scratch) -> R) -> R {
    let mut kept = KEPT.take();
    let lines = bytes.div_ceil(64);
    if kept.len() < lines {
        kept.resize(lines, Line([0; 64]));
    }
    let result = f(&mut Scratch { next: kept.as_mut_ptr().cast(), left: kept.len() * 64 });
    KEPT.set(kept);
    result
}
