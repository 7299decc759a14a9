//! Resampling on a GPU: one result per thread, whose neighbours and weights are computed where they are used.

use max_core::kernel::Resample;
use max_core::{Coordinates, DType, Interpolation, Result, bail};
use max_driver::cuda::Source;

use super::matmul::row_major;
use super::text::typed;
use super::{Address, Call, Param, Plan, PlannedLaunch};

/// The threads of a block.
const THREADS: u64 = 256;

impl Plan {
    /// Adds resampling.
    pub(super) fn resample(&mut self, k: &Resample<i64>) -> Result<()> {
        let (dtype, nearest) = (k.source.dtype, k.interpolation.is_nearest());
        if k.out.dtype != dtype || (dtype == DType::Bool && !nearest) || k.size.iter().any(|&size| size < 1) {
            bail!(internal, "invalid resampling: {k:?}");
        }
        let shape = [k.outer, k.count[0], k.count[1], k.inner];
        let (_, results) = row_major(&shape)?;
        if shape.contains(&0) {
            return Ok(());
        }
        // Positions must stay within what the functions can compute.
        if (0..2).any(|axis| i128::from(k.size[axis]) * i128::from(k.count[axis]) > 1 << 60) {
            bail!(internal, "the positions of resampling overflow: {k:?}");
        }
        let mut params = vec![Param::Address(Address::of(&k.source)), Param::Address(Address::of(&k.out))];
        let sizes = [k.outer, k.size[0], k.size[1], k.count[0], k.count[1], k.inner];
        let strides = k.source.strides.iter().chain(&k.out.strides);
        params.extend(sizes.iter().chain(strides).map(|&number| Param::Number(number)));
        self.launches.push(PlannedLaunch::Function(Call {
            source: source(dtype, k.interpolation, k.coordinates),
            grid: [(results as u64).div_ceil(THREADS).clamp(1, 1 << 30) as u32, 1, 1],
            block: [THREADS as u32, 1, 1],
            shared: 0,
            params,
        }));
        Ok(())
    }
}

/// The function for a dtype and a rule. Integers are combined in double and truncated.
fn source(dtype: DType, interpolation: Interpolation, coordinates: Coordinates) -> Source {
    let where_ = match coordinates {
        Coordinates::HalfPixel => "HALF_PIXEL",
        Coordinates::AlignCorners => "ALIGN_CORNERS",
        Coordinates::Asymmetric => "ASYMMETRIC",
        Coordinates::HalfPixel1d => "HALF_PIXEL_1D",
    };
    let (rounding, filter) = match interpolation {
        Interpolation::NearestHalfDown => ("HALF_DOWN", ""),
        Interpolation::NearestHalfUp => ("HALF_UP", ""),
        Interpolation::NearestFloor => ("DOWN", ""),
        Interpolation::NearestCeil => ("UP", ""),
        Interpolation::Linear => ("DOWN", "LINEAR"),
        Interpolation::LinearAntialias => ("DOWN", "TENT"),
        Interpolation::Cubic => ("DOWN", "CUBIC"),
    };
    let mut words = vec![("COORDINATES", where_), ("ROUNDING", rounding)];
    let position = include_str!("resample/position.cu");
    if interpolation.is_nearest() {
        let size = dtype.size_in_bytes();
        words.push((
            "UNIT",
            match size {
                1 => "unsigned char",
                2 => "unsigned short",
                4 => "unsigned int",
                _ => "unsigned long long",
            },
        ));
        let name = format!("resample_{interpolation}_{coordinates}_{size}");
        return typed(&name, &[], &words, &[position, include_str!("resample/nearest.cu")].concat());
    }
    let float = dtype.is_float();
    // The bounds of an integer type; the upper one is not a double if it has 64 bits, but the next number is.
    let store = if float {
        "IN_OF((SUM)(x))".to_string()
    } else {
        let bits = 8 * dtype.size_in_bytes() as i32;
        let signed = dtype.is_signed_integral();
        let top = 2f64.powi(if signed { bits - 1 } else { bits });
        let bottom = if signed { -top } else { 0.0 };
        let most = if signed { format!("(~0ull >> {})", 65 - bits) } else { "~0ull".to_string() };
        let least = if signed { format!("(1ull << {})", bits - 1) } else { "0".to_string() };
        format!("whole<IN>(settled(x), {bottom:e}, {top:e}, (IN){least}, (IN){most})")
    };
    words.extend([
        ("FILTER", filter),
        ("ACC", if float { "SUM" } else { "double" }),
        ("LOAD(x)", if float { "SUM_OF_IN(x)" } else { "((double)(x))" }),
        ("STORE(x)", &store),
    ]);
    let name = format!("resample_{interpolation}_{coordinates}_{dtype}");
    typed(&name, &[("IN", dtype)], &words, &[position, include_str!("resample/weighted.cu")].concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::nvrtc;

    #[test]
    fn functions_compile() {
        // Every rule of coordinates with one dtype, and every dtype with one of them.
        let mut sources = Vec::new();
        for &interpolation in Interpolation::ALL {
            let nearest = interpolation.is_nearest();
            let others = |dtype: &&DType| nearest || **dtype != DType::Bool;
            let dtypes = DType::ALL.iter().filter(others);
            sources.extend(dtypes.map(|&dtype| source(dtype, interpolation, Coordinates::HalfPixel)));
            let rules = Coordinates::ALL.iter().skip(1);
            sources.extend(rules.map(|&coordinates| source(DType::Float32, interpolation, coordinates)));
        }
        nvrtc::check(&sources);
    }
}
