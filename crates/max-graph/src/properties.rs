//! What an op may do, stated by the op itself: all that passes, lowering and the eager path need to know about an op they
//! do not rewrite.

use max_core::{DType, Dim, Shape, Type};

use crate::ir::{Body, Op};

/// What an op may do and how it computes. There is no default: every op states all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Properties {
    /// What it does besides computing its results.
    pub effects: Effects,
    /// Whether it fails for some inputs or binds a symbol, and therefore runs even if nothing uses its results.
    pub checks: bool,
    /// How it gets the elements of its results.
    pub form: Form,
    /// Whether it can be computed when a graph is compiled.
    pub folding: Folding,
    /// Whether one element of a result takes much more work than reading the operands once per element.
    pub heavy: bool,
    /// Whether its operands must be rounded to their dtype; other ops take narrow floats as wide as their loop holds them.
    pub rounds_operands: bool,
}

/// What an op does besides computing its results.
///
/// Ops with effects stay in order. Those that [show](Effects::show) are neither left out nor done twice, and a read is
/// only worth as much as an equal one with no write in between; see [`Order`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effects {
    /// It reads memory that other ops may write.
    pub reads: bool,
    /// It writes memory that others may read.
    pub writes: bool,
    /// It does something that is seen outside of the program, like printing.
    pub observable: bool,
}

/// How an op gets the elements of its results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Without operands or work: constants, weights, positions and sizes are available wherever they are used.
    Source,
    /// They are all elements of its first operand, in another shape or order: a layout, no work.
    View,
    /// They are some elements of its first operand, or some repeatedly: a layout, no work.
    Part,
    /// Each from the elements at its position, after broadcasting: it continues in the loop that computes its operands.
    Elementwise,
    /// In a loop or kernel that reads its operands in any layout.
    Kernel,
    /// From operands that each have memory of their own: a view of other memory is copied first.
    Whole,
}

/// Whether an op on constants can be computed when a graph is compiled. An op with effects never is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Folding {
    /// It is not: its data is not known yet, or is better left to be made by a kernel.
    Never,
    /// With the bits that every kernel gives.
    Exactly,
    /// With other rounding than kernels.
    Approximately,
}

impl Properties {
    /// Whether a run without the op would differ although nothing uses its results.
    pub fn must_run(&self) -> bool {
        self.checks || self.effects.show()
    }
}

impl Effects {
    /// No effects: it only computes.
    pub const NONE: Effects = Effects { reads: false, writes: false, observable: false };

    /// These and others.
    pub fn and(self, other: Effects) -> Effects {
        Effects {
            reads: self.reads || other.reads,
            writes: self.writes || other.writes,
            observable: self.observable || other.observable,
        }
    }

    /// Whether someone can tell how often it is done.
    pub fn show(self) -> bool {
        self.writes || self.observable
    }
}

impl Form {
    /// Whether the results take no work.
    pub fn is_free(self) -> bool {
        match self {
            Form::Source | Form::View | Form::Part => true,
            Form::Elementwise | Form::Kernel | Form::Whole => false,
        }
    }
}

/// The order of effects, for a walk over ops in the order they run.
#[derive(Debug, Default)]
pub struct Order {
    writes: u32,
}

impl Order {
    /// Goes on to the next op. An earlier op with equal operands and attributes can stand in for it if the same number was
    /// returned for both; `None` if none can.
    pub fn next(&mut self, effects: Effects) -> Option<u32> {
        self.writes += u32::from(effects.writes);
        let state = if effects.reads { self.writes } else { 0 };
        (!effects.show()).then_some(state)
    }
}

/// An op with the types of its operands and results.
#[derive(Clone, Copy)]
pub struct Signature<'a> {
    body: &'a Body,
    op: &'a Op,
}

impl<'a> Signature<'a> {
    pub(crate) fn new(body: &'a Body, op: &'a Op) -> Signature<'a> {
        Signature { body, op }
    }

    /// The types of the operands.
    pub fn operands(self) -> impl Iterator<Item = &'a Type> {
        self.body.types_of(&self.op.operands)
    }

    /// The dtype of an operand.
    pub fn dtype(self, operand: usize) -> Option<DType> {
        self.operands().nth(operand).and_then(Type::array).map(|(dtype, _)| dtype)
    }

    /// The shape of an operand.
    pub fn shape(self, operand: usize) -> Option<&'a Shape> {
        self.operands().nth(operand).and_then(Type::array).map(|(_, shape)| shape)
    }

    /// Whether a result has a size that is computed, and may turn out negative, but that no operand has.
    pub fn computes_sizes(self) -> bool {
        let given = |dim: &Dim| self.operands().filter_map(Type::array).any(|(_, shape)| shape.contains(dim));
        let made = self.body.types_of(&self.op.results).filter_map(Type::array);
        made.flat_map(|(_, shape)| shape.iter()).any(|dim| matches!(dim, Dim::Algebraic(_)) && !given(dim))
    }

    /// How something folds that rounds floats in its own way.
    pub fn rounded(self) -> Folding {
        let floats = self.operands().filter_map(Type::array).any(|(dtype, _)| dtype.is_float());
        if floats { Folding::Approximately } else { Folding::Exactly }
    }
}

#[cfg(test)]
mod tests;
