//! Reads epilogues: which of them a product can end in by itself.

use max_core::DType;
use max_core::kernel::{Access, Instr, Loop, Reg};
use max_core::scalar::{NumericOp, RealOp};
use max_driver::cuda;

/// An epilogue that is `store(activation(product + bias + residual))`, or a part of that.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct FusedEpilogue {
    /// A vector that is added to every row.
    pub(super) bias: Option<Access<i64>>,
    /// Matrices that are added to the product.
    pub(super) residual: Option<Access<i64>>,
    /// What happens then.
    pub(super) activation: cuda::Activation,
    /// Where it goes.
    pub(super) store: Access<i64>,
}

/// Reads an epilogue; nothing if it is more than an [`FusedEpilogue`].
pub(super) fn read(epilogue: &Loop<i64>) -> Option<FusedEpilogue> {
    let mut product: Option<(Reg, DType)> = None;
    let (mut bias, mut residual, mut stored) = (None, None, None);
    let mut activation = cuda::Activation::None;
    let access = |number: u32| epilogue.accesses.get(number as usize);
    for (at, instr) in epilogue.code.iter().enumerate() {
        let here = Reg(at as u32);
        match (instr, product) {
            (Instr::Load(_), _) => {}
            (Instr::Product(dtype), None) => product = Some((here, *dtype)),
            _ if stored.is_some() => return None,
            (Instr::Cast(from, DType::Float32), Some((value, dtype))) => {
                let widens = dtype.is_float() && dtype.size_in_bytes() <= 4;
                if *from != value || !widens || bias.is_some() || residual.is_some() {
                    return None;
                }
                product = Some((here, DType::Float32));
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
                product = Some((here, dtype));
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
    /// Whether all it does is to store.
    pub(super) fn is_store(&self) -> bool {
        self.bias.is_none() && self.residual.is_none() && self.activation == cuda::Activation::None
    }
}

/// Whether an access over `[.., columns]` is the same for all but the last axis, along which it has no gaps.
fn is_vector(access: &Access<i64>, shape: &[i64]) -> bool {
    let last = shape.len().saturating_sub(1);
    access
        .strides
        .iter()
        .zip(shape)
        .enumerate()
        .all(|(axis, (&stride, &size))| size == 1 || stride == i64::from(axis == last))
}
