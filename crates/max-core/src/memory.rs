//! Checks whether the system can still provide memory.
//!
//! Rust aborts the process when a vector cannot grow. Memory that grows with a user's graph is therefore requested
//! beforehand: for large vectors one by one, for the many small allocations of ops all together.

use std::hint::black_box;

use crate::{Error, Result};

/// An error unless the system would provide this many bytes now. They are not kept, so this is not a guarantee: other
/// threads may take them, and a system that overcommits memory may kill the process later.
pub fn require_memory(bytes: usize, what: &str) -> Result<()> {
    let mut probe: Vec<u8> = Vec::new();
    let given = probe.try_reserve_exact(bytes);
    // The compiler may remove an allocation that nobody looks at.
    black_box(probe.as_ptr());
    given.map_err(|_| refused(bytes, what))
}

/// Reserves room for this many more elements; an error if the system refuses.
pub fn try_reserve<T>(vec: &mut Vec<T>, more: usize, what: &str) -> Result<()> {
    vec.try_reserve(more).map_err(|_| refused((vec.len() + more).saturating_mul(size_of::<T>()), what))
}

fn refused(bytes: usize, what: &str) -> Error {
    Error::memory(format!("the system refused to allocate {bytes} bytes of host memory for {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn what_no_system_has_is_refused() {
        assert!(require_memory(1 << 10, "a test").is_ok());
        let error = require_memory(usize::MAX / 2, "a test").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Memory);
        assert!(error.message().ends_with("for a test"), "{error}");
        let mut vec = vec![1u64];
        assert!(try_reserve(&mut vec, 10, "a test").is_ok() && vec.capacity() >= 11);
        assert_eq!(try_reserve(&mut vec, usize::MAX / 16, "a test").unwrap_err().kind(), ErrorKind::Memory);
    }
}
