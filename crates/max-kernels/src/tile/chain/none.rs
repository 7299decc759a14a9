//! Architectures without chains: loops run as calls on tiles.

use super::ChainFn;

/// There is none.
pub(crate) fn chain() -> Option<ChainFn> {
    None
}
