//! Matmuls on a GPU: by cuBLASLt with as much of the epilogue as it supports, or by our own functions.
//!
//! `shape` rewrites a matmul with fewer axes, `fused` matches epilogues, `method` decides what to do: all of that is
//! data. Here it is carried out: a matmul that cannot run as it is becomes one that can, by copying its operands, by
//! splitting it into several matmuls, or as a matmul into scratch memory and a loop, and is planned again.

pub(super) mod ending;
pub(super) mod fused;
mod method;
mod own;
mod shape;
#[cfg(test)]
mod tests;
mod thin;

use max_core::kernel::{Access, Instr, Loop, Matmul, Reg};
use max_core::{DType, Result};
use max_driver::cuda::{Activation, Compute, Scaling};

use super::epilogue::of_zeros;
use super::{Address, GemmCall, Plan, PlannedLaunch, SCRATCH};
use method::{LibraryGemm, MatmulMethod, decide};
pub(super) use shape::row_major;
use shape::simplify;

/// The dtypes of operand copies that can represent every small float.
const WIDENED: [Option<DType>; 2] = [Some(DType::BFloat16); 2];

impl Plan {
    /// Adds a matmul.
    pub(super) fn matmul(&mut self, kernel: &Matmul<i64>) -> Result<()> {
        let k = &simplify(kernel)?;
        match decide(k)? {
            MatmulMethod::Nothing => Ok(()),
            MatmulMethod::Zeros => self.loop_(&of_zeros(&k.epilogue)),
            MatmulMethod::Others(others) => others.iter().try_for_each(|other| self.matmul(other)),
            MatmulMethod::Copies(copies) => {
                self.with_copies(k, copies.map(|copied| copied.then_some(k.lhs.dtype)))
            }
            MatmulMethod::Scratch => self.through_scratch(k),
            MatmulMethod::Widened => self.with_copies(k, WIDENED),
            MatmulMethod::Own(store) => self.own_matmul(k, &store),
            MatmulMethod::Thin(layout) => self.thin_matmuls(std::slice::from_ref(k), layout),
            MatmulMethod::Library(gemm) => self.by_library(k, &gemm),
        }
    }

    /// Adds matmuls of one left operand: a single function if they have few rows.
    pub(super) fn matmuls(&mut self, all: &[Matmul<i64>]) -> Result<()> {
        let simple = all.iter().map(simplify).collect::<Result<Vec<_>>>()?;
        let methods = simple.iter().map(decide).collect::<Result<Vec<_>>>()?;
        match methods.first() {
            Some(MatmulMethod::Thin(layout))
                if thin::fit(&simple) && methods.iter().all(|m| *m == methods[0]) =>
            {
                self.thin_matmuls(&simple, *layout)
            }
            _ => all.iter().try_for_each(|k| self.matmul(k)),
        }
    }

    /// Adds a matmul after copying the operands that have a dtype here.
    fn with_copies(&mut self, k: &Matmul<i64>, [lhs, rhs]: [Option<DType>; 2]) -> Result<()> {
        let mut copied = k.clone();
        let shape = |last: [i64; 2]| [k.batch.as_slice(), last.as_slice()].concat();
        if let Some(dtype) = lhs {
            copied.lhs = self.copy(&k.lhs, &shape([k.m, k.k]), dtype)?;
        }
        if let Some(dtype) = rhs {
            copied.rhs = self.copy(&k.rhs, &shape([k.k, k.n]), dtype)?;
        }
        // A product in the type of the operands is rounded less often now; a wider one stays what it is.
        for instr in &mut copied.epilogue.code {
            if let Instr::Product(dtype) = instr
                && *dtype == k.lhs.dtype
            {
                *dtype = copied.lhs.dtype;
            }
        }
        self.matmul(&copied)
    }

    /// Copies matrices over `[batch.., rows, columns]` to contiguous row-major scratch memory of a dtype; a batch that
    /// repeats one matrix is copied once.
    pub(super) fn copy(&mut self, from: &Access<i64>, shape: &[i64], dtype: DType) -> Result<Access<i64>> {
        let batch = shape.len().saturating_sub(2);
        let repeats = from.strides.iter().take(batch).all(|&stride| stride == 0);
        let mut distinct = shape.to_vec();
        if repeats {
            distinct[..batch].fill(1);
        }
        let (strides, count) = row_major(&distinct)?;
        let mut to = Access { slot: SCRATCH, dtype, offset: self.scratch(dtype, count)?, strides };
        let code = if from.dtype == dtype {
            vec![Instr::Load(0), Instr::Store(1, Reg(0))]
        } else {
            vec![Instr::Load(0), Instr::Cast(Reg(0), dtype), Instr::Store(1, Reg(1))]
        };
        self.loop_(&Loop { shape: distinct, reduce: None, accesses: vec![from.clone(), to.clone()], code })?;
        if repeats {
            to.strides[..batch].fill(0);
        }
        Ok(to)
    }

    /// Adds a matmul into scratch memory, and the epilogue as a loop.
    fn through_scratch(&mut self, k: &Matmul<i64>) -> Result<()> {
        let product = |instr: &Instr<i64>| match instr {
            Instr::Product(dtype) => Some(*dtype),
            _ => None,
        };
        let from = k.epilogue.code.iter().find_map(product).unwrap_or(k.lhs.dtype);
        // A small float has too few bits for what an epilogue may still do with it.
        let dtype = if from.is_small_float() { DType::Float32 } else { from };
        let shape = &k.epilogue.shape;
        let (strides, count) = row_major(shape)?;
        let result = Access { slot: SCRATCH, dtype, offset: self.scratch(dtype, count)?, strides };
        let code = if dtype == from {
            vec![Instr::Product(from), Instr::Store(0, Reg(0))]
        } else {
            vec![Instr::Product(from), Instr::Cast(Reg(0), dtype), Instr::Store(0, Reg(1))]
        };
        let epilogue = Loop { shape: shape.clone(), reduce: None, accesses: vec![result.clone()], code };
        self.matmul(&Matmul { epilogue, ..k.clone() })?;
        self.epilogue(&k.epilogue, result)
    }

    /// Adds a matmul by the library, or by other means if the library does not support it.
    fn by_library(&mut self, k: &Matmul<i64>, library: &LibraryGemm) -> Result<()> {
        let mut gemm = library.gemm;
        if self.options.tf32 && gemm.a.dtype == DType::Float32 {
            gemm.compute = Compute::TF32;
        }
        let Some(plan) = self.gpu.gemm(&gemm)? else {
            return match library.bias.is_none() && library.residual.is_none() {
                _ if gemm.scaling != Scaling::None => self.through_scratch(k),
                true if gemm.a.dtype.is_small_float() => self.with_copies(k, WIDENED),
                true if gemm.activation == Activation::None => self.own_matmul(k, &library.store),
                _ => self.through_scratch(k),
            };
        };
        let workspace = self.workspace(plan.workspace_bytes())?;
        self.launches.push(PlannedLaunch::Gemm(GemmCall {
            plan,
            a: Address::of(&k.lhs),
            b: Address::of(&k.rhs),
            c: library.residual.as_ref().map(Address::of),
            d: Address::of(&library.store),
            bias: library.bias.as_ref().map(Address::of),
            scales: library.scales.each_ref().map(|scale| scale.as_ref().map(Address::of)),
            workspace,
            alpha: 1.0,
            beta: if library.residual.is_some() { 1.0 } else { 0.0 },
        }));
        Ok(())
    }

    /// The workspace of a matmul, which it needs only while it runs: consecutive matmuls share it.
    fn workspace(&mut self, bytes: usize) -> Result<Option<Address>> {
        if bytes == 0 {
            return Ok(None);
        }
        let place = match self.workspace {
            Some((place, size)) if size >= bytes => place,
            _ => Address { slot: SCRATCH, bytes: self.scratch(DType::UInt8, bytes as i64)? },
        };
        let size = self.workspace.map_or(bytes, |(_, size)| size.max(bytes));
        self.workspace = Some((place, size));
        Ok(Some(place))
    }
}

/// The access that an epilogue stores to, maybe as float32, if storing the result is all it does.
pub(super) fn stored(epilogue: &Loop<i64>) -> Option<Access<i64>> {
    fused::read(epilogue).filter(fused::FusedEpilogue::is_store).map(|fused| fused.store)
}
