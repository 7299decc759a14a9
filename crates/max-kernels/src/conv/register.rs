//! Registers of lanes, for the innermost loops of convolutions.

use bytemuck::Pod;
use max_core::scalar::Lane;

/// A register of lanes.
pub(super) trait Register: Copy {
    type Lane: Copy;
    const LANES: usize;

    /// The same lane everywhere.
    ///
    /// # Safety
    ///
    /// The register's instructions exist on this machine; so for all functions here.
    unsafe fn splat(lane: Self::Lane) -> Self;

    /// Lanes from memory.
    ///
    /// # Safety
    ///
    /// See `splat`; there are so many lanes.
    unsafe fn load(from: *const Self::Lane) -> Self;

    /// Lanes to memory.
    ///
    /// # Safety
    ///
    /// See `splat`; there is room for so many lanes.
    unsafe fn store(self, to: *mut Self::Lane);

    /// The sum with another.
    ///
    /// # Safety
    ///
    /// See `splat`.
    unsafe fn add(self, other: Self) -> Self;

    /// The sum with a product.
    ///
    /// # Safety
    ///
    /// See `splat`.
    unsafe fn add_product(self, x: Self, y: Self) -> Self;
}

/// A register whose lanes can change places.
pub(super) trait Turn: Register {
    /// In every group of `G` lanes, each from so many places further on, around the end.
    ///
    /// # Safety
    ///
    /// See `splat`.
    unsafe fn turn<const G: usize>(self, by: usize) -> Self;
}

#[cfg(target_arch = "x86_64")]
impl Turn for std::arch::x86_64::__m512 {
    #[inline(always)]
    unsafe fn turn<const G: usize>(self, by: usize) -> Self {
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

/// A register that the compiler makes from what there is.
#[derive(Clone, Copy)]
pub(super) struct Lanes<L, const N: usize>([L; N]);

impl<L: Lane + Pod, const N: usize> Register for Lanes<L, N> {
    type Lane = L;
    const LANES: usize = N;
    #[inline(always)]
    unsafe fn splat(lane: L) -> Self {
        Lanes([lane; N])
    }
    #[inline(always)]
    unsafe fn load(from: *const L) -> Self {
        // SAFETY: the caller has so many lanes there.
        Lanes(unsafe { from.cast::<[L; N]>().read_unaligned() })
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut L) {
        // SAFETY: the caller has room for so many lanes there.
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

/// The registers of x86, with the names of their instructions.
#[cfg(target_arch = "x86_64")]
macro_rules! registers {
    ($($register:ident of $count:literal $lane:ident: $splat:ident $load:ident $store:ident $add:ident $fma:ident;)*) => {$(
        impl Register for std::arch::x86_64::$register {
            type Lane = $lane;
            const LANES: usize = $count;
            #[inline(always)]
            unsafe fn splat(lane: $lane) -> Self {
                // SAFETY: the caller has checked that the instruction exists; so for all.
                unsafe { std::arch::x86_64::$splat(lane) }
            }
            #[inline(always)]
            unsafe fn load(from: *const $lane) -> Self {
                // SAFETY: see `splat`; and the caller has so many lanes there.
                unsafe { std::arch::x86_64::$load(from) }
            }
            #[inline(always)]
            unsafe fn store(self, to: *mut $lane) {
                // SAFETY: see `splat`; and the caller has room for so many lanes there.
                unsafe { std::arch::x86_64::$store(to, self) }
            }
            #[inline(always)]
            unsafe fn add(self, other: Self) -> Self {
                // SAFETY: see `splat`.
                unsafe { std::arch::x86_64::$add(self, other) }
            }
            #[inline(always)]
            unsafe fn add_product(self, x: Self, y: Self) -> Self {
                // SAFETY: see `splat`.
                unsafe { std::arch::x86_64::$fma(x, y, self) }
            }
        }
    )*};
}

#[cfg(target_arch = "x86_64")]
registers! {
    __m512 of 16 f32: _mm512_set1_ps _mm512_loadu_ps _mm512_storeu_ps _mm512_add_ps _mm512_fmadd_ps;
    __m512d of 8 f64: _mm512_set1_pd _mm512_loadu_pd _mm512_storeu_pd _mm512_add_pd _mm512_fmadd_pd;
    __m256 of 8 f32: _mm256_set1_ps _mm256_loadu_ps _mm256_storeu_ps _mm256_add_ps _mm256_fmadd_ps;
    __m256d of 4 f64: _mm256_set1_pd _mm256_loadu_pd _mm256_storeu_pd _mm256_add_pd _mm256_fmadd_pd;
}
