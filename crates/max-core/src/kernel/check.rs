//! The invariants of a loop, whatever its sizes are.

use crate::kernel::{Instr, Loop, Reg};
use crate::{DType, Result, ScalarOp, bail};

/// Whether a register has one value per element or one per row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// The same along the reduced axis.
    Row,
    /// Different for each element.
    Element,
}

impl<D, M> Loop<D, M> {
    /// The dtype of each register (a store has that of what it stores), or what is wrong with the loop.
    pub fn dtypes(&self) -> Result<Vec<DType>> {
        let rank = self.shape.len();
        if self.reduce.is_some_and(|axis| axis >= rank) {
            bail!(internal, "a loop of rank {rank} reduces axis {:?}", self.reduce);
        }
        if let Some(access) = self.accesses.iter().find(|access| access.strides.len() != rank) {
            bail!(internal, "an access has {} strides in a loop of rank {rank}", access.strides.len());
        }
        let mut dtypes: Vec<DType> = Vec::with_capacity(self.code.len());
        for instr in &self.code {
            let reg = |reg: Reg| match dtypes.get(reg.0 as usize) {
                Some(dtype) if !matches!(self.code[reg.0 as usize], Instr::Store(..)) => Ok(*dtype),
                _ => bail!(internal, "register {} is used before it is defined", reg.0),
            };
            let access = |number: u32| match self.accesses.get(number as usize) {
                Some(access) => Ok(access.dtype),
                None => bail!(internal, "a loop has no access {number}"),
            };
            let dtype = match instr {
                Instr::Load(number) => access(*number)?,
                Instr::Index(number) => match access(*number)? {
                    DType::Int64 => DType::Int64,
                    other => bail!(internal, "positions are int64, not {other}"),
                },
                Instr::Product(dtype) | Instr::Size(_, dtype) => *dtype,
                Instr::Literal(literal) => literal.dtype,
                Instr::Apply(op, [a, b]) => {
                    let (a, b) = (reg(*a)?, reg(*b)?);
                    let fits = match op {
                        ScalarOp::RealOp(_) => a.is_float(),
                        ScalarOp::LogicalOp(_) => a == DType::Bool,
                        _ => true,
                    };
                    if a != b || !fits {
                        bail!(internal, "{} does not apply to {a} and {b}", op.name());
                    }
                    op.result_dtype(a)
                }
                Instr::Select([condition, a, b]) => {
                    let (condition, a, b) = (reg(*condition)?, reg(*a)?, reg(*b)?);
                    if condition != DType::Bool || a != b {
                        bail!(internal, "select does not apply to {condition}, {a} and {b}");
                    }
                    a
                }
                Instr::Cast(arg, dtype) => {
                    reg(*arg)?;
                    *dtype
                }
                Instr::Random(_, dtype, [seed, position]) => {
                    let (seed, position) = (reg(*seed)?, reg(*position)?);
                    let seeds = matches!(seed, DType::Int64 | DType::UInt64);
                    let draws = matches!(dtype, DType::Float32 | DType::Float64);
                    if !seeds || position != DType::Int64 || !draws {
                        bail!(
                            internal,
                            "random {dtype} numbers cannot be drawn with a seed of {seed} at a position of {position}"
                        );
                    }
                    *dtype
                }
                Instr::Reduce(kind, arg) => {
                    if self.reduce.is_none() {
                        bail!(internal, "a reduction in a loop without a reduced axis");
                    }
                    let dtype = reg(*arg)?;
                    if kind.gives_index() { DType::Int64 } else { dtype }
                }
                Instr::Store(number, arg) => {
                    let (memory, value) = (access(*number)?, reg(*arg)?);
                    if memory != value {
                        bail!(internal, "a store of {value} into {memory}");
                    }
                    value
                }
            };
            dtypes.push(dtype);
        }
        Ok(dtypes)
    }

    /// The level of each register, given whether an access is the same along the reduced axis. Without a reduced axis all
    /// but literals and sizes are per element.
    pub fn levels(&self, repeats: impl Fn(&D) -> bool) -> Vec<Level> {
        let mut levels: Vec<Level> = Vec::with_capacity(self.code.len());
        for instr in &self.code {
            let of = |reg: &Reg| levels.get(reg.0 as usize).copied().unwrap_or(Level::Element);
            let level = match instr {
                Instr::Load(number) | Instr::Index(number) => {
                    match (self.reduce, self.accesses.get(*number as usize)) {
                        (Some(axis), Some(access)) if repeats(&access.strides[axis]) => Level::Row,
                        _ => Level::Element,
                    }
                }
                Instr::Product(_) => Level::Element,
                Instr::Reduce(..) => Level::Row,
                _ => instr.args().iter().map(of).max().unwrap_or(Level::Row),
            };
            levels.push(level);
        }
        levels
    }
}

#[cfg(test)]
mod tests {
    use crate::kernel::{Access, Reduction, Slot};
    use crate::scalar::{NumericOp, RealOp};

    use super::*;

    fn softmax() -> Loop<i64> {
        let access =
            |slot| Access { slot: Slot(slot), dtype: DType::Float32, offset: 0, strides: vec![8, 1] };
        Loop {
            shape: vec![4, 8],
            reduce: Some(1),
            accesses: vec![access(0), access(1)],
            code: vec![
                Instr::Load(0),
                Instr::Reduce(Reduction::Max, Reg(0)),
                Instr::Apply(NumericOp::Sub.into(), [Reg(0), Reg(1)]),
                Instr::Apply(RealOp::Exp.into(), [Reg(2), Reg(2)]),
                Instr::Reduce(Reduction::Sum, Reg(3)),
                Instr::Apply(RealOp::Div.into(), [Reg(3), Reg(4)]),
                Instr::Store(1, Reg(5)),
            ],
        }
    }

    #[test]
    fn levels_follow_reductions() {
        use Level::{Element, Row};
        let loop_ = softmax();
        assert_eq!(loop_.levels(|s| *s == 0), [Element, Row, Element, Element, Row, Element, Element]);
        assert_eq!(loop_.dtypes().unwrap(), [DType::Float32; 7]);
    }

    #[test]
    fn invalid_loops_are_errors() {
        let mut late = softmax();
        late.code[0] = Instr::Cast(Reg(1), DType::Float32);
        assert!(late.dtypes().is_err());
        let mut mixed = softmax();
        mixed.accesses[1].dtype = DType::Int8;
        assert!(mixed.dtypes().is_err());
        let mut flat = softmax();
        flat.reduce = None;
        assert!(flat.dtypes().is_err());
    }
}
