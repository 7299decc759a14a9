//! SIMD registers, for innermost loops that keep sums in them.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

use bytemuck::Pod;
use max_core::scalar::Lane;

/// A register of lanes.
pub(crate) trait Register: Copy {
    type Lane: Copy;
    const LANES: usize;

    /// The same lane everywhere.
    ///
    /// # Safety
    ///
    /// The register's instructions exist on this machine; likewise for all functions here.
    unsafe fn splat(lane: Self::Lane) -> Self;

    /// Lanes from memory.
    ///
    /// # Safety
    ///
    /// See `splat`; `from` is valid for reading `LANES` lanes.
    unsafe fn load(from: *const Self::Lane) -> Self;

    /// Lanes to memory.
    ///
    /// # Safety
    ///
    /// See `splat`; `to` is valid for writing `LANES` lanes.
    unsafe fn store(self, to: *mut Self::Lane);

    /// Adds another register.
    ///
    /// # Safety
    ///
    /// See `splat`.
    unsafe fn add(self, other: Self) -> Self;

    /// Adds a product.
    ///
    /// # Safety
    ///
    /// See `splat`.
    unsafe fn add_product(self, x: Self, y: Self) -> Self;
}

/// An array of lanes that the compiler maps to the registers of the machine.
#[derive(Clone, Copy)]
pub(crate) struct Lanes<L, const N: usize>(pub(crate) [L; N]);

impl<L: Lane + Pod, const N: usize> Register for Lanes<L, N> {
    type Lane = L;
    const LANES: usize = N;
    #[inline(always)]
    unsafe fn splat(lane: L) -> Self {
        Lanes([lane; N])
    }
    #[inline(always)]
    unsafe fn load(from: *const L) -> Self {
        // SAFETY: the caller guarantees that the lanes can be read.
        Lanes(unsafe { from.cast::<[L; N]>().read_unaligned() })
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut L) {
        // SAFETY: the caller guarantees that the lanes can be written.
        unsafe { to.cast::<[L; N]>().write_unaligned(self.0) };
    }
    #[inline(always)]
    unsafe fn add(mut self, other: Self) -> Self {
        for i in 0..N {
            self.0[i] = self.0[i].add(other.0[i]);
        }
        self
    }
    #[inline(always)]
    unsafe fn add_product(mut self, x: Self, y: Self) -> Self {
        for i in 0..N {
            self.0[i] = self.0[i].add(x.0[i].mul(y.0[i]));
        }
        self
    }
}

/// The registers of an architecture, with the names of their instructions.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! registers {
    ($($register:ident of $count:literal $lane:ident: $splat:ident $load:ident $store:ident $add:ident
        |$sum:ident, $x:ident, $y:ident| $fma:expr;)*) => {$(
        impl Register for $register {
            type Lane = $lane;
            const LANES: usize = $count;
            #[inline(always)]
            unsafe fn splat(lane: $lane) -> Self {
                // SAFETY: the caller has checked that the instruction exists; likewise below.
                unsafe { $splat(lane) }
            }
            #[inline(always)]
            unsafe fn load(from: *const $lane) -> Self {
                // SAFETY: see `splat`; and the caller guarantees that the lanes can be read.
                unsafe { $load(from) }
            }
            #[inline(always)]
            unsafe fn store(self, to: *mut $lane) {
                // SAFETY: see `splat`; and the caller guarantees that the lanes can be written.
                unsafe { $store(to, self) }
            }
            #[inline(always)]
            unsafe fn add(self, other: Self) -> Self {
                // SAFETY: see `splat`.
                unsafe { $add(self, other) }
            }
            #[inline(always)]
            unsafe fn add_product(self, $x: Self, $y: Self) -> Self {
                let $sum = self;
                // SAFETY: see `splat`.
                unsafe { $fma }
            }
        }
    )*};
}
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use registers;
