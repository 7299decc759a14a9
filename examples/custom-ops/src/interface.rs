//! The interface of `include/max_custom_op.h` for ops in Rust: copy this file as it is. An op is a function of typed slices;
//! if it returns an error or panics, the execution that called it fails with the message.

use std::any::Any;
use std::ffi::{CStr, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::slice;

/// The version of the interface.
pub const VERSION: u32 = 1;

#[repr(C)]
pub struct RawTensor {
    data: *mut c_void,
    shape: *const i64,
    elements: i64,
    rank: i32,
    dtype: i32,
}

#[repr(C)]
pub struct RawParameter {
    name: *const c_char,
    text: *const c_char,
    number: i64,
    kind: i32,
}

#[repr(C)]
pub struct RawCall {
    operands: *const RawTensor,
    results: *const RawTensor,
    parameters: *const RawParameter,
    num_operands: u32,
    num_results: u32,
    num_parameters: u32,
    message_bytes: u32,
    message: *mut c_char,
    stream: *mut c_void,
}

#[repr(C)]
pub struct RawOp {
    pub name: *const c_char,
    pub signature: *const c_char,
    pub run: Option<unsafe extern "C" fn(*const RawCall) -> i32>,
    pub on_gpu: i32,
}

#[repr(C)]
pub struct RawTable {
    pub version: u32,
    pub num_ops: u32,
    pub ops: *const RawOp,
}

// SAFETY: a table is constant data.
unsafe impl Sync for RawTable {}
// SAFETY: as above.
unsafe impl Sync for RawOp {}

/// A type of elements.
///
/// # Safety
///
/// The number is that of a dtype with the same size, alignment and valid bits.
pub unsafe trait Element: Copy {
    const DTYPE: i32;
}

macro_rules! elements {
    ($($type:ty = $number:literal),*) => {$(
        // SAFETY: the numbers are those of the header.
        unsafe impl Element for $type {
            const DTYPE: i32 = $number;
        }
    )*};
}

elements!(f32 = 72, f64 = 73, u8 = 134, i8 = 135, u16 = 136, i16 = 137, u32 = 138, i32 = 139, u64 = 140, i64 = 141);

/// The operands of a call.
pub struct Operands<'a>(&'a [RawTensor]);

/// The results of a call.
pub struct Results<'a>(&'a [RawTensor]);

/// The parameters of a call.
pub struct Parameters<'a>(&'a [RawParameter]);

impl Operands<'_> {
    /// The elements of an operand.
    pub fn get<T: Element>(&self, number: usize) -> Result<&[T], String> {
        let (data, elements) = elements::<T>(self.0, number)?;
        // SAFETY: a tensor of this dtype has that many elements there, which nobody writes during the call.
        Ok(unsafe { slice::from_raw_parts(data, elements) })
    }

    /// The sizes of an operand.
    pub fn shape(&self, number: usize) -> Result<&[i64], String> {
        let tensor = self.0.get(number).ok_or_else(|| format!("there is no operand {number}"))?;
        // SAFETY: a tensor has as many sizes as its rank.
        Ok(unsafe { sizes(tensor.shape, tensor.rank as usize) })
    }
}

impl Results<'_> {
    /// The elements of a result, to be written.
    pub fn get<T: Element>(&mut self, number: usize) -> Result<&mut [T], String> {
        let (data, elements) = elements::<T>(self.0, number)?;
        // SAFETY: as for operands; results overlap nothing else, and this one is borrowed exclusively.
        Ok(unsafe { slice::from_raw_parts_mut(data, elements) })
    }
}

impl Parameters<'_> {
    /// An integer parameter.
    pub fn int(&self, name: &str) -> Result<i64, String> {
        // SAFETY: names are strings that end in a zero.
        let found = self.0.iter().find(|own| unsafe { CStr::from_ptr(own.name) }.to_str() == Ok(name));
        match found {
            Some(parameter) if parameter.kind == 1 => Ok(parameter.number),
            _ => Err(format!("the integer parameter '{name}' is missing")),
        }
    }
}

fn elements<T: Element>(tensors: &[RawTensor], number: usize) -> Result<(*mut T, usize), String> {
    match tensors.get(number) {
        Some(tensor) if tensor.elements == 0 => Ok((std::ptr::NonNull::dangling().as_ptr(), 0)),
        Some(tensor) if tensor.dtype == T::DTYPE => Ok((tensor.data.cast(), tensor.elements as usize)),
        Some(tensor) => Err(format!("tensor {number} has the dtype {}, not {}", tensor.dtype, T::DTYPE)),
        None => Err(format!("there is no tensor {number}")),
    }
}

/// # Safety
///
/// There are as many elements at the address, unless there are none.
unsafe fn sizes<'a, T>(data: *const T, count: usize) -> &'a [T] {
    // SAFETY: guaranteed by the caller.
    if count == 0 { &[] } else { unsafe { slice::from_raw_parts(data, count) } }
}

/// Runs an op on a call. Nothing unwinds out of it.
///
/// # Safety
///
/// The call is one that max-rs made, and lives while this runs.
pub unsafe fn run(
    op: fn(&Operands, &mut Results, &Parameters) -> Result<(), String>,
    call: *const RawCall,
) -> i32 {
    // SAFETY: guaranteed by the caller.
    let (call, operands, results, parameters) = unsafe {
        let call = &*call;
        let operands = Operands(sizes(call.operands, call.num_operands as usize));
        let results = Results(sizes(call.results, call.num_results as usize));
        (call, operands, results, Parameters(sizes(call.parameters, call.num_parameters as usize)))
    };
    let mut results = results;
    let failed = match catch_unwind(AssertUnwindSafe(|| op(&operands, &mut results, &parameters))) {
        Ok(Ok(())) => return 0,
        Ok(Err(message)) => message,
        Err(panic) => format!("it panicked: {}", panic_message(&*panic)),
    };
    let room = (call.message_bytes as usize).saturating_sub(1).min(failed.len());
    // SAFETY: the message has room for these bytes and a zero.
    unsafe {
        call.message.cast::<u8>().copy_from_nonoverlapping(failed.as_ptr(), room);
        *call.message.add(room) = 0;
    }
    1
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

/// Exports ops: `custom_ops! { c"name", c"signature" => function; ... }`.
macro_rules! custom_ops {
    ($($name:literal, $signature:literal => $function:path;)*) => {
        #[unsafe(no_mangle)]
        pub extern "C" fn max_custom_ops(version: u32) -> *const $crate::interface::RawTable {
            use $crate::interface::{RawCall, RawOp, RawTable, VERSION};
            static OPS: &[RawOp] = &[$(RawOp {
                name: $name.as_ptr(),
                signature: $signature.as_ptr(),
                run: {
                    unsafe extern "C" fn run(call: *const RawCall) -> i32 {
                        // SAFETY: max-rs made the call.
                        unsafe { $crate::interface::run($function, call) }
                    }
                    Some(run)
                },
                on_gpu: 0,
            }),*];
            static TABLE: RawTable = RawTable { version: VERSION, num_ops: OPS.len() as u32, ops: OPS.as_ptr() };
            if version == VERSION { &raw const TABLE } else { std::ptr::null() }
        }
    };
}

pub(crate) use custom_ops;
