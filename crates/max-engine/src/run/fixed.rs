//! What stays the same from one execution to the next: constants and weights, each on the devices that use it.

use std::collections::HashMap;

use max_compiler::Program;
use max_compiler::program::Origin;
use max_core::kernel::Slot;
use max_core::{Bindings, HostBytes, Result};
use max_driver::guard::guarded;
use max_driver::{Buffer, Device};
use max_kernels::{Constant, Memory};

use super::Keep;

/// Constants and weights.
#[derive(Debug)]
pub(crate) struct Fixed {
    /// By slot; `None` for other slots.
    values: Vec<Option<Value>>,
    keep: Keep,
    /// The sizes of each weight.
    sizes: Vec<Vec<usize>>,
}

#[derive(Debug)]
enum Value {
    Host(Constant),
    Device(Buffer),
}

impl Fixed {
    /// Puts constants and weights on the devices that use them. What is there already is not copied.
    pub(super) fn new(
        program: &Program,
        weights: &[Buffer],
        devices: &[Device],
        keep: Keep,
    ) -> Result<Fixed> {
        let mut copied: HashMap<(usize, usize), Buffer> = HashMap::new();
        let mut values = Vec::with_capacity(program.slots.len());
        for info in &program.slots {
            let number = program.device_number(info.device);
            let device = &devices[number];
            values.push(match &info.origin {
                Origin::Constant(bytes) if device.is_host() => {
                    Some(Value::Host(Constant::new(guarded(bytes.clone())?)))
                }
                Origin::Constant(bytes) => {
                    let shape = info.shape.evaluate(&Bindings::new())?;
                    let host = Buffer::from_host_bytes(bytes.clone(), info.dtype, &shape)?;
                    Some(Value::Device(host.copy(Some(device))?))
                }
                Origin::Weight(weight) if device.is_host() => {
                    let bytes = weights[*weight].to(device)?.host_bytes()?;
                    Some(Value::Host(Constant::new(guarded(bytes)?)))
                }
                Origin::Weight(weight) => {
                    let buffer = match copied.get(&(*weight, number)) {
                        Some(buffer) => buffer.clone(),
                        None => on_device(&weights[*weight], device)?,
                    };
                    copied.insert((*weight, number), buffer.clone());
                    Some(Value::Device(buffer))
                }
                _ => None,
            });
        }
        let sizes = weights.iter().map(|weight| weight.shape().to_vec()).collect();
        Ok(Fixed { values, keep, sizes })
    }

    /// The memory of a constant or a weight; `None` for other slots.
    pub(super) fn memory(&self, slot: usize) -> Result<Memory<'_>> {
        match &self.values[slot] {
            None => Ok(Memory::EMPTY),
            // A model that keeps little does not keep packed constants either.
            Some(Value::Host(constant)) if self.keep == Keep::Little => {
                Ok(Memory::of_bytes(constant.bytes()))
            }
            Some(Value::Host(constant)) => Ok(Memory::of_constant(constant)),
            Some(Value::Device(buffer)) => Memory::of(buffer),
        }
    }

    /// The bytes of the packed copies of constants and weights.
    pub(super) fn packed_bytes(&self) -> usize {
        let constants = self.values.iter().filter_map(|value| match value {
            Some(Value::Host(constant)) => Some(constant.packed_bytes()),
            _ => None,
        });
        constants.sum()
    }

    /// The sizes of a weight.
    pub(super) fn weight_sizes(&self, weight: usize) -> &[usize] {
        &self.sizes[weight]
    }

    /// The bytes of a constant or a weight on the host.
    pub(super) fn bytes(&self, slot: Slot) -> Option<&HostBytes> {
        match &self.values[slot.0 as usize] {
            Some(Value::Host(constant)) => Some(constant.bytes()),
            _ => None,
        }
    }

    /// A constant or a weight on an accelerator.
    pub(super) fn buffer(&self, slot: usize) -> Option<&Buffer> {
        match &self.values[slot] {
            Some(Value::Device(buffer)) => Some(buffer),
            _ => None,
        }
    }
}

/// A buffer in the form that an accelerator's kernels take: itself, if it has that form.
fn on_device(buffer: &Buffer, device: &Device) -> Result<Buffer> {
    if buffer.device() != device {
        return buffer.copy(Some(device));
    }
    let here = buffer.to_stream(&device.default_stream())?;
    if fits_kernels(&here) { Ok(here) } else { here.contiguous() }
}

/// Whether kernels can use a buffer in place: it must be contiguous, and on an accelerator be aligned to 16 bytes. If
/// memory is guarded, it must be guarded too.
pub(crate) fn fits_kernels(buffer: &Buffer) -> bool {
    is_aligned(buffer) && buffer.is_contiguous() && !(buffer.is_host() && buffer.lacks_guard())
}

/// Whether a buffer is aligned as its device's kernels need it.
pub(crate) fn is_aligned(buffer: &Buffer) -> bool {
    buffer.is_host() || buffer.data_ptr().addr().is_multiple_of(ACCELERATOR_ALIGNMENT)
}

/// How many bytes an accelerator's kernels load at a time.
const ACCELERATOR_ALIGNMENT: usize = 16;
