//! Indexed access on a GPU: what the functions of gathers and scatters have in common.

use std::fmt::Write;

use max_core::DType;
use max_core::kernel::Indexed;

use super::Param;

/// The text before a function that finds elements by index.
pub(super) const TEXT: &str = concat!(include_str!("report.cuh"), include_str!("indexed.cuh"));

/// The words that such a text uses, for indices of a dtype for a number of axes.
pub(super) fn words(axes: usize, indices: DType) -> Vec<(&'static str, String)> {
    let (mut params, mut sizes, mut strides) = (String::new(), String::new(), String::new());
    for axis in 0..axes {
        // Writing to a string cannot fail.
        let _ = write!(params, ", long long n{axis}, long long d{axis}");
        let _ = write!(sizes, "n{axis}, ");
        let _ = write!(strides, "d{axis}, ");
    }
    let negative = if indices.is_signed_integral() { "((x) < 0)" } else { "false" };
    vec![
        ("AXES", axes.to_string()),
        ("PARAMS", params),
        ("SIZES", sizes),
        ("STRIDES", strides),
        ("INDEX_IS_NEGATIVE(x)", negative.to_string()),
    ]
}

/// The parameters of such a function after its own: the first axis, the distance between the indices for neighbouring axes,
/// and for each axis its size and the distance between its elements.
pub(super) fn params(space: &Indexed<i64>, strides: &[i64]) -> Vec<Param> {
    let axes = space.sizes.iter().zip(strides).flat_map(|(&size, &stride)| [size, stride]);
    [space.axis as i64, space.indices.strides[3]].into_iter().chain(axes).map(Param::Number).collect()
}
