//! NVRTC: from CUDA C++ to the code of an architecture.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::OnceLock;

use max_core::{Error, Result, bail};

use super::super::library::{Wanted, library};
use super::super::version::by_driver;

type Program = *mut c_void;

library! {
    /// The compiler.
    Nvrtc = Wanted {
        title: "NVRTC (the compiler for GPU code)",
        files: by_driver(
            &["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2", "libnvrtc.so"],
            &["libnvrtc.so.12", "libnvrtc.so.11.2", "libnvrtc.so", "libnvrtc.so.13"],
        ),
        install: "install it with `pip install nvidia-cuda-nvrtc` (nvidia-cuda-nvrtc-cu12 for a driver older than 580) \
                  or with the CUDA toolkit",
    };
    fn nvrtcVersion(major: *mut c_int, minor: *mut c_int) -> c_int;
    fn nvrtcGetErrorString(status: c_int) -> *const c_char;
    fn nvrtcGetNumSupportedArchs(count: *mut c_int) -> c_int;
    fn nvrtcGetSupportedArchs(architectures: *mut c_int) -> c_int;
    fn nvrtcCreateProgram(program: *mut Program, source: *const c_char, name: *const c_char, headers: c_int, texts: *const *const c_char, names: *const *const c_char) -> c_int;
    fn nvrtcCompileProgram(program: Program, count: c_int, options: *const *const c_char) -> c_int;
    fn nvrtcGetCUBINSize(program: Program, bytes: *mut usize) -> c_int;
    fn nvrtcGetCUBIN(program: Program, code: *mut c_char) -> c_int;
    fn nvrtcGetPTXSize(program: Program, bytes: *mut usize) -> c_int;
    fn nvrtcGetPTX(program: Program, code: *mut c_char) -> c_int;
    fn nvrtcGetProgramLogSize(program: Program, bytes: *mut usize) -> c_int;
    fn nvrtcGetProgramLog(program: Program, log: *mut c_char) -> c_int;
    fn nvrtcDestroyProgram(program: *mut Program) -> c_int;
}

/// NVRTC, and the architectures it supports.
pub(crate) struct Compiler {
    nvrtc: Nvrtc,
    version: (c_int, c_int),
    /// The supported architectures, as numbers such as 90, in ascending order.
    architectures: Vec<c_int>,
}

/// The architecture that has instructions, those of warpgroups, which no later one has.
const HOPPER: c_int = 90;

/// The first version that knows all instructions of that architecture.
const FOR_HOPPER: (c_int, c_int) = (12, 0);

/// What code is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// Machine code for an architecture, with the instructions that only it has.
    Real(c_int),
    /// PTX for a virtual architecture, which the driver compiles when it is loaded: for GPUs newer than the compiler.
    Virtual(c_int),
}

/// The compiler, or why there is none. If it was missing, the next call looks again.
pub(crate) fn compiler() -> Result<&'static Compiler> {
    static COMPILER: OnceLock<Compiler> = OnceLock::new();
    if let Some(compiler) = COMPILER.get() {
        return Ok(compiler);
    }
    let compiler = Compiler::load()?;
    Ok(COMPILER.get_or_init(|| compiler))
}

impl Compiler {
    fn load() -> Result<Compiler> {
        let mut compiler = Compiler { nvrtc: Nvrtc::load()?, version: (0, 0), architectures: Vec::new() };
        let nvrtc = &compiler.nvrtc;
        let ((mut major, mut minor), mut count) = ((0, 0), 0);
        // SAFETY: both write numbers.
        unsafe {
            compiler.check(nvrtc.nvrtcVersion(&raw mut major, &raw mut minor), "nvrtcVersion")?;
            let status = nvrtc.nvrtcGetNumSupportedArchs(&raw mut count);
            compiler.check(status, "nvrtcGetNumSupportedArchs")?;
        }
        let mut architectures = vec![0; count.max(0) as usize];
        // SAFETY: writes as many numbers as it announced.
        let status = unsafe { nvrtc.nvrtcGetSupportedArchs(architectures.as_mut_ptr()) };
        compiler.check(status, "nvrtcGetSupportedArchs")?;
        architectures.sort_unstable();
        compiler.version = (major, minor);
        compiler.architectures = architectures;
        Ok(compiler)
    }

    /// What to compile for, so that a GPU of this compute capability can run it.
    pub(crate) fn target(&self, (major, minor): (u32, u32)) -> Result<Target> {
        let wanted = (major * 10 + minor) as c_int;
        if wanted >= HOPPER && self.version < FOR_HOPPER {
            bail!(
                runtime,
                "{} is too old for this GPU, sm_{wanted}: install a newer one, such as \
                 `pip install nvidia-cuda-nvrtc-cu12`",
                self.title()
            );
        }
        match self.architectures.iter().rev().find(|&&known| known <= wanted) {
            Some(&known) if known == wanted => Ok(Target::Real(known)),
            Some(&known) => Ok(Target::Virtual(known)),
            None => bail!(
                runtime,
                "{} knows no architecture as old as that of this GPU, sm_{wanted}: install an older one, \
                 such as `pip install nvidia-cuda-nvrtc-cu12`",
                self.title()
            ),
        }
    }

    /// What compiled code depends on besides its source.
    pub(crate) fn facts(&self, target: Target) -> String {
        format!("NVRTC {}.{} {}", self.version.0, self.version.1, options(target).join(" "))
    }

    /// Compiles a source to an image that the driver can load.
    pub(crate) fn compile(&self, source: &str, target: Target) -> Result<Vec<u8>> {
        let program = OpenProgram::new(self, source)?;
        let options = options(target);
        let options: Vec<CString> =
            options.into_iter().map(|option| CString::new(option).unwrap_or_default()).collect();
        let pointers: Vec<_> = options.iter().map(|option| option.as_ptr()).collect();
        let nvrtc = &self.nvrtc;
        // SAFETY: the strings are alive and zero-terminated.
        let status =
            unsafe { nvrtc.nvrtcCompileProgram(program.handle, pointers.len() as c_int, pointers.as_ptr()) };
        if status != 0 {
            return Err(Error::internal(format!(
                "{} could not compile a kernel ({}): {}\n{}",
                self.title(),
                self.says(status),
                program.log(),
                numbered(source)
            )));
        }
        match target {
            Target::Real(_) => program.read(Nvrtc::nvrtcGetCUBINSize, Nvrtc::nvrtcGetCUBIN, "nvrtcGetCUBIN"),
            Target::Virtual(_) => program.read(Nvrtc::nvrtcGetPTXSize, Nvrtc::nvrtcGetPTX, "nvrtcGetPTX"),
        }
    }

    fn check(&self, status: c_int, call: &str) -> Result<()> {
        match status {
            0 => Ok(()),
            _ => Err(Error::runtime(format!("{call} of {} failed: {}", self.title(), self.says(status)))),
        }
    }

    fn says(&self, status: c_int) -> String {
        // SAFETY: returns a static string for any number.
        unsafe { CStr::from_ptr(self.nvrtc.nvrtcGetErrorString(status)) }.to_string_lossy().into_owned()
    }

    pub(crate) fn title(&self) -> String {
        format!("NVRTC {}.{} ({})", self.version.0, self.version.1, self.nvrtc.file)
    }
}

/// A program of the library, destroyed when dropped.
struct OpenProgram<'a> {
    compiler: &'a Compiler,
    handle: Program,
}

impl OpenProgram<'_> {
    fn new<'a>(compiler: &'a Compiler, source: &str) -> Result<OpenProgram<'a>> {
        let Ok(text) = CString::new(source) else {
            bail!(internal, "the source of a kernel contains a zero byte")
        };
        let mut handle = std::ptr::null_mut();
        // SAFETY: writes a handle; the strings are zero-terminated, and there are no headers.
        let status = unsafe {
            let (name, none) = (c"kernel.cu".as_ptr(), std::ptr::null());
            compiler.nvrtc.nvrtcCreateProgram(&raw mut handle, text.as_ptr(), name, 0, none, none)
        };
        compiler.check(status, "nvrtcCreateProgram")?;
        Ok(OpenProgram { compiler, handle })
    }

    /// Bytes of the program, which the library returns through a pair of functions: size, then content.
    fn read(
        &self,
        size: unsafe fn(&Nvrtc, Program, *mut usize) -> c_int,
        bytes: unsafe fn(&Nvrtc, Program, *mut c_char) -> c_int,
        call: &str,
    ) -> Result<Vec<u8>> {
        let (nvrtc, mut len) = (&self.compiler.nvrtc, 0);
        // SAFETY: writes a number; the handle is alive.
        self.compiler.check(unsafe { size(nvrtc, self.handle, &raw mut len) }, call)?;
        let mut content = vec![0u8; len];
        // SAFETY: there is as much room as it announced.
        self.compiler.check(unsafe { bytes(nvrtc, self.handle, content.as_mut_ptr().cast()) }, call)?;
        Ok(content)
    }

    /// The compiler's log.
    fn log(&self) -> String {
        let log = self.read(Nvrtc::nvrtcGetProgramLogSize, Nvrtc::nvrtcGetProgramLog, "nvrtcGetProgramLog");
        let log = log.unwrap_or_default();
        String::from_utf8_lossy(&log).trim_end_matches(['\0', '\n']).to_owned()
    }
}

impl Drop for OpenProgram<'_> {
    fn drop(&mut self) {
        // SAFETY: this is the last use of the handle.
        let _ = unsafe { self.compiler.nvrtc.nvrtcDestroyProgram(&raw mut self.handle) };
    }
}

/// Multiplications and additions round separately, as on the host, so that fused and unfused code give the same bits.
/// Functions that want a fused multiply-add call it explicitly.
fn options(target: Target) -> [String; 4] {
    let architecture = match target {
        Target::Real(HOPPER) => format!("--gpu-architecture=sm_{HOPPER}a"),
        Target::Real(number) => format!("--gpu-architecture=sm_{number}"),
        Target::Virtual(number) => format!("--gpu-architecture=compute_{number}"),
    };
    [architecture, "--std=c++17".into(), "-default-device".into(), "--fmad=false".into()]
}

/// A source with line numbers, which the compiler's messages refer to.
fn numbered(source: &str) -> String {
    source.lines().enumerate().map(|(line, text)| format!("{:4} | {text}\n", line + 1)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use max_core::ErrorKind;
    use std::io::Write;
    use std::sync::Once;

    const GOOD: &str = r#"extern "C" __global__ void twice(float* x, long long n) {
        long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
        if (i < n) x[i] *= 2.0f;
    }"#;

    /// The compiler, or one line that says why tests are skipped, which is shown even though they pass.
    fn found() -> Option<&'static Compiler> {
        static SAID: Once = Once::new();
        let say = |error| SAID.call_once(|| drop(writeln!(std::io::stderr(), "skipped: no NVRTC: {error}")));
        compiler().map_err(say).ok()
    }

    #[test]
    fn a_source_becomes_code_for_the_architecture() {
        let Some(compiler) = found() else { return };
        let target = compiler.target((9, 0)).unwrap();
        assert_eq!(target, Target::Real(90));
        let code = compiler.compile(GOOD, target).unwrap();
        assert!(code.starts_with(b"\x7fELF"));
        assert_eq!(code, compiler.compile(GOOD, target).unwrap(), "the same source gives the same code");
    }

    #[test]
    fn code_for_hopper_may_use_warpgroups() {
        let Some(compiler) = found() else { return };
        let source =
            r#"extern "C" __global__ void wait() { asm volatile("wgmma.wait_group.sync.aligned 0;"); }"#;
        compiler.compile(source, compiler.target((9, 0)).unwrap()).unwrap();
        compiler.compile(source, compiler.target((8, 0)).unwrap()).unwrap_err();
    }

    #[test]
    fn a_newer_architecture_gets_code_for_the_driver() {
        let Some(compiler) = found() else { return };
        let target = compiler.target((99, 0)).unwrap();
        let Target::Virtual(newest) = target else { panic!("{target:?}") };
        let code = compiler.compile(GOOD, target).unwrap();
        let text = String::from_utf8(code).unwrap();
        assert!(text.contains(&format!(".target sm_{newest}")) && text.contains("twice"), "{text}");
        assert!(text.ends_with('\0'), "the driver needs a zero-terminated string");
    }

    #[test]
    fn an_outdated_architecture_is_an_error() {
        let Some(compiler) = found() else { return };
        let error = compiler.target((2, 0)).unwrap_err();
        assert!(error.message().contains("sm_20") && error.message().contains("install"), "{error}");
    }

    #[test]
    fn a_bad_source_is_an_error_with_the_log_and_the_lines() {
        let Some(compiler) = found() else { return };
        let source = GOOD.replace("2.0f", "two");
        let error = compiler.compile(&source, Target::Real(90)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Internal);
        for wanted in ["NVRTC_ERROR_COMPILATION", "\"two\" is undefined", "kernel.cu(3)", "   3 |         if"]
        {
            assert!(error.message().contains(wanted), "{wanted} is not in {error}");
        }
        let error = compiler.compile("a\0b", Target::Real(90)).unwrap_err();
        assert!(error.message().contains("zero byte"), "{error}");
    }

    #[test]
    fn many_threads_compile_at_once() {
        let Some(compiler) = found() else { return };
        std::thread::scope(|scope| {
            for n in 0..4 {
                let source = GOOD.replace("twice", &format!("twice{n}"));
                scope.spawn(move || compiler.compile(&source, Target::Real(90)).unwrap());
            }
        });
    }
}
