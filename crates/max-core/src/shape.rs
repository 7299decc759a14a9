//! Shapes: lists of dims with the arithmetic that type rules need.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use crate::{Bindings, Dim, Error, Result, bail};

/// The dims of a tensor, outermost first. Cloning shares them.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Shape(Arc<[Dim]>);

impl Shape {
    /// The number of dims.
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// The sizes, if all are static.
    pub fn as_static(&self) -> Option<Vec<i64>> {
        self.0.iter().map(Dim::as_static).collect()
    }

    /// The static sizes among the dims.
    pub fn static_dims(&self) -> Vec<i64> {
        self.0.iter().filter_map(Dim::as_static).collect()
    }

    /// The symbols it depends on, sorted.
    pub fn parameters(&self) -> Vec<Arc<str>> {
        self.0.iter().flat_map(Dim::parameters).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// The product of all dims.
    pub fn num_elements(&self) -> Result<Dim> {
        let zero = Dim::Static(0);
        if self.0.contains(&zero) {
            return Ok(zero);
        }
        let product = self.0.iter().try_fold(Dim::Static(1), |product, dim| product.mul(dim));
        product.map_err(|e| e.context(format!("for the number of elements of the shape {self}")))
    }

    /// Two shapes without the dims they have in common: their products compare as before, but overflow less easily.
    /// Zeros are kept, as they decide a product.
    pub fn without_common(&self, other: &Shape) -> (Shape, Shape) {
        let mut rest = other.to_vec();
        let own = self.0.iter().filter(|&dim| match rest.iter().position(|other| other == dim) {
            Some(at) if *dim != Dim::Static(0) => {
                rest.remove(at);
                false
            }
            _ => true,
        });
        let own = own.collect();
        (own, rest.into())
    }

    /// The sizes under bindings; a negative size, or an element count beyond 64 bits, is an error.
    pub fn evaluate(&self, bindings: &Bindings) -> Result<Vec<usize>> {
        let mut sizes = Vec::with_capacity(self.rank());
        self.evaluate_into(bindings, &mut sizes)?;
        Ok(sizes)
    }

    /// As [`Shape::evaluate`], appending the sizes to others.
    pub fn evaluate_into(&self, bindings: &Bindings, sizes: &mut Vec<usize>) -> Result<()> {
        let start = sizes.len();
        for dim in self.iter() {
            let size = dim.evaluate(bindings)?;
            sizes.push(usize::try_from(size).map_err(|_| {
                Error::value(format!("dimension {dim} has the negative size {size} in this execution"))
            })?);
        }
        let sizes = &sizes[start..];
        let count = sizes.iter().try_fold(1usize, |n, &s| n.checked_mul(s.max(1)));
        if count.is_none_or(|n| n > isize::MAX as usize) {
            bail!(value, "shape {sizes:?} has more elements than 64 bits can count");
        }
        Ok(())
    }

    /// The index of an axis, which may be counted from the end.
    pub fn axis(&self, axis: i64) -> Result<usize> {
        resolve_axis(axis, self.rank())
            .ok_or_else(|| Error::value(format!("Invalid axis {axis} for a tensor of rank {}", self.rank())))
    }

    /// The shape that two shapes broadcast to, or `None`.
    pub fn broadcast(&self, other: &Shape) -> Option<Shape> {
        if self == other || other.0.is_empty() {
            return Some(self.clone());
        }
        if self.0.is_empty() {
            return Some(other.clone());
        }
        let rank = self.rank().max(other.rank());
        let dim = |shape: &Shape, axis: usize| match (axis + shape.rank()).checked_sub(rank) {
            Some(at) => shape.0[at].clone(),
            None => Dim::Static(1),
        };
        let one = Dim::Static(1);
        let dims = (0..rank).map(|axis| match (dim(self, axis), dim(other, axis)) {
            (a, b) if a == b => Some(a),
            (a, b) if a == one => Some(b),
            (a, b) if b == one => Some(a),
            _ => None,
        });
        dims.collect::<Option<Arc<[_]>>>().map(Shape)
    }
}

/// The index below `rank` of an axis, which may be counted from the end.
pub fn resolve_axis(axis: i64, rank: usize) -> Option<usize> {
    let rank = rank as i64;
    let at = if axis < 0 { axis.checked_add(rank)? } else { axis };
    (0..rank).contains(&at).then_some(at as usize)
}

impl Deref for Shape {
    type Target = [Dim];

    fn deref(&self) -> &[Dim] {
        &self.0
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dims: Vec<_> =
            self.0.iter().map(|d| if f.alternate() { format!("{d:#}") } else { d.to_string() }).collect();
        write!(f, "[{}]", dims.join(", "))
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:#}")
    }
}

impl<D: Into<Dim>> FromIterator<D> for Shape {
    fn from_iter<I: IntoIterator<Item = D>>(dims: I) -> Shape {
        Shape(dims.into_iter().map(Into::into).collect())
    }
}

impl<D: Into<Dim>, const N: usize> From<[D; N]> for Shape {
    fn from(dims: [D; N]) -> Shape {
        dims.into_iter().collect()
    }
}

impl<D: Into<Dim>> From<Vec<D>> for Shape {
    fn from(dims: Vec<D>) -> Shape {
        dims.into_iter().collect()
    }
}

impl From<&[Dim]> for Shape {
    fn from(dims: &[Dim]) -> Shape {
        Shape(dims.into())
    }
}

impl From<()> for Shape {
    fn from((): ()) -> Shape {
        Shape::default()
    }
}

impl From<&Shape> for Shape {
    fn from(shape: &Shape) -> Shape {
        shape.clone()
    }
}

macro_rules! from_tuples {
    ($(($($D:ident $d:ident),+))*) => {$(
        impl<$($D: Into<Dim>),+> From<($($D,)+)> for Shape {
            fn from(($($d,)+): ($($D,)+)) -> Shape {
                Shape([$($d.into()),+].into())
            }
        }
    )*};
}
from_tuples!((A a) (A a, B b) (A a, B b, C c) (A a, B b, C c, D d) (A a, B b, C c, D d, E e));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broadcasting() {
        let s = |dims: (&str, i32)| Shape::from(dims);
        assert_eq!(s(("a", 3)).broadcast(&Shape::from([1])), Some(s(("a", 3))));
        assert_eq!(s(("a", 1)).broadcast(&Shape::from([1, 4])), Some(s(("a", 4))));
        assert_eq!(s(("a", 3)).broadcast(&s(("b", 3))), None);
        assert_eq!(Shape::from(()).broadcast(&s(("a", 3))), Some(s(("a", 3))));
        assert_eq!(Shape::from([0]).broadcast(&Shape::from([1])), Some(Shape::from([0])));
    }

    #[test]
    fn common_dims_cancel() {
        let (huge, shape) = (1i64 << 62, |dims: Vec<Dim>| Shape::from(dims));
        let (a, b) =
            (shape(vec![huge.into(), "a".into(), 8.into(), 8.into()]), shape(vec![8.into(), huge.into()]));
        assert_eq!(a.without_common(&b), (shape(vec!["a".into(), 8.into()]), Shape::default()));
        assert_eq!(
            Shape::from([0, 2]).without_common(&Shape::from([2, 0])),
            (Shape::from([0]), Shape::from([0]))
        );
        assert!(b.num_elements().unwrap_err().to_string().contains("[8, 4611686018427387904]"));
        assert_eq!(Shape::from([huge, huge, 0]).num_elements(), Ok(Dim::Static(0)));
    }

    #[test]
    fn sizes_are_checked() {
        let shape = Shape::from(vec![Dim::from("a"), "a - 2".parse().unwrap()]);
        let bound = |a| Bindings::from([("a".into(), a)]);
        assert_eq!(shape.evaluate(&bound(5)), Ok(vec![5, 3]));
        assert!(shape.evaluate(&bound(1)).unwrap_err().message().contains("negative"));
        assert!(shape.evaluate(&bound(1 << 40)).is_err());
        assert_eq!(format!("{shape:?}"), "[Dim('a'), Dim('a') + Dim(-2)]");
    }
}
