//! Two-dimensional convolution.

use max_core::{ConvInputLayout, Dim, Element, Error, FilterLayout, Result, Shape, Type, bail, dispatch};

use crate::attr::op_struct;
use crate::graph::record_one;
use crate::host::{HostTensor, allocate, byte_count, dot};
use crate::op::{Operation, Run};
use crate::operand::{Operand, promote};
use crate::ops::rebind::assert_dim;
use crate::ops::reshape::reshape_value;
use crate::ops::{add, check_alike, tensors};
use crate::properties::{Effects, Form, Properties, Signature};
use crate::registry::{Arg, FromArg, op_fns};
use crate::value::TensorValue;

op_struct! {
    /// Slides a filter over height and width. Padding is before and after height, then width.
    Conv2d = "conv2d" {
        stride: Vec<usize>,
        dilation: Vec<usize>,
        padding: Vec<usize>,
        groups: usize,
        input_layout: ConvInputLayout,
        filter_layout: FilterLayout,
    }
}

/// How a convolution moves and how its operands are laid out.
#[derive(Clone, Debug, PartialEq)]
pub struct ConvOptions {
    /// The distance between neighbouring outputs along height and width.
    pub stride: [i64; 2],
    /// The distance between neighbouring taps of the filter.
    pub dilation: [i64; 2],
    /// Zeros before and after height, then before and after width.
    pub padding: [i64; 4],
    /// The number of independent convolutions the channels are divided into.
    pub groups: i64,
    /// The axes of the input and of the result.
    pub input_layout: ConvInputLayout,
    /// The axes of the filter.
    pub filter_layout: FilterLayout,
}

impl Default for ConvOptions {
    fn default() -> ConvOptions {
        ConvOptions {
            stride: [1; 2],
            dilation: [1; 2],
            padding: [0; 4],
            groups: 1,
            input_layout: ConvInputLayout::NHWC,
            filter_layout: FilterLayout::RSCF,
        }
    }
}

impl FromArg for ConvOptions {
    fn from_arg(arg: Arg) -> Result<ConvOptions> {
        let list = match arg {
            Arg::None => return Ok(ConvOptions::default()),
            Arg::List(list) => <[Arg; 6]>::try_from(list).ok(),
            _ => None,
        };
        let Some([stride, dilation, padding, groups, input_layout, filter_layout]) = list else {
            bail!(type_, "expected stride, dilation, padding, groups, input layout and filter layout");
        };
        Ok(ConvOptions {
            stride: numbers("conv2d", "stride", stride)?,
            dilation: numbers("conv2d", "dilation", dilation)?,
            padding: numbers("conv2d", "padding", padding)?,
            groups: i64::from_arg(groups)?,
            input_layout: ConvInputLayout::from_arg(input_layout)?,
            filter_layout: FilterLayout::from_arg(filter_layout)?,
        })
    }
}

/// An option of an op that is a fixed number of integers.
pub(crate) fn numbers<const N: usize>(op: &str, name: &str, arg: Arg) -> Result<[i64; N]> {
    let list = Vec::<i64>::from_arg(arg)?;
    list.try_into().map_err(|list| Error::value(format!("{op} {name} must be {N} integers; got {list:?}")))
}

op_fns! {
    /// The convolution of an input with a filter, and a bias added to each output channel.
    pub fn conv2d(x: Operand, filter: Operand, bias: Option<Operand> = Arg::None, options: ConvOptions = Arg::None) -> TensorValue {
        let [x, filter] = promote([x, filter])?;
        let ConvOptions { input_layout, filter_layout, .. } = options;
        let op = Conv2d {
            stride: counts("conv2d", "stride", &options.stride, 1)?,
            dilation: counts("conv2d", "dilation", &options.dilation, 1)?,
            padding: counts("conv2d", "padding", &options.padding, 0)?,
            groups: counts("conv2d", "groups", &[options.groups], 1)?[0],
            input_layout,
            filter_layout,
        };
        let x = op.assert_channels(x, &filter)?;
        let y = record_one(op, [&x, &filter])?;
        add_bias("conv2d", y, bias, input_axes(input_layout)[3])
    }
}

/// A result with a bias added to each of its channels, which are along an axis.
pub(crate) fn add_bias(op: &str, y: TensorValue, bias: Option<Operand>, axis: usize) -> Result<TensorValue> {
    let Some(bias) = bias else { return Ok(y) };
    let bias = bias.like(&y)?;
    let channels = &y.shape()[axis];
    if *bias.shape() != Shape::from([channels]) {
        bail!(
            value,
            "{op} bias must have the shape [{channels}], one element per output channel; got {}",
            bias.shape()
        );
    }
    let after = vec![Dim::Static(1); y.rank() - axis - 1];
    let column = [std::slice::from_ref(channels), &after].concat();
    add(&y, reshape_value(&bias, column.into()))
}

/// Converts integers from outside, bounded so that sums of them stay within 64 bits.
pub(crate) fn counts(op: &str, name: &str, values: &[i64], least: i64) -> Result<Vec<usize>> {
    if values.iter().any(|v| !(least..=i64::from(i32::MAX)).contains(v)) {
        bail!(value, "{op} {name} must be from {least} to {}; got {values:?}", i32::MAX);
    }
    Ok(values.iter().map(|&v| v as usize).collect())
}

/// The axes of batch, height, width and channels.
pub(crate) fn input_axes(layout: ConvInputLayout) -> [usize; 4] {
    match layout {
        ConvInputLayout::NHWC => [0, 1, 2, 3],
        ConvInputLayout::NCHW => [0, 2, 3, 1],
    }
}

/// The axes of height, width, input channels and output channels.
pub(crate) fn filter_axes(op: &str, layout: FilterLayout) -> Result<[usize; 4]> {
    match layout {
        FilterLayout::RSCF => Ok([0, 1, 2, 3]),
        FilterLayout::FCRS => Ok([2, 3, 1, 0]),
        FilterLayout::CFRS => Ok([2, 3, 0, 1]),
        other => bail!(value, "{op} needs a filter with four axes; {other} has five"),
    }
}

impl Conv2d {
    /// The axes of batch, height, width and channels in the input and in the result.
    pub fn input_axes(&self) -> [usize; 4] {
        input_axes(self.input_layout)
    }

    /// The axes of height, width, input channels and output channels in the filter.
    pub fn filter_axes(&self) -> Result<[usize; 4]> {
        filter_axes("conv2d", self.filter_layout)
    }

    /// The size of an output axis: `(size + padding - dilation * (kernel - 1) - 1) // stride + 1`.
    fn output_size(&self, axis: usize, size: &Dim, kernel: &Dim) -> Result<Dim> {
        let one = Dim::Static(1);
        let fixed = |n: usize| Dim::Static(n as i64);
        let reach = kernel.sub(&one)?.mul(&fixed(self.dilation[axis]))?.add(&one)?;
        // Combine padding and the filter's extent first: then the sum fits in 64 bits whenever the result does.
        let change = fixed(self.padding[2 * axis] + self.padding[2 * axis + 1]).sub(&reach)?;
        size.add(&change)?.floor_div(&fixed(self.stride[axis]))?.add(&one)
    }

    /// The input with as many channels as the filter needs, asserted at run time where that is not known.
    fn assert_channels(&self, x: TensorValue, filter: &TensorValue) -> Result<TensorValue> {
        if x.rank() != 4 || filter.rank() != 4 {
            return Ok(x); // the type rule rejects it
        }
        let wanted = filter.shape()[self.filter_axes()?[2]].mul(&Dim::Static(self.groups as i64))?;
        assert_dim(
            x,
            self.input_axes()[3],
            wanted,
            "conv2d input channels must be the filter's times the groups",
        )
    }

    fn valid_attributes(&self) -> bool {
        let lens = self.stride.len() == 2 && self.dilation.len() == 2 && self.padding.len() == 4;
        let nonzero = self.groups > 0 && !self.stride.contains(&0) && !self.dilation.contains(&0);
        let all = [&self.stride, &self.dilation, &self.padding].into_iter().flatten();
        lens && nonzero && all.chain([&self.groups]).all(|&n| n <= i32::MAX as usize)
    }
}

impl Operation for Conv2d {
    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>> {
        let [x, filter] = tensors(operands)?;
        check_alike(&[x, filter])?;
        if !self.valid_attributes() {
            bail!(value, "conv2d attributes out of range: {self:?}");
        }
        if x.shape.rank() != 4 || filter.shape.rank() != 4 {
            bail!(
                value,
                "conv2d needs an input and a filter of rank 4; got {} and {}",
                x.shape,
                filter.shape
            );
        }
        let [n, h, w, c] = self.input_axes().map(|axis| &x.shape[axis]);
        let [r, s, group_c, f] = self.filter_axes()?.map(|axis| &filter.shape[axis]);
        let groups = Dim::Static(self.groups as i64);
        if group_c.mul(&groups)? != *c {
            bail!(
                value,
                "conv2d input channels {c} must be the filter's {group_c} times {groups} groups: input {}, filter {}",
                x.shape,
                filter.shape
            );
        }
        if [r, s].into_iter().any(|kernel| *kernel == Dim::Static(0)) {
            bail!(value, "conv2d filter {} has no taps", filter.shape);
        }
        if f.as_static().is_some_and(|f| f % self.groups as i64 != 0) {
            bail!(value, "conv2d output channels {f} must be divisible by {groups} groups");
        }
        let (out_h, out_w) = (self.output_size(0, h, r)?, self.output_size(1, w, s)?);
        if [&out_h, &out_w].into_iter().any(|size| size.as_static().is_some_and(|size| size < 1)) {
            bail!(value, "conv2d filter {} does not fit into the padded input {}", filter.shape, x.shape);
        }
        let dims = [n, &out_h, &out_w, f];
        let mut shape = x.shape.to_vec();
        for (axis, dim) in self.input_axes().into_iter().zip(dims) {
            shape[axis] = dim.clone();
        }
        Ok(vec![x.with_shape(shape).into()])
    }

    fn properties(&self, signature: Signature) -> Properties {
        Properties {
            effects: Effects::NONE,
            checks: signature.computes_sizes(),
            form: Form::Kernel,
            folding: signature.rounded(),
            heavy: true,
            rounds_operands: false,
        }
    }

    fn eval(&self, operands: &[HostTensor], _: &Run) -> Result<Vec<HostTensor>> {
        let (x, filter) = (&operands[0], &operands[1]);
        let x_at = Axes::new(x.shape(), self.input_axes());
        let filter_at = Axes::new(filter.shape(), self.filter_axes()?);
        let ([n, h, w, _], [r, s, c, f]) = (x_at.sizes, filter_at.sizes);
        let out = |axis: usize, size: usize, kernel: usize| {
            let size = self.output_size(axis, &size.into(), &kernel.into())?;
            Ok::<_, Error>(size.as_static().unwrap_or(0).max(0) as usize)
        };
        if r == 0 || s == 0 || f % self.groups != 0 {
            let (groups, shape) = (self.groups, filter.shape());
            bail!(
                value,
                "conv2d filter {shape:?} must have taps, and output channels that {groups} groups divide"
            );
        }
        let (out_h, out_w) = (out(0, h, r)?, out(1, w, s)?);
        let mut sizes = x.shape().to_vec();
        for (axis, size) in self.input_axes().into_iter().zip([n, out_h, out_w, f]) {
            sizes[axis] = size;
        }
        let out_at = Axes::new(&sizes, self.input_axes());
        let per_group = f / self.groups;
        // The position that a filter tap reads, unless it is in the padding.
        let source = |axis: usize, at: usize, tap: usize, size: usize| {
            let padded = at * self.stride[axis] + tap * self.dilation[axis];
            padded.checked_sub(self.padding[2 * axis]).filter(|&i| i < size)
        };
        dispatch!(x.dtype(), T => {
            let (x, filter) = (x.elements::<T>()?, filter.elements::<T>()?);
            let count = byte_count(T::DTYPE, &sizes)? / size_of::<T>();
            let mut results = allocate::<T>(count)?;
            results.resize(count, T::from_i128(0));
            // Without elements or input channels the result is all zeros, however large an axis is.
            let batches = if count == 0 || c == 0 { 0 } else { n };
            for (b, (y, (z, k))) in grid(batches, grid(out_h, grid(out_w, 0..f))) {
                let taps = grid(r, 0..s).filter_map(|(i, j)| Some((i, j, source(0, y, i, h)?, source(1, z, j, w)?)));
                let terms = taps.flat_map(|(i, j, row, column)| {
                    let (x_at, filter_at) = (&x_at, &filter_at);
                    let position = move |l: usize| x_at.position([b, row, column, k / per_group * c + l]);
                    (0..c).map(move |l| (position(l), filter_at.position([i, j, l, k])))
                });
                results[out_at.position([b, y, z, k])] = dot(terms.map(|(i, j)| (x[i], filter[j])));
            }
            Ok(vec![HostTensor::from_vec(sizes, results)?])
        })
    }
}

/// All pairs of a number below a bound and an item.
fn grid<I: Clone + Iterator>(outer: usize, inner: I) -> impl Clone + Iterator<Item = (usize, I::Item)>
where
    I::Item: Clone,
{
    (0..outer).flat_map(move |i| inner.clone().map(move |j| (i, j)))
}

/// The sizes and strides of four axes in a canonical order.
struct Axes {
    sizes: [usize; 4],
    strides: [usize; 4],
}

impl Axes {
    fn new(shape: &[usize], order: [usize; 4]) -> Axes {
        let strides = max_core::Strided::contiguous(shape).strides;
        Axes { sizes: order.map(|axis| shape[axis]), strides: order.map(|axis| strides[axis] as usize) }
    }

    fn position(&self, index: [usize; 4]) -> usize {
        index.iter().zip(&self.strides).map(|(i, stride)| i * stride).sum()
    }
}
