//! Work on a GPU: functions from source, matmuls, recorded graphs. Without a GPU nothing is tested, and one line says
//! so.

mod cache;
mod functions;
mod gemm;
mod graphs;

use std::io::Write;
use std::sync::Once;

use max_core::{DType, Element, dispatch};
use max_driver::cuda::{Gpu, Source};
use max_driver::{Buffer, Device};

/// The first GPU, if there is one.
fn gpu() -> Option<(Device, &'static Gpu)> {
    static SAID: Once = Once::new();
    match Device::accelerator(None) {
        Ok(device) => device.gpu().map(|gpu| (device, gpu)),
        Err(error) => {
            // Not eprintln!, whose output is only shown when a test fails.
            SAID.call_once(|| drop(writeln!(std::io::stderr(), "skipped: no GPU: {}", error.message())));
            None
        }
    }
}

/// Elements on a device.
fn upload(dtype: DType, values: &[f64], device: &Device) -> Buffer {
    dispatch!(dtype, T => {
        let elements: Vec<T> = values.iter().map(|&value| T::from_double(value)).collect();
        Buffer::from_slice(&elements, &[elements.len()]).unwrap().to(device).unwrap()
    })
}

/// Elements copied back from a device.
fn download(buffer: &Buffer) -> Vec<f64> {
    dispatch!(buffer.dtype(), T => {
        buffer.to_vec::<T>().unwrap().into_iter().map(T::to_f64).collect()
    })
}

fn address(buffer: &Buffer) -> u64 {
    buffer.data_ptr() as u64
}

fn source(name: &str, prelude: &'static str, code: &str) -> Source {
    Source { name: name.into(), prelude: prelude.into(), code: code.into() }
}

/// `out[i] = a[i] + b[i]`, of float32; parameters `a, b, out, n`.
fn add() -> Source {
    source(
        "add",
        "",
        r#"extern "C" __global__ void add(const float* a, const float* b, float* out, long long n) {
            long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
            if (i < n) out[i] = a[i] + b[i];
        }"#,
    )
}
