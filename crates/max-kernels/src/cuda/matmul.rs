//! Products on a GPU: by cuBLASLt with as much of the epilogue as it knows, or by functions of our own.
//!
//! `shape` rewrites a product into fewer axes, `fused` reads an epilogue, `method` decides what to do from both: all of that
//! is data. Here it is done: a product that cannot run as it is becomes one that can, by copies of its operands, by
//! several products, or by a product into scratch memory and a loop, and is planned again.

mod fused;
mod method;
mod own;
mod shape;
#[cfg(test)]
mod tests;
mod thin;

use max_core::kernel::{Access, Instr, Loop, Matmul, Reg};
use max_core::{DType, Result};
use max_driver::cuda::{Activation, Compute};

use super::epilogue::of_zeros;
use super::{Address, GemmCall, Plan, PlannedLaunch, SCRATCH};
use method::{LibraryGemm, MatmulMethod, decide};
pub(super) use shape::row_major;
use shape::simplify;

/// Copies of operands that hold every float8.
const WIDENED: [Option<DType>; 2] = [Some(DType::BFloat16); 2];

impl Plan {
    /// Adds a product.
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
            MatmulMethod::Thin(layout, fused) => self.thin_matmul(k, layout, &fused),
            MatmulMethod::Library(product) => self.by_library(k, &product),
        }
    }

    /// Adds a product of operands that are copied first where a dtype says so.
    fn with_copies(&mut self, k: &Matmul<i64>, [lhs, rhs]: [Option<DType>; 2]) -> Result<()> {
        let mut copied = k.clone();
        let shape = |last: [i64; 2]| [k.batch.as_slice(), last.as_slice()].concat();
        if let Some(dtype) = lhs {
            copied.lhs = self.copy(&k.lhs, &shape([k.m, k.k]), dtype)?;
        }
        if let Some(dtype) = rhs {
            copied.rhs = self.copy(&k.rhs, &shape([k.k, k.n]), dtype)?;
        }
        for instr in &mut copied.epilogue.code {
            if let Instr::Product(dtype) = instr {
                *dtype = copied.lhs.dtype;
            }
        }
        self.matmul(&copied)
    }

    /// Matrices over `[batch.., rows, columns]` in scratch memory, row by row and without gaps, in a dtype; a batch that
    /// is one matrix is one matrix there.
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

    /// Adds a product that is written to scratch memory, and the loop that ends it.
    fn through_scratch(&mut self, k: &Matmul<i64>) -> Result<()> {
        let from = k.lhs.dtype;
        // Float8 has too few bits for what an epilogue may still do with it.
        let dtype = if from.is_float8() { DType::Float32 } else { from };
        let shape = &k.epilogue.shape;
        let (strides, count) = row_major(shape)?;
        let product = Access { slot: SCRATCH, dtype, offset: self.scratch(dtype, count)?, strides };
        let code = if dtype == from {
            vec![Instr::Product(from), Instr::Store(0, Reg(0))]
        } else {
            vec![Instr::Product(from), Instr::Cast(Reg(0), dtype), Instr::Store(0, Reg(1))]
        };
        let epilogue = Loop { shape: shape.clone(), reduce: None, accesses: vec![product.clone()], code };
        self.matmul(&Matmul { epilogue, ..k.clone() })?;
        self.epilogue(&k.epilogue, product)
    }

    /// Adds a product by the library, or by other means where the library has none.
    fn by_library(&mut self, k: &Matmul<i64>, product: &LibraryGemm) -> Result<()> {
        let mut gemm = product.gemm;
        if self.options.tf32 && gemm.a.dtype == DType::Float32 {
            gemm.compute = Compute::TF32;
        }
        let Some(plan) = self.gpu.gemm(&gemm)? else {
            return match product.bias.is_none() && product.residual.is_none() {
                true if gemm.a.dtype.is_float8() => self.with_copies(k, WIDENED),
                true if gemm.activation == Activation::None => self.own_matmul(k, &product.store),
                _ => self.through_scratch(k),
            };
        };
        let workspace = self.workspace(plan.workspace_bytes())?;
        self.launches.push(PlannedLaunch::Gemm(GemmCall {
            plan,
            a: Address::of(&k.lhs),
            b: Address::of(&k.rhs),
            c: product.residual.as_ref().map(Address::of),
            d: Address::of(&product.store),
            bias: product.bias.as_ref().map(Address::of),
            workspace,
            alpha: 1.0,
            beta: if product.residual.is_some() { 1.0 } else { 0.0 },
        }));
        Ok(())
    }

    /// Memory that a product needs only while it runs: products one after the other share it.
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

/// Where an epilogue stores the product, if that is all it does; maybe as float32.
pub(super) fn stored(epilogue: &Loop<i64>) -> Option<Access<i64>> {
    fused::read(epilogue).filter(fused::FusedEpilogue::is_store).map(|fused| fused.store)
}
