//! Functions on tiles: short runs of elements that stay in the first cache.
