//! Non-maximum suppression.

use std::fmt::{self, Display, Formatter};

use super::walk::one;
use super::{Ending, no_ending};
use crate::Result;
use crate::kernel::{Access, Loop, Map, Role, Slot, Walk};

/// Selects the boxes with the best scores, without those that overlap a better one of the same class too much. The rows of
/// the result are a batch, a class and a box each; those after the first `count` are not written.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Suppress<D, M = Slot> {
    /// The number of batches, of classes, and of boxes of a batch.
    pub sizes: [D; 3],
    /// The four coordinates of a box.
    pub corners: D,
    /// The numbers of rows and columns of the result.
    pub rows: [D; 2],
    /// Over batches, boxes and corners.
    pub boxes: Access<D, M>,
    /// Over batches, classes and boxes.
    pub scores: Access<D, M>,
    /// The most boxes of a class, an int64.
    pub most: Access<D, M>,
    /// The overlap above which a box is left out, as a share of the union of two boxes.
    pub overlap: Access<D, M>,
    /// The score above which a box is considered.
    pub least: Access<D, M>,
    /// Over `rows`, as int64.
    pub out: Access<D, M>,
    /// How many rows there are, an int64.
    pub count: Access<D, M>,
}

no_ending!(Suppress);

impl<D, M> Suppress<D, M> {
    pub(super) fn map<E, N>(&self, to: &mut Map<D, M, E, N>) -> Result<Suppress<E, N>> {
        let ([batches, classes, boxes], [rows, columns]) = (&self.sizes, &self.rows);
        Ok(Suppress {
            sizes: [to.size(batches)?, to.size(classes)?, to.size(boxes)?],
            corners: to.size(&self.corners)?,
            rows: [to.size(rows)?, to.size(columns)?],
            boxes: to.access(&self.boxes)?,
            scores: to.access(&self.scores)?,
            most: to.access(&self.most)?,
            overlap: to.access(&self.overlap)?,
            least: to.access(&self.least)?,
            out: to.access(&self.out)?,
            count: to.access(&self.count)?,
        })
    }

    pub(super) fn walk<'a>(&'a self, see: &mut dyn FnMut(Walk<'a, D, M>)) {
        let [batches, _, boxes] = &self.sizes;
        see(Walk::new(Role::Operand, &self.boxes, &[one(batches), one(boxes), one(&self.corners)]));
        see(Walk::new(Role::Operand, &self.scores, &[&self.sizes]));
        for scalar in [&self.most, &self.overlap, &self.least] {
            see(Walk::new(Role::Operand, scalar, &[]));
        }
        see(Walk::new(Role::Result, &self.out, &[&self.rows]));
        see(Walk::new(Role::Result, &self.count, &[]));
    }
}

impl<D: Display> Suppress<D> {
    pub(super) fn write(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Suppress { boxes, scores, most, overlap, least, out, count, .. } = self;
        writeln!(f, "{boxes} by {scores} most {most} overlap {overlap} least {least} into {out} and {count}")
    }
}
