//! Registers whose lanes rotate within groups, for groups of few channels.

use crate::register::Register;

/// A register whose lanes can rotate.
pub(super) trait Rotate: Register {
    /// Rotates every group of `G` lanes: each lane takes the one `by` places further on, wrapping around.
    ///
    /// # Safety
    ///
    /// See `splat`.
    unsafe fn rotate<const G: usize>(self, by: usize) -> Self;
}

#[cfg(target_arch = "x86_64")]
impl Rotate for std::arch::x86_64::__m512 {
    #[inline(always)]
    unsafe fn rotate<const G: usize>(self, by: usize) -> Self {
        let mut indices = [0i32; 16];
        for (i, index) in indices.iter_mut().enumerate() {
            *index = (i / G * G + (i + by) % G) as i32;
        }
        // SAFETY: the caller has checked that the instructions exist.
        unsafe {
            let indices = std::arch::x86_64::_mm512_loadu_si512(indices.as_ptr().cast());
            std::arch::x86_64::_mm512_permutexvar_ps(indices, self)
        }
    }
}
