//! Epilogues as separate loops over the result of a kernel in scratch memory.

use max_core::Result;
use max_core::kernel::{Access, Instr, Literal, Loop, Reg};
use max_core::scalar::NumericOp;

use super::Plan;

impl Plan {
    /// Adds an epilogue as a loop over a result in memory.
    pub(super) fn epilogue(&mut self, epilogue: &Loop<i64>, result: Access<i64>) -> Result<()> {
        self.loop_(&of_parts(epilogue, vec![result]))
    }
}

/// An epilogue on empty sums, which are zero.
pub(super) fn of_zeros(epilogue: &Loop<i64>) -> Loop<i64> {
    let mut zeros = epilogue.clone();
    for instr in &mut zeros.code {
        if let Instr::Product(dtype) = *instr {
            *instr = Instr::Literal(Literal { dtype, bits: 0 });
        }
    }
    zeros
}

/// An epilogue on a result that is in memory in another dtype than it takes, or in parts that add up to it.
pub(super) fn of_parts(epilogue: &Loop<i64>, parts: Vec<Access<i64>>) -> Loop<i64> {
    let mut whole = epilogue.clone();
    let (first, count) = (whole.accesses.len() as u32, parts.len() as u32);
    let from = parts.first().map(|part| part.dtype);
    whole.accesses.extend(parts);
    whole.code.clear();
    let mut moved = Vec::with_capacity(epilogue.code.len());
    for instr in &epilogue.code {
        let instr = match instr {
            Instr::Product(dtype) => {
                whole.code.push(Instr::Load(first));
                for part in 1..count {
                    let sum = Reg(whole.code.len() as u32 - 1);
                    whole.code.push(Instr::Load(first + part));
                    whole.code.push(Instr::Apply(NumericOp::Add.into(), [sum, Reg(sum.0 + 1)]));
                }
                if from == Some(*dtype) {
                    moved.push(Reg(whole.code.len() as u32 - 1));
                    continue;
                }
                Instr::Cast(Reg(whole.code.len() as u32 - 1), *dtype)
            }
            other => {
                let mut instr = other.clone();
                for reg in instr.args_mut() {
                    *reg = moved.get(reg.0 as usize).copied().unwrap_or(*reg);
                }
                instr
            }
        };
        whole.code.push(instr);
        moved.push(Reg(whole.code.len() as u32 - 1));
    }
    whole
}
