//! Matches the epilogues that a matmul function can apply itself.

use max_core::DType;
use max_core::kernel::{Access, Instr, Loop, Reg};
use max_core::scalar::{NumericOp, RealOp};
use max_driver::cuda;

/// An epilogue of the form `store(activation(matmul * scales + bias + residual))`, where all but the store are optional.
#[derive(Clone, Debug, PartialEq)]
pub(in super::super) struct FusedEpilogue {
    /// Float32 factors of the rows and of the columns: one for all of them, or one for each.
    pub(in super::super) scales: [Option<Access<i64>>; 2],
    /// Whether float32 is rounded to 16 bits.
    pub(in super::super) is_rounded: bool,
    /// A vector to add to every row.
    pub(in super::super) bias: Option<Access<i64>>,
    /// Matrices to add to the result.
    pub(in super::super) residual: Option<Access<i64>>,
    /// The function applied to the sum.
    pub(in super::super) activation: cuda::Activation,
    /// Where the result goes.
    pub(in super::super) store: Access<i64>,
}

/// Matches an epilogue; `None` if it does more than a [`FusedEpilogue`].
pub(in super::super) fn read(epilogue: &Loop<i64>) -> Option<FusedEpilogue> {
    let mut current: Option<(Reg, DType)> = None;
    let (mut bias, mut residual, mut stored) = (None, None, None);
    let (mut scales, mut is_rounded) = ([None, None], false);
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
            (Instr::Cast(from, half), Some((value, DType::Float32))) if half.is_half() && *from == value => {
                if is_rounded || bias.is_some() || residual.is_some() || activation != cuda::Activation::None
                {
                    return None;
                }
                is_rounded = true;
                current = Some((here, *half));
            }
            (Instr::Apply(op, [a, b]), Some((value, DType::Float32)))
                if *op == NumericOp::Mul.into() && (*a == value) != (*b == value) =>
            {
                if bias.is_some() || residual.is_some() || activation != cuda::Activation::None {
                    return None;
                }
                let other = if *a == value { b } else { a };
                let Some(Instr::Load(number)) = epilogue.code.get(other.0 as usize) else { return None };
                let factor = access(*number).filter(|factor| factor.dtype == DType::Float32)?;
                let [rows, columns] = repeats(factor, &epilogue.shape)?;
                // Factors are the same along columns or along rows; one for all is either.
                let at = match (columns, rows) {
                    (true, _) if scales[0].is_none() => 0,
                    (_, true) if scales[1].is_none() => 1,
                    _ => return None,
                };
                scales[at] = Some(factor.clone());
                current = Some((here, DType::Float32));
            }
            (Instr::Apply(op, [a, b]), Some((value, dtype)))
                if activation == cuda::Activation::None && !is_rounded =>
            {
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
    Some(FusedEpilogue { scales, is_rounded, bias, residual, activation, store: stored? })
}

impl FusedEpilogue {
    /// One that only stores.
    pub(in super::super) fn store(store: Access<i64>) -> FusedEpilogue {
        let activation = cuda::Activation::None;
        FusedEpilogue {
            scales: [None, None],
            is_rounded: false,
            bias: None,
            residual: None,
            activation,
            store,
        }
    }

    /// Whether it only stores.
    pub(in super::super) fn is_store(&self) -> bool {
        self.is_scaled_store() && !self.is_scaled() && !self.is_rounded
    }

    /// Whether it only scales, rounds and stores.
    pub(in super::super) fn is_scaled_store(&self) -> bool {
        self.bias.is_none() && self.residual.is_none() && self.activation == cuda::Activation::None
    }

    /// Whether it scales.
    pub(in super::super) fn is_scaled(&self) -> bool {
        self.scales.iter().any(Option::is_some)
    }

    /// The text of `FINISH(sum, number, row, column)`, which applies it, for a function with the words below.
    pub(in super::super) const TEXT: &'static str = include_str!("finish.cuh");

    /// The words of that text.
    pub(in super::super) fn words(&self) -> [(&'static str, &'static str); 4] {
        let flag = |on: bool| if on { "true" } else { "false" };
        [
            ("HAS_BIAS", flag(self.bias.is_some())),
            ("HAS_RESIDUAL", flag(self.residual.is_some())),
            ("IS_RELU", flag(self.activation == cuda::Activation::Relu)),
            ("IS_GELU", flag(self.activation == cuda::Activation::GeluTanh)),
        ]
    }

    /// A digit for each of these words.
    pub(in super::super) fn flags(&self) -> String {
        self.words().map(|(_, on)| if on == "true" { '1' } else { '0' }).iter().collect()
    }
}

/// Whether an access over `[.., rows, columns]` is the same for all rows, and for all columns; `None` if it differs along
/// other axes.
pub(super) fn repeats(access: &Access<i64>, shape: &[i64]) -> Option<[bool; 2]> {
    let same = |axis: usize| shape[axis] == 1 || access.strides[axis] == 0;
    let outer = shape.len().checked_sub(2).filter(|_| access.strides.len() == shape.len())?;
    (0..outer).all(same).then(|| [same(outer), same(outer + 1)])
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
