//! The run-time compiler, for seeing whether text compiles.

use std::ffi::{CString, c_char, c_int, c_void};

use libloading::Library;

type Create = unsafe extern "C" fn(
    *mut *mut c_void,
    *const c_char,
    *const c_char,
    c_int,
    *const *const c_char,
    *const *const c_char,
) -> c_int;
type Compile = unsafe extern "C" fn(*mut c_void, c_int, *const *const c_char) -> c_int;
type LogSize = unsafe extern "C" fn(*mut c_void, *mut usize) -> c_int;
type Log = unsafe extern "C" fn(*mut c_void, *mut c_char) -> c_int;
type Destroy = unsafe extern "C" fn(*mut *mut c_void) -> c_int;

pub(super) struct Compiler(Library);

impl Compiler {
    /// The library, if the loader finds one.
    pub(super) fn find() -> Result<Compiler, String> {
        let mut reason = String::new();
        for name in ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"] {
            // SAFETY: loading the compiler runs nothing of ours.
            match unsafe { Library::new(name) } {
                Ok(library) => return Ok(Compiler(library)),
                Err(error) => reason = error.to_string(),
            }
        }
        Err(reason)
    }

    /// Compiles text, or says what is wrong with it.
    pub(super) fn compile(&self, text: &str) -> Result<(), String> {
        let text = CString::new(text).map_err(|error| error.to_string())?;
        let options = [c"--gpu-architecture=sm_90", c"--std=c++17", c"-default-device"];
        let options = options.map(|option| option.as_ptr());
        let mut program = std::ptr::null_mut();
        let missing = |error: libloading::Error| error.to_string();
        // SAFETY: the functions are what the library documents, and every pointer is to memory that outlives the call.
        unsafe {
            let create = self.0.get::<Create>(b"nvrtcCreateProgram").map_err(missing)?;
            let compile = self.0.get::<Compile>(b"nvrtcCompileProgram").map_err(missing)?;
            let size = self.0.get::<LogSize>(b"nvrtcGetProgramLogSize").map_err(missing)?;
            let log = self.0.get::<Log>(b"nvrtcGetProgramLog").map_err(missing)?;
            let destroy = self.0.get::<Destroy>(b"nvrtcDestroyProgram").map_err(missing)?;
            let none = std::ptr::null();
            create(&raw mut program, text.as_ptr(), c"loops.cu".as_ptr(), 0, none, none);
            let status = compile(program, options.len() as c_int, options.as_ptr());
            let mut bytes = 0;
            size(program, &raw mut bytes);
            let mut text = vec![0u8; bytes + 1];
            log(program, text.as_mut_ptr().cast());
            destroy(&raw mut program);
            let text = String::from_utf8_lossy(&text).trim_end_matches('\0').to_string();
            if status == 0 { Ok(()) } else { Err(text) }
        }
    }
}
