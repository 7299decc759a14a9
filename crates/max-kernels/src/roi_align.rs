//! Runs regions of interest: a task computes the bins of a row, some channels at a time.

use max_core::kernel::{Access, Coordinate, Region, RoiAlign, Sampling};
use max_core::{DType, Element, Result, bail, bf16, f16};

use crate::matmul::count;
use crate::{Memory, Pool};

/// How many channels are computed together.
const CHANNELS: usize = 64;

/// Regions of interest that are ready to run.
#[derive(Debug)]
pub(crate) struct PreparedRoiAlign {
    /// The number of images, their height, width and channels.
    images: [usize; 4],
    regions: usize,
    bins: [usize; 2],
    sampling: Sampling,
    source: Access<i64>,
    rois: Access<i64>,
    out: Access<i64>,
}

impl PreparedRoiAlign {
    pub(crate) fn new(k: &RoiAlign<i64>) -> Result<PreparedRoiAlign> {
        let [n, h, w, c] = k.images;
        let ([m, five], [down, across]) = (k.regions, k.bins);
        count(&[n, h, w, c])?;
        count(&[m, five])?;
        count(&[m, down, across, c])?;
        let coordinates = if k.out.dtype == DType::Float64 { DType::Float64 } else { DType::Float32 };
        if five != 5 || k.source.dtype != k.out.dtype || k.rois.dtype != coordinates {
            bail!(internal, "regions of {} by {five} {} into {}", k.source.dtype, k.rois.dtype, k.out.dtype);
        }
        if !matches!(k.out.dtype, DType::Float64 | DType::Float32 | DType::Float16 | DType::BFloat16) {
            bail!(internal, "regions of {}", k.out.dtype);
        }
        Ok(PreparedRoiAlign {
            images: [n as usize, h as usize, w as usize, c as usize],
            regions: m as usize,
            bins: [down as usize, across as usize],
            sampling: k.sampling,
            source: k.source.clone(),
            rois: k.rois.clone(),
            out: k.out.clone(),
        })
    }

    /// Runs it.
    ///
    /// # Safety
    ///
    /// The memory was checked for the kernel.
    pub(crate) unsafe fn run(&self, memory: &[Memory], pool: &Pool) -> Result<()> {
        if self.regions == 0 || self.bins.contains(&0) || self.images[3] == 0 {
            return Ok(());
        }
        // SAFETY: guaranteed by the caller.
        unsafe {
            match self.out.dtype {
                DType::Float64 => self.run_as::<f64, f64>(memory, pool),
                DType::Float16 => self.run_as::<f16, f32>(memory, pool),
                DType::BFloat16 => self.run_as::<bf16, f32>(memory, pool),
                _ => self.run_as::<f32, f32>(memory, pool),
            }
        }
    }

    /// # Safety
    ///
    /// The memory was checked for the kernel, whose elements and coordinates have these types.
    unsafe fn run_as<T: Element, F: Coordinate + Element + Send + Sync>(
        &self,
        memory: &[Memory],
        pool: &Pool,
    ) -> Result<()> {
        let mut regions = Vec::new();
        if regions.try_reserve_exact(self.regions).is_err() {
            bail!(memory, "there is not enough memory for {} regions of roi_align", self.regions);
        }
        let [n, h, w, _] = self.images;
        for m in 0..self.regions {
            // Each number is read once, because another thread may change it.
            let number = |i: usize| {
                let at = address(memory, &self.rois, &[m, i]).cast::<F>();
                // SAFETY: guaranteed by the caller.
                unsafe { at.read_unaligned() }
            };
            regions.push(Region::new(std::array::from_fn(number), [n, h, w], self.bins, &self.sampling)?);
        }
        if self.bins[1] == 0 || self.images[3] == 0 {
            return Ok(());
        }
        let rows = self.bins[0];
        pool.run(self.regions * rows, &|task| {
            // SAFETY: guaranteed by the caller; every row of bins is computed by one task.
            unsafe { self.row::<T, F>(memory, &regions[task / rows], [task / rows, task % rows]) }
        });
        Ok(())
    }

    /// Computes a row of bins.
    ///
    /// # Safety
    ///
    /// As for [`PreparedRoiAlign::run_as`], and nothing else writes this row.
    unsafe fn row<T: Element, F: Coordinate + Element>(
        &self,
        memory: &[Memory],
        region: &Region<F>,
        [m, row]: [usize; 2],
    ) {
        let (mut down, mut across) = (Vec::new(), Vec::new());
        let above = region.spans[0].samples(row, &mut down);
        let channels = self.images[3];
        for column in 0..self.bins[1] {
            let outside =
                region.spans[1].samples(column, &mut across) || above || down.is_empty() || across.is_empty();
            for first in (0..channels).step_by(CHANNELS) {
                let some = CHANNELS.min(channels - first);
                let mut values = [F::new(if self.sampling.max { f64::NEG_INFINITY } else { 0.0 }); CHANNELS];
                for y in &down {
                    for x in &across {
                        let corner = |i: usize, j: usize| {
                            let at = address(memory, &self.source, &[region.image, y.at[i], x.at[j], first]);
                            (at.cast_const(), y.weights[i] * x.weights[j])
                        };
                        let corners = [corner(0, 0), corner(0, 1), corner(1, 0), corner(1, 1)];
                        // SAFETY: the pixels are those of an image, and the channels exist.
                        unsafe { self.add::<T, F>(corners, &mut values[..some]) };
                    }
                }
                let count = region.count();
                for (c, &value) in values[..some].iter().enumerate() {
                    let value = match self.sampling.max {
                        false => value / count,
                        true if outside => larger(value, F::new(0.0)),
                        true => value,
                    };
                    let at = address(memory, &self.out, &[m, row, column, first + c]).cast::<T>();
                    // SAFETY: guaranteed by the caller.
                    unsafe { at.write_unaligned(T::from_double(value.value())) };
                }
            }
        }
    }

    /// Adds a sample to values, or takes what is larger, channel by channel.
    ///
    /// # Safety
    ///
    /// There are as many channels as values at each corner.
    #[inline]
    unsafe fn add<T: Element, F: Coordinate + Element>(
        &self,
        corners: [(*const u8, F); 4],
        values: &mut [F],
    ) {
        let stride = self.source.strides[3] as isize;
        for (c, value) in values.iter_mut().enumerate() {
            let terms = corners.map(|(pixel, weight)| {
                let at = pixel.cast::<T>().wrapping_offset(c as isize * stride);
                // SAFETY: guaranteed by the caller.
                F::new(unsafe { at.read_unaligned() }.to_f64()) * weight
            });
            *value = match self.sampling.max {
                false => *value + (terms[0] + terms[1] + terms[2] + terms[3]),
                true => terms.into_iter().fold(*value, larger),
            };
        }
    }
}

/// The larger of two numbers; NaN wins.
fn larger<F: Coordinate>(a: F, b: F) -> F {
    if a.value().is_nan() || a >= b { a } else { b }
}

/// The address of an element.
fn address(memory: &[Memory], access: &Access<i64>, index: &[usize]) -> *mut u8 {
    let steps = index.iter().zip(&access.strides).map(|(&i, &stride)| i as isize * stride as isize);
    let element = access.offset as isize + steps.sum::<isize>();
    memory[access.slot.0 as usize].ptr().wrapping_offset(element * access.dtype.size_in_bytes() as isize)
}
