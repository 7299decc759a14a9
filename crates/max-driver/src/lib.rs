//! Devices and the memory on them: which devices there are, buffers, streams, and the exchange of buffers with other
//! libraries. Everything above this crate deals in devices and buffers, never in host pointers.
//!
//! Two rules hold throughout:
//!
//! * **Buffers are shared, mutable memory**, like NumPy arrays. A clone or a view shares storage, and a write shows in
//!   all of them. Nothing is locked: whoever writes to a buffer must make sure that nobody else reads or writes the
//!   same elements meanwhile. The engine relies on this while it executes.
//! * **Work on a device may be pending** when a call returns. A buffer carries the [`Stream`] in whose order its
//!   contents are computed; whatever reads them from the host waits for that stream first. On the host, work is
//!   complete when the call returns, so waiting costs nothing.

mod buffer;
pub mod cuda;
mod device;
pub mod dlpack;
pub mod extension;
pub mod guard;
mod host;
mod memory;
mod mmap;
mod pool;
pub mod resident;
mod spec;
mod stream;
mod virtual_device;

pub use buffer::Buffer;
pub use device::{Accelerator, CPU, Device};
pub use memory::Access;
pub use mmap::MmapMode;
pub use spec::{
    DeviceSpec, accelerator_api, accelerator_architecture_name, accelerator_count, devices_exist,
    load_devices, scan_available_devices,
};
pub use stream::Stream;
pub use virtual_device::{get_virtual_device_count, is_virtual_device_mode, set_virtual_device_count};

/// The older name of [`Buffer`].
pub type Tensor = Buffer;

/// The documented name of [`Stream`].
pub type DeviceStream = Stream;
