//! Gathers on a GPU: slices are copied in units as wide as their alignment allows.

use max_core::kernel::Gather;
use max_core::{DType, Result, bail};
use max_driver::cuda::Source;

use super::text::typed;
use super::{Address, Call, Param, Plan, PlannedLaunch, indexed};

/// The threads of a block, and the most that copy a slice together.
const THREADS: u64 = 256;

/// How many units of a slice a thread copies before a long slice gets another block.
const UNITS: u64 = 4;

impl Plan {
    /// Adds a gather.
    pub(super) fn gather(&mut self, k: &Gather<i64>) -> Result<()> {
        let space = &k.space;
        let [lines, picks, by_inner, axes] = space.index_shape;
        if k.source.dtype != k.out.dtype
            || !space.indices.dtype.is_integral()
            || by_inner != 1
            || axes != space.sizes.len() as i64
        {
            let [source, indices, out] = [&k.source, &space.indices, &k.out].map(|access| access.dtype);
            bail!(internal, "a gather of {source} into {out} with {indices} indices for {axes} axes");
        }
        let outer = space.outer;
        let Some(slices) =
            outer.checked_mul(picks).filter(|slices| slices.checked_mul(space.inner).is_some())
        else {
            bail!(internal, "a gather of {outer} x {picks} x {} elements", space.inner);
        };
        if picks == 0 || lines == 0 {
            return Ok(());
        }
        // Indices are checked even if nothing is copied.
        let copied = if outer == 0 { 0 } else { space.inner };
        let (outer, slices) = (outer.max(1), slices.max(picks));
        let unit = unit(k);
        let scaled = in_units(k, copied, unit);
        let lanes = (scaled.inner.max(1) as u64).next_power_of_two().min(THREADS);
        let blocks = (slices as u64).div_ceil(THREADS / lanes).min(1 << 30);
        // Enough blocks for every multiprocessor, with some units per thread.
        let cuts = (scaled.inner as u64).div_ceil(lanes * UNITS).clamp(1, (1 << 15) / blocks.min(1 << 15));
        let mut params: Vec<Param> =
            [&k.source, &space.indices, &k.out].map(|access| Param::Address(Address::of(access))).to_vec();
        params.push(Param::Report);
        let log2 = i64::from(lanes.trailing_zeros());
        let of_outer = if lines == 1 { 0 } else { space.indices.strides[0] };
        let [from_outer, from_inner] = scaled.source;
        let [to_outer, to_pick, to_inner] = scaled.out;
        let index_pick = space.indices.strides[1];
        params.extend([outer, picks, scaled.inner, log2, from_outer, from_inner].map(Param::Number));
        params.extend([of_outer, index_pick, to_outer, to_pick, to_inner].map(Param::Number));
        params.extend(indexed::params(space, &scaled.indexed));
        self.launches.push(PlannedLaunch::Function(Call {
            source: source(unit, space.sizes.len(), space.indices.dtype),
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
    let (size, inner) = (k.out.dtype.size_in_bytes() as i64, k.space.inner);
    let (source_inner, between) = split(&k.source.strides);
    let (out_inner, rows) = split(&k.out.strides);
    let runs = inner == 1 || (source_inner == 1 && out_inner == 1);
    let distances = [k.source.offset, k.out.offset, inner];
    let distances: Vec<i64> = distances.iter().chain(between).chain(rows).copied().collect();
    let whole = |unit: &i64| distances.iter().all(|distance| distance.wrapping_mul(size) % unit == 0);
    [16, 8, 4, 2].into_iter().find(|unit| *unit > size && runs && whole(unit)).unwrap_or(size)
}

/// The stride between the elements of a slice, and the others.
fn split(strides: &[i64]) -> (i64, &[i64]) {
    strides.split_last().map_or((0, &[]), |(inner, others)| (*inner, others))
}

/// The length of slices and the strides of the source and of the result, in units.
#[derive(Debug, PartialEq)]
struct InUnits {
    inner: i64,
    /// Along outer and inner.
    source: [i64; 2],
    indexed: Vec<i64>,
    out: [i64; 3],
}

fn in_units(k: &Gather<i64>, inner: i64, unit: i64) -> InUnits {
    let per = unit / k.out.dtype.size_in_bytes() as i64;
    let along = |stride: i64| if per > 1 { 1 } else { stride };
    let (source_inner, between) = split(&k.source.strides);
    let out = &k.out.strides;
    InUnits {
        inner: inner / per,
        source: [between[0] / per, along(source_inner)],
        indexed: between[1..].iter().map(|stride| stride / per).collect(),
        out: [out[0] / per, out[1] / per, along(out[2])],
    }
}

/// The function for units of a number of bytes and indices of a dtype for a number of axes.
fn source(unit: i64, axes: usize, indices: DType) -> Source {
    let unit_type = match unit {
        1 => "unsigned char",
        2 => "unsigned short",
        4 => "unsigned int",
        8 => "unsigned long long",
        _ => "uint4",
    };
    let words = indexed::words(axes, indices);
    let mut words: Vec<(&str, &str)> =
        words.iter().map(|(word, meaning)| (*word, meaning.as_str())).collect();
    words.push(("UNIT", unit_type));
    let text = [indexed::TEXT, include_str!("gather/gather.cu")].concat();
    typed(&format!("gather_{unit}_{axes}_{indices}"), &[("INDEX", indices)], &words, &text)
}

#[cfg(test)]
mod tests {
    use max_core::kernel::{Access, Indexed, Slot};

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
            space: Indexed {
                outer: 2,
                sizes: vec![5],
                inner,
                axis: 0,
                indices: access(1, DType::Int64, 0, &[0, 2, 0, 0]),
                index_shape: [1, 3, 1, 1],
            },
            source: access(0, dtype, source.0, &source.1),
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
        let wide = InUnits { inner: 2, source: [10, 1], indexed: vec![2], out: [6, 2, 1] };
        assert_eq!(in_units(&k, 16, 16), wide);
        let single = InUnits { inner: 16, source: [80, 1], indexed: vec![16], out: [48, 16, 1] };
        assert_eq!(in_units(&k, 16, 2), single);
    }

    #[test]
    fn functions_compile() {
        let indices = DType::ALL.iter().copied().filter(|dtype| dtype.is_integral());
        let sources: Vec<Source> =
            indices.flat_map(|indices| [1, 2, 4, 8, 16].map(|unit| source(unit, 1, indices))).collect();
        let several = [0, 2, 3].map(|axes| source(16, axes, DType::Int32));
        let sources = [sources, several.to_vec()].concat();
        nvrtc::check(&sources);
    }
}
