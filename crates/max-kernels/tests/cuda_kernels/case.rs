//! A kernel with its memory, run on both devices.

use max_core::kernel::{Access, Kernel, Slot};
use max_core::{DType, Element, Result, dispatch, small_float};
use max_driver::{Buffer, CPU, Device};
use max_kernels::cuda::{self, Options, Prepared};
use max_kernels::{Memory, Pool};

/// A kernel, one host buffer per slot, and which of them are results.
#[derive(Clone)]
pub(crate) struct Case {
    pub(crate) kernel: Kernel<i64>,
    pub(crate) buffers: Vec<Buffer>,
    pub(crate) results: Vec<usize>,
}

impl Case {
    /// A case whose last slots are results.
    pub(crate) fn new(kernel: Kernel<i64>, buffers: Vec<Buffer>, results: usize) -> Case {
        let results = (buffers.len() - results..buffers.len()).collect();
        Case { kernel, buffers, results }
    }
}

/// Pseudo-random numbers.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % bound
    }

    pub(crate) fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }

    /// Eighths between minus two and two, so that sums of their products are exact in any order; integers for integer
    /// types.
    pub(crate) fn buffer(&mut self, dtype: DType, count: usize) -> Buffer {
        fn fill<T: Element>(random: &mut Random, count: usize) -> Buffer {
            let step = if T::DTYPE.is_float() { 8.0 } else { 1.0 };
            let element = |random: &mut Random| T::from_double((random.below(33) as f64 - 16.0) / step);
            Buffer::from((0..count).map(|_| element(random)).collect::<Vec<T>>())
        }
        dispatch!(dtype, T => fill::<T>(self, count))
    }

    /// A random layout of a shape in a slot, and how many elements it spans: any order of axes, gaps, negative strides,
    /// and, if allowed, broadcast axes before the last two.
    pub(crate) fn access(
        &mut self,
        slot: u32,
        dtype: DType,
        shape: &[i64],
        repeat: bool,
    ) -> (Access<i64>, usize) {
        let rank = shape.len();
        let mut order: Vec<usize> = (0..rank).collect();
        (1..rank).for_each(|i| order.swap(i, self.below(i as u64 + 1) as usize));
        let (mut step, mut offset) = (1, self.below(3) as i64);
        let mut strides = vec![0; rank];
        for axis in order {
            if repeat && axis + 2 < rank && self.below(3) == 0 {
                continue;
            }
            strides[axis] = if self.below(4) == 0 { -step } else { step };
            offset += if strides[axis] < 0 { step * (shape[axis] - 1).max(0) } else { 0 };
            step *= shape[axis].max(1) + i64::from(self.below(4) == 0);
        }
        (Access { slot: Slot(slot), dtype, offset, strides }, step as usize + 3)
    }
}

/// A contiguous access with its axes in some order, innermost first, and how many elements it spans.
pub(crate) fn ordered(slot: u32, dtype: DType, shape: &[i64], order: &[usize]) -> (Access<i64>, usize) {
    let (mut strides, mut step) = (vec![0; shape.len()], 1);
    for &axis in order {
        strides[axis] = step;
        step *= shape[axis].max(1);
    }
    (Access { slot: Slot(slot), dtype, offset: 0, strides }, step as usize)
}

/// A contiguous row-major access.
pub(crate) fn row_major(slot: u32, dtype: DType, shape: &[i64]) -> (Access<i64>, usize) {
    ordered(slot, dtype, shape, &(0..shape.len()).rev().collect::<Vec<_>>())
}

/// A buffer filled with an element that results do not have by chance.
pub(crate) fn untouched(dtype: DType, count: usize) -> Buffer {
    dispatch!(dtype, T => Buffer::from(vec![T::from_double(77.0); count]))
}

/// Runs all cases on both devices; returns the failures.
pub(crate) fn check_all(device: &Device, cases: &[Case]) -> Vec<String> {
    let kernels: Vec<&Kernel<i64>> = cases.iter().map(|case| &case.kernel).collect();
    let together = cuda::prepare(&kernels, device, Options::default());
    let mut failures = Vec::new();
    let mut prepared = together.unwrap_or_default().into_iter();
    for (number, case) in cases.iter().enumerate() {
        // If preparing all together fails, preparing each alone shows which one fails.
        let outcome = match prepared.next() {
            Some(prepared) => check(device, case, &prepared),
            None => cuda::prepare(&[&case.kernel], device, Options::default())
                .and_then(|alone| check(device, case, &alone[0])),
        };
        let failure = match outcome {
            Ok(None) => continue,
            Ok(Some(difference)) => difference,
            Err(error) => format!("error: {}", error.message()),
        };
        failures.push(format!("case {number}: {failure}\n    {:?}", case.kernel));
        if failures.len() > 10 {
            failures.push("and maybe more".into());
            break;
        }
    }
    failures
}

/// Copies buffers to a device and runs a kernel on them there.
pub(crate) fn run_on(device: &Device, case: &Case, prepared: &Prepared) -> Result<Vec<Buffer>> {
    let buffers = case.buffers.iter().map(|buffer| buffer.copy(Some(device))).collect::<Result<Vec<_>>>()?;
    let scratch = Buffer::zeros(DType::UInt8, &[prepared.scratch_bytes()], device)?;
    prepared.run(&memory(case, &buffers)?, Memory::of_mut(&scratch)?, &device.default_stream())?;
    device.synchronize()?;
    case.results.iter().map(|&slot| buffers[slot].to(&CPU())).collect()
}

/// Runs a CPU kernel on copies of the buffers.
pub(crate) fn run_on_cpu(case: &Case) -> Result<Vec<Buffer>> {
    let buffers = case.buffers.iter().map(|buffer| buffer.copy(None)).collect::<Result<Vec<_>>>()?;
    max_kernels::prepare(&case.kernel)?.run(&memory(case, &buffers)?, &Pool::new(2))?;
    Ok(case.results.iter().map(|&slot| buffers[slot].clone()).collect())
}

fn memory<'a>(case: &Case, buffers: &'a [Buffer]) -> Result<Vec<Memory<'a>>> {
    let place = |(slot, buffer)| match case.results.contains(&slot) {
        true => Memory::of_mut(buffer),
        false => Memory::of(buffer),
    };
    buffers.iter().enumerate().map(place).collect()
}

fn check(device: &Device, case: &Case, prepared: &Prepared) -> Result<Option<String>> {
    let expected = run_on_cpu(case)?;
    let got = run_on(device, case, prepared)?;
    let again = run_on(device, case, prepared)?;
    for (((&slot, got), again), expected) in case.results.iter().zip(&got).zip(&again).zip(&expected) {
        if got.host_bytes()?.as_ref() != again.host_bytes()?.as_ref() {
            return Ok(Some(format!("slot {slot} has different bits in the second run")));
        }
        let dtype = got.dtype();
        let (got, expected) = (numbers(got)?, numbers(expected)?);
        let wrong: Vec<usize> = (0..got.len()).filter(|&at| !near(dtype, got[at], expected[at])).collect();
        if let Some(&at) = wrong.first() {
            let samples = wrong.iter().take(4).map(|&at| format!("[{at}] {} not {}", got[at], expected[at]));
            let samples = samples.collect::<Vec<_>>().join(", ");
            let last = wrong[wrong.len() - 1];
            return Ok(Some(format!(
                "slot {slot} ({dtype}): {} of {} are wrong, from {at} to {last}: {samples}; {} launches",
                wrong.len(),
                got.len(),
                prepared.launches(),
            )));
        }
    }
    Ok(None)
}

fn numbers(buffer: &Buffer) -> Result<Vec<f64>> {
    dispatch!(buffer.dtype(), T => Ok(buffer.to_vec::<T>()?.into_iter().map(|x| x.to_f64()).collect()))
}

/// Whether a result is as close as its type and the order of sums allow.
fn near(dtype: DType, got: f64, expected: f64) -> bool {
    let part = match dtype {
        DType::Float64 => 1e-12,
        DType::Float32 => 1e-5,
        DType::Float16 => 4e-3,
        DType::BFloat16 => 2e-2,
        _ => small_float::format(dtype).map_or(0.0, |format| 1.2 / f64::from(1 << format.fraction)),
    };
    (got.is_nan() && expected.is_nan())
        || got == expected
        || (got - expected).abs() <= part * (expected.abs() + 1.0)
}
