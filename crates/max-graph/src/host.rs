//! Tensors in host memory, which hold constants and which the reference interpreter computes with.

use std::borrow::Cow;

use max_core::scalar::Lane;
use max_core::{Bool, DType, Element, Error, HostBytes, Number, Result, Strided, bail, dispatch};

/// A contiguous, row-major, immutable tensor in host memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostTensor {
    dtype: DType,
    shape: Vec<usize>,
    bytes: HostBytes,
}

impl HostTensor {
    /// A tensor over bytes that hold exactly its elements.
    pub fn new(dtype: DType, shape: impl Into<Vec<usize>>, bytes: HostBytes) -> Result<HostTensor> {
        let shape = shape.into();
        let expected = byte_count(dtype, &shape)?;
        if bytes.len() != expected {
            bail!(value, "a {dtype} tensor of shape {shape:?} takes {expected} bytes; got {}", bytes.len());
        }
        Ok(HostTensor { dtype, shape, bytes })
    }

    /// A tensor over the elements of a vector, without a copy.
    pub fn from_vec<T: Element>(shape: impl Into<Vec<usize>>, elements: Vec<T>) -> Result<HostTensor> {
        HostTensor::new(T::DTYPE, shape, HostBytes::from_vec(elements))
    }

    /// A rank-0 tensor with the value of a number, if the dtype holds it.
    pub fn scalar(value: Number, dtype: DType) -> Result<HostTensor> {
        dispatch!(dtype, T => HostTensor::from_vec([], vec![value.to_element::<T>()?]))
    }

    /// The type of its elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The size of each axis.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The bytes of its elements.
    pub fn bytes(&self) -> &HostBytes {
        &self.bytes
    }

    /// The number of elements.
    pub fn num_elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Its elements; copied only if the bytes are not aligned for them.
    pub fn elements<T: Element>(&self) -> Result<Cow<'_, [T]>> {
        if T::DTYPE != self.dtype {
            bail!(type_, "expected a {} tensor, got {}", T::DTYPE, self.dtype);
        }
        Ok(match bytemuck::try_cast_slice(&self.bytes) {
            Ok(elements) => Cow::Borrowed(elements),
            Err(_) => {
                let size = self.dtype.size_in_bytes();
                Cow::Owned(self.bytes.chunks_exact(size).map(bytemuck::pod_read_unaligned).collect())
            }
        })
    }

    /// Its elements as integers: floats are truncated, and values beyond 64 bits saturate.
    pub fn to_integers(&self) -> Result<Vec<i64>> {
        let clamp = |i: i128| i.clamp(i64::MIN.into(), i64::MAX.into()) as i64;
        dispatch!(self.dtype, T => Ok(self.elements::<T>()?.iter().map(|e| clamp(e.to_i128())).collect()))
    }

    /// The same elements with another shape.
    pub fn reshaped(&self, shape: impl Into<Vec<usize>>) -> Result<HostTensor> {
        HostTensor::new(self.dtype, shape, self.bytes.clone())
    }

    /// A new tensor with the elements that a layout over this one selects.
    pub fn gathered(&self, layout: &Strided) -> Result<HostTensor> {
        if *layout == Strided::contiguous(&self.shape) {
            return Ok(self.clone());
        }
        dispatch!(self.dtype, T => {
            let from = self.elements::<T>()?;
            let mut to = allocate(layout.num_elements())?;
            to.extend(layout.positions().map(|at| from[at]));
            HostTensor::from_vec(layout.shape.clone(), to)
        })
    }

    /// The layout that repeats this tensor to a shape it broadcasts to.
    pub fn broadcast_layout(&self, shape: &[usize]) -> Strided {
        broadcast_layout(&self.shape, shape)
    }

    /// Converted to another dtype as a cast op does: floats round, integers truncate or wrap.
    pub fn cast(&self, dtype: DType) -> Result<HostTensor> {
        self.convert(dtype, |dtype, shape, numbers| {
            dispatch!(dtype, T => {
                let convert = |number| match number {
                    Number::Float(f) => T::from_double(f),
                    Number::Int(i) => T::from_i128(i),
                    Number::Bool(b) => T::from_i128(b.into()),
                };
                let mut elements = allocate(numbers.len())?;
                elements.extend(numbers.map(convert));
                HostTensor::from_vec(shape, elements)
            })
        })
    }

    /// Converted to another dtype, which must be able to hold every element; else "Unsafe cast".
    pub fn cast_checked(&self, dtype: DType) -> Result<HostTensor> {
        self.convert(dtype, |dtype, shape, numbers| {
            dispatch!(dtype, T => {
                let mut elements = allocate::<T>(numbers.len())?;
                for number in numbers {
                    elements.push(number.to_element()?);
                }
                HostTensor::from_vec(shape, elements)
            })
        })
    }

    /// The elements as numbers, so that no code per pair of dtypes is needed.
    fn convert(
        &self,
        dtype: DType,
        to: impl Fn(DType, Vec<usize>, &mut dyn ExactSizeIterator<Item = Number>) -> Result<HostTensor>,
    ) -> Result<HostTensor> {
        if dtype == self.dtype {
            return Ok(self.clone());
        }
        dispatch!(self.dtype, T => to(dtype, self.shape.clone(), &mut self.elements::<T>()?.iter().map(|e| number(*e))))
    }
}

/// The layout that repeats a contiguous array of a shape to one it broadcasts to.
pub fn broadcast_layout(from: &[usize], to: &[usize]) -> Strided {
    let own = Strided::contiguous(from);
    let missing = to.len() - from.len();
    let strides = (0..to.len()).map(|axis| match axis.checked_sub(missing) {
        Some(at) if from[at] != 1 => own.strides[at],
        _ => 0,
    });
    Strided { shape: to.to_vec(), strides: strides.collect(), offset: 0 }
}

/// The dot product: floats are summed in f64 and rounded once, others use their own arithmetic.
pub fn dot<T: Element>(terms: impl Iterator<Item = (T, T)>) -> T {
    if T::DTYPE.is_float() {
        return T::from_double(terms.map(|(a, b)| a.to_f64() * b.to_f64()).sum());
    }
    let products = terms.map(|(a, b)| a.to_lane().mul(b.to_lane()));
    T::from_lane(products.fold(T::from_i128(0).to_lane(), Lane::add))
}

/// An element as a bool, an int or a float, depending on its dtype.
pub fn number<T: Element>(element: T) -> Number {
    match T::DTYPE {
        DType::Bool => Number::Bool(element.to_i128() != 0),
        dtype if dtype.is_float() => Number::Float(element.to_f64()),
        _ => Number::Int(element.to_i128()),
    }
}

/// The number of bytes of a tensor, or an error if it overflows. Sizes of zero count as one in that check, so
/// that the product of any part of the shape does not overflow either.
pub fn byte_count(dtype: DType, shape: &[usize]) -> Result<usize> {
    let bytes = shape.iter().try_fold(dtype.size_in_bytes(), |n, &s| n.checked_mul(s.max(1)));
    let empty = shape.contains(&0);
    bytes.filter(|&n| isize::try_from(n).is_ok()).map(|n| if empty { 0 } else { n }).ok_or_else(|| {
        Error::value(format!("a {dtype} tensor of shape {shape:?} overflows: its size exceeds 64 bits"))
    })
}

/// An empty vector with capacity for `len` elements; a failed allocation is an error.
pub fn allocate<T: Element>(len: usize) -> Result<Vec<T>> {
    let mut elements = Vec::new();
    match elements.try_reserve_exact(len) {
        Ok(()) => Ok(elements),
        Err(_) => bail!(memory, "cannot allocate {len} elements of {}", T::DTYPE),
    }
}

impl From<bool> for HostTensor {
    fn from(value: bool) -> HostTensor {
        HostTensor { dtype: DType::Bool, shape: vec![], bytes: HostBytes::from_vec(vec![Bool::from(value)]) }
    }
}

macro_rules! from_vectors {
    ($($t:ty)*) => {$(
        impl From<Vec<$t>> for HostTensor {
            fn from(elements: Vec<$t>) -> HostTensor {
                HostTensor { dtype: <$t>::DTYPE, shape: vec![elements.len()], bytes: HostBytes::from_vec(elements) }
            }
        }

        impl<const N: usize> From<[$t; N]> for HostTensor {
            fn from(elements: [$t; N]) -> HostTensor {
                elements.to_vec().into()
            }
        }

        impl<const N: usize, const M: usize> From<[[$t; M]; N]> for HostTensor {
            fn from(rows: [[$t; M]; N]) -> HostTensor {
                HostTensor { shape: vec![N, M], ..rows.concat().into() }
            }
        }
    )*};
}
from_vectors!(i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 max_core::f16 max_core::bf16);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unaligned_bytes_are_read_through_a_copy() {
        let bytes = HostBytes::new(vec![0u8, 1, 0, 0, 0, 2, 0, 0, 0]).slice(1, 8).unwrap();
        let tensor = HostTensor::new(DType::Int32, [2], bytes).unwrap();
        assert_eq!(*tensor.elements::<i32>().unwrap(), [1, 2]);
        assert!(tensor.elements::<f32>().is_err());
    }

    #[test]
    fn sizes_are_checked() {
        assert!(HostTensor::new(DType::Int32, [2], HostBytes::new(vec![0u8; 7])).is_err());
        assert!(byte_count(DType::Float64, &[1 << 62, 2]).is_err());
        assert!(allocate::<f64>(1 << 59).is_err());
    }

    #[test]
    fn doubles_become_narrow_floats_without_a_step_between() {
        // A little more than halfway between two neighbours, less than a single-precision float can tell.
        let cases = [(DType::BFloat16, 8), (DType::Float16, 11)];
        for (dtype, digits) in cases {
            let above = 1.0 + 2f64.powi(-digits) + 2f64.powi(-50);
            let cast = HostTensor::from([above, -above]).cast(dtype).unwrap().cast(DType::Float64).unwrap();
            let neighbour = 1.0 + 2f64.powi(1 - digits);
            assert_eq!(*cast.elements::<f64>().unwrap(), [neighbour, -neighbour], "{dtype}");
        }
    }

    #[test]
    fn casts() {
        let floats = HostTensor::from([1.9f32, -1.9, 300.0, f32::NAN]);
        assert_eq!(*floats.cast(DType::UInt8).unwrap().elements::<u8>().unwrap(), [1, 0, 255, 0]);
        assert_eq!(
            *HostTensor::from([300i32, -1]).cast(DType::UInt8).unwrap().elements::<u8>().unwrap(),
            [44, 255]
        );
        assert!(HostTensor::from([300i32]).cast_checked(DType::UInt8).is_err());
        assert!(floats.cast_checked(DType::Int32).is_err());
    }
}
