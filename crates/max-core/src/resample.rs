//! How an axis is resampled: which elements of the source each result is made of, and with what weights.
//!
//! Positions are exact: they are ratios of integers, so that no rounding moves a result to another neighbour, and every
//! device picks the same elements.

/// Enums whose variants have names.
macro_rules! named {
    ($($(#[$doc:meta])* $name:ident ($what:literal) { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$variant_doc])* $variant,)* }

        impl $name {
            /// Every variant.
            pub const ALL: &'static [$name] = &[$($name::$variant),*];

            /// Its name.
            pub const fn name(self) -> &'static str {
                match self { $($name::$variant => $text),* }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }

        impl std::str::FromStr for $name {
            type Err = $crate::Error;

            fn from_str(text: &str) -> $crate::Result<$name> {
                $name::ALL.iter().copied().find(|known| known.name() == text).ok_or_else(|| {
                    let known: Vec<_> = $name::ALL.iter().map(|known| known.name()).collect();
                    $crate::Error::value(format!("'{text}' is not {}; expected one of {}", $what, known.join(", ")))
                })
            }
        }
    )*};
}
pub(crate) use named;

named! {
    /// Where the results of a resampled axis are on its source.
    Coordinates ("a mapping of coordinates") {
        /// The centres of elements are half an element from their borders, and the borders of the axis stay.
        HalfPixel = "half_pixel",
        /// The first and the last element stay.
        AlignCorners = "align_corners",
        /// The first element stays, and distances are scaled.
        Asymmetric = "asymmetric",
        /// As for half pixels, but a single result is at the first element.
        HalfPixel1d = "half_pixel_1d",
    }

    /// How a result is made of the elements near its position. Beyond the ends of the axis its last elements repeat.
    Interpolation ("an interpolation") {
        /// The nearest element, the lower one of two.
        NearestHalfDown = "nearest_half_down",
        /// The nearest element, the upper one of two.
        NearestHalfUp = "nearest_half_up",
        /// The element at or before the position.
        NearestFloor = "nearest_floor",
        /// The element at or after the position.
        NearestCeil = "nearest_ceil",
        /// Between the two neighbours.
        Linear = "linear",
        /// As linear, but where an axis shrinks, a mean of all elements that are nearer than a step of the results,
        /// weighted by their distance.
        LinearAntialias = "linear_antialias",
        /// By cubic convolution of four neighbours, with the coefficient -0.75.
        Cubic = "cubic",
    }
}

/// A weighted sum of integers before it is truncated: what is an integer but for rounding errors is that integer, so that
/// equal elements have that sum.
pub fn settled(sum: f64) -> f64 {
    let near = sum.round();
    if (sum - near).abs() <= 1e-9 * near.abs().max(1.0) { near } else { sum }
}

/// The coefficient of cubic convolution.
const CUBIC: f64 = -0.75;

impl Interpolation {
    /// Whether results are elements of the source.
    pub fn is_nearest(self) -> bool {
        use Interpolation::*;
        matches!(self, NearestHalfDown | NearestHalfUp | NearestFloor | NearestCeil)
    }

    /// Appends the weights of the elements that make up result `at` of `count`, and returns the position of the first on
    /// the source, which has `size` elements. Both numbers are positive. The first and the last weight are not zero, and
    /// the elements are all inside the source.
    pub fn taps(
        self,
        coordinates: Coordinates,
        [size, count]: [usize; 2],
        at: usize,
        weights: &mut Vec<f64>,
    ) -> usize {
        let (numerator, denominator) = coordinates.position([size, count], at);
        let (base, rest) = (numerator.div_euclid(denominator), numerator.rem_euclid(denominator));
        let part = rest as f64 / denominator as f64;
        let nearest = |up: bool| base + i128::from(up);
        let start = weights.len();
        let mut repeated = |first: i128, of: &[f64]| gather(size, first, of, weights);
        let first = match self {
            Interpolation::NearestHalfDown => repeated(nearest(2 * rest > denominator), &[1.0]),
            Interpolation::NearestHalfUp => repeated(nearest(2 * rest >= denominator), &[1.0]),
            Interpolation::NearestFloor => repeated(base, &[1.0]),
            Interpolation::NearestCeil => repeated(nearest(rest > 0), &[1.0]),
            Interpolation::LinearAntialias if size > count => {
                let (center, step) = (base as f64 + part, size as f64 / count as f64);
                tent(size, center, step, weights)
            }
            Interpolation::Linear | Interpolation::LinearAntialias => repeated(base, &[1.0 - part, part]),
            Interpolation::Cubic => repeated(base - 1, &cubic(part)),
        };
        trim(first, start, weights)
    }
}

impl Coordinates {
    /// The position of result `at` of `count` on a source of `size` elements, as a ratio with a positive denominator.
    fn position(self, [size, count]: [usize; 2], at: usize) -> (i128, i128) {
        let [size, count, at] = [size, count, at].map(|n| n as i128);
        match self {
            Coordinates::HalfPixel1d | Coordinates::AlignCorners if count == 1 => (0, 1),
            Coordinates::HalfPixel | Coordinates::HalfPixel1d => ((2 * at + 1) * size - count, 2 * count),
            Coordinates::AlignCorners => (at * (size - 1), count - 1),
            Coordinates::Asymmetric => (at * size, count),
        }
    }
}

/// The weights of four neighbours of a position between the second and the third.
fn cubic(part: f64) -> [f64; 4] {
    let near = |x: f64| ((CUBIC + 2.0) * x - (CUBIC + 3.0)) * x * x + 1.0;
    let far = |x: f64| ((CUBIC * x - 5.0 * CUBIC) * x + 8.0 * CUBIC) * x - 4.0 * CUBIC;
    [far(part + 1.0), near(part), near(1.0 - part), far(2.0 - part)]
}

/// Weights that fall linearly from a center to zero at a distance, and add up to one.
fn tent(size: usize, center: f64, distance: f64, weights: &mut Vec<f64>) -> usize {
    let start = weights.len();
    let first = (center - distance).floor().max(0.0) as usize;
    let end = ((center + distance).ceil() as usize).saturating_add(1).min(size);
    weights.extend((first..end).map(|i| (1.0 - (i as f64 - center).abs() / distance).max(0.0)));
    let sum: f64 = weights[start..].iter().sum();
    weights[start..].iter_mut().for_each(|weight| *weight /= sum);
    first
}

/// Appends the weights of neighbours, some of which may be beyond the ends of the source, where its last elements repeat.
fn gather(size: usize, first: i128, of: &[f64], weights: &mut Vec<f64>) -> usize {
    let last = size as i128 - 1;
    let place = |i: usize| (first + i as i128).clamp(0, last);
    let (from, to) = (place(0), place(of.len() - 1));
    let start = weights.len();
    weights.resize(start + (to - from) as usize + 1, 0.0);
    for (i, weight) in of.iter().enumerate() {
        weights[start + (place(i) - from) as usize] += weight;
    }
    from as usize
}

/// Drops zeros at the ends of the weights from `start` on, so that elements without weight are not read: they may be
/// infinite.
fn trim(first: usize, start: usize, weights: &mut Vec<f64>) -> usize {
    while weights.len() > start + 1 && weights.last() == Some(&0.0) {
        weights.pop();
    }
    let own = &weights[start..];
    let zeros = own.iter().take(own.len() - 1).take_while(|weight| **weight == 0.0).count();
    weights.drain(start..start + zeros);
    first + zeros
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taps(
        rule: Interpolation,
        coordinates: Coordinates,
        sizes: [usize; 2],
        at: usize,
    ) -> (usize, Vec<f64>) {
        let mut weights = Vec::new();
        let first = rule.taps(coordinates, sizes, at, &mut weights);
        (first, weights)
    }

    #[test]
    fn equal_sizes_change_nothing() {
        for (&rule, &coordinates) in
            Interpolation::ALL.iter().flat_map(|rule| Coordinates::ALL.iter().map(move |c| (rule, c)))
        {
            for size in [1, 2, 3, 7] {
                for at in 0..size {
                    assert_eq!(
                        taps(rule, coordinates, [size, size], at),
                        (at, vec![1.0]),
                        "{rule} {coordinates}"
                    );
                }
            }
        }
    }

    #[test]
    fn weights_add_up_to_one_and_stay_inside() {
        for (&rule, &coordinates) in
            Interpolation::ALL.iter().flat_map(|rule| Coordinates::ALL.iter().map(move |c| (rule, c)))
        {
            for (size, count) in (1..9).flat_map(|size| (1..12).map(move |count| (size, count))) {
                for at in 0..count {
                    let (first, weights) = taps(rule, coordinates, [size, count], at);
                    assert!(first + weights.len() <= size, "{rule} {coordinates} {size} {count} {at}");
                    assert!((weights.iter().sum::<f64>() - 1.0).abs() < 1e-12);
                    assert!(weights[0] != 0.0 && weights[weights.len() - 1] != 0.0);
                }
            }
        }
    }

    #[test]
    fn ties_follow_the_rounding() {
        // Position 0.5 of two elements.
        let of = |rule| taps(rule, Coordinates::AlignCorners, [2, 3], 1).0;
        assert_eq!(of(Interpolation::NearestHalfDown), 0);
        assert_eq!(of(Interpolation::NearestHalfUp), 1);
        assert_eq!(of(Interpolation::NearestFloor), 0);
        assert_eq!(of(Interpolation::NearestCeil), 1);
    }

    #[test]
    fn elements_repeat_beyond_the_ends() {
        assert_eq!(taps(Interpolation::Linear, Coordinates::HalfPixel, [3, 6], 0), (0, vec![1.0]));
        assert_eq!(taps(Interpolation::Linear, Coordinates::HalfPixel, [3, 6], 1), (0, vec![0.75, 0.25]));
        assert_eq!(taps(Interpolation::Cubic, Coordinates::HalfPixel, [1, 5], 4), (0, vec![1.0]));
        let (first, weights) = taps(Interpolation::Cubic, Coordinates::HalfPixel, [5, 10], 0);
        assert_eq!((first, weights.len()), (0, 2));
    }

    #[test]
    fn sums_of_equal_integers_are_settled() {
        assert_eq!(
            [settled(3.9999999999999996), settled(-2.0000000000000004), settled(0.5)],
            [4.0, -2.0, 0.5]
        );
        assert_eq!([settled(1e18), settled(2.999), settled(f64::INFINITY)], [1e18, 2.999, f64::INFINITY]);
        assert!(settled(f64::NAN).is_nan());
    }

    #[test]
    fn huge_sizes_do_not_overflow() {
        let most = i64::MAX as usize;
        for &coordinates in Coordinates::ALL {
            assert!(taps(Interpolation::Linear, coordinates, [most, most - 1], most - 2).0 >= most - 4);
            assert_eq!(taps(Interpolation::NearestFloor, coordinates, [most, 1], 0).1, [1.0]);
        }
    }
}
