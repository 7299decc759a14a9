//! Machines whose vector units have no kernels of their own.

use super::floats::float_tile;
use super::plain::Plain;
use super::*;

pub(super) fn tiles<K: Kind>() -> &'static [Tile] {
    const { &[tile::<Plain, K, 1>, tile::<Plain, K, 2>, tile::<Plain, K, 4>, tile::<Plain, K, 8>] }
}

#[cfg(test)]
pub(super) fn units<K: Kind>() -> Vec<(&'static str, &'static [Tile])> {
    vec![("plain", tiles::<K>())]
}

pub(super) fn float_tiles<T: Element<Lane = f32>>() -> &'static [Tile] {
    const {
        &[
            float_tile::<Plain, T, 1>,
            float_tile::<Plain, T, 2>,
            float_tile::<Plain, T, 4>,
            float_tile::<Plain, T, 8>,
        ]
    }
}
