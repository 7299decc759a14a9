//! Work recorded once and enqueued as a whole.

use std::cell::Cell;
use std::ffi::c_int;
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use max_core::{Result, bail};

use super::Gpu;
use super::api::{GraphExec, GraphHandle, StreamHandle};
use crate::Stream;

/// Recorded work of a stream.
pub struct Graph {
    gpu: &'static Gpu,
    /// What is launched, by one thread at a time.
    launched: Mutex<Launched>,
    nodes: usize,
}

/// A stream records only what the recording thread gives to it, and other threads may do what they like.
const THREAD_LOCAL: c_int = 1;

impl Graph {
    /// Records what a function gives to a stream, which does not run meanwhile: use a stream of its own. Nothing in the
    /// function may wait for the device or allocate. Where it fails, nothing is recorded and the stream is as before.
    pub fn record(stream: &Stream, work: impl FnOnce() -> Result<()>) -> Result<Graph> {
        let recorded = Recorded::new(stream, work)?;
        let (gpu, nodes) = (recorded.gpu, recorded.nodes()?);
        Ok(Graph { gpu, launched: Mutex::new(recorded.instantiate()?), nodes })
    }

    /// Records other work in its place. Where that differs in parameters only, that costs much less than a new graph.
    pub fn record_again(&mut self, stream: &Stream, work: impl FnOnce() -> Result<()>) -> Result<()> {
        let recorded = Recorded::new(stream, work)?;
        let nodes = recorded.nodes()?;
        let launched = self.launched.get_mut().unwrap_or_else(PoisonError::into_inner);
        if recorded.gpu != self.gpu || !launched.update(&recorded) {
            *launched = recorded.instantiate()?;
        }
        (self.gpu, self.nodes) = (recorded.gpu, nodes);
        Ok(())
    }

    /// How many things it does: kernels, copies and fills.
    pub fn nodes(&self) -> usize {
        self.nodes
    }

    /// Enqueues all of it.
    ///
    /// # Safety
    ///
    /// The memory that was recorded is alive until the work is done, and written by nobody else meanwhile.
    pub unsafe fn launch(&self, stream: &Stream) -> Result<()> {
        let (gpu, stream) = match stream.cuda() {
            Some((gpu, handle)) if gpu == self.gpu => (gpu, handle),
            _ => bail!(internal, "a graph of {:?} was given {stream:?}", self.gpu),
        };
        gpu.enter()?;
        let launched = self.launched.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: both handles are alive; the memory is as the caller promises.
        gpu.api.check(unsafe { gpu.api.cuGraphLaunch(launched.handle, stream) }, "cuGraphLaunch")
    }
}

/// A graph that can be launched.
struct Launched {
    gpu: &'static Gpu,
    handle: GraphExec,
}

// SAFETY: the handle may be used from any thread, by one at a time.
unsafe impl Send for Launched {}

/// What the driver says about an update; whether it worked is all that is looked at.
#[repr(C)]
struct UpdateInfo {
    result: c_int,
    nodes: [*mut std::ffi::c_void; 2],
}

impl Launched {
    /// Takes over the parameters of another recording, if only they differ.
    fn update(&mut self, recorded: &Recorded) -> bool {
        let mut info = UpdateInfo { result: 0, nodes: [std::ptr::null_mut(); 2] };
        // SAFETY: both handles are alive, and there is room for what it writes.
        let status = unsafe {
            self.gpu.api.cuGraphExecUpdate_v2(self.handle, recorded.handle, (&raw mut info).cast())
        };
        status == 0
    }
}

impl Drop for Launched {
    fn drop(&mut self) {
        // SAFETY: nobody uses it any more; the driver itself waits for launches that are not done.
        let _ = unsafe { self.gpu.api.cuGraphExecDestroy(self.handle) };
    }
}

/// What was recorded.
struct Recorded {
    gpu: &'static Gpu,
    handle: GraphHandle,
}

impl Recorded {
    fn new(stream: &Stream, work: impl FnOnce() -> Result<()>) -> Result<Recorded> {
        let Some((gpu, handle)) = stream.cuda() else {
            bail!(value, "the host records no work: its work is done when a call returns")
        };
        if handle == gpu.default_stream {
            bail!(value, "the default stream of {gpu:?} is used by everybody: record on a stream of its own");
        }
        gpu.enter()?;
        let _turn = gpu.turns.record();
        // SAFETY: the handle is alive.
        let status = unsafe { gpu.api.cuStreamBeginCapture_v2(handle, THREAD_LOCAL) };
        gpu.api.check(status, "cuStreamBeginCapture")?;
        let recording = Recording { gpu, stream: handle };
        work()?;
        recording.end()
    }

    fn nodes(&self) -> Result<usize> {
        let mut count = 0;
        // SAFETY: without a place for nodes it only writes their number.
        let status =
            unsafe { self.gpu.api.cuGraphGetNodes(self.handle, std::ptr::null_mut(), &raw mut count) };
        self.gpu.api.check(status, "cuGraphGetNodes")?;
        Ok(count)
    }

    fn instantiate(&self) -> Result<Launched> {
        let (gpu, mut handle) = (self.gpu, std::ptr::null_mut());
        // SAFETY: writes a handle; the graph is alive.
        let status = unsafe { gpu.api.cuGraphInstantiateWithFlags(&raw mut handle, self.handle, 0) };
        gpu.api.check(status, "cuGraphInstantiate")?;
        Ok(Launched { gpu, handle })
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        if !self.handle.is_null() {
            // SAFETY: nobody uses it any more.
            let _ = unsafe { self.gpu.api.cuGraphDestroy(self.handle) };
        }
    }
}

/// A stream that records. It works again when this is gone, however that comes.
struct Recording {
    gpu: &'static Gpu,
    stream: StreamHandle,
}

impl Recording {
    fn end(self) -> Result<Recorded> {
        let (recorded, status) = self.stop();
        std::mem::forget(self);
        let what = "cuStreamEndCapture, after work that waited for the device, allocated or loaded code while it was \
                    recorded,";
        recorded.gpu.api.check(status, what)?;
        Ok(recorded)
    }

    fn stop(&self) -> (Recorded, c_int) {
        let mut recorded = Recorded { gpu: self.gpu, handle: std::ptr::null_mut() };
        // SAFETY: writes a handle, or null where the recording was spoilt; the stream is alive, as its owner is borrowed
        // for the whole recording.
        let status = unsafe { self.gpu.api.cuStreamEndCapture(self.stream, &raw mut recorded.handle) };
        (recorded, status)
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Who records, any number of threads, and who waits for a whole GPU: not at the same time. Otherwise the driver would
/// refuse the wait, and spoil the recordings of other threads.
#[derive(Default)]
pub(super) struct Turns(RwLock<()>);

thread_local! {
    static RECORDS: Cell<bool> = const { Cell::new(false) };
}

/// While it lives, the thread records.
pub(super) struct RecordingTurn<'a> {
    /// Nothing inside a recording of the same thread, which has its turn.
    turn: Option<RwLockReadGuard<'a, ()>>,
}

impl Turns {
    fn record(&self) -> RecordingTurn<'_> {
        let turn = match RECORDS.get() {
            true => None,
            false => Some(self.0.read().unwrap_or_else(PoisonError::into_inner)),
        };
        RECORDS.set(true);
        RecordingTurn { turn }
    }

    /// Until nobody records. A thread that does so itself would wait for ever: the driver tells it what is wrong.
    pub(super) fn wait(&self) -> Option<RwLockWriteGuard<'_, ()>> {
        (!RECORDS.get()).then(|| self.0.write().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for RecordingTurn<'_> {
    fn drop(&mut self) {
        RECORDS.set(self.turn.is_none());
    }
}

impl std::fmt::Debug for Graph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Graph({} nodes)", self.nodes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    #[test]
    fn the_host_records_nothing() {
        let error = Graph::record(&Device::cpu().default_stream(), || Ok(())).unwrap_err();
        assert!(error.message().contains("the host records no work"), "{error}");
    }

    #[test]
    fn nobody_waits_for_a_gpu_that_records() {
        let (turns, recording) = (Turns::default(), AtomicUsize::new(0));
        thread::scope(|scope| {
            for number in 0..4 {
                let (turns, recording) = (&turns, &recording);
                scope.spawn(move || {
                    for _ in 0..1000 {
                        if number % 2 == 0 {
                            let _turn = turns.record();
                            recording.fetch_add(1, Ordering::SeqCst);
                            thread::yield_now();
                            recording.fetch_sub(1, Ordering::SeqCst);
                        } else {
                            let _turn = turns.wait();
                            assert_eq!(recording.load(Ordering::SeqCst), 0);
                        }
                    }
                });
            }
        });
        // A thread does not wait for itself.
        let outer = turns.record();
        drop(turns.record());
        assert!(turns.wait().is_none());
        drop(outer);
        assert!(turns.wait().is_some());
    }
}
