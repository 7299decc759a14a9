//! Fold: sliding blocks summed into the image that they were taken from.

use max_core::{DType, Dim, Result, Shape, bail};

use crate::operand::Operand;
use crate::ops;
use crate::ops::rebind::assert_dim;
use crate::ops::reshape::reshape_value;
use crate::ops::slice::part;
use crate::registry::{Arg, FromArg, op_fns};
use crate::value::TensorValue;

/// A number for height and one for width.
#[derive(Clone, Copy, Debug)]
pub struct Pair([i64; 2]);

impl From<i32> for Pair {
    fn from(both: i32) -> Pair {
        Pair([both.into(); 2])
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

impl FromArg for Pair {
    fn from_arg(arg: Arg) -> Result<Pair> {
        match arg {
            Arg::List(list) => {
                match <[i64; 2]>::try_from(list.into_iter().map(i64::from_arg).collect::<Result<Vec<_>>>()?) {
                    Ok(pair) => Ok(Pair(pair)),
                    Err(list) => bail!(value, "expected an int or two, for height and width; got {list:?}"),
                }
            }
            one => i64::from_arg(one).map(Pair::from),
        }
    }
}

op_fns! {
    /// Sums sliding blocks, of shape `[n, c * kernel height * kernel width, blocks]`, into an image of shape `[n, c,
    /// height, width]`: the reverse of cutting it into blocks, but what several blocks have in common is added up.
    pub fn fold(
        input: Operand, output_size: Shape, kernel_size: Shape, stride: Pair = 1, dilation: Pair = 1, padding: Pair = 0,
    ) -> TensorValue {
        fold_blocks(input.tensor()?, &output_size, &kernel_size, [stride, dilation, padding])
    }
}

fn fold_blocks(
    input: TensorValue,
    output_size: &Shape,
    kernel_size: &Shape,
    [stride, dilation, padding]: [Pair; 3],
) -> Result<TensorValue> {
    let [_, _, _] = input.shape()[..] else {
        bail!(
            value,
            "fold takes a tensor of rank 3, [n, c * kernel size, blocks]; got shape {}",
            input.shape()
        );
    };
    for (name, dims) in [("output_size", output_size), ("kernel_size", kernel_size)] {
        if dims.rank() != 2 || dims.iter().any(|dim| dim.as_static().is_some_and(|size| size < 1)) {
            bail!(value, "fold {name} must be two positive sizes, for height and width; got {dims}");
        }
    }
    for (name, Pair(pair), least) in
        [("stride", stride, 1), ("dilation", dilation, 1), ("padding", padding, 0)]
    {
        if let Some(bad) = pair.iter().find(|&&number| number < least) {
            bail!(value, "fold {name} must be at least {least}; got {bad}");
        }
    }
    // Along height and width: the padded size, the number of blocks, and where each element of each block goes.
    let side = |side: usize| -> Result<(Dim, Dim, TensorValue)> {
        let [stride, dilation, padding] =
            [stride, dilation, padding].map(|Pair(pair)| Dim::Static(pair[side]));
        let (one, kernel) = (Dim::Static(1), &kernel_size[side]);
        let padded = output_size[side].add(&padding.mul(&Dim::Static(2))?)?;
        let reach = dilation.mul(&kernel.sub(&one)?)?;
        let blocks = padded.sub(&reach)?.sub(&one)?.floor_div(&stride)?.add(&one)?;
        if blocks.as_static().is_some_and(|blocks| blocks < 0) {
            bail!(
                value,
                "fold kernel_size {kernel_size} does not fit output_size {output_size} with its padding"
            );
        }
        let places = |count: &Dim, step: Dim, axis: i64| {
            let steps = ops::range(0, count.clone(), 1, None, DType::Int64, input.device())?;
            ops::unsqueeze(ops::mul(steps, step), axis)
        };
        let places = ops::add(places(kernel, dilation, 1)?, places(&blocks, stride, 0)?)?;
        Ok((padded, blocks, places))
    };
    let (height, down, rows) = side(0)?;
    let (width, across, columns) = side(1)?;
    let (blocks, taps) = (down.mul(&across)?, kernel_size[0].mul(&kernel_size[1])?);
    if input.shape()[2].differs(&blocks) {
        bail!(
            value,
            "Last dimension of input tensor ({}) must match the calculated number of blocks ({blocks})",
            input.shape()[2]
        );
    }
    let channels = input.shape()[1].floor_div(&taps)?;
    let whole = channels.mul(&taps)?;
    if input.shape()[1].differs(&whole) {
        bail!(
            value,
            "Dim 1 of the input tensor ({}) must be a multiple of the total kernel size ({taps})",
            input.shape()[1]
        );
    }
    let input = assert_dim(input, 2, blocks.clone(), "the number of blocks of fold")?;
    let input = assert_dim(input, 1, whole, "fold takes a multiple of the kernel size")?;
    let batch = input.shape()[0].clone();
    let lines = |size: Dim| Shape::from(vec![batch.clone(), channels.clone(), size]);
    let per_image = taps.mul(&blocks)?;
    let updates = reshape_value(&input, lines(per_image.clone()))?;
    // [kernel height, 1, down, 1] and [1, kernel width, 1, across].
    let rows = ops::unsqueeze(ops::unsqueeze(ops::mul(rows, width.clone()), 1), 3)?;
    let columns = ops::unsqueeze(ops::unsqueeze(columns, 0), 2)?;
    let places = reshape_value(&ops::add(rows, columns)?, [per_image.clone()].into())?;
    let places = ops::broadcast_to(&places, lines(per_image))?;
    let area = height.mul(&width)?;
    let empty = ops::broadcast_to(Operand::from(0i64).weak(updates.dtype(), updates.device())?, lines(area))?;
    let sums = ops::scatter_add(empty, &updates, &places, 2)?;
    let image = Shape::from(vec![batch, channels, height, width]);
    let image = reshape_value(&sums, image)?;
    let Pair(margin) = padding;
    (0..2).filter(|&side| margin[side] > 0).try_fold(image, |image, side| {
        let start = Dim::Static(margin[side]);
        let stop = start.add(&output_size[side])?;
        part(&image, 2 + side, Some(start), Some(stop))
    })
}
