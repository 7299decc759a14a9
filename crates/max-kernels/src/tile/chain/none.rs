//! Architectures without chains: loops run as calls on tiles.

use super::ChainFn;

/// How many iterations run together.
pub(crate) const BLOCK: usize = 1;

/// There is none.
pub(crate) fn chain() -> Option<ChainFn> {
    None
}
