//! The CUDA driver: its table of functions, its handles, and its failures as errors.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use max_core::{Error, Result};

use super::library::{Wanted, library};

/// What a call returns; zero is success.
pub(crate) type Status = c_int;
pub(crate) type Context = *mut c_void;
pub(crate) type StreamHandle = *mut c_void;
pub(crate) type EventHandle = *mut c_void;
pub(crate) type ModuleHandle = *mut c_void;
pub(crate) type FunctionHandle = *mut c_void;
pub(crate) type GraphHandle = *mut c_void;
pub(crate) type GraphExec = *mut c_void;
pub(crate) type MemPool = *mut c_void;

pub(crate) const OUT_OF_MEMORY: Status = 2;
pub(crate) const NOT_INITIALIZED: Status = 3;
pub(crate) const NO_DEVICE: Status = 100;
pub(crate) const NOT_READY: Status = 600;

/// How a function is launched.
#[repr(C)]
pub(crate) struct LaunchConfig {
    pub(crate) grid: [c_uint; 3],
    pub(crate) block: [c_uint; 3],
    pub(crate) shared: c_uint,
    pub(crate) stream: StreamHandle,
    pub(crate) attributes: *const LaunchAttribute,
    pub(crate) count: c_uint,
}

/// An attribute of a launch: a number and a value, whose first bytes matter.
#[repr(C)]
pub(crate) struct LaunchAttribute {
    id: c_int,
    padding: [u8; 4],
    value: [u64; 8],
}

impl LaunchAttribute {
    /// A launch may start before the one before it is done, when all blocks of that one have said so or are done.
    pub(crate) const EARLY: LaunchAttribute =
        LaunchAttribute { id: 6, padding: [0; 4], value: [1, 0, 0, 0, 0, 0, 0, 0] };
}

library! {
    /// The driver.
    Api = Wanted {
        title: "the NVIDIA driver",
        files: &["libcuda.so.1", "libcuda.so"],
        install: "install the NVIDIA driver (version 525 or newer) to use a GPU",
    };
    fn cuInit(flags: c_uint) -> Status;
    fn cuDriverGetVersion(version: *mut c_int) -> Status;
    fn cuGetErrorName(status: Status, text: *mut *const c_char) -> Status;
    fn cuGetErrorString(status: Status, text: *mut *const c_char) -> Status;
    fn cuDeviceGetCount(count: *mut c_int) -> Status;
    fn cuDeviceGet(device: *mut c_int, ordinal: c_int) -> Status;
    fn cuDeviceGetName(name: *mut c_char, len: c_int, device: c_int) -> Status;
    fn cuDeviceGetPCIBusId(name: *mut c_char, len: c_int, device: c_int) -> Status;
    fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int) -> Status;
    fn cuDeviceCanAccessPeer(can: *mut c_int, device: c_int, peer: c_int) -> Status;
    fn cuDevicePrimaryCtxRetain(context: *mut Context, device: c_int) -> Status;
    fn cuCtxGetCurrent(context: *mut Context) -> Status;
    fn cuCtxSetCurrent(context: Context) -> Status;
    fn cuCtxSynchronize() -> Status;
    fn cuCtxEnablePeerAccess(peer: Context, flags: c_uint) -> Status;
    fn cuDeviceGetDefaultMemPool(pool: *mut MemPool, device: c_int) -> Status;
    fn cuMemPoolSetAttribute(pool: MemPool, attribute: c_int, value: *mut c_void) -> Status;
    fn cuMemPoolGetAttribute(pool: MemPool, attribute: c_int, value: *mut c_void) -> Status;
    fn cuMemPoolSetAccess(pool: MemPool, descriptions: *const c_void, count: usize) -> Status;
    fn cuMemPoolTrimTo(pool: MemPool, keep: usize) -> Status;
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> Status;
    fn cuMemAllocAsync(address: *mut u64, bytes: usize, stream: StreamHandle) -> Status;
    fn cuMemFreeAsync(address: u64, stream: StreamHandle) -> Status;
    fn cuMemHostAlloc(address: *mut *mut c_void, bytes: usize, flags: c_uint) -> Status;
    fn cuMemFreeHost(address: *mut c_void) -> Status;
    fn cuPointerGetAttributes(count: c_uint, attributes: *const c_int, values: *mut *mut c_void, address: u64) -> Status;
    fn cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, bytes: usize, stream: StreamHandle) -> Status;
    fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, bytes: usize, stream: StreamHandle) -> Status;
    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: StreamHandle) -> Status;
    fn cuMemcpyPeerAsync(to: u64, to_context: Context, from: u64, from_context: Context, bytes: usize, stream: StreamHandle) -> Status;
    fn cuMemsetD8Async(to: u64, value: u8, count: usize, stream: StreamHandle) -> Status;
    fn cuMemsetD16Async(to: u64, value: u16, count: usize, stream: StreamHandle) -> Status;
    fn cuMemsetD32Async(to: u64, value: c_uint, count: usize, stream: StreamHandle) -> Status;
    fn cuStreamCreate(stream: *mut StreamHandle, flags: c_uint) -> Status;
    fn cuStreamDestroy_v2(stream: StreamHandle) -> Status;
    fn cuStreamSynchronize(stream: StreamHandle) -> Status;
    fn cuStreamWaitEvent(stream: StreamHandle, event: EventHandle, flags: c_uint) -> Status;
    fn cuStreamBeginCapture_v2(stream: StreamHandle, mode: c_int) -> Status;
    fn cuStreamEndCapture(stream: StreamHandle, graph: *mut GraphHandle) -> Status;
    fn cuEventCreate(event: *mut EventHandle, flags: c_uint) -> Status;
    fn cuEventDestroy_v2(event: EventHandle) -> Status;
    fn cuEventRecord(event: EventHandle, stream: StreamHandle) -> Status;
    fn cuEventQuery(event: EventHandle) -> Status;
    fn cuEventSynchronize(event: EventHandle) -> Status;
    fn cuEventElapsedTime(milliseconds: *mut f32, start: EventHandle, end: EventHandle) -> Status;
    fn cuModuleLoadData(module: *mut ModuleHandle, image: *const c_void) -> Status;
    fn cuModuleGetFunction(function: *mut FunctionHandle, module: ModuleHandle, name: *const c_char) -> Status;
    fn cuFuncSetAttribute(function: FunctionHandle, attribute: c_int, value: c_int) -> Status;
    fn cuFuncGetAttribute(value: *mut c_int, attribute: c_int, function: FunctionHandle) -> Status;
    fn cuLaunchKernelEx(config: *const LaunchConfig, function: FunctionHandle, params: *mut *mut c_void, extra: *mut *mut c_void) -> Status;
    fn cuGraphInstantiateWithFlags(exec: *mut GraphExec, graph: GraphHandle, flags: u64) -> Status;
    fn cuGraphExecUpdate_v2(exec: GraphExec, graph: GraphHandle, info: *mut c_void) -> Status;
    fn cuGraphGetNodes(graph: GraphHandle, nodes: *mut *mut c_void, count: *mut usize) -> Status;
    fn cuGraphLaunch(exec: GraphExec, stream: StreamHandle) -> Status;
    fn cuGraphExecDestroy(exec: GraphExec) -> Status;
    fn cuGraphDestroy(graph: GraphHandle) -> Status;
}

/// The driver, initialized, or why there is none.
pub(crate) fn api() -> Result<&'static Api> {
    static API: OnceLock<Result<Api>> = OnceLock::new();
    let loaded = API.get_or_init(|| {
        let api = Api::load()?;
        // SAFETY: this is the first call into the driver.
        match unsafe { api.cuInit(0) } {
            NO_DEVICE => Err(Error::runtime("the NVIDIA driver found no GPU in this machine")),
            status => api.check(status, "cuInit").map(|()| api),
        }
    });
    loaded.as_ref().map_err(Error::clone)
}

impl Api {
    /// An error unless the call succeeded.
    pub(crate) fn check(&self, status: Status, call: &str) -> Result<()> {
        if status == 0 {
            return Ok(());
        }
        let mut texts = [std::ptr::null(); 2];
        // SAFETY: both write the address of a static string, or leave the variable as it is.
        unsafe {
            self.cuGetErrorName(status, &raw mut texts[0]);
            self.cuGetErrorString(status, &raw mut texts[1]);
        }
        let [name, says] = texts.map(|text| match text.is_null() {
            true => "an unknown error".into(),
            // SAFETY: a static, zero-terminated string of the driver.
            false => unsafe { CStr::from_ptr(text) }.to_string_lossy(),
        });
        let mut version = 0;
        // SAFETY: writes a number.
        unsafe { self.cuDriverGetVersion(&raw mut version) };
        let (major, minor) = (version / 1000, version % 1000 / 10);
        let hint = hint(status);
        let message =
            format!("{call} failed with {name}, {says} (NVIDIA driver for CUDA {major}.{minor}){hint}");
        Err(if status == OUT_OF_MEMORY { Error::memory(message) } else { Error::runtime(message) })
    }
}

/// What an error means for later calls, where its own message does not say so.
fn hint(status: Status) -> &'static str {
    match status {
        // The driver is always initialized first, but a fork does not inherit it.
        NOT_INITIALIZED => {
            "; a forked process cannot use the GPUs that its parent used: start a new process, as Python's \
             multiprocessing does with the start method 'spawn'"
        }
        // Errors of kernels and of the hardware destroy the context, which other libraries share.
        214 | 700 | 702 | 710 | 714..=719 => {
            "; this process can no longer use the GPU, and earlier work may have caused it: restart the process"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sticky_errors_say_so() {
        assert!(hint(NOT_INITIALIZED).contains("fork"));
        assert!([700, 716, 719].map(hint).iter().all(|text| text.contains("restart the process")));
        assert!([OUT_OF_MEMORY, NO_DEVICE, NOT_READY, 713].map(hint).iter().all(|text| text.is_empty()));
    }
}
