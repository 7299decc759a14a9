//! The registers of 64-bit ARM: NEON, which is always available.

use std::arch::aarch64::*;

use super::{Register, registers};

registers! {
    float32x4_t of 4 f32: vdupq_n_f32 vld1q_f32 vst1q_f32 vaddq_f32 |sum, x, y| vfmaq_f32(sum, x, y);
    float64x2_t of 2 f64: vdupq_n_f64 vld1q_f64 vst1q_f64 vaddq_f64 |sum, x, y| vfmaq_f64(sum, x, y);
}
