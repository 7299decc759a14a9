//! The registers of x86-64: AVX-512 and AVX2.

use std::arch::x86_64::*;

use super::{Register, registers};

registers! {
    __m512 of 16 f32: _mm512_set1_ps _mm512_loadu_ps _mm512_storeu_ps _mm512_add_ps |sum, x, y| _mm512_fmadd_ps(x, y, sum);
    __m512d of 8 f64: _mm512_set1_pd _mm512_loadu_pd _mm512_storeu_pd _mm512_add_pd |sum, x, y| _mm512_fmadd_pd(x, y, sum);
    __m256 of 8 f32: _mm256_set1_ps _mm256_loadu_ps _mm256_storeu_ps _mm256_add_ps |sum, x, y| _mm256_fmadd_ps(x, y, sum);
    __m256d of 4 f64: _mm256_set1_pd _mm256_loadu_pd _mm256_storeu_pd _mm256_add_pd |sum, x, y| _mm256_fmadd_pd(x, y, sum);
}
