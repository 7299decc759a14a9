//! Regions of interest: parts of images, resampled to a common size.

use max_core::kernel::{Region, Sampling};
use max_core::{DType, Dim, Element, HostBytes, Result, Shape, Type, bail, dispatch};

use crate::attr::op_struct;
use crate::graph::record_one;
use crate::host::{HostTensor, allocate, byte_count};
use crate::op::{Operation, Run};
use crate::operand::{Operand, same_device};
use crate::ops::cast::cast_value;
use crate::ops::rebind::assert_dim;
use crate::ops::tensors;
use crate::properties::{Effects, Folding, Form, Properties, Signature};
use crate::registry::op_fns;
use crate::value::TensorValue;

/// The most samples of a bin along an axis that can be asked for.
const MOST_SAMPLES: f64 = 4096.0;

op_struct! {
    /// Regions of images `[N, H, W, C]`, each divided into bins that are sampled. Without a number of samples it is that of
    /// the pixels that a bin extends over.
    RoiAlign = "roi_align" { height: usize, width: usize, scale: f64, samples: usize, aligned: bool, max: bool }
}

op_fns! {
    /// Parts of images, resampled to a common size: of each region, a grid of bins, and of each bin the mean (or with the mode
    /// "MAX" the largest) of what some samples contribute.
    ///
    /// A region is a row of five numbers: the number of its image, and its left, upper, right and lower edge, which are
    /// multiplied by `spatial_scale`. A sample is interpolated from four pixels; one more than a pixel away from the image
    /// contributes zero. For the mode "MAX" the contribution of each of the four pixels counts by itself.
    #[expect(clippy::too_many_arguments, reason = "as many are documented")]
    pub fn roi_align(
        input: Operand, rois: Operand, output_height: i64, output_width: i64, spatial_scale: f64 = 1.0,
        sampling_ratio: f64 = 0.0, aligned: bool = false, mode: String = "AVG",
    ) -> TensorValue {
        let input = input.tensor()?;
        let rois = rois.like(&input)?;
        same_device([&input, &rois])?;
        if input.rank() != 4 {
            bail!(value, "roi_align expects a rank-4 input [N, H, W, C], got rank {}", input.rank());
        }
        if rois.rank() != 2 {
            bail!(value, "roi_align expects rank-2 rois [M, 5], got rank {}", rois.rank());
        }
        if !input.dtype().is_float() || input.dtype().is_small_float() || rois.dtype() == DType::Bool {
            bail!(value, "roi_align needs an input of floats and rois of numbers; got {} and {}", input.dtype(), rois.dtype());
        }
        let size = |name: &str, size: i64| match usize::try_from(size) {
            Ok(size) if size <= i32::MAX as usize => Ok(size),
            _ => bail!(value, "roi_align {name} must be from 0 to {}; got {size}", i32::MAX),
        };
        let (height, width) = (size("output_height", output_height)?, size("output_width", output_width)?);
        let max = match mode.as_str() {
            "AVG" => false,
            "MAX" => true,
            other => bail!(value, "roi_align mode must be 'AVG' or 'MAX', got '{other}'"),
        };
        if !spatial_scale.is_finite() {
            bail!(value, "roi_align spatial_scale must be finite; got {spatial_scale}");
        }
        if sampling_ratio.fract() != 0.0 || sampling_ratio > MOST_SAMPLES || sampling_ratio.is_nan() {
            bail!(value, "roi_align sampling_ratio must be a whole number up to {MOST_SAMPLES}; got {sampling_ratio}");
        }
        let samples = sampling_ratio.max(0.0) as usize;
        let rois = assert_dim(rois, 1, Dim::Static(5), "roi_align needs five numbers for each region")?;
        let coordinates = if input.dtype() == DType::Float64 { DType::Float64 } else { DType::Float32 };
        let op = RoiAlign { height, width, scale: spatial_scale, samples, aligned, max };
        record_one(op, [&input, &cast_value(&rois, coordinates)?])
    }
}

impl RoiAlign {
    /// How regions are divided and sampled.
    pub fn sampling(&self) -> Sampling {
        Sampling { scale: self.scale, samples: self.samples, aligned: self.aligned, max: self.max }
    }
}

impl Operation for RoiAlign {
    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>> {
        let [input, rois] = tensors(operands)?;
        let coordinates = if input.dtype == DType::Float64 { DType::Float64 } else { DType::Float32 };
        if !input.dtype.is_float() || input.dtype.is_small_float() || rois.dtype != coordinates {
            bail!(value, "roi_align of a {} input and {} rois", input.dtype, rois.dtype);
        }
        if input.device != rois.device {
            bail!(value, "Input values must be on the same device; got {} and {}", input.device, rois.device);
        }
        let ([_, _, _, channels], [count, five]) = (&input.shape[..], &rois.shape[..]) else {
            bail!(
                value,
                "roi_align needs an input [N, H, W, C] and rois [M, 5]; got {} and {}",
                input.shape,
                rois.shape
            );
        };
        if *five != Dim::Static(5) {
            bail!(value, "roi_align needs rois [M, 5], with five numbers for each; got {}", rois.shape);
        }
        if [self.height, self.width].into_iter().any(|size| size > i32::MAX as usize)
            || self.samples > MOST_SAMPLES as usize
            || !self.scale.is_finite()
        {
            bail!(value, "roi_align attributes out of range: {self:?}");
        }
        let shape = Shape::from(vec![count.clone(), self.height.into(), self.width.into(), channels.clone()]);
        Ok(vec![input.with_shape(shape).into()])
    }

    fn properties(&self, _: Signature) -> Properties {
        Properties {
            effects: Effects::NONE,
            checks: true,
            form: Form::Whole,
            folding: Folding::Never,
            heavy: true,
            rounds_operands: false,
        }
    }

    fn eval(&self, operands: &[HostTensor], _: &Run) -> Result<Vec<HostTensor>> {
        let (input, rois) = (&operands[0], &operands[1]);
        let (&[images, height, width, channels], &[count, _]) = (input.shape(), rois.shape()) else {
            bail!(internal, "roi_align of shapes {:?} and {:?}", input.shape(), rois.shape());
        };
        let sizes = [count, self.height, self.width, channels];
        if sizes.contains(&0) {
            return Ok(vec![HostTensor::new(input.dtype(), sizes, HostBytes::from_vec(Vec::<u8>::new()))?]);
        }
        // Coordinates are computed as a kernel does, because the number of samples depends on how they are rounded.
        let double = rois.dtype() == DType::Float64;
        let numbers = rois.cast(DType::Float64)?;
        let numbers = numbers.elements::<f64>()?;
        dispatch!(input.dtype(), T => {
            let pixels = input.elements::<T>()?;
            let mut results = allocate::<T>(byte_count(T::DTYPE, &sizes)? / size_of::<T>())?;
            for region in numbers.chunks_exact(5) {
                let images = [images, height, width];
                let bins = [self.height, self.width];
                let grid = match double {
                    true => grids(Region::new(std::array::from_fn(|i| region[i]), images, bins, &self.sampling())?, bins),
                    false => grids(Region::new(std::array::from_fn(|i| region[i] as f32), images, bins, &self.sampling())?, bins),
                };
                for down in &grid.bins[0] {
                    for across in &grid.bins[1] {
                        for channel in 0..channels {
                            let pixel = |y: usize, x: usize| {
                                pixels[((grid.image * height + y) * width + x) * channels + channel].to_f64()
                            };
                            let terms = down.0.iter().flat_map(|&(y, v)| across.0.iter().map(move |&(x, w)| pixel(y, x) * (v * w)));
                            let value = match self.max {
                                false => terms.sum::<f64>() / grid.count,
                                true => {
                                    let zero = (down.1 || across.1 || down.0.is_empty() || across.0.is_empty()).then_some(0.0);
                                    terms.chain(zero).fold(f64::NEG_INFINITY, |most, x| {
                                        if most.is_nan() || most >= x { most } else { x }
                                    })
                                }
                            };
                            results.push(T::from_double(value));
                        }
                    }
                }
            }
            Ok(vec![HostTensor::from_vec(sizes, results)?])
        })
    }
}

/// The pixels and weights of a bin along an axis, and whether there are samples outside of the image.
type Bin = (Vec<(usize, f64)>, bool);

/// The bins of a region along both axes.
struct Grid {
    image: usize,
    bins: [Vec<Bin>; 2],
    count: f64,
}

fn grids<F: max_core::kernel::Coordinate>(region: Region<F>, bins: [usize; 2]) -> Grid {
    let along = |axis: usize| {
        let mut samples = Vec::new();
        let bin = |bin: usize| {
            let outside = region.spans[axis].samples(bin, &mut samples);
            let pixels =
                samples.iter().flat_map(|sample| [0, 1].map(|i| (sample.at[i], sample.weights[i].value())));
            (pixels.collect(), outside)
        };
        (0..bins[axis]).map(bin).collect()
    };
    Grid { image: region.image, bins: [along(0), along(1)], count: region.count().value() }
}
