//! Fused loops on a GPU: rendered as CUDA C++ and planned for launch.
//!
//! `nest` simplifies a loop, `form` maps it to threads, and `text` writes the function. The text depends on the
//! structure only, and equal text has the same name, so that it is compiled once.

mod mapping;
mod nest;
mod prebuilt;
mod split;
#[cfg(test)]
mod tests;
mod text;
mod words;

use std::borrow::Cow;
use std::sync::LazyLock;

use max_core::kernel::{Instr, Loop};
use max_core::{DType, Error, Result, bail, small_float};
use max_driver::cuda::{Function, Gpu, Source};

use super::text::{SMALL_FLOATS, arguments};
use super::{Call, Plan, PlannedLaunch};
use crate::loops::settle;
use mapping::Mapping;
use nest::Nest;
use split::split;
pub(super) use words::{cast_text, literal_text, memory_type};

/// The declarations that all functions share.
pub(super) static PRELUDE: LazyLock<String> = LazyLock::new(|| {
    let formats = DType::ALL.iter().filter_map(|&dtype| Some((dtype, small_float::format(dtype)?)));
    let list: String = formats
        .map(|(dtype, format)| format!(" F({}, {})", memory_type(dtype), arguments(&format)))
        .collect();
    [SMALL_FLOATS, "#define SMALL_FLOATS(F)", &list, "\n", include_str!("prelude.cuh")].concat()
});

/// The most parameters that a function takes.
const MOST_PARAMS: usize = 500;

/// Allocates scratch memory for a number of elements of a dtype; returns its offset in elements.
type Scratch<'a> = &'a mut dyn FnMut(DType, i64) -> Result<i64>;

impl Plan {
    pub(super) fn loop_(&mut self, kernel: &Loop<i64>) -> Result<()> {
        let multiprocessors = self.gpu.multiprocessors();
        let calls = calls(kernel, multiprocessors, &mut |dtype, count| self.scratch(dtype, count))?;
        self.launches.extend(calls.into_iter().map(PlannedLaunch::Function));
        Ok(())
    }
}

/// The calls of a loop, for a GPU with this many multiprocessors.
fn calls(kernel: &Loop<i64>, multiprocessors: u32, scratch: Scratch<'_>) -> Result<Vec<Call>> {
    kernel.dtypes()?;
    if kernel.code.iter().any(|instr| matches!(instr, Instr::Product(_))) {
        bail!(internal, "a loop that is not an epilogue uses the result of a kernel");
    }
    let kernel = settle(kernel.clone());
    if kernel.shape.iter().any(|&size| size <= 0) || kernel.stored().next().is_none() {
        return Ok(Vec::new());
    }
    let dtypes = kernel.dtypes()?;
    let nest = Nest::new(&kernel, dtypes.clone())?;
    let form = Mapping::of(&nest, multiprocessors);
    match split(&kernel, &dtypes, &nest, &form, multiprocessors, scratch)? {
        None => Ok(vec![call(&nest, &form)?]),
        Some(loops) => loops
            .into_iter()
            .map(|(loop_, dtypes)| {
                let nest = Nest::new(&settle(loop_), dtypes)?;
                call(&nest, &Mapping::of(&nest, multiprocessors))
            })
            .collect(),
    }
}

/// The call that runs a nest mapped to threads in this form.
fn call(nest: &Nest, form: &Mapping) -> Result<Call> {
    let written = text::write(nest, form)?;
    if written.params.len() > MOST_PARAMS {
        bail!(internal, "a loop over {:?} needs {} parameters", nest.kept, written.params.len());
    }
    let blocks = (form.items(nest) as u64).div_ceil(form.items_of_block() as u64);
    let Ok(blocks) = i32::try_from(blocks) else {
        bail!(internal, "a loop over {:?} needs {blocks} blocks of threads", nest.kept)
    };
    let [x, y] = form.block().map(|threads| threads as u32);
    Ok(Call {
        source: source(written.code),
        grid: [blocks as u32, 1, 1],
        block: [x, y, 1],
        shared: 0,
        params: written.params,
    })
}

/// A name with a hash of a text, so that equal texts have equal names.
pub(super) fn named(name: &str, code: &str) -> String {
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    let hash = code.bytes().fold(BASIS, |hash, byte| (hash ^ u128::from(byte)).wrapping_mul(PRIME));
    format!("{name}_{hash:032x}")
}

/// The source of a function, named by a hash of its text.
fn source(code: String) -> Source {
    let name = named("loop", &code);
    let code = code.replacen(text::NAME, &name, 1);
    Source { name, prelude: Cow::Borrowed(PRELUDE.as_str()), code }
}

/// The functions of sources, in order.
pub(super) fn compile(gpu: &'static Gpu, sources: &[Source]) -> Result<Vec<Function>> {
    let mut functions: Vec<Option<Function>> = Vec::with_capacity(sources.len());
    for source in sources {
        functions.push(match source.prelude == PRELUDE.as_str() {
            true => prebuilt::function(gpu, source)?,
            false => None,
        });
    }
    let others = sources.iter().zip(&functions).filter(|(_, function)| function.is_none());
    let mut others =
        gpu.functions(&others.map(|(source, _)| source.clone()).collect::<Vec<_>>())?.into_iter();
    let missing = || Error::internal("a function is missing");
    functions.into_iter().map(|function| function.or_else(|| others.next()).ok_or_else(missing)).collect()
}
