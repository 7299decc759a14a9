//! Where the elements of a value are in the memory of another, with symbolic sizes: why view ops cost nothing.

use max_core::{Dim, Result, Shape};

/// Element `(i, j, ..)` is `offset + i * strides[0] + j * strides[1] + ..` elements into the memory.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Layout {
    pub(crate) shape: Vec<Dim>,
    pub(crate) strides: Vec<Dim>,
    pub(crate) offset: Dim,
}

const ZERO: Dim = Dim::Static(0);
const ONE: Dim = Dim::Static(1);

/// Contiguous row-major strides.
pub(crate) fn contiguous_strides(shape: &[Dim]) -> Result<Vec<Dim>> {
    let mut strides = vec![ONE; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis].mul(&shape[axis]).map_err(|e| {
            e.context(format!("a tensor of the shape {} is too large to be laid out", Shape::from(shape)))
        })?;
    }
    Ok(strides)
}

impl Layout {
    /// Contiguous, row-major.
    pub(crate) fn contiguous(shape: &[Dim]) -> Result<Layout> {
        Ok(Layout { shape: shape.to_vec(), strides: contiguous_strides(shape)?, offset: ZERO })
    }

    /// Whether it is known to be contiguous and row-major from the start of the memory.
    pub(crate) fn is_contiguous(&self) -> Result<bool> {
        let natural = contiguous_strides(&self.shape)?;
        let same = |axis: usize| self.shape[axis] == ONE || self.strides[axis] == natural[axis];
        Ok(self.offset == ZERO && (0..self.shape.len()).all(same))
    }

    /// The axes in another order.
    pub(crate) fn permute(&self, axes: &[usize]) -> Layout {
        let pick = |from: &[Dim]| axes.iter().map(|&axis| from[axis].clone()).collect();
        Layout { shape: pick(&self.shape), strides: pick(&self.strides), offset: self.offset.clone() }
    }

    /// Broadcast to a shape.
    pub(crate) fn broadcast(&self, shape: &[Dim]) -> Layout {
        Layout { shape: shape.to_vec(), strides: self.strides_in(shape), offset: self.offset.clone() }
    }

    /// Its strides in a space it broadcasts to.
    pub(crate) fn strides_in(&self, space: &[Dim]) -> Vec<Dim> {
        let missing = space.len() - self.shape.len();
        let stride = |axis: usize| match axis.checked_sub(missing) {
            Some(own) if self.shape[own] != ONE || space[axis] == ONE => self.strides[own].clone(),
            _ => ZERO,
        };
        (0..space.len()).map(stride).collect()
    }

    /// Part of an axis.
    pub(crate) fn slice(&mut self, axis: usize, start: &Dim, count: &Dim, step: i64) -> Result<()> {
        self.offset = self.offset.add(&start.mul(&self.strides[axis])?)?;
        // A single element takes no step, however long.
        if *count != ONE {
            self.strides[axis] = self.strides[axis].mul(&Dim::Static(step))?;
        }
        self.shape[axis] = count.clone();
        Ok(())
    }

    /// The same elements in the same order with another shape, if strides can express it.
    pub(crate) fn reshape(&self, shape: &[Dim]) -> Result<Option<Layout>> {
        let with = |strides| Ok(Some(Layout { shape: shape.to_vec(), strides, offset: self.offset.clone() }));
        if self.shape.contains(&ZERO) || self.is_dense()? {
            return with(contiguous_strides(shape)?);
        }
        let own: Vec<usize> = (0..self.shape.len()).filter(|&axis| self.shape[axis] != ONE).collect();
        let new: Vec<usize> = (0..shape.len()).filter(|&axis| shape[axis] != ONE).collect();
        let mut strides = vec![ZERO; shape.len()];
        let (mut own, mut new) = (own.into_iter().peekable(), new.into_iter().peekable());
        // Runs of axes with equal products are matched on both sides, one after the other.
        while let (Some(first), Some(target)) = (own.next(), new.next()) {
            let (mut last, mut targets) = (first, vec![target]);
            let (mut have, mut want) = (self.shape[first].clone(), shape[target].clone());
            while have != want {
                let extend_own = match (have.as_static(), want.as_static()) {
                    (Some(have), Some(want)) => have < want,
                    (have, want) => have.is_some() && want.is_none(),
                };
                if extend_own {
                    let Some(next) = own.next() else { return Ok(None) };
                    if self.strides[last] != self.strides[next].mul(&self.shape[next])? {
                        return Ok(None);
                    }
                    have = have.mul(&self.shape[next])?;
                    last = next;
                } else {
                    let Some(next) = new.next() else { return Ok(None) };
                    want = want.mul(&shape[next])?;
                    targets.push(next);
                }
            }
            let mut stride = self.strides[last].clone();
            for &axis in targets.iter().rev() {
                strides[axis] = stride.clone();
                stride = stride.mul(&shape[axis])?;
            }
        }
        if own.peek().is_some() || new.peek().is_some() { Ok(None) } else { with(strides) }
    }

    /// Whether it is contiguous and row-major, wherever it starts.
    fn is_dense(&self) -> Result<bool> {
        Layout { offset: ZERO, ..self.clone() }.is_contiguous()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dims(text: &str) -> Vec<Dim> {
        text.split_whitespace().map(|dim| dim.parse().unwrap()).collect()
    }

    fn show(layout: &Layout) -> String {
        let join = |dims: &[Dim]| dims.iter().map(Dim::to_string).collect::<Vec<_>>().join(" ");
        format!("{} / {} + {}", join(&layout.shape), join(&layout.strides), layout.offset)
    }

    #[test]
    fn views_compose() {
        let x = Layout::contiguous(&dims("b s 768")).unwrap();
        let heads = x.reshape(&dims("b s 12 64")).unwrap().unwrap();
        assert_eq!(show(&heads), "b s 12 64 / s * 768 768 64 1 + 0");
        let mut turned = heads.permute(&[0, 2, 1, 3]);
        assert!(!turned.is_contiguous().unwrap());
        assert_eq!(
            turned.reshape(&dims("b 12 1 s 8 8")).unwrap().map(|l| show(&l)).unwrap(),
            "b 12 1 s 8 8 / s * 768 64 0 768 8 1 + 0"
        );
        assert!(turned.reshape(&[Dim::from("b"), "s * 12".parse().unwrap(), 64.into()]).unwrap().is_none());
        turned.slice(1, &Dim::Static(11), &Dim::Static(6), -2).unwrap();
        assert_eq!(show(&turned), "b 6 s 64 / s * 768 -128 768 1 + 704");
        let back = turned.permute(&[0, 2, 1, 3]);
        assert_eq!(
            show(&back.reshape(&dims("b s 3 2 64")).unwrap().unwrap()),
            "b s 3 2 64 / s * 768 768 -256 -128 1 + 704"
        );
        assert!(back.reshape(&dims("b s 384")).unwrap().is_none());
    }

    #[test]
    fn one_element_takes_no_step() {
        let mut row = Layout::contiguous(&dims("2 3")).unwrap();
        row.slice(0, &ONE, &ONE, i64::MAX).unwrap();
        assert_eq!(show(&row), "1 3 / 3 1 + 3");
    }

    #[test]
    fn what_cannot_be_laid_out_says_its_shape() {
        let error = Layout::contiguous(&[Dim::from("a"), (1i64 << 62).into(), 4.into()]).unwrap_err();
        assert!(error.to_string().contains("[a, 4611686018427387904, 4] is too large"), "{error}");
    }

    #[test]
    fn repetition_has_no_stride() {
        let row = Layout::contiguous(&dims("1 n")).unwrap();
        assert_eq!(show(&row.broadcast(&dims("m 4 n"))), "m 4 n / 0 0 1 + 0");
        assert!(
            row.broadcast(&dims("4 n")).reshape(&[Dim::from("n").mul(&4.into()).unwrap()]).unwrap().is_none()
        );
        assert_eq!(show(&row.reshape(&dims("n 1")).unwrap().unwrap()), "n 1 / 1 1 + 0");
    }
}
