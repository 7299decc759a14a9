//! Three-dimensional convolution: a sum of two-dimensional ones, one for each tap along the depth, or a single one whose
//! channels are those of all taps.

use max_core::{ConvInputLayout, Dim, FilterLayout, Result, Shape, bail};

use crate::operand::{Operand, promote};
use crate::ops;
use crate::ops::conv::{ConvOptions, add_bias, counts, numbers};
use crate::ops::pad::slice;
use crate::ops::rebind::assert_dim;
use crate::ops::reshape::reshape_value;
use crate::ops::slice::Index;
use crate::registry::{Arg, FromArg, op_fns};
use crate::value::TensorValue;

const NAME: &str = "conv3d";

/// The most taps along the depth: each is an op.
const MOST: i64 = 1 << 12;

/// The most convolutions that are summed instead.
const MOST_SUMS: i64 = 64;

/// How a three-dimensional convolution moves and how its operands are laid out.
#[derive(Clone, Debug, PartialEq)]
pub struct Conv3dOptions {
    /// The distance between neighbouring outputs along depth, height and width.
    pub stride: [i64; 3],
    /// The distance between neighbouring taps of the filter.
    pub dilation: [i64; 3],
    /// Zeros before and after depth, height and width.
    pub padding: [i64; 6],
    /// The number of independent convolutions the channels are divided into.
    pub groups: i64,
    /// The axes of the input and of the result, with the depth before the height.
    pub input_layout: ConvInputLayout,
    /// The axes of the filter.
    pub filter_layout: FilterLayout,
}

impl Default for Conv3dOptions {
    fn default() -> Conv3dOptions {
        Conv3dOptions {
            stride: [1; 3],
            dilation: [1; 3],
            padding: [0; 6],
            groups: 1,
            input_layout: ConvInputLayout::NHWC,
            filter_layout: FilterLayout::QRSCF,
        }
    }
}

impl FromArg for Conv3dOptions {
    fn from_arg(arg: Arg) -> Result<Conv3dOptions> {
        let list = match arg {
            Arg::None => return Ok(Conv3dOptions::default()),
            Arg::List(list) => <[Arg; 6]>::try_from(list).ok(),
            _ => None,
        };
        let Some([stride, dilation, padding, groups, input_layout, filter_layout]) = list else {
            bail!(type_, "expected stride, dilation, padding, groups, input layout and filter layout");
        };
        Ok(Conv3dOptions {
            stride: numbers(NAME, "stride", stride)?,
            dilation: numbers(NAME, "dilation", dilation)?,
            padding: numbers(NAME, "padding", padding)?,
            groups: i64::from_arg(groups)?,
            input_layout: ConvInputLayout::from_arg(input_layout)?,
            filter_layout: FilterLayout::from_arg(filter_layout)?,
        })
    }
}

op_fns! {
    /// The convolution of volumes with a filter, and a bias added to each output channel.
    pub fn conv3d(
        x: Operand, filter: Operand, bias: Option<Operand> = Arg::None, options: Conv3dOptions = Arg::None,
    ) -> TensorValue {
        let [x, filter] = promote([x, filter])?;
        if x.rank() != 5 || filter.rank() != 5 {
            bail!(value, "conv3d needs an input and a filter of rank 5; got {} and {}", x.shape(), filter.shape());
        }
        let filter = match options.filter_layout {
            FilterLayout::QRSCF => filter,
            FilterLayout::FCQRS => ops::permute(&filter, vec![2, 3, 4, 1, 0])?,
            other => bail!(value, "conv3d needs a filter with five axes; {other} has four"),
        };
        let planar = options.input_layout == ConvInputLayout::NCHW;
        let x = if planar { ops::permute(&x, vec![0, 2, 3, 4, 1])? } else { x };
        let y = convolved(x, &filter, &options)?;
        let y = add_bias(NAME, y, bias, 4)?;
        if planar { ops::permute(&y, vec![0, 4, 1, 2, 3]) } else { Ok(y) }
    }
}

/// The convolution of an input `[N, D, H, W, C]` with a filter `[Q, R, S, C / groups, F]`.
fn convolved(x: TensorValue, filter: &TensorValue, options: &Conv3dOptions) -> Result<TensorValue> {
    counts(NAME, "stride", &options.stride, 1)?;
    counts(NAME, "dilation", &options.dilation, 1)?;
    counts(NAME, "padding", &options.padding, 0)?;
    counts(NAME, "groups", &[options.groups], 1)?;
    let [q, r, s, share, f] = [0, 1, 2, 3, 4].map(|axis| filter.shape()[axis].clone());
    let Some(taps) = q.as_static() else {
        bail!(value, "conv3d needs a filter whose depth is known; got {}", filter.shape());
    };
    if !(1..=MOST).contains(&taps) {
        bail!(value, "conv3d needs a filter with 1 to {MOST} taps along the depth; got {}", filter.shape());
    }
    let groups = Dim::Static(options.groups);
    let channels = share.mul(&groups)?;
    if x.shape()[4].differs(&channels) {
        bail!(
            value,
            "conv3d input channels {} must be the filter's {share} times {groups} groups: input {}, filter {}",
            x.shape()[4],
            x.shape(),
            filter.shape()
        );
    }
    let x = assert_dim(x, 4, channels, "conv3d input channels must be the filter's times the groups")?;
    let along = Depth {
        stride: options.stride[0],
        dilation: options.dilation[0],
        before: options.padding[0],
        after: options.padding[1],
    };
    // Where the size is known, the zeros around each tap's images are put directly into their place.
    let (x, along) = if x.shape()[1].as_static().is_none() && along.before + along.after > 0 {
        let paddings = [0, 0, along.before, along.after, 0, 0, 0, 0, 0, 0];
        (ops::pad(&x, paddings.to_vec(), "constant", 0i64)?, Depth { before: 0, after: 0, ..along })
    } else {
        (x, along)
    };
    let [_, _, top, bottom, left, right] = options.padding;
    let flat = ConvOptions {
        stride: [options.stride[1], options.stride[2]],
        dilation: [options.dilation[1], options.dilation[2]],
        padding: [top, bottom, left, right],
        groups: options.groups,
        ..ConvOptions::default()
    };
    if let Some(y) = summed(&x, filter, along, &flat)? {
        return Ok(y);
    }
    let [n, depth, h, w, _] = [0, 1, 2, 3, 4].map(|axis| x.shape()[axis].clone());
    let change = Dim::Static(along.before + along.after - (taps - 1) * along.dilation - 1);
    let out_depth = depth.add(&change)?.floor_div(&Dim::Static(along.stride))?.add(&Dim::Static(1))?;
    if out_depth.as_static().is_some_and(|size| size < 1) {
        bail!(value, "conv3d filter {} does not fit into the padded depth of {}", filter.shape(), x.shape());
    }
    // The volumes as images, whose channels are those of all taps: in each group, the channels of one tap after another.
    let split = |depth: &Dim| {
        let dims = [&n, depth, &h, &w, &groups, &Dim::Static(1), &share];
        Shape::from(dims.map(Dim::clone).to_vec())
    };
    let mut parts = Vec::with_capacity(taps as usize);
    for tap in 0..taps {
        parts.push(along.seen_by(tap, &x, &out_depth, &split)?);
    }
    let images = if taps == 1 { parts.remove(0) } else { ops::concat(parts, 5)? };
    let deep = share.mul(&q)?;
    let pictures = n.mul(&out_depth)?;
    let images = reshape_value(&images, Shape::from(vec![pictures, h, w, deep.mul(&groups)?]))?;
    let filter = ops::permute(filter, vec![1, 2, 0, 3, 4])?;
    let filter = reshape_value(&filter, Shape::from(vec![r, s, deep, f]))?;
    let y = ops::conv2d(images, filter, None, flat)?;
    let dims = [&[n, out_depth], &y.shape()[1..]].concat();
    reshape_value(&y, dims.into())
}

/// The sum of a convolution of images for each tap along the depth, which reads the volumes in place: on a CPU, if sizes are
/// known and few, and if sums of the dtype need not be kept wider. Positions that have the same taps inside of the volume are
/// computed together, each sum in the final loop of a convolution.
fn summed(
    x: &TensorValue,
    filter: &TensorValue,
    along: Depth,
    options: &ConvOptions,
) -> Result<Option<TensorValue>> {
    let sizes = [&x.shape()[0], &x.shape()[1], &filter.shape()[0]].map(Dim::as_static);
    let [Some(volumes), Some(depth), Some(taps)] = sizes else { return Ok(None) };
    let narrow = x.dtype().is_float() && x.dtype().size_in_bytes() < 4;
    let numbers = [depth, taps, along.stride, along.dilation, along.before, along.after];
    let few = numbers.iter().all(|&number| number < MOST) && (1..=MOST_SUMS).contains(&volumes);
    if !x.device().is_cpu() || narrow || taps == 1 || !few {
        return Ok(None);
    }
    let reach = (taps - 1) * along.dilation + 1;
    let out = (depth + along.before + along.after - reach).div_euclid(along.stride) + 1;
    // The plane that a tap reads for a position, and the taps that read one.
    let plane = |position: i64, tap: i64| position * along.stride + tap * along.dilation - along.before;
    let inside = |position: i64| -> Vec<i64> {
        (0..taps).filter(|&tap| (0..depth).contains(&plane(position, tap))).collect()
    };
    let mut stretches: Vec<(i64, i64, Vec<i64>)> = Vec::new();
    for position in 0..out {
        let own = inside(position);
        match stretches.last_mut() {
            Some((_, count, same)) if *same == own => *count += 1,
            _ => stretches.push((position, 1, own)),
        }
        if stretches.len() as i64 * taps * volumes > MOST_SUMS {
            return Ok(None);
        }
    }
    if stretches.is_empty() || stretches.iter().any(|(_, _, taps)| taps.is_empty()) {
        return Ok(None);
    }
    let mut parts = Vec::new();
    for volume in 0..volumes {
        let volume = ops::slice_tensor(x, vec![Index::At(Dim::Static(volume))])?;
        let mut stretched = Vec::with_capacity(stretches.len());
        for (position, count, taps) in &stretches {
            let mut sum: Option<TensorValue> = None;
            for &tap in taps {
                let first = Dim::Static(plane(*position, tap));
                let images = slice(&volume, 0, first, Dim::Static(*count), along.stride)?;
                let filter = ops::slice_tensor(filter, vec![Index::At(Dim::Static(tap))])?;
                let product = ops::conv2d(&images, &filter, None, options.clone())?;
                sum = Some(sum.map_or(Ok(product.clone()), |sum| ops::add(&product, &sum))?);
            }
            stretched.extend(sum);
        }
        parts.push(if stretched.len() == 1 { stretched.remove(0) } else { ops::concat(stretched, 0)? });
    }
    ops::stack(parts, 0).map(Some)
}

/// How a filter moves along the depth.
#[derive(Clone, Copy)]
struct Depth {
    stride: i64,
    dilation: i64,
    before: i64,
    after: i64,
}

impl Depth {
    /// The images that a tap of the filter sees, in a shape that depends on how many there are.
    fn seen_by(
        &self,
        tap: i64,
        x: &TensorValue,
        out: &Dim,
        split: &impl Fn(&Dim) -> Shape,
    ) -> Result<TensorValue> {
        let first = tap * self.dilation - self.before;
        let (Some(size), Some(count)) = (x.shape()[1].as_static(), out.as_static()) else {
            let seen = slice(x, 1, Dim::Static(first), out.clone(), self.stride)?;
            return reshape_value(&seen, split(out));
        };
        // The positions of the result for which the tap is inside of the volume.
        let from = (-(first.div_euclid(self.stride))).clamp(0, count);
        let to = ((size - 1 - first).div_euclid(self.stride) + 1).clamp(from, count);
        let zeros = |count: i64| -> Result<Option<TensorValue>> {
            let zero = || ops::constant(0i64, x.dtype(), x.device());
            (count > 0).then(|| ops::broadcast_to(zero()?, split(&Dim::Static(count)))).transpose()
        };
        let seen = match to - from {
            0 => None,
            seen if seen == size && first == 0 && self.stride == 1 => Some(x.clone()),
            seen => Some(slice(x, 1, Dim::Static(first + from * self.stride), seen, self.stride)?),
        };
        let seen = seen.map(|seen| reshape_value(&seen, split(&Dim::Static(to - from)))).transpose()?;
        let mut parts: Vec<_> = [zeros(from)?, seen, zeros(count - to)?].into_iter().flatten().collect();
        if parts.len() == 1 { Ok(parts.remove(0)) } else { ops::concat(parts, 1) }
    }
}
