//! Which versions of NVIDIA's libraries work with the driver.

use super::api;

/// The names of a library's file in the order to try them: a driver runs code made for its own major CUDA version and
/// for older ones, so an older driver tries the names `before` CUDA 13 first.
pub(crate) fn by_driver(
    newest: &'static [&'static str],
    before: &'static [&'static str],
) -> &'static [&'static str] {
    match api::api().map_or(0, |api| api.version()) {
        1..13000 => before,
        _ => newest,
    }
}
