//! Memory that a thread works in: it grows to what the largest kernel needs and is used again.

use std::cell::RefCell;

/// A cache line, the unit of scratch memory.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct Line(pub(super) [u8; 64]);

impl Line {
    pub(super) const ZERO: Line = Line([0; 64]);
}

thread_local! {
    /// A stack, since a task may run on a thread that waits for the tasks it is one of.
    static FREE: RefCell<Vec<Vec<Line>>> = const { RefCell::new(Vec::new()) };
}

/// Calls a function with so many bytes of this thread, aligned to a cache line; what they hold is left from earlier
/// calls.
pub(super) fn with<R>(bytes: usize, f: impl FnOnce(*mut u8) -> R) -> R {
    let mut lines = FREE.with(|free| free.borrow_mut().pop()).unwrap_or_default();
    let needed = bytes.div_ceil(size_of::<Line>());
    if lines.len() < needed {
        lines.resize(needed, Line::ZERO);
    }
    let result = f(lines.as_mut_ptr().cast());
    FREE.with(|free| free.borrow_mut().push(lines));
    result
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
        with(64, |again| assert_eq!(again, first));
    }
}
