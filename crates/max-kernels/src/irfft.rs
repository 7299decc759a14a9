//! Runs inverse Fourier transforms, one line after another. Which algorithm computes a line follows from its length alone.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use max_core::kernel::Irfft;
use max_core::{DType, Element, Result, bail};
use realfft::num_complex::Complex;
use realfft::{ComplexToReal, FftNum, RealFftPlanner};

use crate::matmul::{Places, count};
use crate::{Memory, Pool};

/// Roughly how many elements a task transforms.
const TASK: usize = 1 << 15;

/// Inverse Fourier transforms that are ready to run.
#[derive(Debug)]
pub(crate) enum PreparedIrfft {
    Single(Transforms<f32>),
    Double(Transforms<f64>),
}

/// The transforms of all lines, in a type.
pub(crate) struct Transforms<T: FftNum> {
    lines: usize,
    /// How many elements of the spectra are read.
    bins: usize,
    complex: bool,
    size: usize,
    scale: T,
    source: Lines,
    out: Lines,
    /// How a line is transformed. It is planned when it is first needed, when the memory of the result is known to exist.
    plan: OnceLock<Arc<dyn ComplexToReal<T>>>,
}

/// Where lines are in memory.
#[derive(Debug)]
struct Lines {
    places: Places,
    /// The distance between the elements of a line, in bytes.
    step: isize,
    /// The distance between the parts of an element, in bytes.
    part: isize,
}

impl<T: FftNum> std::fmt::Debug for Transforms<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transforms")
            .field("lines", &self.lines)
            .field("size", &self.size)
            .finish_non_exhaustive()
    }
}

impl PreparedIrfft {
    pub(crate) fn new(k: &Irfft<i64>) -> Result<PreparedIrfft> {
        if k.size < 1 {
            bail!(value, "irfft needs a size of at least 1; got n = {}", k.size);
        }
        if k.source.dtype != k.out.dtype || !(1..=2).contains(&k.parts) {
            bail!(internal, "an inverse transform of {} x {} into {}", k.source.dtype, k.parts, k.out.dtype);
        }
        Ok(match k.out.dtype {
            DType::Float32 => PreparedIrfft::Single(Transforms::new(k, |scale| scale as f32)?),
            DType::Float64 => PreparedIrfft::Double(Transforms::new(k, |scale| scale)?),
            other => bail!(internal, "an inverse transform in {other}"),
        })
    }

    /// Runs it.
    ///
    /// # Safety
    ///
    /// The memory was checked for the kernel.
    pub(crate) unsafe fn run(&self, memory: &[Memory], pool: &Pool) -> Result<()> {
        // SAFETY: guaranteed by the caller.
        unsafe {
            match self {
                PreparedIrfft::Single(transforms) => transforms.run(memory, pool),
                PreparedIrfft::Double(transforms) => transforms.run(memory, pool),
            }
        }
    }
}

impl<T: FftNum + Element> Transforms<T> {
    fn new(k: &Irfft<i64>, narrow: impl Fn(f64) -> T) -> Result<Transforms<T>> {
        count(&[k.outer, k.bins, k.inner, k.parts])?;
        count(&[k.outer, k.size, k.inner])?;
        let lines = count(&[k.outer, k.inner])?;
        let size = count(&[k.size])?;
        let bytes = |stride: i64| stride as isize * size_of::<T>() as isize;
        let walk = |access: &max_core::kernel::Access<i64>, part: i64| {
            let lines = max_core::kernel::Access {
                strides: vec![access.strides[0], access.strides[2]],
                ..access.clone()
            };
            Lines {
                places: Places::new(&lines, &[k.outer, k.inner]),
                step: bytes(access.strides[1]),
                part: bytes(part),
            }
        };
        Ok(Transforms {
            lines,
            bins: count(&[k.bins])?.min(size / 2 + 1),
            complex: k.parts == 2,
            size,
            scale: narrow(k.normalization.scale(size)),
            source: walk(&k.source, k.source.strides[3]),
            out: walk(&k.out, 0),
            plan: OnceLock::new(),
        })
    }

    /// # Safety
    ///
    /// The memory was checked for the kernel.
    unsafe fn run(&self, memory: &[Memory], pool: &Pool) -> Result<()> {
        let Transforms { lines, size, .. } = *self;
        if lines == 0 {
            return Ok(());
        }
        let plan = match self.plan.get() {
            Some(plan) => plan,
            None => {
                // Planning takes a multiple of the memory of a line, and cannot report that there is none.
                let Some(_) = size.checked_mul(16).and_then(reserve::<T>) else { return no_memory(size) };
                let plan = RealFftPlanner::new().plan_fft_inverse(size);
                self.plan.get_or_init(|| plan)
            }
        };
        let together = (TASK / size).max(1);
        let failed = AtomicBool::new(false);
        pool.run(lines.div_ceil(together), &|task| {
            let lines = task * together..lines.min((task + 1) * together);
            // SAFETY: the caller checked the memory for the kernel, and every line is in one task.
            if unsafe { self.transform(plan.as_ref(), memory, lines) }.is_none() {
                failed.store(true, Ordering::Relaxed);
            }
        });
        if failed.into_inner() { no_memory(size) } else { Ok(()) }
    }

    /// Transforms some lines; `None` if there is no memory for it.
    ///
    /// # Safety
    ///
    /// The memory was checked for the kernel, and nothing else writes these lines.
    unsafe fn transform(
        &self,
        plan: &dyn ComplexToReal<T>,
        memory: &[Memory],
        lines: std::ops::Range<usize>,
    ) -> Option<()> {
        let zero = Complex::new(T::zero(), T::zero());
        let mut spectrum = filled(self.size / 2 + 1, zero)?;
        let mut scratch = filled(plan.get_scratch_len(), zero)?;
        let mut signal = filled(self.size, T::zero())?;
        for line in lines {
            let from = self.source.places.at(memory, line).cast_const();
            for (k, bin) in spectrum.iter_mut().enumerate().take(self.bins) {
                let at = from.wrapping_offset(k as isize * self.source.step);
                // SAFETY: guaranteed by the caller.
                bin.re = unsafe { at.cast::<T>().read_unaligned() };
                // The parts of a signal that is real are zero for these frequencies.
                let real = !self.complex || k == 0 || 2 * k == self.size;
                bin.im = match real {
                    true => T::zero(),
                    // SAFETY: guaranteed by the caller.
                    false => unsafe { at.wrapping_offset(self.source.part).cast::<T>().read_unaligned() },
                };
            }
            // What the transform left there.
            spectrum[self.bins..].fill(zero);
            // The lengths are those of the plan, and the imaginary parts that it wants to be zero are.
            let done = plan.process_with_scratch(&mut spectrum, &mut signal, &mut scratch);
            debug_assert!(done.is_ok(), "{done:?}");
            let to = self.out.places.at(memory, line);
            for (i, &x) in signal.iter().enumerate() {
                let at = to.wrapping_offset(i as isize * self.out.step);
                // SAFETY: guaranteed by the caller.
                unsafe { at.cast::<T>().write_unaligned(x * self.scale) };
            }
        }
        Some(())
    }
}

fn no_memory<R>(size: usize) -> Result<R> {
    bail!(memory, "there is not enough memory for an inverse Fourier transform of size {size}")
}

/// A vector with room for some elements, unless the system refuses.
fn reserve<T>(len: usize) -> Option<Vec<T>> {
    let mut elements = Vec::new();
    elements.try_reserve_exact(len).ok()?;
    Some(elements)
}

fn filled<T: Clone>(len: usize, value: T) -> Option<Vec<T>> {
    let mut elements = reserve(len)?;
    elements.resize(len, value);
    Some(elements)
}

#[cfg(test)]
mod tests {
    use max_core::kernel::{Access, Kernel, Normalization, Slot};
    use max_driver::Buffer;

    use super::*;
    use crate::prepare;

    /// Transforms the spectra of unit impulses, whose signals are cosines.
    fn signal(n: usize, bins: usize, at: usize) -> Vec<f64> {
        let access = |slot, strides| Access { slot: Slot(slot), dtype: DType::Float64, offset: 0, strides };
        let k = Irfft {
            outer: 1,
            bins: bins as i64,
            size: n as i64,
            inner: 1,
            parts: 2,
            normalization: Normalization::Forward,
            source: access(0, vec![2 * bins as i64, 2, 2, 1]),
            out: access(1, vec![n as i64, 1, 1]),
        };
        let mut spectrum = vec![0.0f64; 2 * bins];
        spectrum[2 * at] = 1.0;
        // These parts are ignored for the first and the last frequency.
        spectrum[2 * at + 1] = if at == 0 || 2 * at == n { 7.0 } else { 0.0 };
        let (source, out) = (Buffer::from(spectrum), Buffer::from(vec![0.0f64; n]));
        let memory = [Memory::of(&source).unwrap(), Memory::of_mut(&out).unwrap()];
        prepare(&Kernel::Irfft(k)).unwrap().run(&memory, &Pool::new(2)).unwrap();
        out.to_vec().unwrap()
    }

    #[test]
    fn impulses_become_cosines() {
        for n in [1, 2, 3, 4, 5, 8, 17, 30, 1024] {
            for at in 0..n / 2 + 1 {
                let weight = if at == 0 || 2 * at == n { 1.0 } else { 2.0 };
                let out = signal(n, n / 2 + 1, at);
                for (i, x) in out.iter().enumerate() {
                    let expected = weight * (std::f64::consts::TAU * ((at * i) % n) as f64 / n as f64).cos();
                    assert!((x - expected).abs() < 1e-12, "{n} {at} {i}: {x} is not {expected}");
                }
            }
        }
    }
}
