//! Fused loops on a GPU, if there is one, against the CPU kernels.
//!
//! All cases are prepared together, as programs do it, and run twice: both runs must give the same bits. Every failure
//! is reported, not only the first.

#[path = "cuda_loops/cases.rs"]
mod cases;
mod gpu;
#[path = "../src/loops/tests/random.rs"]
mod random;

use gpu::gpu;
use max_core::kernel::{Kernel, Level, Loop};
use max_core::{DType, Element, Result, dispatch, small_float};
use max_driver::{Buffer, CPU, Device};
use max_kernels::cuda::{self, Options, Prepared};
use max_kernels::{Memory, Pool};

/// A loop, its memory, one piece per slot, and how far float results may differ, in units of the rounding error.
struct Case {
    name: String,
    loop_: Loop<i64>,
    memory: Vec<Vec<u8>>,
    slack: f64,
}

fn groups() -> Vec<(&'static str, Vec<Case>)> {
    vec![
        ("ops", cases::ops()),
        ("casts", cases::casts()),
        ("reductions", cases::reductions()),
        ("rows", cases::rows()),
        ("few long rows", cases::long_rows()),
        ("broadcast and transposed", cases::layouts()),
        ("positions and random numbers", cases::positions()),
        ("in place", cases::in_place()),
        ("random loops", cases::random()),
    ]
}

#[test]
fn loops_match_the_cpu() {
    let Some(device) = gpu() else { return };
    let mut failures = Vec::new();
    for (group, cases) in groups() {
        eprintln!("{group}: {} loops", cases.len());
        failures.extend(check_all(&device, &cases).into_iter().map(|failure| format!("{group}: {failure}")));
    }
    let shown = failures.iter().take(40).map(String::as_str).collect::<Vec<_>>().join("\n\n");
    assert!(failures.is_empty(), "{} failures\n{shown}", failures.len());
}

/// All cases are valid loops, with or without a GPU.
#[test]
fn cases_run_on_the_cpu() {
    for (group, cases) in groups() {
        for case in cases {
            if let Err(error) = run_on_cpu(&case) {
                panic!("{group}, {}: {}\n{:?}", case.name, error.message(), case.loop_);
            }
        }
    }
}

/// The failures of some cases.
fn check_all(device: &Device, cases: &[Case]) -> Vec<String> {
    let kernels: Vec<Kernel<i64>> = cases.iter().map(|case| Kernel::Loop(case.loop_.clone())).collect();
    let together = cuda::prepare(&kernels.iter().collect::<Vec<_>>(), device, Options::default());
    let mut prepared = together.unwrap_or_default().into_iter();
    let mut failures = Vec::new();
    for (case, kernel) in cases.iter().zip(&kernels) {
        // If preparing all together fails, preparing each alone shows which one fails.
        let outcome = match prepared.next() {
            Some(prepared) => check(device, case, &prepared),
            None => cuda::prepare(&[kernel], device, Options::default())
                .and_then(|alone| check(device, case, &alone[0])),
        };
        let failure = match outcome {
            Ok(None) => continue,
            Ok(Some(difference)) => difference,
            Err(error) => format!("error: {}", error.message()),
        };
        failures.push(format!("{}: {failure}\n    {:?}", case.name, case.loop_));
        if failures.len() > 10 {
            failures.push("and maybe more".into());
            break;
        }
    }
    failures
}

fn pieces(buffers: &[Buffer]) -> Result<Vec<Memory<'_>>> {
    buffers.iter().map(Memory::of_mut).collect()
}

fn host_buffers(case: &Case) -> Vec<Buffer> {
    case.memory.iter().map(|bytes| Buffer::from(bytes.clone())).collect()
}

fn run_on(device: &Device, case: &Case, prepared: &Prepared) -> Result<Vec<Vec<u8>>> {
    let buffers =
        host_buffers(case).iter().map(|buffer| buffer.copy(Some(device))).collect::<Result<Vec<_>>>()?;
    let scratch = Buffer::zeros(DType::UInt8, &[prepared.scratch_bytes()], device)?;
    prepared.run(&pieces(&buffers)?, Memory::of_mut(&scratch)?, &device.default_stream())?;
    device.synchronize()?;
    buffers.iter().map(|buffer| buffer.to(&CPU())?.to_vec::<u8>()).collect()
}

fn run_on_cpu(case: &Case) -> Result<Vec<Vec<u8>>> {
    let buffers = host_buffers(case);
    max_kernels::prepare(&Kernel::Loop(case.loop_.clone()))?.run(&pieces(&buffers)?, &Pool::new(2))?;
    buffers.iter().map(|buffer| buffer.to_vec::<u8>()).collect()
}

fn check(device: &Device, case: &Case, prepared: &Prepared) -> Result<Option<String>> {
    let expected = run_on_cpu(case)?;
    let (got, again) = (run_on(device, case, prepared)?, run_on(device, case, prepared)?);
    let mut dtypes = vec![DType::UInt8; case.memory.len()];
    case.loop_.stored().for_each(|access| dtypes[access.slot.0 as usize] = access.dtype);
    for (slot, dtype) in dtypes.into_iter().enumerate() {
        if got[slot] != again[slot] {
            return Ok(Some(format!("slot {slot} has different bits in the second run")));
        }
        let (got, expected) = (numbers(dtype, &got[slot]), numbers(dtype, &expected[slot]));
        let wrong: Vec<usize> =
            (0..got.len()).filter(|&at| !near(dtype, got[at], expected[at], case.slack)).collect();
        if let Some(&at) = wrong.first() {
            let samples = wrong.iter().take(4).map(|&at| format!("[{at}] {} not {}", got[at], expected[at]));
            let samples = samples.collect::<Vec<_>>().join(", ");
            let (last, levels) = (wrong[wrong.len() - 1], case.loop_.levels(|stride| *stride == 0));
            let rows = levels.iter().filter(|&&level| level == Level::Row).count();
            return Ok(Some(format!(
                "slot {slot} ({dtype}): {} of {} are wrong, from {at} to {last}: {samples}; {} launches, {rows} \
                 values a row",
                wrong.len(),
                got.len(),
                prepared.launches(),
            )));
        }
    }
    Ok(None)
}

fn numbers(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    let whole = |element: &[u8]| match dtype {
        DType::Int64 => i64::from_le_bytes(element.try_into().unwrap_or_default()) as f64,
        _ => dispatch!(dtype, T => bytemuck::pod_read_unaligned::<T>(element).to_f64()),
    };
    bytes.chunks(dtype.size_in_bytes()).map(whole).collect()
}

/// Whether a result is as close as its type allows, given that functions may round differently.
fn near(dtype: DType, got: f64, expected: f64, slack: f64) -> bool {
    let part = match dtype {
        DType::Float64 => 1e-13,
        DType::Float32 => 1e-6,
        DType::Float16 => 1e-3,
        DType::BFloat16 => 8e-3,
        _ => small_float::format(dtype).map_or(0.0, |format| 1.0 / f64::from(1 << format.fraction)),
    };
    (got.is_nan() && expected.is_nan())
        || got == expected
        || (got - expected).abs() <= slack * part * (expected.abs() + 1.0)
}
