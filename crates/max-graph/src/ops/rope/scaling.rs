//! The frequencies of rotary position embeddings, and how models stretch them to contexts longer than those they were
//! trained on.
//!
//! Frequencies are computed step by step in float32, as the models were trained: at large positions, one more or less in
//! the last place of a frequency is another angle.

use std::f64::consts::PI;

use max_core::{Result, bail};

/// How the frequencies of a rotary position embedding are scaled.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    #[default]
    None,
    /// All by one factor.
    Linear {
        /// What positions are divided by.
        factor: f64,
    },
    /// Low frequencies by a factor, high ones not at all, those between by something in between.
    Llama3 {
        /// What low frequencies are divided by.
        factor: f64,
        /// Frequencies with fewer turns than this in the original context are low.
        low_freq_factor: f64,
        /// Frequencies with more turns than this in the original context are high.
        high_freq_factor: f64,
        /// The length of the original context.
        orig_max_position: i64,
    },
    /// YaRN: low frequencies by a factor, high ones not at all, with a ramp in between.
    Yarn {
        /// What low frequencies are divided by.
        factor: f64,
        /// Frequencies with more turns than this in the original context are high.
        beta_fast: f64,
        /// Frequencies with fewer turns than this in the original context are low.
        beta_slow: f64,
        /// The length of the original context.
        original_max_position_embeddings: i64,
        /// Whether the ramp starts and ends at whole numbers of frequencies.
        truncate: bool,
    },
    /// Each frequency by a factor of its own, of which there are two lists.
    LongRope {
        /// The factors of positions within the original context.
        short_factor: Vec<f64>,
        /// The factors of positions beyond it.
        long_factor: Vec<f64>,
        /// The length of the original context.
        original_max_position: i64,
        /// The length of the context that the model is made for.
        max_position_embeddings: i64,
    },
    /// YaRN as DeepSeek's models have it, with attention scores scaled as well.
    DeepseekYarn {
        /// What low frequencies are divided by.
        scaling_factor: f64,
        /// The length of the original context.
        original_max_position_embeddings: i64,
        /// Frequencies with more turns than this in the original context are high.
        beta_fast: f64,
        /// Frequencies with fewer turns than this in the original context are low.
        beta_slow: f64,
        /// How much cosines and sines grow with the factor.
        mscale: f64,
        /// How much attention scores grow with the factor, instead of cosines and sines.
        mscale_all_dim: f64,
    },
    /// A larger base, the longer the sequence is.
    Dynamic {
        /// How fast the base grows.
        factor: f64,
        /// The length of the original context, within which nothing is scaled.
        original: i64,
    },
}

impl RopeScaling {
    /// The frequencies, in radians per position, of the pairs of a rotary dim in a sequence of a length.
    ///
    /// The length only matters where the scaling depends on it.
    pub fn inverse_frequencies(&self, dim: i64, theta: f64, length: i64) -> Result<Vec<f32>> {
        self.validate(dim, theta)?;
        let inverses = |theta: f64| powers(dim, theta).map(|power| 1.0 / power);
        Ok(match self {
            RopeScaling::None => inverses(theta).collect(),
            RopeScaling::Linear { factor } => {
                inverses(theta).map(|inverse| inverse / *factor as f32).collect()
            }
            RopeScaling::Dynamic { factor, original } => {
                let stretch = factor * length.max(*original) as f64 / *original as f64 - (factor - 1.0);
                inverses(theta * stretch.powf(dim as f64 / (dim - 2) as f64)).collect()
            }
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, orig_max_position } => {
                let context = *orig_max_position as f64;
                let between = [*low_freq_factor, *high_freq_factor];
                inverses(theta).map(|inverse| llama3(inverse, *factor, between, context)).collect()
            }
            RopeScaling::LongRope { short_factor, long_factor, original_max_position, .. } => {
                let factors = if length > *original_max_position { long_factor } else { short_factor };
                powers(dim, theta)
                    .zip(factors)
                    .map(|(power, factor)| 1.0 / (*factor as f32 * power))
                    .collect()
            }
            RopeScaling::Yarn {
                factor,
                beta_fast,
                beta_slow,
                original_max_position_embeddings,
                truncate,
            } => {
                let context = *original_max_position_embeddings as f64;
                let ramp = Ramp::new(dim, theta, [*beta_fast, *beta_slow], context, *truncate);
                ramp.blend(powers(dim, theta), *factor)
            }
            RopeScaling::DeepseekYarn {
                scaling_factor,
                original_max_position_embeddings,
                beta_fast,
                beta_slow,
                ..
            } => {
                let context = *original_max_position_embeddings as f64;
                let ramp = Ramp::new(dim, theta, [*beta_fast, *beta_slow], context, true);
                ramp.blend(powers(dim, theta), *scaling_factor)
            }
        })
    }

    /// What cosines and sines are multiplied by.
    pub fn attention_factor(&self) -> f64 {
        match self {
            RopeScaling::Yarn { factor, .. } => magnitude(*factor, 1.0),
            RopeScaling::DeepseekYarn { scaling_factor, mscale, mscale_all_dim, .. } => {
                magnitude(*scaling_factor, *mscale) / magnitude(*scaling_factor, *mscale_all_dim)
            }
            RopeScaling::LongRope { original_max_position, max_position_embeddings, .. } => {
                let original = *original_max_position as f64;
                let factor = *max_position_embeddings as f64 / original;
                if factor > 1.0 { (1.0 + factor.ln() / original.ln()).sqrt() } else { 1.0 }
            }
            _ => 1.0,
        }
    }

    /// What the scale of attention scores is multiplied by.
    pub fn scale_factor(&self) -> f64 {
        match self {
            RopeScaling::DeepseekYarn { scaling_factor, mscale_all_dim, .. } => {
                magnitude(*scaling_factor, *mscale_all_dim).powi(2)
            }
            _ => 1.0,
        }
    }

    /// Checks that there are frequencies for a rotary dim and a base.
    pub fn validate(&self, dim: i64, theta: f64) -> Result<()> {
        if !(1..=LARGEST_DIM).contains(&dim) || dim % 2 != 0 {
            bail!(value, "a rotary dim must be positive, even and at most {LARGEST_DIM}; got {dim}");
        }
        positive("theta", theta)?;
        match self {
            RopeScaling::None => Ok(()),
            RopeScaling::Linear { factor } => positive("factor", *factor),
            RopeScaling::Dynamic { factor, original } => {
                if dim < 4 {
                    bail!(value, "dynamic scaling needs a rotary dim of at least 4; got {dim}");
                }
                context("original", *original, 1)?;
                positive("factor", *factor)
            }
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, orig_max_position } => {
                context("orig_max_position", *orig_max_position, 1)?;
                positive("factor", *factor)?;
                positive("low_freq_factor", *low_freq_factor)?;
                positive("high_freq_factor", *high_freq_factor)?;
                if low_freq_factor >= high_freq_factor {
                    bail!(
                        value,
                        "low_freq_factor of a rotary embedding must be less than high_freq_factor; got {low_freq_factor} and \
                         {high_freq_factor}"
                    );
                }
                Ok(())
            }
            RopeScaling::Yarn { factor, beta_fast, beta_slow, original_max_position_embeddings, .. } => {
                positive("factor", *factor)?;
                ramp(theta, *beta_fast, *beta_slow, *original_max_position_embeddings)
            }
            RopeScaling::DeepseekYarn {
                scaling_factor,
                original_max_position_embeddings,
                beta_fast,
                beta_slow,
                mscale,
                mscale_all_dim,
            } => {
                positive("scaling_factor", *scaling_factor)?;
                not_negative("mscale", *mscale)?;
                not_negative("mscale_all_dim", *mscale_all_dim)?;
                ramp(theta, *beta_fast, *beta_slow, *original_max_position_embeddings)
            }
            RopeScaling::LongRope {
                short_factor,
                long_factor,
                original_max_position,
                max_position_embeddings,
            } => {
                for (name, factors) in [("short_factor", short_factor), ("long_factor", long_factor)] {
                    if factors.len() as i64 != dim / 2 {
                        bail!(
                            value,
                            "{name} must have one factor for each of the {} pairs of a rotary dim of {dim}; got {}",
                            dim / 2,
                            factors.len()
                        );
                    }
                    factors.iter().try_for_each(|factor| positive(name, *factor))?;
                }
                // Its logarithm is a divisor.
                context("original_max_position", *original_max_position, 2)?;
                context("max_position_embeddings", *max_position_embeddings, 1)
            }
        }
    }
}

/// More than any model has, so that a mistake is an error instead of a lot of memory.
const LARGEST_DIM: i64 = 1 << 16;

/// The powers of the base whose inverses are the unscaled frequencies.
fn powers(dim: i64, theta: f64) -> impl Iterator<Item = f32> {
    let base = f64::from(theta as f32);
    (0..dim / 2).map(move |pair| base.powf(f64::from((2 * pair) as f32 / dim as f32)) as f32)
}

/// A frequency, divided by a factor if it turns less than `low` times in a context, as it is if more than `high` times.
fn llama3(inverse: f32, factor: f64, [low, high]: [f64; 2], context: f64) -> f32 {
    let wavelength = 1.0 / inverse * (2.0 * PI) as f32;
    if wavelength < (context / high) as f32 {
        return inverse;
    }
    let factor = factor as f32;
    if wavelength > (context / low) as f32 {
        return inverse / factor;
    }
    let smooth = (1.0 / wavelength * context as f32 - low as f32) / (high - low) as f32;
    (1.0 - smooth) * inverse / factor + smooth * inverse
}

/// How much YaRN enlarges for a factor.
fn magnitude(factor: f64, mscale: f64) -> f64 {
    if factor > 1.0 { 0.1 * mscale * factor.ln() + 1.0 } else { 1.0 }
}

/// Where YaRN goes over from high frequencies to low ones, in numbers of pairs.
struct Ramp {
    low: f64,
    high: f64,
}

impl Ramp {
    /// Between the pairs that turn so many times in a context.
    fn new(dim: i64, theta: f64, [fast, slow]: [f64; 2], context: f64, truncate: bool) -> Ramp {
        let pair = |turns: f64| dim as f64 * (context / (turns * 2.0 * PI)).ln() / (2.0 * theta.ln());
        let (mut low, mut high) = (pair(fast), pair(slow));
        if truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        (low, high) = (low.max(0.0), high.min((dim - 1) as f64));
        // A ramp has some length.
        Ramp { low, high: if low == high { high + 0.001 } else { high } }
    }

    /// Frequencies divided by a factor after the ramp, and as they are before it.
    fn blend(&self, powers: impl Iterator<Item = f32>, factor: f64) -> Vec<f32> {
        let blended = powers.enumerate().map(|(pair, power)| {
            let ramp = (pair as f32 - self.low as f32) / (self.high - self.low) as f32;
            let kept = 1.0 - ramp.clamp(0.0, 1.0);
            1.0 / (factor as f32 * power) * (1.0 - kept) + 1.0 / power * kept
        });
        blended.collect()
    }
}

fn positive(name: &str, number: f64) -> Result<()> {
    if number.is_finite() && number > 0.0 {
        return Ok(());
    }
    bail!(value, "{name} of a rotary embedding must be positive and finite; got {number}")
}

fn not_negative(name: &str, number: f64) -> Result<()> {
    if number.is_finite() && number >= 0.0 {
        return Ok(());
    }
    bail!(value, "{name} of a rotary embedding must be finite and not negative; got {number}")
}

fn context(name: &str, length: i64, least: i64) -> Result<()> {
    if length >= least {
        return Ok(());
    }
    bail!(value, "{name} of a rotary embedding must be at least {least}; got {length}")
}

/// Checks what a ramp is made of.
fn ramp(theta: f64, fast: f64, slow: f64, original: i64) -> Result<()> {
    if theta <= 1.0 {
        bail!(value, "theta must be more than 1 for YaRN; got {theta}");
    }
    positive("beta_fast", fast)?;
    positive("beta_slow", slow)?;
    if slow > fast {
        bail!(value, "beta_slow of a rotary embedding must be at most beta_fast; got {slow} and {fast}");
    }
    context("original_max_position_embeddings", original, 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn yarn(factor: f64) -> RopeScaling {
        RopeScaling::Yarn {
            factor,
            beta_fast: 32.0,
            beta_slow: 1.0,
            original_max_position_embeddings: 4096,
            truncate: true,
        }
    }

    fn longrope(short: usize, long: usize) -> RopeScaling {
        RopeScaling::LongRope {
            short_factor: vec![1.0; short],
            long_factor: vec![4.0; long],
            original_max_position: 4096,
            max_position_embeddings: 131072,
        }
    }

    #[test]
    fn frequencies_fall_from_one() {
        let found = RopeScaling::None.inverse_frequencies(4, 10000.0, 0).unwrap();
        assert_eq!(found, [1.0, 0.01]);
        let halved = RopeScaling::Linear { factor: 2.0 }.inverse_frequencies(4, 10000.0, 0).unwrap();
        assert_eq!(halved, [0.5, 0.005]);
    }

    #[test]
    fn low_frequencies_are_scaled() {
        let plain = RopeScaling::None.inverse_frequencies(128, 500000.0, 0).unwrap();
        let llama3 = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            orig_max_position: 8192,
        };
        for scaling in [llama3, yarn(8.0)] {
            let scaled = scaling.inverse_frequencies(128, 500000.0, 0).unwrap();
            assert_eq!((scaled[0], scaled[63]), (plain[0], plain[63] / 8.0));
            assert!(scaled.iter().zip(&plain).all(|(scaled, plain)| (plain / 8.0..=*plain).contains(scaled)));
        }
    }

    #[test]
    fn long_sequences_have_other_frequencies() {
        let at = |scaling: &RopeScaling, length| scaling.inverse_frequencies(4, 10000.0, length).unwrap();
        assert_eq!(at(&longrope(2, 2), 4096), [1.0, 0.01]);
        assert_eq!(at(&longrope(2, 2), 4097), [0.25, 0.0025]);
        let dynamic = RopeScaling::Dynamic { factor: 1.0, original: 16 };
        assert_eq!(at(&dynamic, 16), [1.0, 0.01]);
        // Twice as long: the base is four times as large, and its root twice.
        assert_eq!(at(&dynamic, 32), [1.0, 0.005]);
    }

    #[test]
    fn factors() {
        assert_eq!((RopeScaling::None.attention_factor(), RopeScaling::None.scale_factor()), (1.0, 1.0));
        assert_eq!((yarn(0.5).attention_factor(), yarn(1.0).attention_factor()), (1.0, 1.0));
        assert_eq!(yarn(40.0).attention_factor(), 0.1 * 40f64.ln() + 1.0);
        assert_eq!(longrope(2, 2).attention_factor(), (1.0 + 32f64.ln() / 4096f64.ln()).sqrt());
        let deepseek = RopeScaling::DeepseekYarn {
            scaling_factor: 40.0,
            original_max_position_embeddings: 4096,
            beta_fast: 32.0,
            beta_slow: 1.0,
            mscale: 0.707,
            mscale_all_dim: 0.707,
        };
        assert_eq!(deepseek.attention_factor(), 1.0);
        assert_eq!(deepseek.scale_factor(), (0.1 * 0.707 * 40f64.ln() + 1.0).powi(2));
    }

    #[test]
    fn what_has_no_frequencies_is_an_error() {
        let fails = |scaling: RopeScaling, dim, theta, says: &str| {
            let error = scaling.inverse_frequencies(dim, theta, 0).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        };
        for dim in [-2, 0, 1, 7, i64::MAX - 1] {
            fails(RopeScaling::None, dim, 10000.0, &format!("at most 65536; got {dim}"));
        }
        for theta in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            fails(RopeScaling::None, 4, theta, "theta of a rotary embedding must be positive");
        }
        fails(RopeScaling::Linear { factor: 0.0 }, 4, 1.0, "factor of a rotary embedding must be positive");
        fails(RopeScaling::Dynamic { factor: 1.0, original: 16 }, 2, 10.0, "at least 4; got 2");
        fails(yarn(1.0), 4, 1.0, "theta must be more than 1");
        fails(longrope(2, 1), 4, 10.0, "long_factor must have one factor for each of the 2 pairs");
        fails(longrope(1, 2), 4, 10.0, "short_factor must have one factor for each of the 2 pairs");
    }
}
