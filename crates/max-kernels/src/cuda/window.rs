//! Pooling on a GPU: one result per thread.

use max_core::kernel::{Access, Pooling, Window};
use max_core::{DType, Result, bail};
use max_driver::cuda::Source;

use super::matmul::{row_major, stored};
use super::text::typed;
use super::{Address, Call, Param, Plan, PlannedLaunch, SCRATCH};

/// The threads of a block.
const THREADS: u64 = 256;

impl Plan {
    /// Adds pooling.
    pub(super) fn window(&mut self, k: &Window<i64>) -> Result<()> {
        let dtype = k.input.dtype;
        expect(k)?;
        if k.out.contains(&0) {
            return Ok(());
        }
        if let Some(store) = stored(&k.epilogue) {
            return self.pool(k, &store);
        }
        let (strides, count) = row_major(&k.out)?;
        let result = Access { slot: SCRATCH, dtype, offset: self.scratch(dtype, count)?, strides };
        self.pool(k, &result)?;
        self.epilogue(&k.epilogue, result)
    }

    /// Adds pooling that is stored without an epilogue.
    fn pool(&mut self, k: &Window<i64>, store: &Access<i64>) -> Result<()> {
        let mut params: Vec<Param> =
            [&k.input, store].map(|access| Param::Address(Address::of(access))).to_vec();
        let mut numbers = [&k.out[..], &k.input_size, &k.window].concat();
        let moves = k.stride.iter().chain(&k.dilation).chain(&k.padding);
        numbers.extend(moves.map(|&step| step as i64));
        numbers.extend(k.input.strides.iter().chain(&store.strides));
        params.extend(numbers.into_iter().map(Param::Number));
        let (_, results) = row_major(&k.out)?;
        self.launches.push(PlannedLaunch::Function(Call {
            source: source(k.pooling, k.input.dtype, store.dtype),
            grid: [(results as u64).div_ceil(THREADS).clamp(1, 1 << 30) as u32, 1, 1],
            block: [THREADS as u32, 1, 1],
            shared: 0,
            params,
        }));
        Ok(())
    }
}

/// An error if the sizes are invalid.
fn expect(k: &Window<i64>) -> Result<()> {
    let mean = k.pooling != Pooling::Max;
    if k.stride.contains(&0) || k.dilation.contains(&0) || (mean && k.input.dtype == DType::Bool) {
        bail!(internal, "invalid pooling: {k:?}");
    }
    for axis in 0..2 {
        // The last position of a window must stay within what the function can index.
        let reach = |at: i64, step: usize| i128::from(at.max(1) - 1) * step as i128;
        let last = reach(k.out[axis + 1], k.stride[axis]) + reach(k.window[axis], k.dilation[axis]);
        let padding = k.padding[2 * axis].max(k.padding[2 * axis + 1]);
        if k.window[axis] < 1 || last > 1 << 61 || padding > 1 << 61 || k.input_size[axis] > 1 << 61 {
            bail!(internal, "the positions of windows overflow: {k:?}");
        }
    }
    row_major(&k.out)?;
    Ok(())
}

/// The function for a kind of pooling and the dtypes of input and result. Means of integers are computed in double and
/// truncated.
fn source(pooling: Pooling, from: DType, to: DType) -> Source {
    let float = from.is_float();
    let least = match from {
        DType::Bool => "0",
        DType::Float64 => "(__longlong_as_double(0xfff0000000000000ll))",
        _ if float => "(__int_as_float(0xff800000))",
        _ if from.is_signed_integral() => "((IN)(1ull << (8 * sizeof(IN) - 1)))",
        _ => "((IN)0)",
    };
    let max = pooling == Pooling::Max;
    let join = match (max, float) {
        (true, true) => "((a) > (b) || (a) != (a) ? (a) : (b))",
        (true, false) => "((a) > (b) ? (a) : (b))",
        (false, _) => "((a) + (b))",
    };
    let words = [
        (
            "ACC",
            if float {
                "SUM"
            } else if max {
                "IN"
            } else {
                "double"
            },
        ),
        ("START", if max { least } else { "((ACC)0)" }),
        ("JOIN(a, b)", join),
        (
            "LOAD(x)",
            if float {
                "SUM_OF_IN(x)"
            } else if from == DType::Bool {
                "((IN)((x) != 0))"
            } else {
                "((ACC)(x))"
            },
        ),
        (
            "STORE(x, n)",
            match (max, float) {
                (true, true) => "OUT_OF(x)",
                (false, true) => "OUT_OF((x) / (SUM)(n))",
                (true, false) => "((OUT)(x))",
                (false, false) => "((OUT)((x) / (double)(n)))",
            },
        ),
        ("PADDED", if pooling == Pooling::Mean { "true" } else { "false" }),
    ];
    let name = format!("window_{pooling}_{from}_{to}");
    typed(&name, &[("IN", from), ("OUT", to)], &words, include_str!("window/window.cu"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::nvrtc;

    #[test]
    fn functions_compile() {
        let mut sources = Vec::new();
        for &dtype in DType::ALL {
            let kinds = Pooling::ALL.iter().filter(|kind| **kind == Pooling::Max || dtype != DType::Bool);
            sources.extend(kinds.map(|&pooling| source(pooling, dtype, dtype)));
        }
        nvrtc::check(&sources);
    }
}
