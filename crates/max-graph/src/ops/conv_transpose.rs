//! The transpose of a two-dimensional convolution: each element of the input adds the filter, scaled, to the result.
//!
//! With a stride, an output position only sees every so many taps of the filter. Positions with the same remainder modulo
//! the stride, a phase, see the same ones: a phase is an ordinary convolution of the input with these taps, and the phases
//! are interleaved. So no work is spent on zeros between the elements of the input.

use max_core::{ConvInputLayout, Dim, FilterLayout, Result, Shape, bail};

use crate::operand::{Operand, promote};
use crate::ops;
use crate::ops::conv::{ConvOptions, add_bias, counts, filter_axes, input_axes, numbers};
use crate::ops::pad::slice;
use crate::ops::reshape::reshape_value;
use crate::registry::{Arg, FromArg, op_fns};
use crate::value::TensorValue;

const NAME: &str = "conv2d_transpose";

/// The most convolutions that one may become: one for each tap, if the stride is as long as the filter.
const MOST: usize = 1 << 12;

/// Up to so many phases are computed in their place one by one, rather than all together and then moved.
const FEW: i64 = 4;

/// How a transposed convolution moves and how its operands are laid out.
#[derive(Clone, Debug, PartialEq)]
pub struct ConvTransposeOptions {
    /// The distance in the result between neighbours of the input, along height and width.
    pub stride: [i64; 2],
    /// The distance between neighbouring taps of the filter.
    pub dilation: [i64; 2],
    /// What is cut off before and after height, then before and after width.
    pub padding: [i64; 4],
    /// How much longer the result is along height and width.
    pub output_paddings: [i64; 2],
    /// The axes of the input and of the result.
    pub input_layout: ConvInputLayout,
    /// The axes of the filter; its input channels C are those of the result here, and its output channels F those of the
    /// input.
    pub filter_layout: FilterLayout,
}

impl Default for ConvTransposeOptions {
    fn default() -> ConvTransposeOptions {
        ConvTransposeOptions {
            stride: [1; 2],
            dilation: [1; 2],
            padding: [0; 4],
            output_paddings: [0; 2],
            input_layout: ConvInputLayout::NHWC,
            filter_layout: FilterLayout::RSCF,
        }
    }
}

impl FromArg for ConvTransposeOptions {
    fn from_arg(arg: Arg) -> Result<ConvTransposeOptions> {
        let list = match arg {
            Arg::None => return Ok(ConvTransposeOptions::default()),
            Arg::List(list) => <[Arg; 6]>::try_from(list).ok(),
            _ => None,
        };
        let Some([stride, dilation, padding, output_paddings, input_layout, filter_layout]) = list else {
            bail!(
                type_,
                "expected stride, dilation, padding, output paddings, input layout and filter layout"
            );
        };
        Ok(ConvTransposeOptions {
            stride: numbers(NAME, "stride", stride)?,
            dilation: numbers(NAME, "dilation", dilation)?,
            padding: numbers(NAME, "padding", padding)?,
            output_paddings: numbers(NAME, "output_paddings", output_paddings)?,
            input_layout: ConvInputLayout::from_arg(input_layout)?,
            filter_layout: FilterLayout::from_arg(filter_layout)?,
        })
    }
}

op_fns! {
    /// The gradient of a convolution with respect to its input, for a gradient of its result, and a bias added to each
    /// output channel.
    pub fn conv2d_transpose(
        x: Operand, filter: Operand, bias: Option<Operand> = Arg::None, options: ConvTransposeOptions = Arg::None,
    ) -> TensorValue {
        let [x, filter] = promote([x, filter])?;
        if x.rank() != 4 || filter.rank() != 4 {
            bail!(
                value,
                "input to a 2-D deconvolution must be rank 4 with shape (batch_size, height, width, in_channels), and its \
                 filter too; got {} and {}", x.shape(), filter.shape()
            );
        }
        let axes = input_axes(options.input_layout);
        let [r, s, c, f] = filter_axes(NAME, options.filter_layout)?;
        // The channels of the input are the output channels of the convolution whose gradient this is.
        let filter = ops::permute(&filter, [r, s, f, c].map(|axis| axis as i64).to_vec())?;
        let along = [0, 1].map(|axis| Along::new(&options, axis, &x.shape()[axes[1 + axis]], &filter.shape()[axis]));
        let [down, across] = along;
        let along = [down?, across?];
        let phases: i64 = along.iter().map(|along| along.stride).product();
        let y = if along.iter().all(|along| along.tiles) && phases > FEW {
            tiles(&x, &filter, options.input_layout)?
        } else {
            transposed(&x, &filter, &along, options.input_layout)?
        };
        add_bias(NAME, y, bias, axes[3])
    }
}

/// A transposed convolution along one axis.
struct Along {
    stride: i64,
    /// The size of the result.
    out: Dim,
    /// The size of each phase: the size of the result divided by the stride, rounded up.
    size: Dim,
    phases: Vec<Run>,
    /// Whether every element of the input becomes a tile of its own.
    tiles: bool,
}

/// Neighbouring phases: one with taps, or some without.
struct Run {
    phases: i64,
    taps: Option<Taps>,
}

/// The taps that a phase sees, as a convolution sees them: from the last one to the first.
#[derive(Clone)]
struct Taps {
    last: i64,
    step: i64,
    count: i64,
    dilation: i64,
    /// The zeros before and after the input. If negative, as many positions of the result are left out.
    padding: [i64; 2],
}

impl Along {
    fn new(options: &ConvTransposeOptions, axis: usize, input: &Dim, kernel: &Dim) -> Result<Along> {
        let one = |name: &str, value: i64, least: i64| {
            Ok::<_, max_core::Error>(counts(NAME, name, &[value], least)?[0] as i64)
        };
        let stride = one("stride", options.stride[axis], 1)?;
        let dilation = one("dilation", options.dilation[axis], 1)?;
        let before = one("padding", options.padding[2 * axis], 0)?;
        let after = one("padding", options.padding[2 * axis + 1], 0)?;
        let extra = one("output_paddings", options.output_paddings[axis], 0)?;
        if extra >= stride.max(dilation) {
            bail!(
                value,
                "output padding must be smaller than either stride or dilation, but got output_padding = {:?}, stride = \
                 {:?} and dilation = {:?}",
                options.output_paddings,
                options.stride,
                options.dilation
            );
        }
        let Some(kernel) = kernel.as_static().filter(|&kernel| (1..=i64::from(i32::MAX)).contains(&kernel))
        else {
            bail!(
                value,
                "conv2d_transpose needs a filter of a known size with at least one tap; got {kernel} along height or width"
            );
        };
        // The size of the result is that of the input times the stride and this.
        let change = dilation * (kernel - 1) + 1 + extra - stride - before - after;
        let out = input.mul(&Dim::Static(stride))?.add(&Dim::Static(change))?;
        if out.as_static().is_some_and(|out| out < 1) {
            bail!(
                value,
                "conv2d_transpose has no result: size {input} becomes {out}, with {kernel} taps and padding {before} and {after}"
            );
        }
        let more = -(-change).div_euclid(stride);
        let step = stride / gcd(stride, dilation);
        if step.min(kernel) > MOST as i64 {
            bail!(
                value,
                "conv2d_transpose with {kernel} taps and a stride of {stride} would be more than {MOST} convolutions"
            );
        }
        // The first phases that see each tap: `tap * dilation` has the remainder of the phase and the padding.
        let mut firsts: Vec<(i64, i64)> =
            (0..step.min(kernel)).map(|tap| ((tap * dilation - before).rem_euclid(stride), tap)).collect();
        firsts.sort_unstable();
        let mut phases = Vec::new();
        let mut next = 0;
        for (phase, first) in firsts {
            if phase > next {
                phases.push(Run { phases: phase - next, taps: None });
            }
            let count = (kernel - first - 1) / step + 1;
            let dilation_of_phase = dilation / (stride / step);
            let shift = (phase + before - first * dilation) / stride;
            let padding = [(count - 1) * dilation_of_phase - shift, more + shift];
            let taps =
                Taps { last: first + step * (count - 1), step, count, dilation: dilation_of_phase, padding };
            phases.push(Run { phases: 1, taps: Some(taps) });
            next = phase + 1;
        }
        if next < stride {
            phases.push(Run { phases: stride - next, taps: None });
        }
        let tiles = stride == kernel && (dilation == 1 || kernel == 1) && change == 0 && before == 0;
        Ok(Along { stride, out, size: input.add(&Dim::Static(more))?, phases, tiles })
    }
}

fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The phases of both axes, interleaved. The filter has the axes height, width, channels of the input, channels of the
/// result.
fn transposed(
    x: &TensorValue,
    filter: &TensorValue,
    along: &[Along; 2],
    layout: ConvInputLayout,
) -> Result<TensorValue> {
    let [n, h, w, c] = input_axes(layout);
    let [down, across] = along;
    if down.phases.len() * across.phases.len() > MOST {
        bail!(
            value,
            "conv2d_transpose with a filter {} and strides {} and {} would be more than {MOST} convolutions",
            filter.shape(),
            down.stride,
            across.stride
        );
    }
    // Every phase of height and width gets an axis of its own, after that of the positions.
    let spread = |sizes: [&Dim; 2], phases: [i64; 2], channels: &Dim| {
        let mut dims = vec![Dim::Static(0); 4];
        (dims[n], dims[h], dims[w], dims[c]) =
            (x.shape()[n].clone(), sizes[0].clone(), sizes[1].clone(), channels.clone());
        dims.insert(w + 1, Dim::Static(phases[1]));
        dims.insert(h + 1, Dim::Static(phases[0]));
        Shape::from(dims)
    };
    let mut rows = Vec::with_capacity(down.phases.len());
    for vertical in &down.phases {
        let mut parts = Vec::with_capacity(across.phases.len());
        for horizontal in &across.phases {
            let shape =
                spread([&down.size, &across.size], [vertical.phases, horizontal.phases], &filter.shape()[3]);
            parts.push(match (&vertical.taps, &horizontal.taps) {
                (Some(vertical), Some(horizontal)) => {
                    let y = phase(x, filter, [vertical, horizontal], [&down.size, &across.size], layout)?;
                    reshape_value(&y, shape)?
                }
                _ => ops::broadcast_to(ops::constant(0i64, x.dtype(), x.device())?, shape)?,
            });
        }
        rows.push(if parts.len() == 1 { parts.remove(0) } else { ops::concat(parts, (w + 2) as i64)? });
    }
    let y = if rows.len() == 1 { rows.remove(0) } else { ops::concat(rows, (h + 1) as i64)? };
    let mut dims = y.shape().to_vec();
    for (axis, along) in [(w + 1, across), (h, down)] {
        dims[axis] = along.size.mul(&Dim::Static(along.stride))?;
        dims.remove(axis + 1);
    }
    let mut y = reshape_value(&y, dims.into())?;
    for (axis, along) in [(h, down), (w, across)] {
        if y.shape()[axis] != along.out {
            y = slice(&y, axis, Dim::Static(0), along.out.clone(), 1)?;
        }
    }
    Ok(y)
}

/// The result where every element of the input becomes a tile of its own: a product of all channels with all taps.
fn tiles(x: &TensorValue, filter: &TensorValue, layout: ConvInputLayout) -> Result<TensorValue> {
    let [r, s, c, f] = [0, 1, 2, 3].map(|axis| filter.shape()[axis].clone());
    let [n, h, w, _] = input_axes(layout).map(|axis| x.shape()[axis].clone());
    let last = layout == ConvInputLayout::NHWC;
    let order: Vec<i64> = if last { vec![2, 0, 1, 3] } else { vec![2, 3, 0, 1] };
    let taps = Shape::from([&r, &s, &f]).num_elements()?;
    let one = Dim::Static(1);
    let filter = reshape_value(&ops::permute(filter, order)?, [&one, &one, &c, &taps].into())?;
    let y = ops::conv2d(x, filter, None, ConvOptions { input_layout: layout, ..ConvOptions::default() })?;
    let (split, order): (_, Vec<i64>) = match last {
        true => ([&n, &h, &w, &r, &s, &f], vec![0, 1, 3, 2, 4, 5]),
        false => ([&n, &f, &r, &s, &h, &w], vec![0, 1, 4, 2, 5, 3]),
    };
    let y = ops::permute(reshape_value(&y, split.into())?, order)?;
    let (high, wide) = (h.mul(&r)?, w.mul(&s)?);
    reshape_value(&y, if last { [&n, &high, &wide, &f] } else { [&n, &f, &high, &wide] }.into())
}

/// The convolution of an input with some taps of the filter.
fn phase(
    x: &TensorValue,
    filter: &TensorValue,
    taps: [&Taps; 2],
    sizes: [&Dim; 2],
    layout: ConvInputLayout,
) -> Result<TensorValue> {
    let mut filter = filter.clone();
    for (axis, taps) in taps.into_iter().enumerate() {
        if taps.count > 1 || filter.shape()[axis] != Dim::Static(1) {
            filter = slice(&filter, axis, Dim::Static(taps.last), taps.count, -taps.step)?;
        }
    }
    let [down, across] = taps.map(|taps| taps.padding.map(|size| size.max(0)));
    let options = ConvOptions {
        dilation: taps.map(|taps| taps.dilation),
        padding: [down[0], down[1], across[0], across[1]],
        input_layout: layout,
        ..ConvOptions::default()
    };
    let mut y = ops::conv2d(x, filter, None, options)?;
    for ((axis, taps), size) in input_axes(layout)[1..3].iter().copied().zip(taps).zip(sizes) {
        if y.shape()[axis] != *size {
            y = slice(&y, axis, Dim::Static((-taps.padding[0]).max(0)), size.clone(), 1)?;
        }
    }
    Ok(y)
}
