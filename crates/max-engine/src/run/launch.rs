//! Kernels ready to launch, each on its device.

use max_compiler::program;
use max_core::kernel::Kernel;
use max_core::{Error, Result};
use max_driver::Stream;
use max_kernels::{Prepared, cuda, prepare_on};

use super::Runtime;
use super::storage::Table;

/// A kernel that is ready to launch, on any memory.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "host kernels lie side by side")]
pub(crate) enum Launch {
    Host(Prepared),
    /// On one of the devices of the program.
    Gpu(usize, cuda::Prepared),
}

impl Launch {
    /// Runs it on the host, or enqueues it on the default stream of its device.
    pub(super) fn run(&self, launch: &program::Launch, table: &mut Table, runtime: &Runtime) -> Result<()> {
        match self {
            Launch::Host(kernel) => kernel.run(table.of(launch), &runtime.config.pool),
            Launch::Gpu(device, kernel) => {
                let scratch = table.scratch(*device)?;
                kernel.run(table.of(launch), scratch, &runtime.streams[*device])
            }
        }
    }

    /// The stream that it is enqueued on; `None` for the host.
    pub(super) fn stream<'a>(&self, runtime: &'a Runtime) -> Option<&'a Stream> {
        match self {
            Launch::Host(_) => None,
            Launch::Gpu(device, _) => Some(&runtime.streams[*device]),
        }
    }
}

impl Runtime {
    /// Prepares kernels of the program. Those of one device are prepared together, so that they are compiled in
    /// parallel.
    pub(super) fn prepare(&self, kernels: &[Option<Kernel<i64>>]) -> Result<Vec<Option<Launch>>> {
        let device_of = |at: usize| self.program.device_number(self.program.kernels[at].0);
        let mut ready: Vec<Option<Launch>> = Vec::with_capacity(kernels.len());
        for (at, kernel) in kernels.iter().enumerate() {
            let device = &self.devices[device_of(at)];
            ready.push(match kernel {
                Some(kernel) if device.runs_on_host() => {
                    Some(Launch::Host(prepare_on(kernel, device.device_ref())?))
                }
                _ => None,
            });
        }
        for (number, device) in self.devices.iter().enumerate().filter(|(_, device)| !device.runs_on_host()) {
            let own = kernels.iter().enumerate().filter(|(at, _)| device_of(*at) == number);
            let (own, given): (Vec<usize>, Vec<&Kernel<i64>>) =
                own.filter_map(|(at, kernel)| Some((at, kernel.as_ref()?))).unzip();
            if given.is_empty() {
                continue;
            }
            let prepared = cuda::prepare(&given, device, self.config.cuda)?;
            if prepared.len() != own.len() {
                return Err(Error::internal("a kernel was not prepared"));
            }
            for (at, kernel) in own.into_iter().zip(prepared) {
                ready[at] = Some(Launch::Gpu(number, kernel));
            }
        }
        Ok(ready)
    }
}

/// The memory that a segment needs on a device.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Need {
    /// Its size in bytes, scratch memory included.
    pub(crate) bytes: usize,
    /// Where the scratch memory of kernels starts, after the temporaries.
    pub(super) scratch_at: usize,
}

/// The alignment of scratch memory, in bytes.
const SCRATCH_ALIGNMENT: usize = 256;

/// The memory that a segment needs on each device: its temporaries, followed by the most scratch memory that any of its
/// kernels needs.
pub(super) fn needs(planned: &[usize], kernels: &[Option<Launch>]) -> Vec<Need> {
    let mut needs: Vec<Need> = planned.iter().map(|&bytes| Need { bytes, scratch_at: bytes }).collect();
    for kernel in kernels.iter().flatten() {
        let Launch::Gpu(device, kernel) = kernel else { continue };
        if kernel.scratch_bytes() > 0 {
            let (need, planned) = (&mut needs[*device], planned[*device]);
            need.scratch_at = planned.next_multiple_of(SCRATCH_ALIGNMENT);
            need.bytes = need.bytes.max(need.scratch_at + kernel.scratch_bytes());
        }
    }
    needs
}
