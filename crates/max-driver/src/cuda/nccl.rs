//! Collectives of GPUs by NCCL: the library's functions, and one communicator per GPU for each list of GPUs that works
//! together. All GPUs are this process's own.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use max_core::collective::nccl_number;
use max_core::{Collective, Error, Result, bail};

use super::Gpu;
use super::api::StreamHandle;
use super::library::{Wanted, library};
use crate::Buffer;

type Communicator = *mut c_void;

library! {
    /// The library of collectives.
    Nccl = Wanted {
        title: "NCCL (NVIDIA's library of collectives)",
        files: &["libnccl.so.2"],
        install: "install it with `pip install nvidia-nccl-cu13` (nvidia-nccl-cu12 for a driver older than 580)",
    };
    fn ncclGetVersion(version: *mut c_int) -> c_int;
    fn ncclGetErrorString(result: c_int) -> *const c_char;
    fn ncclCommInitAll(communicators: *mut Communicator, count: c_int, devices: *const c_int) -> c_int;
    fn ncclGroupStart() -> c_int;
    fn ncclGroupEnd() -> c_int;
    fn ncclAllGather(from: u64, to: u64, count: usize, dtype: c_int, communicator: Communicator, stream: StreamHandle) -> c_int;
    fn ncclAllReduce(from: u64, to: u64, count: usize, dtype: c_int, op: c_int, communicator: Communicator, stream: StreamHandle) -> c_int;
    fn ncclReduceScatter(from: u64, to: u64, count: usize, dtype: c_int, op: c_int, communicator: Communicator, stream: StreamHandle) -> c_int;
    fn ncclBroadcast(from: u64, to: u64, count: usize, dtype: c_int, root: c_int, communicator: Communicator, stream: StreamHandle) -> c_int;
}

/// NCCL's number for bytes, and for a sum.
const BYTES: c_int = 1;
const SUM: c_int = 0;

/// The communicators of each list of GPUs that has worked together.
#[derive(Default)]
pub(crate) struct Communicators(HashMap<Vec<u32>, Vec<Communicator>>);

// SAFETY: handles of the library, which are used by one thread at a time: whoever has the lock.
unsafe impl Send for Communicators {}

/// Excludes other work that makes GPUs wait for each other. Such work has to be enqueued on all of its GPUs before, or on
/// all of them after, any other: two collectives that each wait for a GPU on which the other is first never end.
pub(crate) fn between_gpus() -> MutexGuard<'static, Communicators> {
    static COMMUNICATORS: OnceLock<Mutex<Communicators>> = OnceLock::new();
    COMMUNICATORS.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// Checks that collectives of GPUs can run; if they cannot, the error says what is missing.
pub fn require_collectives() -> Result<()> {
    nccl().map(|_| ())
}

/// Enqueues a collective on the streams of its results, one per GPU. Buffers are contiguous and in the order of the GPUs;
/// for a broadcast, `from` is only that of the GPU that has the data. An allgather joins the buffers one after the other,
/// and a reduce-scatter cuts them so.
pub fn collective(kind: Collective, from: &[Buffer], to: &[Buffer]) -> Result<()> {
    let nccl = nccl()?;
    let call = Call::new(kind, from, to)?;
    for (from, to) in call.pairs() {
        to.stream().wait_for(from.stream())?;
        from.used_on(to.stream());
    }
    if call.count == 0 {
        return Ok(());
    }
    let mut known = between_gpus();
    let _entered = call.gpus[0].enter()?;
    let communicators = known.of(nccl, &call.gpus)?;
    // SAFETY: starts a group that is ended below.
    nccl.check(unsafe { nccl.ncclGroupStart() }, "ncclGroupStart")?;
    let enqueued = call.enqueue(nccl, communicators);
    // SAFETY: ends the group that was started.
    let ended = nccl.check(unsafe { nccl.ncclGroupEnd() }, "ncclGroupEnd");
    enqueued.and(ended)?;
    drop(known);
    call.pairs().try_for_each(|(from, to)| from.stream().wait_for(to.stream()))
}

/// A collective whose buffers have been checked.
struct Call<'a> {
    kind: Collective,
    gpus: Vec<&'static Gpu>,
    from: &'a [Buffer],
    to: &'a [Buffer],
    /// The number of elements, or of bytes, that one GPU gives or gets.
    count: usize,
    dtype: c_int,
    /// Which GPU has the data of a broadcast.
    root: usize,
}

impl<'a> Call<'a> {
    fn new(kind: Collective, from: &'a [Buffer], to: &'a [Buffer]) -> Result<Call<'a>> {
        let gpus = to.iter().map(|buffer| buffer.device().gpu()).collect::<Option<Vec<_>>>();
        let (Some(gpus), Some(first)) = (gpus, from.first()) else {
            bail!(internal, "a collective from {from:?} to {to:?} is not one of GPUs");
        };
        let root = to.iter().position(|buffer| buffer.device() == first.device()).unwrap_or(to.len());
        let on = |buffers: &'a [Buffer]| buffers.iter().map(Buffer::device);
        let placed = match kind {
            Collective::Broadcast => from.len() == 1 && root < to.len(),
            _ => on(from).eq(on(to)),
        };
        let (given, taken) = match kind {
            Collective::AllGather => (1, to.len()),
            Collective::ReduceScatterSum => (to.len(), 1),
            Collective::AllReduceSum | Collective::Broadcast => (1, 1),
        };
        let elements = first.num_elements() / given;
        let fits = |buffers: &[Buffer], times: usize| {
            buffers.iter().all(|buffer| {
                buffer.dtype() == first.dtype()
                    && buffer.num_elements() == elements * times
                    && buffer.is_contiguous()
            })
        };
        let distinct = (1..gpus.len()).all(|at| !gpus[..at].contains(&gpus[at]));
        if !placed || !distinct || !fits(from, given) || !fits(to, taken) {
            bail!(internal, "a {kind:?} cannot go from {from:?} to {to:?}");
        }
        let (count, dtype) = match nccl_number(first.dtype()) {
            Some(dtype) if kind.sums() => (elements, dtype),
            None if kind.sums() => bail!(internal, "NCCL cannot add elements of {}", first.dtype()),
            _ => (elements * first.element_size(), BYTES),
        };
        Ok(Call { kind, gpus, from, to, count, dtype, root })
    }

    /// The buffers on each GPU that has both.
    fn pairs(&self) -> impl Iterator<Item = (&'a Buffer, &'a Buffer)> + use<'a> {
        let first = if self.kind == Collective::Broadcast { self.root } else { 0 };
        self.from.iter().zip(&self.to[first..])
    }

    fn enqueue(&self, nccl: &Nccl, communicators: &[Communicator]) -> Result<()> {
        for (rank, (to, &communicator)) in self.to.iter().zip(communicators).enumerate() {
            let Some((_, stream)) = to.stream().cuda() else {
                bail!(internal, "{to:?} is not on a GPU");
            };
            // What a broadcast would read on other GPUs is ignored.
            let from = self.from.get(rank).unwrap_or(&self.from[0]).data_ptr() as u64;
            let (to, count, dtype) = (to.data_ptr_mut()? as u64, self.count, self.dtype);
            // SAFETY: the buffers were checked to be as large as the call needs, on the GPUs of the communicators. Their
            // memory is freed in stream order, and `collective` has put both buffers of a GPU in the order of one stream.
            let (status, name) = unsafe {
                match self.kind {
                    Collective::AllGather => {
                        (nccl.ncclAllGather(from, to, count, dtype, communicator, stream), "ncclAllGather")
                    }
                    Collective::AllReduceSum => (
                        nccl.ncclAllReduce(from, to, count, dtype, SUM, communicator, stream),
                        "ncclAllReduce",
                    ),
                    Collective::ReduceScatterSum => (
                        nccl.ncclReduceScatter(from, to, count, dtype, SUM, communicator, stream),
                        "ncclReduceScatter",
                    ),
                    Collective::Broadcast => {
                        let root = self.root as c_int;
                        (
                            nccl.ncclBroadcast(from, to, count, dtype, root, communicator, stream),
                            "ncclBroadcast",
                        )
                    }
                }
            };
            nccl.check(status, name)?;
        }
        Ok(())
    }
}

impl Communicators {
    /// The communicators of GPUs, one for each, made when they are first needed. They live as long as the process.
    fn of(&mut self, nccl: &Nccl, gpus: &[&'static Gpu]) -> Result<&[Communicator]> {
        let ids: Vec<u32> = gpus.iter().map(|gpu| gpu.id()).collect();
        if !self.0.contains_key(&ids) {
            let devices: Vec<c_int> = gpus.iter().map(|gpu| gpu.device).collect();
            let mut made = vec![std::ptr::null_mut(); devices.len()];
            // SAFETY: reads as many numbers, and writes as many handles, as there are GPUs.
            let status =
                unsafe { nccl.ncclCommInitAll(made.as_mut_ptr(), devices.len() as c_int, devices.as_ptr()) };
            nccl.check(status, "ncclCommInitAll")?;
            self.0.insert(ids.clone(), made);
        }
        match self.0.get(&ids) {
            Some(made) => Ok(made),
            None => bail!(internal, "the communicators of {ids:?} are missing"),
        }
    }
}

/// The library, or why there is none. If it was missing, the next call looks again.
fn nccl() -> Result<&'static Nccl> {
    static LIBRARY: OnceLock<Nccl> = OnceLock::new();
    if let Some(library) = LIBRARY.get() {
        return Ok(library);
    }
    let library = Nccl::load()?;
    Ok(LIBRARY.get_or_init(|| library))
}

impl Nccl {
    /// An error unless the call succeeded.
    fn check(&self, status: c_int, call: &str) -> Result<()> {
        if status == 0 {
            return Ok(());
        }
        let mut version = 0;
        // SAFETY: returns a static string for any number, and writes a number.
        let says = unsafe {
            self.ncclGetVersion(&raw mut version);
            CStr::from_ptr(self.ncclGetErrorString(status))
        };
        let says = says.to_string_lossy();
        Err(Error::runtime(format!("{call} failed: {says} (NCCL {version}, {})", self.file)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_explained() {
        if let Err(error) = require_collectives() {
            let says = error.message();
            assert!(says.contains("libnccl.so.2") && says.contains("pip install nvidia-nccl"), "{error}");
        }
    }

    #[test]
    fn what_is_not_on_gpus_is_refused() {
        let buffer = [Buffer::from([1f32])];
        let error = Call::new(Collective::AllReduceSum, &buffer, &buffer).err().unwrap();
        assert!(error.message().contains("not one of GPUs"), "{error}");
    }
}
