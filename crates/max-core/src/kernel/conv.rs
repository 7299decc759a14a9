//! Convolutions.

use std::fmt::{self, Display, Formatter};

use super::print::List;
use super::walk::one;
use super::{Ending, epilogue};
use crate::Result;
use crate::kernel::{Access, Loop, Map, Role, Slot, Walk};

/// A convolution over height and width, passed to an epilogue over `[batch, height, width, filters]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Conv2d<D, M = Slot> {
    /// Batch, height, width and filters of the result.
    pub out: [D; 4],
    /// Height, width and channels of the input.
    pub input_size: [D; 3],
    /// Height and width of the filter.
    pub filter_size: [D; 2],
    /// The number of channels that a filter sums: those of one group.
    pub depth: D,
    /// The distance between neighbouring results along height and width.
    pub stride: [usize; 2],
    /// The distance between neighbouring taps of the filter.
    pub dilation: [usize; 2],
    /// Zeros before the first row and the first column.
    pub padding: [usize; 2],
    /// The number of independent convolutions that channels and filters are divided into.
    pub groups: usize,
    /// Over `[batch, height, width, channels]`, in any memory order.
    pub input: Access<D, M>,
    /// Over `[height, width, depth, filters]`.
    pub filter: Access<D, M>,
    /// What happens to the result.
    pub epilogue: Loop<D, M>,
}

epilogue!(Conv2d, k => [&k.out]);

impl<D, M> Conv2d<D, M> {
    pub(super) fn map<E, N>(&self, to: &mut Map<D, M, E, N>) -> Result<Conv2d<E, N>> {
        Ok(Conv2d {
            out: to.array(&self.out)?,
            input_size: to.array(&self.input_size)?,
            filter_size: to.array(&self.filter_size)?,
            depth: to.size(&self.depth)?,
            stride: self.stride,
            dilation: self.dilation,
            padding: self.padding,
            groups: self.groups,
            input: to.access(&self.input)?,
            filter: to.access(&self.filter)?,
            epilogue: to.ending(&self.epilogue)?,
        })
    }

    pub(super) fn walk<'a>(&'a self, see: &mut dyn FnMut(Walk<'a, D, M>)) {
        let Conv2d { out, input_size, filter_size, depth, .. } = self;
        see(Walk::new(Role::Operand, &self.input, &[&out[..1], input_size]));
        see(Walk::new(Role::Operand, &self.filter, &[filter_size, one(depth), &out[3..]]));
        self.epilogue.walk(see);
    }
}

impl<D: Display> Conv2d<D> {
    pub(super) fn write(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} x {} {} ", self.input, self.filter, List(&self.filter_size))?;
        write!(f, "stride {:?} dilation {:?} padding {:?} ", self.stride, self.dilation, self.padding)?;
        write!(f, "groups {} ", self.groups)?;
        self.epilogue.write(f)
    }
}
