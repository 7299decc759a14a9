//! The default dtype and device of tensors.

use std::cell::Cell;

use max_core::{DType, DeviceRef};
use max_driver::accelerator_count;

thread_local! {
    static CHOSEN: Cell<Defaults> = const { Cell::new(Defaults { dtype: None, device: None }) };
}

/// Defaults for tensors; `None` leaves one as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Defaults {
    /// The dtype.
    pub dtype: Option<DType>,
    /// The device.
    pub device: Option<DeviceRef>,
}

impl Defaults {
    /// Runs a function with these defaults, on this thread.
    ///
    /// ```
    /// use max_core::DType;
    /// use max_tensor::{Defaults, Tensor};
    ///
    /// let half = Defaults { dtype: Some(DType::Float16), ..Defaults::default() };
    /// let x = half.during(|| Tensor::ones([2]))?;
    /// assert_eq!(x.dtype(), DType::Float16);
    /// # Ok::<(), max_core::Error>(())
    /// ```
    pub fn during<R>(self, function: impl FnOnce() -> R) -> R {
        struct Reset(Defaults);
        impl Drop for Reset {
            fn drop(&mut self) {
                CHOSEN.set(self.0);
            }
        }
        let before = CHOSEN.get();
        let _reset = Reset(before);
        CHOSEN.set(Defaults { dtype: self.dtype.or(before.dtype), device: self.device.or(before.device) });
        function()
    }
}

/// The current default dtype and device: bfloat16 on an accelerator if there is one, otherwise float32 on the host.
pub fn defaults() -> (DType, DeviceRef) {
    let Defaults { dtype, device } = CHOSEN.get();
    let device = device.unwrap_or_else(|| match accelerator_count() {
        0 => DeviceRef::CPU,
        _ => DeviceRef::gpu(0),
    });
    let natural = if device == DeviceRef::CPU { DType::Float32 } else { DType::BFloat16 };
    (dtype.unwrap_or(natural), device)
}
