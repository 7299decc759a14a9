//! What stays the same from one execution to the next: constants and weights, each on the devices that use it.

use std::collections::HashMap;

use max_compiler::Program;
use max_compiler::program::Origin;
use max_core::kernel::Slot;
use max_core::{Bindings, HostBytes, Result};
use max_driver::guard::guarded;
use max_driver::{Buffer, Device};
use max_kernels::Memory;

/// Constants and weights.
#[derive(Debug)]
pub(crate) struct Fixed {
    /// By slot; `None` for other slots.
    values: Vec<Option<Value>>,
    /// The sizes of each weight.
    sizes: Vec<Vec<usize>>,
}

#[derive(Clone, Debug)]
enum Value {
    Host(HostBytes),
    Device(Buffer),
}

impl Fixed {
    /// Puts constants and weights on the devices that use them. What is there already is not copied.
    pub(super) fn new(program: &Program, weights: &[Buffer], devices: &[Device]) -> Result<Fixed> {
        let mut copied: HashMap<(usize, usize), Buffer> = HashMap::new();
        let mut values = Vec::with_capacity(program.slots.len());
        for info in &program.slots {
            let number = program.device_number(info.device);
            let device = &devices[number];
            values.push(match &info.origin {
                Origin::Constant(bytes) if device.is_host() => Some(Value::Host(guarded(bytes.clone())?)),
                Origin::Constant(bytes) => {
                    let shape = info.shape.evaluate(&Bindings::new())?;
                    let host = Buffer::from_host_bytes(bytes.clone(), info.dtype, &shape)?;
                    Some(Value::Device(host.copy(Some(device))?))
                }
                Origin::Weight(weight) if device.is_host() => {
                    Some(Value::Host(guarded(weights[*weight].to(device)?.host_bytes()?)?))
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
        Ok(Fixed { values, sizes })
    }

    /// The memory of a constant or a weight; `None` for other slots.
    pub(super) fn memory(&self, slot: usize) -> Result<Memory<'_>> {
        match &self.values[slot] {
            None => Ok(Memory::EMPTY),
            Some(Value::Host(bytes)) => Ok(Memory::of_bytes(bytes)),
            Some(Value::Device(buffer)) => Memory::of(buffer),
        }
    }

    /// The sizes of a weight.
    pub(super) fn weight_sizes(&self, weight: usize) -> &[usize] {
        &self.sizes[weight]
    }

    /// The bytes of a constant or a weight on the host.
    pub(super) fn bytes(&self, slot: Slot) -> Option<&HostBytes> {
        match &self.values[slot.0 as usize] {
            Some(Value::Host(bytes)) => Some(bytes),
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
    let lies_well = match buffer.is_host() {
        true => !buffer.lacks_guard(),
        false => buffer.data_ptr().addr().is_multiple_of(ACCELERATOR_ALIGNMENT),
    };
    lies_well && buffer.is_contiguous()
}

/// How many bytes an accelerator's kernels load at a time.
const ACCELERATOR_ALIGNMENT: usize = 16;
