//! Attention.

use std::fmt::{self, Display, Formatter};
use std::hash::{Hash, Hasher};

use super::walk::one;
use super::{Ending, epilogue};
use crate::Result;
use crate::kernel::{Access, Loop, Map, Role, Slot, Walk};

/// `softmax(query x transposed key * scale + mask) x value`, passed to an epilogue over `[batch.., queries, width]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Attention<D, M = Slot> {
    /// The sizes of the batch axes (batch and heads), broadcast by strides of zero.
    pub batch: Vec<D>,
    /// The number of queries.
    pub queries: D,
    /// The number of keys.
    pub keys: D,
    /// The length of a query and of a key.
    pub depth: D,
    /// The length of a value.
    pub width: D,
    /// Over `[batch.., queries, depth]`.
    pub query: Access<D, M>,
    /// Over `[batch.., keys, depth]`.
    pub key: Access<D, M>,
    /// Over `[batch.., keys, width]`.
    pub value: Access<D, M>,
    /// Over `[batch.., queries, keys]`: floats are added to the scores, bools keep the scores where they are true.
    pub mask: Option<Access<D, M>>,
    /// The factor for the scores.
    pub scale: f64,
    /// Whether query `i` attends only to the keys up to `i + keys - queries`.
    pub causal: bool,
    /// With `causal`, how many of these keys, counted from the last, a query attends to; zero for all.
    pub window: usize,
    /// What happens to the result.
    pub epilogue: Loop<D, M>,
}

epilogue!(Attention, k => [&k.batch, one(&k.queries), one(&k.width)]);

impl<D, M> Attention<D, M> {
    pub(super) fn map<E, N>(&self, to: &mut Map<D, M, E, N>) -> Result<Attention<E, N>> {
        Ok(Attention {
            batch: to.sizes(&self.batch)?,
            queries: to.size(&self.queries)?,
            keys: to.size(&self.keys)?,
            depth: to.size(&self.depth)?,
            width: to.size(&self.width)?,
            query: to.access(&self.query)?,
            key: to.access(&self.key)?,
            value: to.access(&self.value)?,
            mask: self.mask.as_ref().map(|mask| to.access(mask)).transpose()?,
            scale: self.scale,
            causal: self.causal,
            window: self.window,
            epilogue: to.ending(&self.epilogue)?,
        })
    }

    pub(super) fn walk<'a>(&'a self, see: &mut dyn FnMut(Walk<'a, D, M>)) {
        let Attention { batch, queries, keys, depth, width, .. } = self;
        see(Walk::new(Role::Operand, &self.query, &[batch, one(queries), one(depth)]));
        see(Walk::new(Role::Operand, &self.key, &[batch, one(keys), one(depth)]));
        see(Walk::new(Role::Operand, &self.value, &[batch, one(keys), one(width)]));
        if let Some(mask) = &self.mask {
            see(Walk::new(Role::Operand, mask, &[batch, one(queries), one(keys)]));
        }
        self.epilogue.walk(see);
    }
}

impl<D: Hash, M: Hash> Hash for Attention<D, M> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.batch, &self.queries, &self.keys, &self.depth, &self.width).hash(state);
        (&self.query, &self.key, &self.value, &self.mask).hash(state);
        (self.scale.to_bits(), self.causal, self.window, &self.epilogue).hash(state);
    }
}

impl<D: Display> Attention<D> {
    pub(super) fn write(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Attention { query, key, value, keys, scale, .. } = self;
        write!(f, "{query} x {key} x {value} keys {keys} scale {scale}")?;
        if let Some(mask) = &self.mask {
            write!(f, " mask {mask}")?;
        }
        f.write_str(if self.causal { " causal " } else { " " })?;
        if self.window > 0 {
            write!(f, "window {} ", self.window)?;
        }
        self.epilogue.write(f)
    }
}
