//! The index space of a loop as it is executed: which axes tiles cover, which one reductions run along, and the strides
//! of each.
//!
//! Axes of size one are removed, neighbouring axes are merged where every access allows it, and the axes are in the
//! order of the first store. Everything here depends on sizes and strides only.

use max_core::kernel::{Access, Instr, Level, Literal, Loop, Reduction, Reg};
use max_core::{Bool, DType, Element, Result, bail, dispatch};

use super::plan::Uses;
use crate::tile;

/// Shorter rows of a reduction are not worth a pass each: tiles go across them.
const SHORT: i64 = 63;
/// With fewer rows, tiles across them would be mostly padding.
const FEW: i64 = 16;

/// The strides of an access in the space, in elements.
#[derive(Clone, Debug)]
pub(super) struct View {
    pub(super) slot: usize,
    pub(super) dtype: DType,
    pub(super) offset: isize,
    pub(super) outer: Vec<isize>,
    pub(super) row: isize,
    pub(super) col: isize,
    /// The stride along a pass: over the columns of a row that is reduced, otherwise over the steps.
    pub(super) along: isize,
}

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Space {
    pub(super) outer: Vec<usize>,
    pub(super) rows: usize,
    pub(super) cols: usize,
    /// The length of the reduced axis if tiles go across it, otherwise one.
    pub(super) steps: usize,
    /// Whether tiles go along the reduced axis; it is then the columns, and there is one row.
    pub(super) horizontal: bool,
    /// Whether an access is contiguous along the rows and not along the columns.
    pub(super) transposed: bool,
    /// One per access of the loop; unused ones have no strides.
    pub(super) views: Vec<View>,
}

/// An axis and its strides.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Axis {
    pub(crate) size: i64,
    /// One per access, or per walk of several accesses; zero for unused ones.
    pub(crate) strides: Vec<i64>,
}

impl Space {
    /// The number of elements, saturating.
    pub(super) fn elements(&self) -> usize {
        let sizes = self.outer.iter().chain([&self.rows, &self.cols, &self.steps]);
        sizes.fold(1, |product: usize, &size| product.saturating_mul(size))
    }
}

/// Removes the reduction of a loop whose reduced axis has at most one element.
pub(crate) fn settle(mut loop_: Loop<i64>) -> Loop<i64> {
    let Some(axis) = loop_.reduce.filter(|&axis| loop_.shape[axis] <= 1) else { return loop_ };
    let gone = Instr::Literal(Literal { dtype: DType::Bool, bits: 0 });
    if loop_.shape[axis] == 1 {
        for at in 0..loop_.code.len() {
            let Instr::Reduce(kind, arg) = loop_.code[at] else { continue };
            if kind.gives_index() {
                loop_.code[at] = Instr::Literal(Literal { dtype: DType::Int64, bits: 0 });
                continue;
            }
            loop_.code[at] = gone.clone();
            let rename = |reg: &mut Reg| {
                if reg.0 as usize == at {
                    *reg = arg;
                }
            };
            loop_.code[at..].iter_mut().for_each(|instr| instr.args_mut().iter_mut().for_each(rename));
        }
    } else {
        let (levels, dtypes) = (loop_.levels(|stride| *stride == 0), loop_.dtypes().unwrap_or_default());
        for (at, dtype) in dtypes.into_iter().enumerate() {
            let per_element = match &loop_.code[at] {
                Instr::Reduce(kind, _) => {
                    loop_.code[at] = Instr::Literal(empty(*kind, dtype));
                    false
                }
                Instr::Store(access, _) => {
                    levels[at] == Level::Element || loop_.accesses[*access as usize].strides[axis] != 0
                }
                _ => levels[at] == Level::Element,
            };
            if per_element {
                loop_.code[at] = gone.clone();
            }
        }
        loop_.shape[axis] = 1;
    }
    loop_.reduce = None;
    loop_
}

/// An element as a literal.
pub(super) fn literal<T: Element>(element: T) -> Literal {
    let mut bits = [0; 8];
    bits[..size_of::<T>()].copy_from_slice(bytemuck::bytes_of(&element));
    Literal { dtype: T::DTYPE, bits: u64::from_le_bytes(bits) }
}

/// The result of a reduction over no elements.
fn empty(kind: Reduction, dtype: DType) -> Literal {
    dispatch!(dtype, T => literal(T::from_i128(i128::from(kind == Reduction::Prod))))
}

/// The identity element of a reduction.
pub(crate) fn identity(kind: Reduction, dtype: DType) -> Literal {
    match (kind, dtype) {
        (Reduction::Max, DType::Bool) => literal(Bool::FALSE),
        (Reduction::Max, _) => dispatch!(dtype, T => literal(T::from_double(f64::NEG_INFINITY))),
        (Reduction::Min, _) => dispatch!(dtype, T => literal(T::from_double(f64::INFINITY))),
        _ => empty(kind, dtype),
    }
}

/// Removes and returns the axis that tiles go along: the last one, unless it is short and another one is long.
fn take_columns(axes: &mut Vec<Axis>) -> Option<Axis> {
    let last = axes.last()?.size;
    let longer = axes.iter().rposition(|axis| axis.size >= FEW).filter(|_| last < FEW);
    match longer {
        Some(axis) => Some(axes.remove(axis)),
        None => axes.pop(),
    }
}

/// The space of a loop with elements, or `None` if it stores nothing.
pub(super) fn space(loop_: &Loop<i64>, uses: &Uses) -> Option<Space> {
    let axis = |axis: usize| Axis {
        size: loop_.shape[axis],
        strides: loop_
            .accesses
            .iter()
            .enumerate()
            .map(|(at, access)| if uses.has(at) { access.strides[axis] } else { 0 })
            .collect(),
    };
    // Positions are computed, so their strides do not matter.
    let lies = |access: &usize| uses.touches(*access);
    let first = loop_.code.iter().find_map(|instr| match instr {
        Instr::Store(access, _) => Some(*access as usize),
        _ => None,
    })?;
    let reduced = loop_.reduce.map(axis);
    let mut kept: Vec<Axis> =
        (0..loop_.shape.len()).filter(|&a| Some(a) != loop_.reduce && loop_.shape[a] > 1).map(axis).collect();
    kept.sort_by_key(|axis| match axis.strides[first] {
        0 => i64::MIN,
        stride => stride.saturating_abs().saturating_neg(),
    });
    let mut kept = merge(kept);

    let one = || Axis { size: 1, strides: vec![0; loop_.accesses.len()] };
    let count: i64 = kept.iter().fold(1, |product, axis| product.saturating_mul(axis.size));
    let horizontal = reduced.as_ref().is_some_and(|reduced| {
        let contiguous =
            |axis: &Axis| (0..axis.strides.len()).filter(lies).filter(|&at| axis.strides[at] == 1).count();
        let along = contiguous(reduced) >= kept.last().map_or(0, contiguous);
        count < FEW || (along && reduced.size > SHORT)
    });
    let (rows, cols, steps, transposed) = match reduced {
        Some(reduced) if horizontal => (one(), reduced, one(), false),
        reduced => {
            let cols = take_columns(&mut kept).unwrap_or_else(one);
            let lies_across = |axis: &Axis| {
                let mut accesses = (0..axis.strides.len()).filter(lies);
                accesses.any(|at| axis.strides[at] == 1 && ![0, 1].contains(&cols.strides[at]))
            };
            let across = kept.iter().position(lies_across);
            let rows = match across {
                Some(axis) => kept.remove(axis),
                None => kept.pop().unwrap_or_else(one),
            };
            (rows, cols, reduced.unwrap_or_else(one), across.is_some())
        }
    };
    let along = if horizontal { &cols } else { &steps };
    let view = |(at, access): (usize, &Access<i64>)| View {
        slot: access.slot.0 as usize,
        dtype: access.dtype,
        offset: access.offset as isize,
        outer: kept.iter().map(|axis| axis.strides[at] as isize).collect(),
        row: rows.strides[at] as isize,
        col: cols.strides[at] as isize,
        along: along.strides[at] as isize,
    };
    Some(Space {
        outer: kept.iter().map(|axis| axis.size as usize).collect(),
        rows: rows.size as usize,
        cols: cols.size as usize,
        steps: steps.size as usize,
        horizontal,
        transposed,
        views: loop_.accesses.iter().enumerate().map(view).collect(),
    })
}

/// The kept axes of a loop with elements, merged into one axis, if that is possible.
pub(super) fn kept_axis(loop_: &Loop<i64>) -> Option<Axis> {
    let axis = |axis: usize| Axis {
        size: loop_.shape[axis],
        strides: loop_.accesses.iter().map(|access| access.strides[axis]).collect(),
    };
    let kept = (0..loop_.shape.len()).filter(|&a| Some(a) != loop_.reduce && loop_.shape[a] > 1).map(axis);
    match <[Axis; 1]>::try_from(merge(kept.collect())) {
        Ok([axis]) => Some(axis),
        Err(_) => None,
    }
}

/// Merges neighbouring axes where all strides allow it.
pub(crate) fn merge(axes: Vec<Axis>) -> Vec<Axis> {
    let mut merged: Vec<Axis> = Vec::with_capacity(axes.len());
    for axis in axes {
        if let Some(outer) = merged.last_mut() {
            let mut strides = outer.strides.iter().zip(&axis.strides);
            if strides.all(|(outer, inner)| *outer == inner.wrapping_mul(axis.size)) {
                *outer = Axis { size: outer.size.saturating_mul(axis.size), strides: axis.strides };
                continue;
            }
        }
        merged.push(axis);
    }
    merged
}

/// The dtype of the elements of a register in memory: narrow floats are held as f32.
pub(crate) fn register(dtype: DType) -> DType {
    let narrow = dtype.is_float() && tile::register_size(dtype) != dtype.size_in_bytes();
    if narrow { DType::Float32 } else { dtype }
}

/// An error if a loop cannot be an epilogue.
pub(super) fn expect_epilogue(loop_: &Loop<i64>) -> Result<()> {
    if loop_.reduce.is_some() || loop_.shape.len() < 2 {
        bail!(internal, "an epilogue reduces axis {:?} of {:?}", loop_.reduce, loop_.shape);
    }
    Ok(())
}
