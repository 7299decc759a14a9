//! Runs the kernels of `max_core::kernel`: on the vector units of this machine, and on GPUs ([`cuda`]).
//!
//! [`prepare`] checks a bound kernel once and decides how to run it; [`Prepared::run`] runs it on memory, any number of
//! times and from any thread. However work is split, the order of sums follows from the shape, and partial results are
//! combined in index order, so that the same inputs give the same bits on any number of threads.

mod attention;
mod cache;
mod conv;
pub mod cuda;
mod gather;
mod loops;
mod math;
mod matmul;
mod memory;
mod pool;
mod register;
pub mod roofline;
mod scratch;
mod simd;
mod tile;

pub use memory::Memory;
pub use pool::Pool;

use max_core::kernel::Kernel;
use max_core::{DeviceRef, Result};

use attention::PreparedAttention;
use conv::PreparedConv;
use gather::PreparedGather;
use loops::PreparedLoop;
pub use matmul::Constant;
use matmul::PreparedMatmuls;
use memory::Extents;

/// A kernel that has been checked and is ready to run.
#[derive(Debug)]
pub struct Prepared {
    run: Run,
    extents: Extents,
}

#[derive(Debug)]
enum Run {
    Loop(PreparedLoop),
    Matmuls(PreparedMatmuls),
    Attention(PreparedAttention),
    Conv(PreparedConv),
    Gather(PreparedGather),
}

/// Checks a kernel and decides how to run it.
pub fn prepare(kernel: &Kernel<i64>) -> Result<Prepared> {
    let extents = memory::extents(kernel, DeviceRef::CPU)?;
    let run = match kernel {
        Kernel::Loop(k) => Run::Loop(PreparedLoop::new(k)?),
        Kernel::Matmul(k) => Run::Matmuls(PreparedMatmuls::new(std::slice::from_ref(k))?),
        Kernel::Matmuls(k) => Run::Matmuls(PreparedMatmuls::new(&k.all)?),
        Kernel::Attention(k) => Run::Attention(PreparedAttention::new(k)?),
        Kernel::Conv2d(k) => Run::Conv(PreparedConv::new(k)?),
        Kernel::Gather(k) => Run::Gather(PreparedGather::new(k)?),
    };
    Ok(Prepared { run, extents })
}

impl Prepared {
    /// Runs it on memory, one piece per slot. An error if a piece is too small or on another device, or if a written
    /// piece overlaps another that is not accessed in step with it.
    pub fn run(&self, memory: &[Memory], pool: &Pool) -> Result<()> {
        self.extents.check(memory)?;
        // SAFETY: the memory was just checked for this kernel.
        unsafe {
            match &self.run {
                Run::Loop(run) => {
                    run.run(memory, pool);
                    Ok(())
                }
                Run::Matmuls(run) => run.run(memory, pool),
                Run::Attention(run) => run.run(memory, pool),
                Run::Conv(run) => run.run(memory, pool),
                Run::Gather(run) => run.run(memory, pool),
            }
        }
    }
}
