//! cuBLASLt: its functions, and its descriptors as values that are destroyed when dropped.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

use max_core::{DType, Error, Result};

use super::super::api::StreamHandle;
use super::super::library::{Wanted, library};
use super::super::version::by_driver;

pub(super) type Handle = *mut c_void;
type Description = *mut c_void;
type Layout = *mut c_void;
type Preference = *mut c_void;

library! {
    /// The matmul library.
    CublasLt = Wanted {
        title: "cuBLASLt (NVIDIA's matmul library)",
        files: by_driver(
            &["libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so.11"],
            &["libcublasLt.so.12", "libcublasLt.so.11", "libcublasLt.so.13"],
        ),
        install: "install it with `pip install nvidia-cublas` (nvidia-cublas-cu12 for a driver older than 580) or \
                  with the CUDA toolkit",
    };
    fn cublasLtGetVersion() -> usize;
    fn cublasLtGetStatusString(status: c_int) -> *const c_char;
    fn cublasLtCreate(handle: *mut Handle) -> c_int;
    fn cublasLtMatmulDescCreate(description: *mut Description, compute: c_int, scale: c_int) -> c_int;
    fn cublasLtMatmulDescSetAttribute(description: Description, attribute: c_int, value: *const c_void, bytes: usize) -> c_int;
    fn cublasLtMatmulDescDestroy(description: Description) -> c_int;
    fn cublasLtMatrixLayoutCreate(layout: *mut Layout, dtype: c_int, rows: u64, columns: u64, leading: i64) -> c_int;
    fn cublasLtMatrixLayoutSetAttribute(layout: Layout, attribute: c_int, value: *const c_void, bytes: usize) -> c_int;
    fn cublasLtMatrixLayoutDestroy(layout: Layout) -> c_int;
    fn cublasLtMatmulPreferenceCreate(preference: *mut Preference) -> c_int;
    fn cublasLtMatmulPreferenceSetAttribute(preference: Preference, attribute: c_int, value: *const c_void, bytes: usize) -> c_int;
    fn cublasLtMatmulPreferenceDestroy(preference: Preference) -> c_int;
    fn cublasLtMatmulAlgoGetHeuristic(handle: Handle, description: Description, a: Layout, b: Layout, c: Layout, d: Layout, preference: Preference, wanted: c_int, results: *mut Choice, count: *mut c_int) -> c_int;
    fn cublasLtMatmul(handle: Handle, description: Description, alpha: *const c_void, a: u64, a_layout: Layout, b: u64, b_layout: Layout, beta: *const c_void, c: u64, c_layout: Layout, d: u64, d_layout: Layout, algorithm: *const Algorithm, workspace: u64, workspace_bytes: usize, stream: StreamHandle) -> c_int;
}

/// An algorithm for a matmul, opaque to everything but the library.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Algorithm([u64; 8]);

/// An algorithm that the library suggests for a matmul.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Choice {
    pub(super) algorithm: Algorithm,
    pub(super) workspace_bytes: usize,
    pub(super) state: c_int,
    waves: f32,
    reserved: [c_int; 4],
}

impl Choice {
    pub(super) const NONE: Choice = Choice {
        algorithm: Algorithm([0; 8]),
        workspace_bytes: 0,
        state: NOT_SUPPORTED,
        waves: 0.0,
        reserved: [0; 4],
    };
}

/// The library's status codes for what it does not support.
pub(super) const NOT_SUPPORTED: c_int = 15;
pub(super) const INVALID_VALUE: c_int = 7;

/// Compute types.
pub(super) mod compute {
    pub(in super::super) const F32: i32 = 68;
    pub(in super::super) const F32_BY_TF32: i32 = 77;
    pub(in super::super) const F64: i32 = 70;
    pub(in super::super) const I32: i32 = 72;
}

/// Epilogues, as bits.
pub(super) mod epilogue {
    pub(in super::super) const NOTHING: u32 = 1;
    pub(in super::super) const RELU: u32 = 2;
    pub(in super::super) const BIAS: u32 = 4;
    pub(in super::super) const GELU: u32 = 32;
}

/// Attributes of a matmul description.
pub(super) mod matmul {
    pub(in super::super) const TRANSPOSE_A: i32 = 3;
    pub(in super::super) const TRANSPOSE_B: i32 = 4;
    pub(in super::super) const EPILOGUE: i32 = 7;
    pub(in super::super) const BIAS_POINTER: i32 = 8;
    pub(in super::super) const SCALES_OF_A: i32 = 17;
    pub(in super::super) const SCALES_OF_B: i32 = 18;
    pub(in super::super) const SCALE_MODE_OF_A: i32 = 31;
    pub(in super::super) const SCALE_MODE_OF_B: i32 = 32;
}

/// The scale mode of one factor for each row of the first operand, or for each column of the second.
pub(super) const SCALE_BY_VECTOR: i32 = 3;

/// Attributes of a preference.
pub(super) mod prefer {
    pub(in super::super) const WORKSPACE_BYTES: i32 = 1;
    pub(in super::super) const REDUCTION_SCHEMES: i32 = 3;
    pub(in super::super) const ALIGNMENT_OF_A: i32 = 5;
    pub(in super::super) const ALIGNMENT_OF_B: i32 = 6;
    pub(in super::super) const ALIGNMENT_OF_C: i32 = 7;
    pub(in super::super) const ALIGNMENT_OF_D: i32 = 8;
}

/// Attributes of a layout.
const BATCH_COUNT: c_int = 5;
const BATCH_STRIDE: c_int = 6;

/// The library's number for a type, if it supports it.
pub(super) fn type_number(dtype: DType) -> Option<c_int> {
    Some(match dtype {
        DType::Float32 => 0,
        DType::Float64 => 1,
        DType::Float16 => 2,
        DType::Int8 => 3,
        DType::Int32 => 10,
        DType::BFloat16 => 14,
        DType::Float8E4M3FN => 28,
        DType::Float8E5M2 => 29,
        _ => return None,
    })
}

/// The library, or why there is none. If it was missing, the next call looks again.
pub(super) fn library() -> Result<&'static CublasLt> {
    static LIBRARY: OnceLock<CublasLt> = OnceLock::new();
    if let Some(library) = LIBRARY.get() {
        return Ok(library);
    }
    let library = CublasLt::load()?;
    Ok(LIBRARY.get_or_init(|| library))
}

impl CublasLt {
    /// An error unless the call succeeded.
    pub(super) fn check(&self, status: c_int, call: &str) -> Result<()> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: returns a static string for any number.
        let (says, version) =
            unsafe { (CStr::from_ptr(self.cublasLtGetStatusString(status)), self.cublasLtGetVersion()) };
        let says = says.to_string_lossy();
        Err(Error::runtime(format!("{call} failed: {says} (cuBLASLt {version}, {})", self.file)))
    }
}

/// Declares a descriptor: how it is destroyed and how an attribute of it is set.
macro_rules! descriptor {
    ($(#[$doc:meta])* $name:ident: $destroy:ident, $set:ident) => {
        $(#[$doc])*
        pub(super) struct $name {
            library: &'static CublasLt,
            pub(super) handle: *mut c_void,
        }

        // SAFETY: plain data that the library reads from any thread; whoever sets an attribute makes sure that no other
        // thread uses it meanwhile.
        unsafe impl Send for $name {}
        // SAFETY: as above.
        unsafe impl Sync for $name {}

        impl $name {
            /// Sets an attribute; `T` is the type that the library documents for it.
            pub(super) fn set<T: Copy>(&self, attribute: c_int, value: T) -> Result<()> {
                let at = (&raw const value).cast();
                // SAFETY: the value is copied by the call, which checks its size.
                let status = unsafe { self.library.$set(self.handle, attribute, at, size_of::<T>()) };
                self.library.check(status, stringify!($set))
            }
        }

        impl Drop for $name {
            fn drop(&mut self) {
                // SAFETY: this is the last use of the handle.
                let _ = unsafe { self.library.$destroy(self.handle) };
            }
        }
    };
}

descriptor! {
    /// What a matmul computes, apart from its matrices.
    MatmulDescription: cublasLtMatmulDescDestroy, cublasLtMatmulDescSetAttribute
}
descriptor! {
    /// The memory layout of a matrix.
    MatrixLayout: cublasLtMatrixLayoutDestroy, cublasLtMatrixLayoutSetAttribute
}
descriptor! {
    /// Requirements on the algorithm of a matmul.
    Preferences: cublasLtMatmulPreferenceDestroy, cublasLtMatmulPreferenceSetAttribute
}

impl MatmulDescription {
    pub(super) fn new(library: &'static CublasLt, compute: c_int, scale: c_int) -> Result<Self> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: writes a handle.
        let status = unsafe { library.cublasLtMatmulDescCreate(&raw mut handle, compute, scale) };
        library.check(status, "cublasLtMatmulDescCreate")?;
        Ok(MatmulDescription { library, handle })
    }
}

impl MatrixLayout {
    /// A batch of matrices with contiguous columns.
    pub(super) fn new(
        library: &'static CublasLt,
        dtype: c_int,
        [rows, columns]: [i64; 2],
        leading: i64,
        (batch, stride): (i32, i64),
    ) -> Result<Self> {
        let mut handle = std::ptr::null_mut();
        let (rows, columns) = (rows as u64, columns as u64);
        // SAFETY: writes a handle.
        let status =
            unsafe { library.cublasLtMatrixLayoutCreate(&raw mut handle, dtype, rows, columns, leading) };
        library.check(status, "cublasLtMatrixLayoutCreate")?;
        let layout = MatrixLayout { library, handle };
        if batch != 1 {
            layout.set(BATCH_COUNT, batch)?;
            layout.set(BATCH_STRIDE, stride)?;
        }
        Ok(layout)
    }
}

impl Preferences {
    pub(super) fn new(library: &'static CublasLt) -> Result<Self> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: writes a handle.
        let status = unsafe { library.cublasLtMatmulPreferenceCreate(&raw mut handle) };
        library.check(status, "cublasLtMatmulPreferenceCreate")?;
        Ok(Preferences { library, handle })
    }
}
