//! Shared libraries of custom ops, behind a small C interface: `examples/custom-ops/include/max_custom_op.h`.
//!
//! A library exports one function, `max_custom_ops`, which returns a table of ops for a version of the interface. The code
//! of a library is trusted, like that of any dependency; its table is checked.

use std::error::Error as _;
use std::ffi::{CStr, CString, c_char, c_void};
use std::path::Path;
use std::sync::Arc;

use libloading::Library;
use max_core::{Error, Parameter, Parameters, Result, bail};

use crate::Buffer;

/// The version of the interface.
pub const VERSION: u32 = 1;

/// The most ops that a table may have; more is taken for a table that is not one.
const MOST_OPS: u32 = 4096;

/// The bytes of an error message, zero included.
const MESSAGE_BYTES: usize = 1024;

/// A tensor of a call; dtypes are numbered as in Python.
#[repr(C)]
struct RawTensor {
    data: *mut c_void,
    shape: *const i64,
    elements: i64,
    rank: i32,
    dtype: i32,
}

/// A parameter of a call: a bool (0), an integer (1), text (2) or a dtype (3).
#[repr(C)]
struct RawParameter {
    name: *const c_char,
    text: *const c_char,
    number: i64,
    kind: i32,
}

/// A call.
#[repr(C)]
struct RawCall {
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

type RunFunction = unsafe extern "C" fn(*const RawCall) -> i32;

#[repr(C)]
#[derive(Clone, Copy)]
struct RawOp {
    name: *const c_char,
    signature: *const c_char,
    run: Option<RunFunction>,
    on_gpu: i32,
}

#[repr(C)]
struct RawTable {
    version: u32,
    num_ops: u32,
    ops: *const RawOp,
}

type TableFunction = unsafe extern "C" fn(u32) -> *const RawTable;

/// An op of a library.
pub struct ForeignOp {
    /// Its name.
    pub name: String,
    /// Its signature, if it has one.
    pub signature: Option<String>,
    /// Whether it works on the memory of GPUs.
    pub on_gpu: bool,
    run: RunFunction,
    /// Keeps the code loaded.
    _library: Arc<Library>,
}

/// Loads the custom ops of a shared library.
pub fn load(path: &Path) -> Result<Vec<ForeignOp>> {
    let failed = |why: String| {
        Error::runtime(format!("cannot load custom ops from the shared library '{}': {why}", path.display()))
    };
    // SAFETY: the initializers of a library that the user names are trusted.
    let library = unsafe { Library::new(path) }
        .map_err(|error| failed(error.source().map_or_else(|| error.to_string(), ToString::to_string)))?;
    // SAFETY: the interface declares the function so.
    let table = unsafe { library.get::<TableFunction>("max_custom_ops") };
    let table = *table.map_err(|_| failed("it does not export the function 'max_custom_ops'".into()))?;
    // SAFETY: the function takes a version, and returns a table that lives as long as the library, or null.
    let table = unsafe { table(VERSION).as_ref() };
    let table = table.ok_or_else(|| {
        failed(format!(
            "it does not support version {VERSION} of the interface; build it with the current header"
        ))
    })?;
    if table.version != VERSION {
        return Err(failed(format!(
            "it was built for version {} of the interface, but this release has version {VERSION}",
            table.version
        )));
    }
    // SAFETY: the version says that the table has this form, and the library is trusted to fill it in.
    let ops = unsafe { read(table, &Arc::new(library)) };
    ops.map_err(|error| failed(error.message().into()))
}

/// Reads and checks a table.
///
/// # Safety
///
/// Pointers that are not null are valid: those of names to strings that end in a zero, `ops` to as many ops as it says.
unsafe fn read(table: &RawTable, library: &Arc<Library>) -> Result<Vec<ForeignOp>> {
    if table.ops.is_null() || !(1..=MOST_OPS).contains(&table.num_ops) {
        bail!(runtime, "its table has {} ops at {:?}", table.num_ops, table.ops);
    }
    // SAFETY: guaranteed by the caller.
    let raw = unsafe { std::slice::from_raw_parts(table.ops, table.num_ops as usize) };
    let mut ops: Vec<ForeignOp> = Vec::with_capacity(raw.len());
    for (number, op) in raw.iter().enumerate() {
        // SAFETY: as above.
        let text = |what: &str, text: *const c_char| unsafe {
            if text.is_null() {
                return Ok(None);
            }
            match CStr::from_ptr(text).to_str() {
                Ok(text) => Ok(Some(text.to_owned())),
                Err(_) => bail!(runtime, "the {what} of op {number} of its table is not UTF-8"),
            }
        };
        let Some(name) = text("name", op.name)?.filter(|name| !name.is_empty()) else {
            bail!(runtime, "op {number} of its table has no name");
        };
        let Some(run) = op.run else { bail!(runtime, "op '{name}' of its table has no function") };
        if ops.iter().any(|other| other.name == name) {
            bail!(runtime, "its table has two ops with the name '{name}'");
        }
        let (signature, on_gpu) = (text("signature", op.signature)?, op.on_gpu != 0);
        ops.push(ForeignOp { name, signature, on_gpu, run, _library: library.clone() });
    }
    Ok(ops)
}

impl ForeignOp {
    /// Runs it on contiguous buffers of one device. On a GPU it enqueues its work on the stream of the buffers.
    pub fn run(&self, operands: &[Buffer], results: &[Buffer], parameters: &Parameters) -> Result<()> {
        let shapes: Vec<Vec<i64>> = (operands.iter().chain(results))
            .map(|buffer| buffer.shape().iter().map(|&size| size as i64).collect())
            .collect();
        let raw = |(buffer, shape): (&Buffer, &Vec<i64>)| -> Result<RawTensor> {
            if !buffer.is_contiguous() {
                bail!(internal, "a custom op was given {buffer:?}, which is not contiguous");
            }
            Ok(RawTensor {
                data: buffer.data_ptr().cast_mut().cast(),
                shape: shape.as_ptr(),
                elements: buffer.num_elements() as i64,
                rank: buffer.rank() as i32,
                dtype: buffer.dtype() as i32,
            })
        };
        let operand_shapes = &shapes[..operands.len()];
        let raw_operands = operands.iter().zip(operand_shapes).map(raw).collect::<Result<Vec<_>>>()?;
        let raw_results =
            results.iter().zip(&shapes[operands.len()..]).map(raw).collect::<Result<Vec<_>>>()?;
        let texts = parameters.iter().map(|(name, value)| {
            let text = if let Parameter::Str(text) = value { text } else { "" };
            Ok((c_string(name)?, c_string(text)?))
        });
        let texts = texts.collect::<Result<Vec<_>>>()?;
        let raw_parameters = parameters.iter().zip(&texts).map(|((_, value), (name, text))| {
            let (kind, number) = match value {
                Parameter::Bool(value) => (0, i64::from(*value)),
                Parameter::Int(value) => (1, *value),
                Parameter::Str(_) => (2, 0),
                Parameter::DType(dtype) => (3, *dtype as i64),
            };
            RawParameter { name: name.as_ptr(), text: text.as_ptr(), number, kind }
        });
        let raw_parameters: Vec<_> = raw_parameters.collect();
        let mut message = [0u8; MESSAGE_BYTES];
        let stream = (operands.iter().chain(results)).find_map(|buffer| buffer.stream().cuda());
        let call = RawCall {
            operands: raw_operands.as_ptr(),
            results: raw_results.as_ptr(),
            parameters: raw_parameters.as_ptr(),
            num_operands: raw_operands.len() as u32,
            num_results: raw_results.len() as u32,
            num_parameters: raw_parameters.len() as u32,
            message_bytes: MESSAGE_BYTES as u32,
            message: message.as_mut_ptr().cast(),
            stream: stream.map_or(std::ptr::null_mut(), |(_, handle)| handle.cast()),
        };
        let _entered = stream.map(|(gpu, _)| gpu.enter()).transpose()?;
        // SAFETY: the call describes memory that is alive, and the library is trusted to stay inside it.
        let status = unsafe { (self.run)(&raw const call) };
        if status == 0 {
            return Ok(());
        }
        message[MESSAGE_BYTES - 1] = 0;
        let text = CStr::from_bytes_until_nul(&message).map_or("".into(), CStr::to_string_lossy);
        let note = if text.is_empty() { "" } else { ": " };
        bail!(runtime, "it failed with status {status}{note}{text}")
    }
}

fn c_string(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error::value(format!("the parameter {text:?} contains a zero byte")))
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" fn double(call: *const RawCall) -> i32 {
        // SAFETY: a call with one operand and one result of float32.
        unsafe {
            let call = &*call;
            let (x, y) = (&*call.operands, &*call.results);
            for at in 0..x.elements as usize {
                *y.data.cast::<f32>().add(at) = 2.0 * *x.data.cast::<f32>().add(at);
            }
        }
        0
    }

    unsafe extern "C" fn fail(call: *const RawCall) -> i32 {
        // SAFETY: a message has more bytes than this.
        unsafe { (*call).message.copy_from_nonoverlapping(c"no luck".as_ptr(), 8) };
        3
    }

    fn this() -> Arc<Library> {
        Arc::new(libloading::os::unix::Library::this().into())
    }

    fn op(name: *const c_char, run: Option<RunFunction>) -> RawOp {
        RawOp { name, signature: std::ptr::null(), run, on_gpu: 0 }
    }

    fn table(ops: &[RawOp]) -> Result<Vec<ForeignOp>> {
        let table = RawTable { version: VERSION, num_ops: ops.len() as u32, ops: ops.as_ptr() };
        // SAFETY: all pointers are valid or null.
        unsafe { read(&table, &this()) }
    }

    #[test]
    fn ops_run_and_fail() {
        let ops = [op(c"double".as_ptr(), Some(double)), op(c"fail".as_ptr(), Some(fail))];
        let ops = table(&ops).unwrap();
        let (x, y) = (Buffer::from([1.0f32, 2.5]), Buffer::from([0.0f32, 0.0]));
        ops[0].run(std::slice::from_ref(&x), std::slice::from_ref(&y), &Parameters::default()).unwrap();
        assert_eq!(y.to_vec::<f32>().unwrap(), [2.0, 5.0]);
        let error = ops[1].run(&[x], &[y], &[("text", "a")].into()).unwrap_err();
        assert_eq!(error.message(), "it failed with status 3: no luck");
        let error = ops[1].run(&[], &[], &[("text", "a\0b")].into()).unwrap_err();
        assert!(error.message().contains("zero byte"), "{error}");
    }

    #[test]
    fn tables_are_checked() {
        let refusal = |ops: &[RawOp]| table(ops).err().unwrap().message().to_owned();
        assert!(refusal(&[]).contains("its table has 0 ops"));
        assert!(refusal(&[op(std::ptr::null(), Some(fail))]).contains("op 0 of its table has no name"));
        assert!(refusal(&[op(c"".as_ptr(), Some(fail))]).contains("op 0 of its table has no name"));
        assert!(refusal(&[op(c"f".as_ptr(), None)]).contains("op 'f' of its table has no function"));
        assert!(refusal(&[op(c"\xff".as_ptr(), Some(fail))]).contains("not UTF-8"));
        let twice = [op(c"f".as_ptr(), Some(fail)); 2];
        assert!(refusal(&twice).contains("two ops with the name 'f'"));
        let many = RawTable { version: VERSION, num_ops: u32::MAX, ops: twice.as_ptr() };
        // SAFETY: the number is refused before the ops are read.
        assert!(unsafe { read(&many, &this()) }.is_err());
        let null = RawTable { version: VERSION, num_ops: 1, ops: std::ptr::null() };
        // SAFETY: null is refused.
        assert!(unsafe { read(&null, &this()) }.is_err());
    }
}
