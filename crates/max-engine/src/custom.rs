//! Custom ops that models can run, and the files that they come from.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use max_core::{Error, OpSignature, Result};
use max_driver::extension;
use max_graph::custom::{CustomOp, IN_PROCESS, KernelLibrary, Meaning, Place};
use max_kernels::custom::{Implementation, host};

pub use max_kernels::cuda::{CustomSource, GridSize};
pub use max_kernels::custom::{Call, CustomKernel, Execute, View, ViewMut, Work};

use crate::lock;
use crate::lru::Lru;

/// How many files of custom ops are kept for graphs that load them again.
const KEPT_FILES: usize = 64;

/// The ways to write custom ops, for messages.
const WAYS: &str = "custom ops are written in Rust or C (a shared library: .so, .dylib or .dll), in CUDA C++ (.cu), or in \
                    Python (KernelLibrary.register); see docs/custom-ops.md";

/// An op that is a Rust function on host memory.
///
/// ```
/// use max_engine::custom;
/// use max_graph::KernelLibrary;
///
/// let library = KernelLibrary::new();
/// library.add(custom::rust("row_sum", "float32[n, k] -> float32[n]", |call: &mut custom::Call| {
///     let (x, k) = (call.inputs[0].slice::<f32>()?, call.inputs[0].shape()[1]);
///     for (row, sum) in call.outputs[0].slice_mut::<f32>()?.iter_mut().enumerate() {
///         *sum = x[row * k..][..k].iter().sum();
///     }
///     Ok(())
/// })?)?;
/// # Ok::<(), max_core::Error>(())
/// ```
pub fn rust(name: &str, signature: &str, kernel: impl CustomKernel) -> Result<CustomOp> {
    op(name, IN_PROCESS, Some(signature), host(kernel), Place::Host)
}

/// An op that is a function on buffers of any device.
pub fn function(name: &str, signature: Option<&str>, function: impl Execute + 'static) -> Result<CustomOp> {
    op(name, IN_PROCESS, signature, Implementation::Function(Box::new(function)), Place::Anywhere)
}

/// An op in CUDA C++; see [`CustomSource`] for what its function is given.
pub fn cuda(source: CustomSource) -> Result<CustomOp> {
    cuda_of(source, IN_PROCESS)
}

fn cuda_of(source: CustomSource, library: &str) -> Result<CustomOp> {
    source.check()?;
    let (name, signature, checked) = (source.name.clone(), source.signature.clone(), source.clone());
    let meaning = Meaning::Kernel(Arc::new(Implementation::Cuda(source)), Place::Gpu);
    let op = CustomOp::new(name, library, meaning).with_signature(Some(signature));
    Ok(op.with_rule(move |_, _, parameters| checked.check_parameters(parameters)))
}

fn op(
    name: &str,
    library: &str,
    signature: Option<&str>,
    implementation: Implementation,
    place: Place,
) -> Result<CustomOp> {
    let signature = signature.map(str::parse::<OpSignature>).transpose();
    let signature = signature.map_err(|e| e.context(format!("of custom op '{name}'")))?;
    let meaning = Meaning::Kernel(Arc::new(implementation), place);
    Ok(CustomOp::new(name, library, meaning).with_signature(signature))
}

/// A file and what it was when it was read.
type Version = (PathBuf, Option<SystemTime>, u64);

static FILES: Mutex<Lru<(Version, KernelLibrary), KEPT_FILES>> = Mutex::new(Lru::new());

/// The custom ops of a file: a shared library with the interface of `max_custom_op.h`, or CUDA C++ source that declares
/// its ops. A file that has not changed gives the same ops each time. Loading a shared library runs its code.
pub fn load_custom_ops(path: &Path) -> Result<KernelLibrary> {
    let failed =
        |why: &str| Error::runtime(format!("cannot load custom ops from '{}': {why}", path.display()));
    let kind =
        path.extension().and_then(|extension| extension.to_str()).unwrap_or_default().to_ascii_lowercase();
    if matches!(kind.as_str(), "mojo" | "mojopkg") {
        return Err(Error::not_implemented(format!(
            "'{}' is Mojo, which is not supported: {WAYS}",
            path.display()
        )));
    }
    let metadata = fs::metadata(path).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => failed("the file does not exist"),
        _ => failed(&e.to_string()),
    })?;
    if !metadata.is_file() {
        return Err(failed(&format!("it is not a file: {WAYS}")));
    }
    let whole = fs::canonicalize(path).map_err(|e| failed(&e.to_string()))?;
    let version = (whole.clone(), metadata.modified().ok(), metadata.len());
    if let Some((_, library)) = lock(&FILES).find(|(known, _)| *known == version) {
        return Ok(library.clone());
    }
    let title = path.display().to_string();
    let library = match kind.as_str() {
        "so" | "dylib" | "dll" => shared(&whole, &title)?,
        "cu" => {
            let code = fs::read_to_string(path).map_err(|e| failed(&e.to_string()))?;
            let sources = CustomSource::parse(&code).map_err(|e| e.prefixed(&format!("in '{title}': ")))?;
            collect(sources.into_iter().map(|source| cuda_of(source, &title)))?
        }
        _ => return Err(failed(&format!("its name does not say what it is: {WAYS}"))),
    };
    let evicted = lock(&FILES).insert((version, library.clone()));
    drop(evicted);
    Ok(library)
}

fn shared(path: &Path, title: &str) -> Result<KernelLibrary> {
    collect(extension::load(path)?.into_iter().map(|foreign| {
        let (name, signature) = (foreign.name.clone(), foreign.signature.clone());
        let place = if foreign.on_gpu { Place::Gpu } else { Place::Host };
        op(&name, title, signature.as_deref(), Implementation::Function(Box::new(foreign)), place)
    }))
}

fn collect(ops: impl Iterator<Item = Result<CustomOp>>) -> Result<KernelLibrary> {
    let library = KernelLibrary::new();
    for op in ops {
        library.add(op?)?;
    }
    Ok(library)
}
