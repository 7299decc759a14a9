//! Regions of interest on a GPU: a thread per element of the result.

use max_core::kernel::RoiAlign;
use max_core::{DType, Result, bail};
use max_driver::cuda::Source;

use super::text::typed;
use super::{Address, Call, Param, Plan, PlannedLaunch};
use crate::matmul::count;

/// The threads of a block.
const THREADS: u64 = 256;

impl Plan {
    /// Adds regions of interest.
    pub(super) fn roi_align(&mut self, k: &RoiAlign<i64>) -> Result<()> {
        let ([m, five], [rows, columns]) = (k.regions, k.bins);
        let coordinates = if k.out.dtype == DType::Float64 { DType::Float64 } else { DType::Float32 };
        let float = k.out.dtype.is_float() && !k.out.dtype.is_small_float();
        if five != 5 || k.source.dtype != k.out.dtype || k.rois.dtype != coordinates || !float {
            bail!(internal, "regions of {} by {five} {} into {}", k.source.dtype, k.rois.dtype, k.out.dtype);
        }
        count(&k.images)?;
        let total = count(&[m, rows, columns, k.images[3]])?;
        if total == 0 {
            return Ok(());
        }
        let mut params: Vec<Param> =
            [&k.source, &k.rois, &k.out].map(|access| Param::Address(Address::of(access))).to_vec();
        params.push(Param::Report);
        params.extend(k.images.map(Param::Number));
        params.extend([m, rows, columns].map(Param::Number));
        params.push(Param::Bits(k.sampling.scale.to_bits()));
        params.push(Param::Number(k.sampling.samples as i64));
        let strides = [&k.source, &k.rois, &k.out].into_iter().flat_map(|access| &access.strides);
        params.extend(strides.map(|&stride| Param::Number(stride)));
        self.launches.push(PlannedLaunch::Function(Call {
            source: source(k.out.dtype, k.sampling.aligned, k.sampling.max),
            grid: [(total as u64).div_ceil(THREADS).min(1 << 30) as u32, 1, 1],
            block: [THREADS as u32, 1, 1],
            shared: 0,
            params,
        }));
        Ok(())
    }
}

/// The function for a dtype. Its arithmetic is never contracted, so that positions are rounded as on the host.
fn source(dtype: DType, aligned: bool, max: bool) -> Source {
    let word = |given: bool| if given { "true" } else { "false" };
    let (real, letter) = if dtype == DType::Float64 { ("double", 'd') } else { ("float", 'f') };
    let [add, sub, mul] = ["add", "sub", "mul"].map(|op| format!("__{letter}{op}_rn(a, b)"));
    let words = [
        ("REAL", real),
        ("ALIGNED", word(aligned)),
        ("MAX", word(max)),
        ("ADD(a, b)", &add),
        ("SUB(a, b)", &sub),
        ("MUL(a, b)", &mul),
    ];
    let name = format!("roi_align_{dtype}_{}_{}", u8::from(aligned), u8::from(max));
    typed(&name, &[("IN", dtype)], &words, include_str!("roi_align/roi_align.cu"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::nvrtc;

    #[test]
    fn functions_compile() {
        let dtypes = [DType::Float64, DType::Float32, DType::Float16, DType::BFloat16];
        let both = [false, true];
        let sources = dtypes.into_iter().flat_map(|dtype| {
            both.into_iter().flat_map(move |aligned| both.map(|max| source(dtype, aligned, max)))
        });
        nvrtc::check(&sources.collect::<Vec<_>>());
    }
}
