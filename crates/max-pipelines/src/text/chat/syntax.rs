//! What templates consist of.

use std::sync::Arc;

use super::value::Value;

/// A template: what it does, and its macros by their numbers.
#[derive(Debug)]
pub(super) struct Template {
    pub(super) body: Block,
    pub(super) macros: Vec<Macro>,
}

/// Statements with their lines, one after the other.
pub(super) type Block = Vec<(usize, Statement)>;

#[derive(Debug)]
pub(super) enum Statement {
    /// Writes a text as it is.
    Data(Arc<str>),
    /// Writes a value.
    Show(Expression),
    /// Conditions with what to do if they hold, in order, and what to do if none holds.
    If(Vec<(Expression, Block)>, Block),
    For(Box<For>),
    Set(Target, Expression),
    /// Sets what a block writes, after some filters.
    Capture(Target, Vec<Access>, Block),
    /// Writes what a block writes, after some filters.
    Filter(Vec<Access>, Block),
    /// A block with names of its own.
    With(Vec<(Target, Expression)>, Block),
    /// Gives a name to the macro with a number.
    Macro(usize),
    Break,
    Continue,
}

#[derive(Debug)]
pub(super) struct For {
    pub(super) target: Target,
    pub(super) over: Expression,
    pub(super) condition: Option<Expression>,
    pub(super) body: Block,
    pub(super) otherwise: Block,
}

#[derive(Debug)]
pub(super) struct Macro {
    pub(super) name: Arc<str>,
    /// Names, and values where none is passed.
    pub(super) parameters: Vec<(Arc<str>, Option<Expression>)>,
    pub(super) body: Block,
}

/// What is set.
#[derive(Debug)]
pub(super) enum Target {
    Name(Arc<str>),
    Attribute(Arc<str>, Arc<str>),
    /// One target for each item.
    Items(Vec<Target>),
}

#[derive(Debug)]
pub(super) enum Expression {
    Constant(Value),
    Name(Arc<str>),
    List(Vec<Expression>),
    Tuple(Vec<Expression>),
    Map(Vec<(Expression, Expression)>),
    Not(Box<Expression>),
    Negative(Box<Expression>),
    /// Operators of one rank, from the left to the right.
    Arithmetic(Box<Expression>, Vec<(Operator, Expression)>),
    /// Whether each comparison of neighbours holds.
    Compare(Box<Expression>, Vec<(Comparison, Expression)>),
    /// The first operand that decides.
    And(Vec<Expression>),
    Or(Vec<Expression>),
    /// A condition, and the values if it holds and if not.
    Choice(Box<[Expression; 3]>),
    /// What is reached from a value step by step.
    Reach(Box<Expression>, Vec<Access>),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Operator {
    Add,
    Subtract,
    Multiply,
    Divide,
    FloorDivide,
    Remainder,
    Power,
    Concatenate,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    In,
    NotIn,
}

/// A step from a value to another.
#[derive(Debug)]
pub(super) enum Access {
    Attribute(Arc<str>),
    Item(Expression),
    Slice(Box<[Option<Expression>; 3]>),
    Call(Arguments),
    Method(Arc<str>, Arguments),
    Filter(Arc<str>, Arguments),
    /// A test, and whether it must hold.
    Test(Arc<str>, Arguments, bool),
}

#[derive(Debug, Default)]
pub(super) struct Arguments {
    pub(super) positional: Vec<Expression>,
    /// What has the last positional ones, if it is written with a `*`.
    pub(super) rest: Option<Box<Expression>>,
    pub(super) named: Vec<(Arc<str>, Expression)>,
}
