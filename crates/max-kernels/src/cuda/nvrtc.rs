//! Compiles sources in tests, if the compiler is installed: it needs no GPU.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io::Write;
use std::path::PathBuf;
use std::ptr::null;

use libloading::Library;
use max_driver::cuda::Source;

type Program = *mut c_void;
type Texts = *const *const c_char;

/// Compiles sources for an old architecture and a new one; fails with the compiler's log. Prints a line if there is no
/// compiler.
pub(super) fn check(sources: &[Source]) {
    check_for(sources, &["compute_75", "sm_90a"]);
}

/// As [`check`], for some architectures.
pub(super) fn check_for(sources: &[Source], architectures: &[&str]) {
    let Some(library) = open() else {
        // Not eprintln!, whose output tests capture.
        let _ = writeln!(std::io::stderr(), "skipped: no NVRTC to compile {} sources with", sources.len());
        return;
    };
    for (source, architecture) in
        sources.iter().flat_map(|source| architectures.iter().map(move |a| (source, a)))
    {
        // SAFETY: the functions are called as the headers of the library declare them.
        let log = unsafe { compile(&library, source, architecture) };
        assert!(log.is_empty(), "{} for {architecture}:\n{log}\n{}", source.name, source.code);
        let entry = format!("{}(", source.name);
        assert!(
            source.code.contains(&entry) || source.code.contains(&format!("#define NAME {}\n", source.name))
        );
    }
}

fn open() -> Option<Library> {
    let homes = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(std::env::var_os).map(PathBuf::from);
    let folders: Vec<PathBuf> =
        homes.chain([PathBuf::from("/usr/local/cuda")]).map(|home| home.join("lib64")).collect();
    let files = ["libnvrtc.so.13", "libnvrtc.so.12"];
    let places = files.iter().flat_map(|file| folders.iter().map(move |folder| folder.join(file)));
    let mut places = files.iter().map(PathBuf::from).chain(places);
    // SAFETY: the initializers of the library may run at any time.
    places.find_map(|place| unsafe { Library::new(place) }.ok())
}

/// # Safety
///
/// The library is NVRTC.
unsafe fn compile(library: &Library, source: &Source, architecture: &str) -> String {
    let code = CString::new(source.text()).unwrap();
    let name = CString::new(source.name.as_str()).unwrap();
    let options =
        [format!("--gpu-architecture={architecture}"), "--std=c++17".into(), "-default-device".into()]
            .map(|option| CString::new(option).unwrap());
    let options = options.each_ref().map(|option| option.as_ptr());
    let mut program: Program = std::ptr::null_mut();
    // SAFETY: guaranteed by the caller; all strings are zero-terminated, and the log has the size that was asked for.
    unsafe {
        let create = library
            .get::<unsafe extern "C" fn(*mut Program, *const c_char, *const c_char, c_int, Texts, Texts) -> c_int>(
                "nvrtcCreateProgram",
            )
            .unwrap();
        let compile = library
            .get::<unsafe extern "C" fn(Program, c_int, Texts) -> c_int>("nvrtcCompileProgram")
            .unwrap();
        let log_size = library
            .get::<unsafe extern "C" fn(Program, *mut usize) -> c_int>("nvrtcGetProgramLogSize")
            .unwrap();
        let log =
            library.get::<unsafe extern "C" fn(Program, *mut c_char) -> c_int>("nvrtcGetProgramLog").unwrap();
        let destroy =
            library.get::<unsafe extern "C" fn(*mut Program) -> c_int>("nvrtcDestroyProgram").unwrap();
        assert_eq!(create(&raw mut program, code.as_ptr(), name.as_ptr(), 0, null(), null()), 0);
        let status = compile(program, options.len() as c_int, options.as_ptr());
        let mut size = 0;
        log_size(program, &raw mut size);
        let mut text = vec![0u8; size.max(1)];
        log(program, text.as_mut_ptr().cast());
        destroy(&raw mut program);
        let text = CStr::from_bytes_until_nul(&text).unwrap().to_string_lossy().into_owned();
        if status == 0 { String::new() } else { format!("error {status}: {text}") }
    }
}
