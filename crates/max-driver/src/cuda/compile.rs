//! GPU functions from source: compiled by NVRTC for the architecture of the GPU, cached in memory and on disk.
//!
//! `nvrtc` is the compiler, `cache` the disk cache, `loaded` the functions in memory, and `overlap` lets them start early.
//! Loaded code stays until the process ends, and equal sources share one function.

mod cache;
mod digest;
mod loaded;
mod nvrtc;
mod overlap;

use std::borrow::Cow;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use max_core::{Error, Result, bail};

use super::Gpu;
use super::api::{FunctionHandle, LaunchAttribute, LaunchConfig};
use crate::Stream;

pub(crate) use loaded::Modules;
use overlap::Waits;
pub(super) use overlap::is_possible as can_overlap;

/// CUDA C++ without includes, with one kernel function.
///
/// Every parameter of the function has eight bytes, a pointer, `long long`, `unsigned long long` or `double`, or is a
/// structure of such. The function is declared `extern "C" __global__`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Source {
    /// The name of the function.
    pub name: String,
    /// Declarations that sources of a module share; they appear once per module.
    pub prelude: Cow<'static, str>,
    /// The source text.
    pub code: String,
}

impl Source {
    /// What the compiler is given for it alone.
    pub fn text(&self) -> String {
        loaded::program(std::slice::from_ref(self))
    }
}

/// A function loaded on a GPU. Clones share one function.
#[derive(Clone)]
pub struct Function(Arc<Inner>);

struct Inner {
    gpu: &'static Gpu,
    name: String,
    handle: FunctionHandle,
    /// The static shared memory of the function.
    fixed_shared: u32,
    /// Whether launches may use all of the GPU's shared memory.
    unlimited: AtomicBool,
    /// How it waits for the work before it, if it may start earlier.
    waits: Waits,
}

// SAFETY: a handle of the driver, whose functions may be called from any thread.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

/// The shared memory that a block can have without opting in to more.
const USUAL_SHARED: u32 = 48 << 10;

/// Attributes of a function, by their published numbers.
const SHARED_SIZE_BYTES: c_int = 1;
const MAX_DYNAMIC_SHARED_SIZE_BYTES: c_int = 8;

/// Tags in the list of extra launch arguments.
const END: *mut c_void = std::ptr::null_mut();
const BUFFER_POINTER: *mut c_void = std::ptr::without_provenance_mut(1);
const BUFFER_SIZE: *mut c_void = std::ptr::without_provenance_mut(2);

impl Gpu {
    /// The functions of sources, in order. What is neither in memory nor on disk is compiled in parallel.
    pub fn functions(&'static self, sources: &[Source]) -> Result<Vec<Function>> {
        self.modules.one_by_one(self, sources)
    }

    /// As [`Gpu::functions`], as one module: compiled, cached and loaded together, whichever is needed first. Names
    /// must differ.
    pub fn module(&'static self, sources: &[Source]) -> Result<Vec<Function>> {
        self.modules.together(self, sources)
    }
}

impl Function {
    fn new(gpu: &'static Gpu, name: &str, handle: FunctionHandle, waits: Waits) -> Result<Function> {
        let mut shared = 0;
        // SAFETY: writes a number; the handle is alive.
        let status = unsafe { gpu.api.cuFuncGetAttribute(&raw mut shared, SHARED_SIZE_BYTES, handle) };
        gpu.api.check(status, "cuFuncGetAttribute")?;
        let fixed_shared = shared.max(0) as u32;
        Ok(Function(Arc::new(Inner {
            gpu,
            name: name.to_owned(),
            handle,
            fixed_shared,
            unlimited: AtomicBool::new(false),
            waits: if gpu.overlaps { waits } else { Waits::Never },
        })))
    }

    /// Enqueues it on a stream, opting in to more than 48 KiB of shared memory if needed. An empty grid does nothing.
    ///
    /// # Safety
    ///
    /// The parameters are what the function takes. The memory they point to is as large as the function assumes and
    /// stays alive until the work is done, and nothing else writes it meanwhile.
    pub unsafe fn launch(
        &self,
        stream: &Stream,
        grid: [u32; 3],
        block: [u32; 3],
        shared: u32,
        params: &[u64],
    ) -> Result<()> {
        let early = self.0.waits == Waits::First;
        // SAFETY: guaranteed by the caller; a function that waits first does nothing before.
        unsafe { self.enqueue(stream, [grid, block], shared, params, early) }
    }

    /// As [`Function::launch`], but a function that waits by itself may do something before, while the work ahead of it is
    /// not done, if the GPU and its driver can do that.
    ///
    /// # Safety
    ///
    /// As for [`Function::launch`]. Until all of the function's threads have waited for the work before it
    /// (`griddepcontrol.wait`), it writes nothing but its own shared memory, and reads nothing that this work writes.
    pub unsafe fn launch_early(
        &self,
        stream: &Stream,
        grid: [u32; 3],
        block: [u32; 3],
        shared: u32,
        params: &[u64],
    ) -> Result<()> {
        let early = self.0.waits != Waits::Never;
        // SAFETY: guaranteed by the caller.
        unsafe { self.enqueue(stream, [grid, block], shared, params, early) }
    }

    /// # Safety
    ///
    /// As for the functions above.
    unsafe fn enqueue(
        &self,
        stream: &Stream,
        [grid, block]: [[u32; 3]; 2],
        shared: u32,
        params: &[u64],
        early: bool,
    ) -> Result<()> {
        let function = &*self.0;
        let (gpu, stream) = match stream.cuda() {
            Some((gpu, handle)) if gpu == function.gpu => (gpu, handle),
            _ => bail!(internal, "kernel {} on {:?} was given {stream:?}", function.name, function.gpu),
        };
        if grid.contains(&0) {
            return Ok(());
        }
        let _entered = gpu.enter()?;
        if shared > USUAL_SHARED.saturating_sub(function.fixed_shared) {
            self.allow_shared()?;
        }
        let mut bytes = size_of_val(params);
        let mut extra = [
            BUFFER_POINTER,
            params.as_ptr().cast_mut().cast(),
            BUFFER_SIZE,
            (&raw mut bytes).cast::<c_void>(),
            END,
        ];
        // A function without parameters takes no parameter buffer.
        let extra = if params.is_empty() { std::ptr::null_mut() } else { extra.as_mut_ptr() };
        let attribute = LaunchAttribute::EARLY;
        let config = LaunchConfig {
            grid,
            block,
            shared,
            stream,
            attributes: &raw const attribute,
            count: c_uint::from(early),
        };
        // SAFETY: the config and the parameter buffer are read before the call returns; the caller guarantees the rest.
        let status = unsafe {
            gpu.api.cuLaunchKernelEx(&raw const config, function.handle, std::ptr::null_mut(), extra)
        };
        if status == 0 { Ok(()) } else { Err(self.failed(status, grid, block, shared, params.len())) }
    }

    /// Lets launches use as much shared memory as the GPU has. All threads set the same limit, so races are harmless.
    fn allow_shared(&self) -> Result<()> {
        let function = &*self.0;
        if function.unlimited.load(Ordering::Acquire) {
            return Ok(());
        }
        let (api, most) = (function.gpu.api, function.gpu.shared_bytes() as u32);
        let left = most.saturating_sub(function.fixed_shared) as c_int;
        // SAFETY: the handle is alive.
        let status = unsafe { api.cuFuncSetAttribute(function.handle, MAX_DYNAMIC_SHARED_SIZE_BYTES, left) };
        api.check(status, "cuFuncSetAttribute")?;
        function.unlimited.store(true, Ordering::Release);
        Ok(())
    }

    #[cold]
    fn failed(&self, status: c_int, grid: [u32; 3], block: [u32; 3], shared: u32, params: usize) -> Error {
        let (name, api) = (&self.0.name, self.0.gpu.api);
        let call = format!(
            "cuLaunchKernelEx of {name} (grid {grid:?}, block {block:?}, {shared} bytes of shared memory, \
             {params} parameters)"
        );
        api.check(status, &call).err().unwrap_or_else(|| Error::internal(call))
    }
}

impl std::fmt::Debug for Function {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Function({})", self.0.name)
    }
}
