//! How the other operand of a product with quantized weights is quantized: a block of elements at a time, to signed bytes.

/// The elements of a block, which share a scale.
pub const ACTIVATIONS: usize = super::Storage::GROUP;

/// Blocks whose elements are all smaller than this count as zeros: a scale could not be inverted.
const TINY: f32 = f32::from_bits((127 - 100) << 23);

/// The scale of a block with this largest magnitude, and its inverse. A block with an element that is not finite has no number
/// as its scale, and so has every product with it.
#[inline(always)]
pub fn activation_scale(largest: f32) -> (f32, f32) {
    if !largest.is_finite() {
        (f32::NAN, 0.0)
    } else if largest < TINY {
        (0.0, 0.0)
    } else {
        (largest / 127.0, 127.0 / largest)
    }
}

/// Replaces elements by what remains of them when they are quantized.
pub fn round_activations(values: &mut [f32]) {
    for block in values.chunks_mut(ACTIVATIONS) {
        let magnitude = |value: &f32| if value.is_nan() { f32::INFINITY } else { value.abs() };
        let (scale, inverse) = activation_scale(block.iter().map(magnitude).fold(0.0, f32::max));
        for value in block {
            let code = if inverse == 0.0 { 0.0 } else { (*value * inverse).round_ties_even() };
            *value = code * scale;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_rounded_alone() {
        let mut values = [1.0f32; 64];
        (values[0], values[1], values[33]) = (127.0, 1.5, f32::INFINITY);
        round_activations(&mut values);
        assert_eq!(values[..3], [127.0, 2.0, 1.0]);
        assert!(values[32..].iter().all(|value| value.is_nan()));
        let mut small = [1e-38f32; 32];
        round_activations(&mut small);
        assert_eq!(small, [0.0; 32]);
    }
}
