//! Memory that a thread works in: it grows to what the largest kernel needs and is reused.
//!
//! Where memory is [guarded](max_driver::guard), every call, and every piece, has its own block.

use std::cell::RefCell;
use std::mem::MaybeUninit;

use max_core::{Result, bail};
use max_driver::guard::{Guarded, guard};

/// A cache line, the unit of scratch memory.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct Line(pub(crate) [u8; 64]);

impl Line {
    pub(crate) const ZERO: Line = Line([0; 64]);
}

thread_local! {
    /// A stack, since a thread that waits for tasks may run one of them.
    static FREE: RefCell<Vec<Vec<Line>>> = const { RefCell::new(Vec::new()) };
}

/// Calls a function with this many bytes of the thread's scratch memory, aligned to a cache line; they hold what
/// earlier calls left there.
pub(crate) fn with<R>(bytes: usize, f: impl FnOnce(*mut u8) -> R) -> R {
    if let Some(block) = guarded(bytes) {
        return f(block.ptr().as_ptr());
    }
    let mut lines = FREE.with(|free| free.borrow_mut().pop()).unwrap_or_default();
    let needed = bytes.div_ceil(size_of::<Line>());
    if lines.len() < needed {
        lines.resize(needed, Line::ZERO);
    }
    let result = f(lines.as_mut_ptr().cast());
    FREE.with(|free| free.borrow_mut().push(lines));
    result
}

/// An empty list with room for this many elements, unless the system refuses.
pub(crate) fn list<T>(count: usize) -> Result<Vec<T>> {
    let mut list = Vec::new();
    match list.try_reserve_exact(count) {
        Ok(()) => Ok(list),
        Err(_) => bail!(memory, "the system refused to allocate a table of {count} entries"),
    }
}

/// Cache lines that a kernel keeps. Their contents are undefined until they are written.
#[derive(Debug)]
pub(crate) enum Lines {
    Heap(Vec<MaybeUninit<Line>>),
    Guarded(Guarded),
}

impl Lines {
    /// This many cache lines, unless the system refuses.
    pub(crate) fn new(count: usize) -> Option<Lines> {
        if let Some(block) = guarded(count.checked_mul(size_of::<Line>())?) {
            return Some(Lines::Guarded(block));
        }
        let mut lines = Vec::new();
        lines.try_reserve_exact(count).ok()?;
        lines.resize_with(count, MaybeUninit::uninit);
        Some(Lines::Heap(lines))
    }

    /// The first byte, for writing.
    pub(crate) fn ptr_mut(&mut self) -> *mut u8 {
        match self {
            Lines::Heap(lines) => lines.as_mut_ptr().cast(),
            Lines::Guarded(block) => block.ptr().as_ptr(),
        }
    }

    /// The first byte.
    pub(crate) fn ptr(&self) -> *const u8 {
        match self {
            Lines::Heap(lines) => lines.as_ptr().cast(),
            Lines::Guarded(block) => block.ptr().as_ptr(),
        }
    }

    /// The number of bytes.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Lines::Heap(lines) => size_of_val(&lines[..]),
            Lines::Guarded(block) => block.len(),
        }
    }
}

/// Guarded memory that starts at a cache line, if memory is guarded. A test that asked for guards must not go on without.
fn guarded(bytes: usize) -> Option<Guarded> {
    let side = guard()?;
    match Guarded::new(bytes, size_of::<Line>(), side) {
        Some(block) => Some(block.poisoned()),
        None => panic!("the system refused {bytes} bytes of guarded scratch memory"),
    }
}

/// Pieces of scratch memory, one after the other.
pub(crate) struct Pieces {
    next: *mut u8,
    left: usize,
    /// Those that are guarded.
    guarded: Vec<Guarded>,
}

/// The bytes that a piece of this many elements takes.
pub(crate) const fn bytes<T>(count: usize) -> usize {
    (count * size_of::<T>()).next_multiple_of(size_of::<Line>())
}

impl Pieces {
    /// A piece for this many elements, aligned to a cache line. It holds old but valid bytes.
    pub(crate) fn take<T: bytemuck::Pod>(&mut self, count: usize) -> *mut T {
        let bytes = bytes::<T>(count);
        assert!(bytes <= self.left, "a task takes more scratch memory than it asked for");
        self.left -= bytes;
        if let Some(block) = guarded(count * size_of::<T>()) {
            let piece = block.ptr().as_ptr().cast();
            self.guarded.push(block);
            return piece;
        }
        let piece = self.next.cast();
        self.next = self.next.wrapping_add(bytes);
        piece
    }
}

/// As [`with`], for memory that is taken piece by piece.
pub(crate) fn pieces<R>(bytes: usize, f: impl FnOnce(&mut Pieces) -> R) -> R {
    with(bytes, |next| f(&mut Pieces { next, left: bytes, guarded: Vec::new() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_uses_are_apart() {
        let first = with(100, |a| {
            assert_eq!(a as usize % 64, 0);
            with(200, |b| assert_ne!(a, b));
            a
        });
        with(64, |again| assert!(again == first || guard().is_some()));
    }
}
