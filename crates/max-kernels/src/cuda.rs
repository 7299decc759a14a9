//! Kernels on NVIDIA GPUs: enqueues the kernels of `max_core::kernel` on a stream.
//!
//! A kernel becomes a list of launches: functions generated as CUDA C++ or written in `*.cu` files beside this one, and
//! matmuls by cuBLASLt. Kernels without a function of their own are composed: a matmul with an arbitrary epilogue is a
//! matmul into scratch memory and a loop over it. All of this is data (`Plan`) until [`prepare`] compiles the functions
//! in parallel. Sources contain no sizes, so that one function serves many sizes: sizes are parameters, and only what
//! shapes the code (ranks, which strides are zero or one, alignment, dtypes) is in the text.

mod attention;
mod conv;
mod custom;
mod decode;
mod dequantize;
mod epilogue;
mod flash;
mod gather;
mod indexed;
mod loops;
mod matmul;
#[cfg(test)]
mod nvrtc;
mod paged;
mod put;
mod qmatmul;
mod record;
mod resample;
mod roi_align;
mod scan;
mod scatter;
mod sort;
mod text;
mod window;

use max_core::kernel::{Access, Kernel, Slot};
use max_core::{DType, DeviceRef, Error, Result, bail};
use max_driver::cuda::{Function, GemmAddresses, GemmPlan, Gpu, Source};
use max_driver::{Device, Stream};

pub use custom::{CustomSource, GridSize};
pub use record::{Launched, Recording};

use crate::Memory;
use crate::memory::{self, Extents};

/// How kernels are prepared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Options {
    /// Whether float32 matmuls may round their operands to 19 bits, which is much faster.
    pub tf32: bool,
}

/// A kernel that has been checked and compiled, ready to be enqueued.
#[derive(Debug)]
pub struct Prepared {
    device: DeviceRef,
    report: u64,
    launches: Vec<Launch>,
    extents: Extents,
    scratch_bytes: usize,
}

/// Checks kernels, decides how to run them and compiles the functions they need.
pub fn prepare(kernels: &[&Kernel<i64>], device: &Device, options: Options) -> Result<Vec<Prepared>> {
    let Some(gpu) = device.gpu() else { bail!(internal, "{device} is not a GPU") };
    let mut plans = Vec::with_capacity(kernels.len());
    for kernel in kernels {
        let mut plan = Plan { gpu, options, launches: Vec::new(), scratch: 0, workspace: None };
        plan.kernel(kernel)?;
        plans.push((plan, memory::extents(kernel, device.device_ref())?));
    }
    let sources = plans.iter().flat_map(|(plan, _)| &plan.launches).filter_map(|step| match step {
        PlannedLaunch::Function(call) | PlannedLaunch::Early(call, _) => Some(call.source.clone()),
        PlannedLaunch::Gemm(_) => None,
    });
    let mut functions = loops::compile(gpu, &sources.collect::<Vec<_>>())?.into_iter();
    let mut prepared = Vec::with_capacity(plans.len());
    for (plan, extents) in plans {
        let launches = plan.launches.into_iter().map(|step| {
            let (call, early) = match step {
                PlannedLaunch::Gemm(gemm) => return Ok(Launch::Gemm(gemm)),
                PlannedLaunch::Function(call) => (call, None),
                PlannedLaunch::Early(call, constants) => (call, Some(constants)),
            };
            let function = functions.next().ok_or_else(|| Error::internal("a function is missing"))?;
            Ok(Launch::Function { function, call, early })
        });
        let launches = launches.collect::<Result<_>>()?;
        prepared.push(Prepared {
            device: device.device_ref(),
            report: gpu.report_address(),
            launches,
            extents,
            scratch_bytes: plan.scratch,
        });
    }
    Ok(prepared)
}

impl Prepared {
    /// The bytes of scratch memory it needs, at an address that is a multiple of 256.
    pub fn scratch_bytes(&self) -> usize {
        self.scratch_bytes
    }

    /// How many functions and library matmuls it enqueues.
    pub fn launches(&self) -> usize {
        self.launches.len()
    }

    /// Enqueues it on a stream of its GPU, on memory that is freed in the order of that stream, one piece per slot.
    /// Errors are those of [`crate::Prepared::run`].
    pub fn run(&self, memory: &[Memory], scratch: Memory, stream: &Stream) -> Result<()> {
        self.enqueue(memory, scratch, stream, None)
    }

    /// As [`Prepared::run`]. If it is known which memory the work before it does not write, as far as that may not be done
    /// when the stream gets here, functions that read nothing else at first may start early.
    fn enqueue(
        &self,
        memory: &[Memory],
        scratch: Memory,
        stream: &Stream,
        is_constant: Option<&dyn Fn(Memory) -> bool>,
    ) -> Result<()> {
        self.extents.check(memory)?;
        scratch.part(0, self.scratch_bytes)?;
        if stream.device().device_ref() != self.device {
            bail!(internal, "a kernel on {} was given a stream of {}", self.device, stream.device());
        }
        let address = |place: &Address| match place.slot {
            SCRATCH => (scratch.ptr() as u64).wrapping_add_signed(place.bytes),
            slot => memory
                .get(slot.0 as usize)
                .map_or(0, |piece| (piece.ptr() as u64).wrapping_add_signed(place.bytes)),
        };
        for launch in &self.launches {
            match launch {
                Launch::Function { function, call, early } => {
                    let mut params = Vec::with_capacity(call.params.len());
                    params.extend(call.params.iter().map(|param| match param {
                        Param::Address(place) => address(place),
                        Param::Number(number) => *number as u64,
                        Param::Bits(bits) => *bits,
                        Param::Report => self.report,
                    }));
                    let constant = |slot: &Slot| {
                        let piece = memory.get(slot.0 as usize);
                        is_constant.is_some_and(|is_constant| piece.is_some_and(|piece| is_constant(*piece)))
                    };
                    let starts_early = is_constant.is_some()
                        && early.as_ref().is_some_and(|slots| slots.iter().all(constant));
                    let (grid, block, shared) = (call.grid, call.block, call.shared);
                    // SAFETY: the memory was checked for every access of the kernel, and the source was generated for
                    // these parameters. One that may start early waits before it touches other memory than that of slots
                    // which are constant.
                    unsafe {
                        match starts_early {
                            true => function.launch_early(stream, grid, block, shared, &params),
                            false => function.launch(stream, grid, block, shared, &params),
                        }
                    }?;
                }
                Launch::Gemm(gemm) => {
                    let at = GemmAddresses {
                        a: address(&gemm.a),
                        b: address(&gemm.b),
                        c: gemm.c.as_ref().map_or(0, address),
                        d: address(&gemm.d),
                        bias: gemm.bias.as_ref().map_or(0, address),
                        scales: gemm.scales.each_ref().map(|scale| scale.as_ref().map_or(0, address)),
                        workspace: gemm.workspace.as_ref().map_or(0, address),
                    };
                    // SAFETY: as above.
                    unsafe { gemm.plan.run(stream, &at, gemm.alpha, gemm.beta) }?;
                }
            }
        }
        Ok(())
    }
}

/// A launch, ready to be enqueued.
#[derive(Debug)]
enum Launch {
    Function {
        function: Function,
        call: Call,
        /// The slots that it may read before the launches before it are done, if it may start by then.
        early: Option<Vec<Slot>>,
    },
    Gemm(GemmCall),
}

/// The scratch memory of a kernel while it runs: an access names it like any slot, with an offset from
/// [`Plan::scratch`].
const SCRATCH: Slot = Slot(u32::MAX - 1);

/// The launches of a kernel, in order, before its functions are compiled.
struct Plan {
    gpu: &'static Gpu,
    options: Options,
    launches: Vec<PlannedLaunch>,
    scratch: usize,
    /// Scratch memory that library matmuls share as their workspace, and its size in bytes.
    workspace: Option<(Address, usize)>,
}

/// A launch whose function may not be compiled yet.
enum PlannedLaunch {
    Function(Call),
    /// A call of a function that waits for the launches before it by itself: until then it reads only memory of some slots,
    /// and writes none.
    Early(Call, Vec<Slot>),
    Gemm(GemmCall),
}

/// A call of a generated function.
#[derive(Clone, Debug)]
struct Call {
    source: Source,
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    params: Vec<Param>,
}

/// A parameter of a function; all have eight bytes.
#[derive(Clone, Copy, Debug)]
enum Param {
    Address(Address),
    Number(i64),
    Bits(u64),
    /// Where a failure is written: `seen, found, limit, axis`, eight bytes each.
    Report,
}

/// A place in memory: a slot and an offset in bytes.
#[derive(Clone, Copy, Debug)]
struct Address {
    slot: Slot,
    bytes: i64,
}

impl Address {
    /// Where an access starts.
    fn of(access: &Access<i64>) -> Address {
        Address { slot: access.slot, bytes: access.offset * access.dtype.size_in_bytes() as i64 }
    }
}

/// A matmul by the library.
#[derive(Debug)]
struct GemmCall {
    plan: GemmPlan,
    a: Address,
    b: Address,
    c: Option<Address>,
    d: Address,
    bias: Option<Address>,
    /// The factors of `a` and of `b`.
    scales: [Option<Address>; 2],
    workspace: Option<Address>,
    alpha: f64,
    beta: f64,
}

impl Plan {
    /// Adds a kernel, whose accesses may name scratch memory.
    fn kernel(&mut self, kernel: &Kernel<i64>) -> Result<()> {
        match kernel {
            Kernel::Loop(k) => self.loop_(k),
            Kernel::Matmul(k) => self.matmul(k),
            Kernel::Matmuls(k) => self.matmuls(&k.all),
            Kernel::Attention(k) => self.attention(k),
            Kernel::Conv2d(k) => self.conv2d(k),
            Kernel::Dequantize(k) => self.dequantize(k),
            Kernel::Gather(k) => self.gather(k),
            Kernel::RoiAlign(k) => self.roi_align(k),
            Kernel::Scan(k) => self.scan(k),
            Kernel::Scatter(k) => self.scatter(k),
            Kernel::Sort(k) => self.sort(k),
            Kernel::Put(k) => self.put(k),
            Kernel::QMatmul(k) => self.qmatmul(k),
            Kernel::Window(k) => self.window(k),
            Kernel::Resample(k) => self.resample(k),
            Kernel::PagedAttention(k) => self.paged_attention(k),
            Kernel::PagedStore(k) => self.paged_store(k),
            Kernel::Irfft(_) | Kernel::Suppress(_) => bail!(
                not_implemented,
                "{} is not implemented on a GPU; transfer its operands to the CPU",
                kernel.kind()
            ),
        }
    }

    /// Allocates scratch memory for elements; returns the offset of an access to it, in elements.
    fn scratch(&mut self, dtype: DType, elements: i64) -> Result<i64> {
        let start = self.scratch.next_multiple_of(256);
        let bytes = usize::try_from(elements).ok().and_then(|n| n.checked_mul(dtype.size_in_bytes()));
        let Some(end) = bytes.and_then(|bytes| start.checked_add(bytes)).filter(|&end| end < 1 << 46) else {
            bail!(memory, "a kernel needs {elements} {dtype} elements of scratch memory, which is too much")
        };
        self.scratch = end;
        Ok((start / dtype.size_in_bytes()) as i64)
    }
}
