//! Registers whose lanes change places, for groups of few channels.

use crate::register::Register;

/// A register whose lanes can change places.
pub(super) trait Rotate: Register {
    /// In every group of `G` lanes, each from so many places further on, around the end.
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
        let mut places = [0i32; 16];
        for (i, place) in places.iter_mut().enumerate() {
            *place = (i / G * G + (i + by) % G) as i32;
        }
        // SAFETY: the caller has checked that the instructions exist.
        unsafe {
            let places = std::arch::x86_64::_mm512_loadu_si512(places.as_ptr().cast());
            std::arch::x86_64::_mm512_permutexvar_ps(places, self)
        }
    }
}
