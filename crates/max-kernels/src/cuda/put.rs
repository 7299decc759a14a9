//! Stores on a GPU to places that are read from memory, in units as wide as their alignment allows.

use std::fmt::Write;

use max_core::kernel::Put;
use max_core::{DType, Result, bail};
use max_driver::cuda::Source;

use super::matmul::row_major;
use super::text::typed;
use super::{Address, Call, Param, Plan, PlannedLaunch};

/// The threads of a block.
const THREADS: i64 = 256;

/// The most blocks.
const BLOCKS: u64 = 1 << 16;

/// An axis that is walked: its size, and the strides of the source and of the result.
type Axis = [i64; 3];

impl Plan {
    /// Adds a store.
    pub(super) fn put(&mut self, k: &Put<i64>) -> Result<()> {
        let scalars = k.bounds.iter().flat_map(|bound| [Some(&bound.start), bound.stop.as_ref()]).flatten();
        if k.source.dtype != k.out.dtype || scalars.into_iter().any(|scalar| scalar.dtype != DType::Int64) {
            bail!(internal, "a store of {} into {}", k.source.dtype, k.out.dtype);
        }
        row_major(&k.shape)?;
        let size = k.out.dtype.size_in_bytes() as i64;
        let mut axes = merged(k);
        let unit = unit(k, &axes, size);
        for axis in &mut axes {
            let per = unit / size;
            // A unit is made of neighbours along the last axis.
            *axis = match per {
                1 => *axis,
                _ if axis[1] == 1 && axis[2] == 1 => [axis[0] / per, 1, 1],
                _ => [axis[0], axis[1] / per, axis[2] / per],
            };
        }
        let mut params = vec![
            Param::Address(Address::of(&k.source)),
            Param::Address(Address::of(&k.out)),
            Param::Report,
            Param::Number(axes.iter().map(|axis| axis[0]).product()),
        ];
        params.extend(axes.iter().flatten().map(|&number| Param::Number(number)));
        for bound in &k.bounds {
            params.push(Param::Address(Address::of(&bound.start)));
            params.push(Param::Address(Address::of(bound.stop.as_ref().unwrap_or(&bound.start))));
            let (count, stride) = (k.shape[bound.axis], bound.stride * size / unit);
            let numbers =
                [bound.axis as i64, bound.size, count, bound.step, stride, i64::from(bound.stop.is_some())];
            params.extend(numbers.map(Param::Number));
        }
        let units: i64 = axes.iter().map(|axis| axis[0]).product();
        self.launches.push(PlannedLaunch::Function(Call {
            source: source(unit, axes.len(), k.bounds.len()),
            // The bounds are checked even if nothing is copied.
            grid: [(units as u64).div_ceil(THREADS as u64).clamp(1, BLOCKS) as u32, 1, 1],
            block: [THREADS as u32, 1, 1],
            shared: 0,
            params,
        }));
        Ok(())
    }
}

/// The axes with more than one element, neighbours merged where both sides walk them as one.
fn merged(k: &Put<i64>) -> Vec<Axis> {
    let mut axes: Vec<Axis> = Vec::new();
    for (axis, &size) in k.shape.iter().enumerate().filter(|(_, size)| **size != 1) {
        let next = [size, k.source.strides[axis], k.out.strides[axis]];
        match axes.last_mut() {
            Some(last) if last[1] == next[0] * next[1] && last[2] == next[0] * next[2] => {
                *last = [last[0] * next[0], next[1], next[2]];
            }
            _ => axes.push(next),
        }
    }
    axes
}

/// The bytes that are moved at once: 16, or fewer if sizes and distances are not multiples of that.
fn unit(k: &Put<i64>, axes: &[Axis], size: i64) -> i64 {
    let Some(([run, 1, 1], outer)) = axes.split_last() else { return size };
    let distances = outer.iter().flat_map(|axis| [axis[1], axis[2]]);
    let distances = distances.chain(k.bounds.iter().map(|bound| bound.stride));
    let distances: Vec<i64> = distances.chain([*run, k.source.offset, k.out.offset]).collect();
    let whole = |unit: &i64| distances.iter().all(|distance| distance.wrapping_mul(size) % unit == 0);
    [16, 8, 4, 2].into_iter().find(|unit| *unit > size && whole(unit)).unwrap_or(size)
}

/// The function for units of a number of bytes, with numbers of axes and of bounds.
fn source(unit: i64, axes: usize, bounds: usize) -> Source {
    let unit_type = match unit {
        1 => "unsigned char",
        2 => "unsigned short",
        4 => "unsigned int",
        8 => "unsigned long long",
        _ => "uint4",
    };
    let (mut params, mut fields) = (String::new(), String::new());
    let (mut list, mut found) = (String::new(), String::new());
    // Writing to a string cannot fail.
    for axis in 0..axes {
        let _ = write!(params, ", long long n{axis}, long long f{axis}, long long t{axis}");
        let _ = write!(fields, "{{n{axis}, f{axis}, t{axis}}}, ");
    }
    for bound in 0..bounds {
        let _ = write!(
            params,
            ", const long long *a{bound}, const long long *b{bound}, long long x{bound}, long long s{bound}, \
             long long c{bound}, long long p{bound}, long long d{bound}, long long e{bound}"
        );
        let _ = write!(list, "a{bound}, b{bound}, ");
        let _ = write!(found, "{{x{bound}, s{bound}, c{bound}, p{bound}, d{bound}, e{bound}}}, ");
    }
    let (all_axes, all_bounds) = (axes.to_string(), bounds.to_string());
    let words = [
        ("UNIT", unit_type),
        ("RANK", all_axes.as_str()),
        ("BOUNDS", all_bounds.as_str()),
        ("PARAMS", params.as_str()),
        ("AXES", fields.as_str()),
        ("SCALARS", list.as_str()),
        ("LIMITS", found.as_str()),
    ];
    let text = concat!(include_str!("report.cuh"), include_str!("put/put.cu"));
    typed(&format!("put_{unit}_{axes}_{bounds}"), &[], &words, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::nvrtc;

    #[test]
    fn functions_compile() {
        let sources: Vec<Source> = [1, 2, 4, 8, 16]
            .into_iter()
            .flat_map(|unit| {
                (0..4).flat_map(move |axes| (1..3).map(move |bounds| source(unit, axes, bounds)))
            })
            .collect();
        nvrtc::check(&sources);
    }
}
