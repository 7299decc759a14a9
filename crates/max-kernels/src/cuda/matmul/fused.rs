//! Matches the epilogues that a matmul function can apply itself.

use max_core::DType;
use max_core::kernel::{Access, Instr, Loop, Reg};
use max_core::scalar::{NumericOp, RealOp};
use max_driver::cuda;

/// An epilogue of the form `store(activation(matmul + bias + residual))`, where all but the store are optional.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct FusedEpilogue {
    /// A vector to add to every row.
    pub(super) bias: Option<Access<i64>>,
    /// Matrices to add to the result.
    pub(super) residual: Option<Access<i64>>,
    /// The function applied to the sum.
    pub(super) activation: cuda::Activation,
    /// Where the result goes.
    pub(super) store: Access<i64>,
}

/// Matches an epilogue; `None` if it does more than a [`FusedEpilogue`].
pub(super) fn read(epilogue: &Loop<i64>) -> Option<FusedEpilogue> {
    let mut current: Option<(Reg, DType)> = None;
    let (mut bias, mut residual, mut stored) = (None, None, None);
    let mut activation = cuda::Activation::None;
    let access = |number: u32| epilogue.accesses.get(number as usize);
    for (at, instr) in epilogue.code.iter().enumerate() {
        let here = Reg(at as u32);
        match (instr, current) {
            (Instr::Load(_), _) => {}
            (Instr::Product(dtype), None) => current = Some((here, *dtype)),
            _ if stored.is_some() => return None,
            (Instr::Cast(from, DType::Float32), Some((value, dtype))) => {
                let widens = dtype.is_float() && dtype.size_in_bytes() <= 4;
                if *from != value || !widens || bias.is_some() || residual.is_some() {
                    return None;
                }
                current = Some((here, DType::Float32));
            }
            (Instr::Apply(op, [a, b]), Some((value, dtype))) if activation == cuda::Activation::None => {
                if *op == NumericOp::Add.into() && (*a == value) != (*b == value) {
                    let other = if *a == value { b } else { a };
                    let Some(Instr::Load(number)) = epilogue.code.get(other.0 as usize) else { return None };
                    let addend = access(*number).filter(|addend| addend.dtype == dtype)?;
                    if bias.is_none() && is_vector(addend, &epilogue.shape) {
                        bias = Some(addend.clone());
                    } else if residual.is_none() {
                        residual = Some(addend.clone());
                    } else {
                        return None;
                    }
                } else if *op == NumericOp::Relu.into() && *a == value {
                    activation = cuda::Activation::Relu;
                } else if *op == RealOp::GeluTanh.into() && *a == value {
                    activation = cuda::Activation::GeluTanh;
                } else {
                    return None;
                }
                current = Some((here, dtype));
            }
            (Instr::Store(number, from), Some((value, _))) if *from == value => {
                stored = access(*number).cloned()
            }
            _ => return None,
        }
    }
    Some(FusedEpilogue { bias, residual, activation, store: stored? })
}

impl FusedEpilogue {
    /// Whether it only stores.
    pub(super) fn is_store(&self) -> bool {
        self.bias.is_none() && self.residual.is_none() && self.activation == cuda::Activation::None
    }
}

/// Whether an access over `[.., columns]` is broadcast along all but the last axis, along which it is contiguous.
fn is_vector(access: &Access<i64>, shape: &[i64]) -> bool {
    let last = shape.len().saturating_sub(1);
    access
        .strides
        .iter()
        .zip(shape)
        .enumerate()
        .all(|(axis, (&stride, &size))| size == 1 || stride == i64::from(axis == last))
}
