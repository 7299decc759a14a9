//! Kernels ready to launch, each on its device.

use max_compiler::program::Step;
use max_core::kernel::{Kernel, Slot};
use max_core::{Error, HostBytes, Result};
use max_driver::Stream;
use max_kernels::{Constant, Prepared, cuda, prepare_with};

use super::Runtime;
use super::storage::Table;

/// A kernel that is ready to launch.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "host kernels lie side by side, in launch order")]
pub(crate) enum Launch {
    Host(Prepared),
    /// On one of the devices of the program.
    Gpu(usize, cuda::Prepared),
}

impl Launch {
    /// Runs it on the host, or enqueues it on the default stream of its device.
    pub(super) fn run(&self, table: &Table, runtime: &Runtime) -> Result<()> {
        match self {
            Launch::Host(kernel) => kernel.run(&table.memory, &runtime.config.pool),
            Launch::Gpu(device, kernel) => {
                kernel.run(&table.memory, table.scratch(*device)?, &runtime.streams[*device])
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

    /// The constant operands, which may be kept packed.
    pub(super) fn constants(&self) -> impl Iterator<Item = &Constant> {
        let host = match self {
            Launch::Host(kernel) => Some(kernel.constants()),
            Launch::Gpu(..) => None,
        };
        host.into_iter().flatten()
    }
}

impl Runtime {
    /// Prepares the kernels of steps. Those of one device are prepared together, so that they are compiled in parallel.
    pub(super) fn prepare(
        &self,
        steps: &[Step],
        kernels: &[Option<Kernel<i64>>],
        constants: &dyn Fn(Slot) -> Option<HostBytes>,
    ) -> Result<Vec<Option<Launch>>> {
        let mut launches: Vec<Option<Launch>> = Vec::with_capacity(kernels.len());
        for (step, kernel) in steps.iter().zip(kernels) {
            launches.push(match kernel {
                Some(kernel) if self.is_host(step) => Some(Launch::Host(prepare_with(kernel, constants)?)),
                _ => None,
            });
        }
        for (number, device) in self.devices.iter().enumerate().filter(|(_, device)| !device.is_host()) {
            let own = |at: &usize| {
                kernels[*at].is_some() && self.program.device_number(steps[*at].device) == number
            };
            let own: Vec<usize> = (0..steps.len()).filter(own).collect();
            let given: Vec<&Kernel<i64>> = own.iter().filter_map(|&at| kernels[at].as_ref()).collect();
            if given.is_empty() {
                continue;
            }
            let prepared = cuda::prepare(&given, device, self.config.cuda)?;
            if prepared.len() != own.len() {
                return Err(Error::internal("a kernel was not prepared"));
            }
            for (at, kernel) in own.into_iter().zip(prepared) {
                launches[at] = Some(Launch::Gpu(number, kernel));
            }
        }
        Ok(launches)
    }

    fn is_host(&self, step: &Step) -> bool {
        self.devices[self.program.device_number(step.device)].is_host()
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
pub(super) fn needs(planned: &[usize], launches: &[Option<Launch>]) -> Vec<Need> {
    let mut needs: Vec<Need> = planned.iter().map(|&bytes| Need { bytes, scratch_at: bytes }).collect();
    for launch in launches.iter().flatten() {
        let Launch::Gpu(device, kernel) = launch else { continue };
        if kernel.scratch_bytes() > 0 {
            let (need, planned) = (&mut needs[*device], planned[*device]);
            need.scratch_at = planned.next_multiple_of(SCRATCH_ALIGNMENT);
            need.bytes = need.bytes.max(need.scratch_at + kernel.scratch_bytes());
        }
    }
    needs
}
