//! Scans on a GPU: a thread per line where many lines are neighbours in memory, else a block per line.

use max_core::kernel::Scan;
use max_core::{DType, Result, bail};
use max_driver::cuda::Source;

use super::matmul::row_major;
use super::text::typed;
use super::{Address, Call, Param, Plan, PlannedLaunch};

/// The threads of a block.
const THREADS: i64 = 256;

/// The fewest neighbouring lines for which a thread sums a line by itself.
const NEIGHBOURS: i64 = 32;

impl Plan {
    /// Adds a scan.
    pub(super) fn scan(&mut self, k: &Scan<i64>) -> Result<()> {
        let dtype = k.source.dtype;
        if k.out.dtype != dtype || dtype == DType::Bool {
            bail!(internal, "a scan of {dtype} into {}", k.out.dtype);
        }
        let shape = [k.outer, k.size, k.inner];
        row_major(&shape)?;
        if shape.contains(&0) {
            return Ok(());
        }
        let (lines, alone) = (k.outer * k.inner, k.inner >= NEIGHBOURS);
        let blocks = if alone { (lines as u64).div_ceil(THREADS as u64) } else { lines as u64 };
        let mut params = vec![Param::Address(Address::of(&k.source)), Param::Address(Address::of(&k.out))];
        params.extend(shape.map(Param::Number));
        params.push(Param::Number(i64::from(alone)));
        params.extend(k.source.strides.iter().chain(&k.out.strides).map(|&stride| Param::Number(stride)));
        self.launches.push(PlannedLaunch::Function(Call {
            source: source(dtype, k.exclusive, k.reverse),
            grid: [blocks.min(1 << 30) as u32, 1, 1],
            block: [THREADS as u32, 1, 1],
            shared: 0,
            params,
        }));
        Ok(())
    }
}

/// The function for a dtype. Floats are summed in double precision.
fn source(dtype: DType, exclusive: bool, reverse: bool) -> Source {
    let sums = if dtype.is_float() { "double" } else { "SUM" };
    let word = |given: bool| if given { "true" } else { "false" };
    let words = [("ACC", sums), ("EXCLUSIVE", word(exclusive)), ("REVERSE", word(reverse))];
    let name = format!("scan_{dtype}_{}_{}", u8::from(exclusive), u8::from(reverse));
    typed(&name, &[("IN", dtype)], &words, include_str!("scan/scan.cu"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::nvrtc;

    #[test]
    fn functions_compile() {
        let summed = |dtype: &DType| *dtype != DType::Bool;
        let dtypes = DType::ALL.iter().copied().filter(summed);
        let both = [false, true];
        let sources = dtypes.flat_map(|dtype| {
            both.into_iter().flat_map(move |exclusive| both.map(|reverse| source(dtype, exclusive, reverse)))
        });
        nvrtc::check(&sources.collect::<Vec<_>>());
    }
}
