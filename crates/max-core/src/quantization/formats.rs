//! The formats of blocks: the fields of each in the order of their bytes, as GGUF files have them.

#![allow(non_upper_case_globals, reason = "the documented names")]

use super::format::{Codes, Format, Plane, Scale};

/// A float16 scale, 4 bits.
pub(super) const Q4_0: Format = Format {
    elements: 32,
    bytes: 2 + 16,
    group: 32,
    planes: &[Plane::new(2, 4, 16)],
    codes: Codes::Above(8),
    scale: Scale::Half(0),
    min: None,
};

/// A float16 scale and minimum, 4 bits.
pub(super) const Q4_1: Format = Format {
    elements: 32,
    bytes: 2 + 2 + 16,
    group: 32,
    planes: &[Plane::new(4, 4, 16)],
    codes: Codes::Above(0),
    scale: Scale::Half(0),
    min: Some(Scale::Negative(2)),
};

/// A float16 scale, the fifth bits, 4 bits.
pub(super) const Q5_0: Format = Format {
    elements: 32,
    bytes: 2 + 4 + 16,
    group: 32,
    planes: &[Plane::new(6, 4, 16), Plane::new(2, 1, 1)],
    codes: Codes::Above(16),
    scale: Scale::Half(0),
    min: None,
};

/// A float16 scale and minimum, the fifth bits, 4 bits.
pub(super) const Q5_1: Format = Format {
    elements: 32,
    bytes: 2 + 2 + 4 + 16,
    group: 32,
    planes: &[Plane::new(8, 4, 16), Plane::new(4, 1, 1)],
    codes: Codes::Above(0),
    scale: Scale::Half(0),
    min: Some(Scale::Negative(2)),
};

/// A float16 scale, signed bytes.
pub(super) const Q8_0: Format = Format {
    elements: 32,
    bytes: 2 + 32,
    group: 32,
    planes: &[Plane::new(2, 8, 32)],
    codes: Codes::Signed,
    scale: Scale::Half(0),
    min: None,
};

/// A power of two, codes of float4.
pub(super) const MXFP4: Format = Format {
    elements: 32,
    bytes: 1 + 16,
    group: 32,
    planes: &[Plane::new(1, 4, 16)],
    codes: Codes::Float4,
    scale: Scale::HalfPower(0),
    min: None,
};

/// Multipliers of scale and minimum, 4 bits each; 2 bits; float16 scale and minimum.
pub(super) const Q2_K: Format = Format {
    elements: 256,
    bytes: 16 + 64 + 2 + 2,
    group: 16,
    planes: &[Plane::new(16, 2, 32)],
    codes: Codes::Above(0),
    scale: Scale::Times { half: 80, planes: &[Plane::new(0, 4, 16).each(1)], codes: Codes::Above(0) },
    min: Some(Scale::Times {
        half: 82,
        planes: &[Plane::new(0, 4, 16).each(1).from(4)],
        codes: Codes::Above(0),
    }),
};

/// The third bits; 2 bits; multipliers of the scale, 4 bits and the upper 2; a float16 scale.
pub(super) const Q3_K: Format = Format {
    elements: 256,
    bytes: 32 + 64 + 12 + 2,
    group: 16,
    planes: &[Plane::new(32, 2, 32), Plane::new(0, 1, 32)],
    codes: Codes::Above(4),
    scale: Scale::Times {
        half: 108,
        planes: &[Plane::new(96, 4, 8), Plane::new(104, 2, 4)],
        codes: Codes::Above(32),
    },
    min: None,
};

/// The multipliers of scale and minimum that Q4_K and Q5_K share: 8 of 6 bits each in 12 bytes.
const SIXES: [[Plane; 2]; 2] = [
    [Plane::new(4, 4, 4).each(1).apart(4), Plane::new(4, 2, 4).each(2).from(4)],
    [Plane::new(8, 4, 4).each(2).apart(4), Plane::new(8, 2, 4).each(2).from(4)],
];

/// Float16 scale and minimum, their multipliers, 4 bits.
pub(super) const Q4_K: Format = Format {
    elements: 256,
    bytes: 2 + 2 + 12 + 128,
    group: 32,
    planes: &[Plane::new(16, 4, 32)],
    codes: Codes::Above(0),
    scale: Scale::Times { half: 0, planes: &SIXES[0], codes: Codes::Above(0) },
    min: Some(Scale::Times { half: 2, planes: &SIXES[1], codes: Codes::Above(0) }),
};

/// Float16 scale and minimum, their multipliers, the fifth bits, 4 bits.
pub(super) const Q5_K: Format = Format {
    elements: 256,
    bytes: 2 + 2 + 12 + 32 + 128,
    group: 32,
    planes: &[Plane::new(48, 4, 32), Plane::new(16, 1, 32)],
    codes: Codes::Above(0),
    scale: Scale::Times { half: 0, planes: &SIXES[0], codes: Codes::Above(0) },
    min: Some(Scale::Times { half: 2, planes: &SIXES[1], codes: Codes::Above(0) }),
};

/// The lower 4 bits, the upper 2, signed multipliers of the scale, a float16 scale.
pub(super) const Q6_K: Format = Format {
    elements: 256,
    bytes: 128 + 64 + 16 + 2,
    group: 16,
    planes: &[Plane::new(0, 4, 64), Plane::new(128, 2, 32)],
    codes: Codes::Above(32),
    scale: Scale::Times { half: 208, planes: &[Plane::new(192, 8, 16)], codes: Codes::Signed },
    min: None,
};
