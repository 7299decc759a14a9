//! Runs the kernels of `max_core::kernel`: on the vector units of this machine, and on GPUs ([`cuda`]).
//!
//! [`prepare`] checks a bound kernel once and decides how to run it; [`Prepared::run`] runs it on memory, any number of
//! times and from any thread. However work is split, the order of sums follows from the shape, and partial results are
//! combined in index order, so that the same inputs give the same bits on any number of threads.

mod attention;
mod cache;
mod conv;
pub mod cuda;
pub mod custom;
mod dequantize;
mod gather;
mod indexed;
mod irfft;
mod loops;
mod math;
mod matmul;
mod memory;
mod pages;
mod pool;
mod put;
mod qmatmul;
mod register;
mod resample;
mod roi_align;
pub mod roofline;
mod scan;
mod scatter;
mod scratch;
mod simd;
mod sort;
mod suppress;
mod tile;
mod window;

pub use memory::Memory;
pub use pool::Pool;

use max_core::kernel::Kernel;
use max_core::{DeviceRef, Result};

pub use matmul::Constant;
use memory::Extents;

/// A kernel that has been checked and is ready to run.
#[derive(Debug)]
pub struct Prepared {
    run: Run,
    extents: Extents,
}

/// Builds [`Run`] from the kinds of kernels and what runs each.
macro_rules! kinds {
    ($($kind:ident => $prepared:ty,)*) => {
        #[derive(Debug)]
        enum Run {
            $($kind($prepared),)*
        }

        impl Run {
            fn new(kernel: &Kernel<i64>) -> Result<Run> {
                Ok(match kernel {
                    $(Kernel::$kind(k) => Run::$kind(<$prepared>::new(k)?),)*
                })
            }

            /// # Safety
            ///
            /// The memory was checked for the kernel.
            unsafe fn run(&self, memory: &[Memory], pool: &Pool) -> Result<()> {
                match self {
                    // SAFETY: guaranteed by the caller.
                    $(Run::$kind(run) => unsafe { run.run(memory, pool) },)*
                }
            }
        }
    };
}

kinds! {
    Loop => loops::PreparedLoop,
    Matmul => matmul::PreparedMatmuls,
    Matmuls => matmul::PreparedMatmuls,
    QMatmul => qmatmul::PreparedQMatmul,
    Attention => attention::PreparedAttention,
    PagedAttention => attention::PreparedPagedAttention,
    PagedStore => pages::PreparedStore,
    Conv2d => conv::PreparedConv,
    Dequantize => dequantize::PreparedDequantize,
    Gather => gather::PreparedGather,
    Irfft => irfft::PreparedIrfft,
    RoiAlign => roi_align::PreparedRoiAlign,
    Scan => scan::PreparedScan,
    Scatter => scatter::PreparedScatter,
    Sort => sort::PreparedSort,
    Suppress => suppress::PreparedSuppress,
    Put => put::PreparedPut,
    Window => window::PreparedWindow,
    Resample => resample::PreparedResample,
}

/// Checks a kernel and decides how to run it, on the memory of the host.
pub fn prepare(kernel: &Kernel<i64>) -> Result<Prepared> {
    prepare_on(kernel, DeviceRef::CPU)
}

/// As [`prepare`], for the memory of a device whose work the host does.
pub fn prepare_on(kernel: &Kernel<i64>, device: DeviceRef) -> Result<Prepared> {
    Ok(Prepared { extents: memory::extents(kernel, device)?, run: Run::new(kernel)? })
}

impl Prepared {
    /// Runs it on memory, one piece per slot. An error if a piece is too small or on another device, or if a written
    /// piece overlaps another that is not accessed in step with it.
    pub fn run(&self, memory: &[Memory], pool: &Pool) -> Result<()> {
        self.extents.check(memory)?;
        // SAFETY: the memory was just checked for this kernel.
        unsafe { self.run.run(memory, pool) }
    }
}
