//! Work recorded once and enqueued as a whole.

use std::cell::Cell;
use std::ffi::c_int;
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use max_core::{Result, bail};

use super::Gpu;
use super::api::{GraphExec, GraphHandle, StreamHandle};
use crate::Stream;

/// Work recorded from a stream.
pub struct Graph {
    gpu: &'static Gpu,
    /// The executable graph, launched by one thread at a time.
    launched: Mutex<Launched>,
    nodes: usize,
}

/// Only calls of the recording thread are restricted; other threads may do anything.
const THREAD_LOCAL: c_int = 1;

impl Graph {
    /// Records what `work` enqueues on a stream. Nothing runs meanwhile, so use a dedicated stream; `work` must not
    /// wait for the device or allocate. If it fails, nothing is recorded and the stream is as before.
    pub fn record(stream: &Stream, work: impl FnOnce() -> Result<()>) -> Result<Graph> {
        let recorded = Recorded::new(stream, work)?;
        let (gpu, nodes) = (recorded.gpu, recorded.nodes()?);
        Ok(Graph { gpu, launched: Mutex::new(recorded.instantiate()?), nodes })
    }

    /// Replaces the recording. If only parameters differ, this is much cheaper than a new graph.
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

    /// The number of nodes: kernels, copies and fills.
    pub fn nodes(&self) -> usize {
        self.nodes
    }

    /// Enqueues all of it.
    ///
    /// # Safety
    ///
    /// The recorded memory stays alive until the work is done, and nothing else writes it meanwhile.
    pub unsafe fn launch(&self, stream: &Stream) -> Result<()> {
        let (gpu, stream) = match stream.cuda() {
            Some((gpu, handle)) if gpu == self.gpu => (gpu, handle),
            _ => bail!(internal, "a graph on {:?} was given {stream:?}", self.gpu),
        };
        let _entered = gpu.enter()?;
        let launched = self.launched.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: both handles are alive; the caller guarantees the memory.
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

/// What the driver says about an update. Only whether it worked is used.
#[repr(C)]
struct UpdateInfo {
    result: c_int,
    nodes: [*mut std::ffi::c_void; 2],
}

impl Launched {
    /// Takes over the parameters of another recording if nothing else differs; whether that worked.
    fn update(&mut self, recorded: &Recorded) -> bool {
        let Ok(_entered) = self.gpu.enter() else { return false };
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
        let _entered = self.gpu.enter();
        // SAFETY: this is the last use of the handle; the driver keeps it alive for pending launches.
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
            bail!(value, "the host cannot record work: its work is done when a call returns")
        };
        if handle == gpu.default_stream {
            bail!(value, "the default stream of {gpu:?} is shared: record on a dedicated stream");
        }
        let _entered = gpu.enter()?;
        let _underway = gpu.recordings.begin();
        // SAFETY: the handle is alive.
        let status = unsafe { gpu.api.cuStreamBeginCapture_v2(handle, THREAD_LOCAL) };
        gpu.api.check(status, "cuStreamBeginCapture")?;
        let recording = Recording { gpu, stream: handle };
        work()?;
        recording.end()
    }

    fn nodes(&self) -> Result<usize> {
        let mut count = 0;
        // SAFETY: with a null list of nodes it only writes their number.
        let status =
            unsafe { self.gpu.api.cuGraphGetNodes(self.handle, std::ptr::null_mut(), &raw mut count) };
        self.gpu.api.check(status, "cuGraphGetNodes")?;
        Ok(count)
    }

    fn instantiate(&self) -> Result<Launched> {
        let (gpu, mut handle) = (self.gpu, std::ptr::null_mut());
        let _entered = gpu.enter()?;
        // SAFETY: writes a handle; the graph is alive.
        let status = unsafe { gpu.api.cuGraphInstantiateWithFlags(&raw mut handle, self.handle, 0) };
        gpu.api.check(status, "cuGraphInstantiate")?;
        Ok(Launched { gpu, handle })
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        if !self.handle.is_null() {
            // SAFETY: this is the last use of the handle.
            let _ = unsafe { self.gpu.api.cuGraphDestroy(self.handle) };
        }
    }
}

/// The active recordings of a GPU. Meanwhile no thread may wait for all of its streams: the driver would refuse, and
/// invalidate the recordings.
#[derive(Default)]
pub(super) struct Recordings(RwLock<()>);

thread_local! {
    /// Whether this thread is recording.
    static RECORDS: Cell<bool> = const { Cell::new(false) };
}

/// An active recording of this thread, until dropped.
struct Underway<'a> {
    lock: Option<RwLockReadGuard<'a, ()>>,
}

impl Recordings {
    fn begin(&self) -> Underway<'_> {
        let within = RECORDS.replace(true);
        Underway { lock: (!within).then(|| self.0.read().unwrap_or_else(PoisonError::into_inner)) }
    }

    /// Waits until there are none, and lets none begin while the guard lives. `None` if this thread is recording, which
    /// would wait for itself forever: the driver reports the error.
    pub(super) fn pause(&self) -> Option<RwLockWriteGuard<'_, ()>> {
        (!RECORDS.get()).then(|| self.0.write().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Underway<'_> {
    fn drop(&mut self) {
        if self.lock.is_some() {
            RECORDS.set(false);
        }
    }
}

/// A recording stream. It leaves recording mode when this is dropped, also during a panic.
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
        // SAFETY: writes a handle, or null if the recording was invalidated; the stream is alive, as its owner is
        // borrowed for the whole recording.
        let status = unsafe { self.gpu.api.cuStreamEndCapture(self.stream, &raw mut recorded.handle) };
        (recorded, status)
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        self.stop();
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
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn the_host_records_nothing() {
        let error = Graph::record(&Device::cpu().default_stream(), || Ok(())).unwrap_err();
        assert!(error.message().contains("the host cannot record work"), "{error}");
    }

    #[test]
    fn no_thread_waits_for_all_streams_while_one_records() {
        let (recordings, over) = (Recordings::default(), AtomicBool::new(false));
        let outer = recordings.begin();
        drop(recordings.begin());
        assert!(recordings.pause().is_none(), "a recording thread does not wait for itself");
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                let paused = recordings.pause();
                assert!(paused.is_some() && over.load(Ordering::SeqCst));
            });
            std::thread::yield_now();
            over.store(true, Ordering::SeqCst);
            drop(outer);
            other.join().unwrap();
        });
        assert!(recordings.pause().is_some());
    }
}
