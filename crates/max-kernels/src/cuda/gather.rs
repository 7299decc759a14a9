//! Gathers on a GPU: slices are copied in units as wide as their alignment allows.

use max_core::kernel::Gather;
use max_core::{DType, Result, bail};
use max_driver::cuda::Source;

use super::text::typed;
use super::{Address, Call, Param, Plan, PlannedLaunch};

/// The threads of a block, and the most that copy a slice together.
const THREADS: u64 = 256;

/// How many units of a slice a thread copies before a long slice gets another block.
const UNITS: u64 = 4;

impl Plan {
    /// Adds a gather.
    pub(super) fn gather(&mut self, k: &Gather<i64>) -> Result<()> {
        if k.source.dtype != k.out.dtype || !k.indices.dtype.is_integral() {
            let [source, indices, out] = [&k.source, &k.indices, &k.out].map(|access| access.dtype);
            bail!(internal, "a gather of {source} into {out} with {indices} indices");
        }
        let Some(slices) =
            k.outer.checked_mul(k.picks).filter(|slices| slices.checked_mul(k.inner).is_some())
        else {
            bail!(internal, "a gather of {} x {} x {} elements", k.outer, k.picks, k.inner);
        };
        if k.picks == 0 {
            return Ok(());
        }
        // Indices are checked even if nothing is copied.
        let (outer, slices) = (k.outer.max(1), slices.max(k.picks));
        let copied = if k.outer == 0 { 0 } else { k.inner };
        let unit = unit(k);
        let (inner, strides) = in_units(k, copied, unit);
        let lanes = (inner.max(1) as u64).next_power_of_two().min(THREADS);
        let blocks = (slices as u64).div_ceil(THREADS / lanes).min(1 << 30);
        // Enough blocks for every multiprocessor, with some units per thread.
        let cuts = (inner as u64).div_ceil(lanes * UNITS).clamp(1, (1 << 15) / blocks.min(1 << 15));
        let mut params: Vec<Param> =
            [&k.source, &k.indices, &k.out].map(|access| Param::Address(Address::of(access))).to_vec();
        params.push(Param::Report);
        let log2 = i64::from(lanes.trailing_zeros());
        params.extend([outer, k.size, k.picks, inner, k.axis as i64, log2].map(Param::Number));
        params.extend(strides.map(Param::Number));
        self.launches.push(PlannedLaunch::Function(Call {
            source: source(unit, k.indices.dtype),
            grid: [blocks as u32, cuts as u32, 1],
            block: [THREADS as u32, 1, 1],
            shared: 0,
            params,
        }));
        Ok(())
    }
}

/// The bytes that are moved at once: 16, or fewer if the sizes or offsets of slices are not multiples of that.
fn unit(k: &Gather<i64>) -> i64 {
    let size = k.out.dtype.size_in_bytes() as i64;
    let runs = k.inner == 1 || (k.source.strides[2] == 1 && k.out.strides[2] == 1);
    let distances = [&k.source, &k.out]
        .into_iter()
        .flat_map(|access| [access.offset, access.strides[0], access.strides[1]]);
    let whole = |unit: &i64| {
        distances.clone().chain([k.inner]).all(|distance| distance.wrapping_mul(size) % unit == 0)
    };
    [16, 8, 4, 2].into_iter().find(|unit| *unit > size && runs && whole(unit)).unwrap_or(size)
}

/// The length of slices in units, and the strides of the source, the indices and the result.
fn in_units(k: &Gather<i64>, inner: i64, unit: i64) -> (i64, [i64; 7]) {
    let size = k.out.dtype.size_in_bytes() as i64;
    let per = unit / size;
    let [source, out] = [&k.source.strides, &k.out.strides]
        .map(|strides| [strides[0] / per, strides[1] / per, if per > 1 { 1 } else { strides[2] }]);
    (inner / per, [source[0], source[1], source[2], k.indices.strides[0], out[0], out[1], out[2]])
}

/// The function for units of a number of bytes and indices of a dtype.
fn source(unit: i64, indices: DType) -> Source {
    let unit_type = match unit {
        1 => "unsigned char",
        2 => "unsigned short",
        4 => "unsigned int",
        8 => "unsigned long long",
        _ => "uint4",
    };
    let negative = if indices.is_signed_integral() { "((x) < 0)" } else { "false" };
    let words = [("UNIT", unit_type), ("INDEX_IS_NEGATIVE(x)", negative)];
    typed(
        &format!("gather_{unit}_{indices}"),
        &[("INDEX", indices)],
        &words,
        include_str!("gather/gather.cu"),
    )
}

#[cfg(test)]
mod tests {
    use max_core::kernel::{Access, Slot};

    use super::*;
    use crate::cuda::nvrtc;

    fn gather(dtype: DType, source: (i64, [i64; 3]), out: (i64, [i64; 3]), inner: i64) -> Gather<i64> {
        let access = |slot, dtype, offset, strides: &[i64]| Access {
            slot: Slot(slot),
            dtype,
            offset,
            strides: strides.to_vec(),
        };
        Gather {
            outer: 2,
            size: 5,
            picks: 3,
            inner,
            axis: 0,
            source: access(0, dtype, source.0, &source.1),
            indices: access(1, DType::Int64, 0, &[2]),
            out: access(2, dtype, out.0, &out.1),
        }
    }

    #[test]
    fn units_divide_slices_and_their_offsets() {
        let whole = |inner: i64| ((0, [5 * inner, inner, 1]), (0, [3 * inner, inner, 1]), inner);
        let of = |dtype, (source, out, inner)| unit(&gather(dtype, source, out, inner));
        assert_eq!(of(DType::Float32, whole(8)), 16);
        assert_eq!(of(DType::Float32, whole(6)), 8);
        assert_eq!(of(DType::Float32, whole(7)), 4);
        assert_eq!(of(DType::BFloat16, whole(8)), 16);
        assert_eq!(of(DType::UInt8, whole(48)), 16);
        assert_eq!(of(DType::UInt8, whole(3)), 1);
        assert_eq!(of(DType::Float32, ((2, [40, 8, 1]), (0, [24, 8, 1]), 8)), 8);
        assert_eq!(of(DType::Float32, ((0, [40, 8, 2]), (0, [24, 8, 1]), 8)), 4);
        assert_eq!(of(DType::Float64, ((0, [40, 9, 1]), (0, [24, 8, 1]), 8)), 8);
    }

    #[test]
    fn strides_are_in_units() {
        let k = gather(DType::BFloat16, (8, [80, 16, 1]), (0, [48, 16, 1]), 16);
        assert_eq!(in_units(&k, 16, 16), (2, [10, 2, 1, 2, 6, 2, 1]));
        assert_eq!(in_units(&k, 16, 2), (16, [80, 16, 1, 2, 48, 16, 1]));
    }

    #[test]
    fn functions_compile() {
        let indices = DType::ALL.iter().copied().filter(|dtype| dtype.is_integral());
        let sources: Vec<Source> =
            indices.flat_map(|indices| [1, 2, 4, 8, 16].map(|unit| source(unit, indices))).collect();
        nvrtc::check(&sources);
    }
}
