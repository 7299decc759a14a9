//! A loop in the simplified form that is written as text: without unused code, axes in the order of the first store,
//! neighbouring axes merged.

use max_core::kernel::{Access, Instr, Level, Literal, Loop};
use max_core::scalar::NumericOp;
use max_core::{DType, Result, ScalarOp};

use crate::loops::{Axis, live, merge, register};

/// Strides over the axes that several accesses share. Positions that are values themselves are computed in 64 bits.
#[derive(Clone, Debug)]
pub(super) struct Walk {
    pub(super) counted: bool,
}

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Nest {
    /// The axes that are not reduced, outermost first; at least one.
    pub(super) kept: Vec<Axis>,
    pub(super) reduce: Option<Axis>,
    pub(super) walks: Vec<Walk>,
    /// The walk of each access.
    pub(super) walk_of: Vec<usize>,
    pub(super) accesses: Vec<Access<i64>>,
    pub(super) code: Vec<Instr<i64>>,
    pub(super) dtypes: Vec<DType>,
    pub(super) live: Vec<bool>,
    pub(super) levels: Vec<Level>,
    /// The pass over the elements after which a value is available.
    pub(super) ready: Vec<usize>,
    /// Whether positions and counts need more than 31 bits.
    pub(super) wide: bool,
}

impl Nest {
    /// The nest of a loop whose reduced axis has more than one element, with the dtypes of its registers.
    pub(super) fn new(loop_: &Loop<i64>, dtypes: Vec<DType>) -> Result<Nest> {
        let live = live(&loop_.code);
        let loop_ = &in_order(loop_, &live);
        let levels = loop_.levels(|stride| *stride == 0);
        let (walks, walk_of, examples) = walks(loop_, &live);
        let axis = |axis: usize| Axis {
            size: loop_.shape[axis],
            strides: examples.iter().map(|&access| loop_.accesses[access].strides[axis]).collect(),
        };
        let first = loop_.code.iter().find_map(|instr| match instr {
            Instr::Store(access, _) => Some(walk_of[*access as usize]),
            _ => None,
        });
        let kept = (0..loop_.shape.len()).filter(|&a| Some(a) != loop_.reduce && loop_.shape[a] > 1);
        let mut kept: Vec<Axis> = kept.map(axis).collect();
        kept.sort_by_key(|axis| match axis.strides[first.unwrap_or(0)] {
            0 => i64::MIN,
            stride => stride.saturating_abs().saturating_neg(),
        });
        let mut kept = merge(kept);
        if kept.is_empty() {
            kept.push(Axis { size: 1, strides: vec![0; walks.len()] });
        }
        let mut ready: Vec<usize> = Vec::with_capacity(loop_.code.len());
        for instr in &loop_.code {
            let after = instr.args().iter().map(|arg| ready[arg.0 as usize]).max().unwrap_or(0);
            ready.push(after + usize::from(matches!(instr, Instr::Reduce(..))));
        }
        let mut nest = Nest {
            kept,
            reduce: loop_.reduce.map(axis),
            walks,
            walk_of,
            accesses: loop_.accesses.clone(),
            code: loop_.code.clone(),
            dtypes,
            live,
            levels,
            ready,
            wide: false,
        };
        nest.wide = nest.is_wide();
        Ok(nest)
    }

    /// How many results a reduction has, or elements if there is no reduction.
    pub(super) fn rows(&self) -> i64 {
        self.kept.iter().fold(1, |product, axis| product.saturating_mul(axis.size))
    }

    /// The length of a row.
    pub(super) fn row_length(&self) -> i64 {
        self.reduce.as_ref().map_or(1, |axis| axis.size)
    }

    pub(super) fn axes(&self) -> impl Iterator<Item = &Axis> {
        self.kept.iter().chain(&self.reduce)
    }

    fn is_wide(&self) -> bool {
        const MOST: i64 = i32::MAX as i64 / 2;
        let reach = |walk: usize| {
            self.axes().fold(0i64, |reach, axis| {
                reach.saturating_add(axis.strides[walk].saturating_abs().saturating_mul(axis.size))
            })
        };
        let positions = (0..self.walks.len()).any(|walk| !self.walks[walk].counted && reach(walk) > MOST);
        positions || self.rows().max(self.row_length()) > MOST
    }

    /// Whether a value is better kept for a later pass than recomputed.
    pub(super) fn is_costly(&self, at: usize) -> bool {
        match self.code[at] {
            Instr::Random(..) => true,
            Instr::Apply(op, _) => match op {
                ScalarOp::RealOp(_) => true,
                ScalarOp::NumericOp(op) => {
                    matches!(op, NumericOp::Pow | NumericOp::FloorDiv | NumericOp::Mod)
                }
                ScalarOp::CompareOp(_) | ScalarOp::LogicalOp(_) => false,
            },
            _ => false,
        }
    }

    /// The stored value without a rounding to the dtype of the store, which the store does itself.
    pub(super) fn unrounded(&self, at: usize) -> usize {
        match self.code[at] {
            Instr::Cast(arg, to) if register(to) == DType::Float32 && to != DType::Float32 => {
                let arg = arg.0 as usize;
                if self.levels[arg] == self.levels[at] && self.dtypes[arg] == DType::Float32 {
                    arg
                } else {
                    at
                }
            }
            _ => at,
        }
    }

    /// The live instructions that access memory: index in the code, access, and whether it is written.
    pub(super) fn touches(&self) -> impl Iterator<Item = (usize, usize, bool)> {
        self.code.iter().enumerate().filter(|(at, _)| self.live[*at]).filter_map(|(at, instr)| match instr {
            Instr::Load(access) => Some((at, *access as usize, false)),
            Instr::Store(access, _) => Some((at, *access as usize, true)),
            _ => None,
        })
    }

    /// The last pass.
    pub(super) fn last(&self) -> usize {
        (0..self.code.len()).filter(|&at| self.live[at]).map(|at| self.ready[at]).max().unwrap_or(0)
    }

    /// Whether an instruction has the same result everywhere.
    pub(super) fn is_constant(&self, at: usize) -> bool {
        match &self.code[at] {
            Instr::Literal(_) | Instr::Size(..) => true,
            Instr::Load(_) | Instr::Index(_) | Instr::Product(_) | Instr::Reduce(..) | Instr::Store(..) => {
                false
            }
            instr => instr.args().iter().all(|arg| self.is_constant(arg.0 as usize)),
        }
    }

    /// Whether a store happens once per row.
    pub(super) fn stores_once(&self, at: usize) -> bool {
        let Instr::Store(access, _) = self.code[at] else { return false };
        let walk = self.walk_of[access as usize];
        self.levels[at] == Level::Row && self.reduce.as_ref().is_some_and(|axis| axis.strides[walk] == 0)
    }
}

/// The loop with its accesses in order of use and without unused ones, so that equivalent loops give the same text.
fn in_order(loop_: &Loop<i64>, live: &[bool]) -> Loop<i64> {
    let mut ordered = loop_.clone();
    let mut numbers: Vec<u32> = Vec::new();
    for (instr, _) in ordered.code.iter_mut().zip(live).filter(|(_, live)| **live) {
        let (Instr::Load(access) | Instr::Index(access) | Instr::Store(access, _)) = instr else { continue };
        *access = match numbers.iter().position(|number| number == access) {
            Some(place) => place as u32,
            None => {
                numbers.push(*access);
                numbers.len() as u32 - 1
            }
        };
    }
    ordered.accesses = numbers.iter().map(|&number| loop_.accesses[number as usize].clone()).collect();
    // Unused instructions must not name an access that was removed.
    for (instr, _) in ordered.code.iter_mut().zip(live).filter(|(_, live)| !**live) {
        if let Instr::Load(_) | Instr::Index(_) = instr {
            *instr = Instr::Literal(Literal { dtype: DType::Bool, bits: 0 });
        }
    }
    ordered
}

/// The walks of the used accesses, the walk of each access, and one access of each walk.
fn walks(loop_: &Loop<i64>, live: &[bool]) -> (Vec<Walk>, Vec<usize>, Vec<usize>) {
    let (mut walks, mut examples) = (Vec::<Walk>::new(), Vec::<usize>::new());
    let mut walk_of = vec![0; loop_.accesses.len()];
    for (instr, _) in loop_.code.iter().zip(live).filter(|(_, live)| **live) {
        let (access, counted) = match instr {
            Instr::Load(access) | Instr::Store(access, _) => (*access as usize, false),
            Instr::Index(access) => (*access as usize, true),
            _ => continue,
        };
        let strides = |access: usize| &loop_.accesses[access].strides;
        let same = |&walk: &usize| {
            let other = strides(examples[walk]).iter().zip(strides(access)).zip(&loop_.shape);
            walks[walk].counted == counted && other.clone().all(|((a, b), &size)| a == b || size == 1)
        };
        walk_of[access] = match (0..walks.len()).find(same) {
            Some(walk) => walk,
            None => {
                walks.push(Walk { counted });
                examples.push(access);
                walks.len() - 1
            }
        };
    }
    (walks, walk_of, examples)
}
