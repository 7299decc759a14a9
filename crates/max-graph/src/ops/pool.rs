//! Two-dimensional pooling: the maximum or the mean of each window of an image.

use max_core::kernel::{Pooling, Sliding, Span};
use max_core::scalar::Lane;
use max_core::{DType, Dim, Element, Error, Result, Shape, Type, bail, dispatch};

use crate::attr::{Attr, AttrType, op_struct};
use crate::graph::record_one;
use crate::host::{HostTensor, allocate, byte_count};
use crate::op::{Operation, Run};
use crate::operand::Operand;
use crate::ops::tensors;
use crate::properties::{Effects, Folding, Form, Properties, Signature};
use crate::registry::{Arg, FromArg, op_fns};
use crate::value::TensorValue;

op_struct! {
    /// Slides a window over the height and width of `[batch, height, width, channels]`. Padding is before and after
    /// height, then width. With `ceil`, windows may extend beyond the padding, if they start before it.
    Pool = "pool2d" {
        pooling: Pooling,
        window: WindowSize,
        stride: Vec<usize>,
        dilation: Vec<usize>,
        padding: Vec<usize>,
        ceil: bool,
    }
}

/// Height and width of a window. Unlike the sizes of tensors they rarely vary, and the rules for windows that extend
/// beyond the padding depend on them, so eager code does not generalize them.
#[derive(Clone, Debug, PartialEq)]
pub struct WindowSize(pub [Dim; 2]);

impl AttrType for WindowSize {
    fn to_attr(&self) -> Attr {
        Attr::Dims(Shape::from(&self.0[..]))
    }

    fn from_attr(attr: Attr) -> Option<WindowSize> {
        match attr {
            Attr::Dims(dims) => dims.to_vec().try_into().ok().map(WindowSize),
            _ => None,
        }
    }
}

/// Integers for height and width: one for both, or a pair.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pair(pub [i64; 2]);

/// Padding: one integer for all sides, one for height and one for width, or before and after height, then width.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Padding(pub [i64; 4]);

impl From<i32> for Pair {
    fn from(both: i32) -> Pair {
        i64::from(both).into()
    }
}

impl From<i64> for Pair {
    fn from(both: i64) -> Pair {
        Pair([both; 2])
    }
}

impl From<[i64; 2]> for Pair {
    fn from(pair: [i64; 2]) -> Pair {
        Pair(pair)
    }
}

impl From<i32> for Padding {
    fn from(all: i32) -> Padding {
        i64::from(all).into()
    }
}

impl From<i64> for Padding {
    fn from(all: i64) -> Padding {
        Padding([all; 4])
    }
}

impl From<[i64; 2]> for Padding {
    fn from([height, width]: [i64; 2]) -> Padding {
        Padding([height, height, width, width])
    }
}

impl From<[i64; 4]> for Padding {
    fn from(sides: [i64; 4]) -> Padding {
        Padding(sides)
    }
}

impl FromArg for Pair {
    fn from_arg(arg: Arg) -> Result<Pair> {
        match numbers(arg)?.as_slice() {
            &[both] => Ok(both.into()),
            &[height, width] => Ok([height, width].into()),
            other => bail!(value, "expected an int or two; got {other:?}"),
        }
    }
}

impl FromArg for Padding {
    fn from_arg(arg: Arg) -> Result<Padding> {
        match numbers(arg)?.as_slice() {
            &[all] => Ok(all.into()),
            &[height, width] => Ok([height, width].into()),
            &[top, bottom, left, right] => Ok([top, bottom, left, right].into()),
            other => bail!(value, "expected an int, two or four; got {other:?}"),
        }
    }
}

/// An integer, or a list of them.
fn numbers(arg: Arg) -> Result<Vec<i64>> {
    match arg {
        Arg::List(_) => Vec::from_arg(arg),
        arg => Ok(vec![i64::from_arg(arg)?]),
    }
}

op_fns! {
    /// The mean of each window of the images `[batch, height, width, channels]`.
    ///
    /// Padding is zeros, which count only with `count_boundary`; what is beyond it never counts. Means of integers are
    /// truncated. With `ceil_mode` the last windows may extend beyond the padding, as long as they start before its end.
    pub fn avg_pool2d(
        input: Operand,
        kernel_size: Shape,
        stride: Pair = 1,
        dilation: Pair = 1,
        padding: Padding = 0,
        ceil_mode: bool = false,
        count_boundary: bool = true,
    ) -> TensorValue {
        let pooling = if count_boundary { Pooling::Mean } else { Pooling::MeanInside };
        let pool = Pool::new("avg_pool2d", pooling, &kernel_size, (stride, dilation, padding), ceil_mode)?;
        record_one(pool, [&input.tensor()?])
    }

    /// The maximum of each window of the images `[batch, height, width, channels]`.
    ///
    /// Padding is below every element; a window without any has the least number of the dtype. NaN is the maximum of a
    /// window that has one. With `ceil_mode` the last windows may extend beyond the padding, as long as they start before
    /// its end.
    pub fn max_pool2d(
        input: Operand,
        kernel_size: Shape,
        stride: Pair = 1,
        dilation: Pair = 1,
        padding: Padding = 0,
        ceil_mode: bool = false,
    ) -> TensorValue {
        let moves = (stride, dilation, padding);
        let pool = Pool::new("max_pool2d", Pooling::Max, &kernel_size, moves, ceil_mode)?;
        record_one(pool, [&input.tensor()?])
    }
}

/// Converts integers from outside, bounded so that sums of them stay within 64 bits.
fn counts(op: &str, name: &str, values: &[i64], least: i64) -> Result<Vec<usize>> {
    if values.iter().any(|v| !(least..=i64::from(i32::MAX)).contains(v)) {
        bail!(value, "{op} {name} must be from {least} to {}; got {values:?}", i32::MAX);
    }
    Ok(values.iter().map(|&v| v as usize).collect())
}

impl Pool {
    fn new(
        op: &str,
        pooling: Pooling,
        kernel_size: &Shape,
        (stride, dilation, padding): (Pair, Pair, Padding),
        ceil: bool,
    ) -> Result<Pool> {
        let Ok(window) = <[Dim; 2]>::try_from(kernel_size.to_vec()) else {
            bail!(value, "{op} kernel_size must be a height and a width; got {kernel_size}");
        };
        if window.iter().any(|size| size.as_static().is_some_and(|size| size < 1)) {
            bail!(value, "{op} kernel_size must be at least 1; got {kernel_size}");
        }
        Ok(Pool {
            pooling,
            window: WindowSize(window),
            stride: counts(op, "stride", &stride.0, 1)?,
            dilation: counts(op, "dilation", &dilation.0, 1)?,
            padding: counts(op, "padding", &padding.0, 0)?,
            ceil,
        })
    }

    /// The name of its function.
    pub fn title(&self) -> &'static str {
        if self.pooling == Pooling::Max { "max_pool2d" } else { "avg_pool2d" }
    }

    fn valid_attributes(&self) -> bool {
        let lens = self.stride.len() == 2 && self.dilation.len() == 2 && self.padding.len() == 4;
        let nonzero = !self.stride.contains(&0) && !self.dilation.contains(&0);
        let all = [&self.stride, &self.dilation, &self.padding].into_iter().flatten();
        let taps = self.window.0.iter().all(|size| size.as_static().is_none_or(|size| size > 0));
        lens && nonzero && taps && all.into_iter().all(|&n| n <= i32::MAX as usize)
    }

    /// The size of an output axis: `(size + padding - dilation * (kernel - 1) - 1) // stride + 1`, rounded up with
    /// `ceil`, except that a window does not start behind the axis and its padding.
    fn output_size(&self, axis: usize, size: &Dim) -> Result<Dim> {
        let (one, stride) = (Dim::Static(1), Dim::Static(self.stride[axis] as i64));
        let [before, after] = [0, 1].map(|side| self.padding[2 * axis + side] as i64);
        let kernel = &self.window.0[axis];
        let reach = kernel.sub(&one)?.mul(&Dim::Static(self.dilation[axis] as i64))?.add(&one)?;
        // Combine padding and the extent of the window first: then the sum fits in 64 bits whenever the result does.
        let change = Dim::Static(before + after).sub(&reach)?;
        if !self.ceil {
            return size.add(&change)?.floor_div(&stride)?.add(&one);
        }
        // The number of windows that start where one fits, rounded up, or before the padding after the axis: both grow
        // by one with each stride, so one of them is the smaller for every size.
        let Some(change) = change.as_static() else {
            bail!(value, "{} with ceil_mode needs a kernel_size of numbers; got {kernel}", self.title());
        };
        let most = Ord::min(change.saturating_add(self.stride[axis] as i64), before);
        size.add(&Dim::Static(most + self.stride[axis] as i64 - 1))?.floor_div(&stride)
    }

    /// How windows slide along an axis of an input.
    fn sliding(&self, axis: usize, size: usize, taps: usize) -> Sliding {
        Sliding {
            pooling: self.pooling,
            size,
            taps,
            stride: self.stride[axis],
            dilation: self.dilation[axis],
            padding: [self.padding[2 * axis], self.padding[2 * axis + 1]],
        }
    }
}

/// The error for a window without elements.
pub fn check_window(op: &str, size: i64) -> Result<()> {
    if size < 1 {
        bail!(value, "{op} kernel_size must be at least 1; got {size}");
    }
    Ok(())
}

impl Operation for Pool {
    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>> {
        let [x] = tensors(operands)?;
        let (op, WindowSize([r, s])) = (self.title(), &self.window);
        if !self.valid_attributes() {
            bail!(value, "{op} attributes out of range: {self:?}");
        }
        let [n, h, w, c] = &x.shape[..] else {
            bail!(value, "{op} needs an input of rank 4: batch, height, width, channels; got {}", x.shape);
        };
        if self.pooling != Pooling::Max && x.dtype == DType::Bool {
            bail!(type_, "the mean of a bool tensor is not defined; cast it first");
        }
        let (out_h, out_w) = (self.output_size(0, h)?, self.output_size(1, w)?);
        if [&out_h, &out_w].into_iter().any(|size| size.as_static().is_some_and(|size| size < 1)) {
            bail!(value, "{op} window [{r}, {s}] does not fit into the padded input {}", x.shape);
        }
        Ok(vec![x.with_shape([n.clone(), out_h, out_w, c.clone()].to_vec()).into()])
    }

    fn properties(&self, signature: Signature) -> Properties {
        let symbolic = self.window.0.iter().any(|size| size.as_static().is_none());
        Properties {
            effects: Effects::NONE,
            checks: symbolic || signature.computes_sizes(),
            form: Form::Kernel,
            folding: if self.pooling == Pooling::Max { Folding::Exactly } else { signature.rounded() },
            heavy: true,
            rounds_operands: false,
        }
    }

    fn eval(&self, operands: &[HostTensor], run: &Run) -> Result<Vec<HostTensor>> {
        let x = &operands[0];
        let &[n, h, w, c] = x.shape() else { bail!(internal, "pooling of rank {}", x.shape().len()) };
        let axis = |axis: usize, size: usize| {
            let taps = self.window.0[axis].evaluate(run.bindings)?;
            check_window(self.title(), taps)?;
            let static_ = Pool { window: WindowSize([Dim::Static(taps), Dim::Static(taps)]), ..self.clone() };
            let count = static_.output_size(axis, &size.into())?.as_static().unwrap_or(-1);
            let count = usize::try_from(count).map_err(|_| {
                Error::value(format!("{} window of {taps} does not fit into {size}", self.title()))
            })?;
            Ok::<_, Error>((self.sliding(axis, size, taps as usize), count))
        };
        let ((rows, out_h), (columns, out_w)) = (axis(0, h)?, axis(1, w)?);
        let sizes = [n, out_h, out_w, c];
        dispatch!(x.dtype(), T => {
            let x = x.elements::<T>()?;
            let count = byte_count(T::DTYPE, &sizes)? / size_of::<T>();
            let mut results = allocate::<T>(count)?;
            for at in 0..count {
                let (channel, rest) = (at % c, at / c);
                let (rest, column) = (rest / out_w, columns.span(rest % out_w));
                let (image, row) = (rest / out_h, rows.span(rest % out_h));
                let places = |span: Span, step: usize| (0..span.len).map(move |i| span.first + i * step);
                let elements = places(row, rows.dilation).flat_map(|y| {
                    places(column, columns.dilation).map(move |z| ((image * h + y) * w + z) * c + channel)
                }).map(|at| x[at]);
                results.push(self.combine(elements, row.count * column.count));
            }
            Ok(vec![HostTensor::from_vec(sizes, results)?])
        })
    }
}

impl Pool {
    fn combine<T: Element>(&self, elements: impl Iterator<Item = T>, count: usize) -> T {
        match self.pooling {
            Pooling::Max => {
                let least = if T::DTYPE == DType::Bool { 0.0 } else { f64::NEG_INFINITY };
                T::from_lane(elements.map(T::to_lane).fold(T::Lane::splat(least), Lane::max))
            }
            Pooling::Mean | Pooling::MeanInside => {
                T::from_double(elements.map(T::to_f64).sum::<f64>() / count.max(1) as f64)
            }
        }
    }
}
