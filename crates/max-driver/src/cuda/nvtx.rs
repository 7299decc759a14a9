//! Ranges that NVIDIA's profilers show: nothing happens unless one is attached.

/// A range of the calling thread, from its making to its end. Ranges nest.
pub struct Range(());

/// Begins a range.
pub fn range(_name: &str) -> Range {
    Range(())
}
