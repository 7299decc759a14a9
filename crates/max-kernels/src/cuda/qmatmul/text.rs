//! The text that decodes quantized weights, from the declarations of their formats.

use std::fmt::Write;

use max_core::quantization::{Codes, Plane, Scale, Storage};
use max_core::{DType, QuantizationEncoding, Result, bail};
use max_driver::cuda::Source;

use super::super::text::typed;

/// The number of elements that functions decode at a time.
const CHUNK: usize = 256;

/// How a function reads rows of weights.
#[derive(Debug)]
pub(super) struct Decoder {
    /// A word for names of functions.
    pub(super) name: &'static str,
    /// The number of elements of a block.
    pub(super) elements: usize,
    /// The number of bytes of a block.
    pub(super) bytes: usize,
    /// The number of elements with a scale, 16 or 32.
    pub(super) group: usize,
    /// Whether bytes have the codes of two neighbours, so that four bytes are eight neighbours.
    pub(super) interleaved: bool,
    codes: Codes,
    planes: Vec<Plane>,
    scale: Scale,
    min: Option<Scale>,
    /// The bytes of a scale, if scales are apart.
    pub(super) apart: Option<usize>,
}

impl Decoder {
    /// How rows of a storage of integers are read.
    pub(super) fn new(storage: Storage) -> Result<Decoder> {
        // Codes without scales are like blocks of a slice each.
        let apart = |name, bits: u32, codes, scale, bytes| Decoder {
            name,
            elements: Storage::GROUP,
            bytes: Storage::GROUP * bits as usize / 8,
            group: Storage::GROUP,
            interleaved: bits == 4,
            codes,
            planes: vec![Plane::new(0, bits, if bits == 8 { Storage::GROUP } else { 1 })],
            scale,
            min: None,
            apart: Some(bytes),
        };
        Ok(match storage {
            Storage::Blocks(encoding) => Decoder::of_blocks(encoding)?,
            Storage::Integers { bits: 4, .. } => apart("int4", 4, Codes::Above(8), Scale::Half(0), 2),
            Storage::Integers { bits: 8, .. } => apart("int8", 8, Codes::Above(128), Scale::Half(0), 2),
            Storage::Float4 => apart("float4", 4, Codes::Float4, Scale::HalfPower(0), 1),
            other => bail!(internal, "{other} weights are no integers that a GPU multiplies"),
        })
    }

    fn of_blocks(encoding: QuantizationEncoding) -> Result<Decoder> {
        let format = encoding.format()?;
        if !CHUNK.is_multiple_of(format.elements) || ![16, 32].contains(&format.group) {
            bail!(internal, "blocks of {} elements in groups of {}", format.elements, format.group);
        }
        Ok(Decoder {
            name: encoding.name(),
            elements: format.elements,
            bytes: format.bytes,
            group: format.group,
            interleaved: false,
            codes: format.codes,
            planes: format.planes.to_vec(),
            scale: format.scale,
            min: format.min,
            apart: None,
        })
    }

    /// The number of scales of a chunk.
    pub(super) fn groups(&self) -> usize {
        CHUNK / self.group
    }

    /// The number of slices, of 32 elements each, whose codes share bytes; four if there are more.
    pub(super) fn span(&self) -> usize {
        let shared = self.planes.iter().map(|plane| plane.run * plane.per).max().unwrap_or(0);
        (shared.min(self.elements) / Storage::GROUP).clamp(1, 4)
    }

    /// The alignment of words in blocks that start at a multiple of it: sixteen or four bytes, or any.
    fn alignment(&self) -> usize {
        let whole = self.planes.iter().all(|plane| plane.at.is_multiple_of(16));
        match self.bytes {
            bytes if bytes.is_multiple_of(16) && whole => 16,
            bytes if bytes.is_multiple_of(4) => 4,
            _ => 1,
        }
    }

    /// Whether groups have minima.
    pub(super) fn has_min(&self) -> bool {
        self.min.is_some()
    }

    /// The number of vectors of sixteen bytes that contain a chunk of a row, wherever it starts.
    pub(super) fn vectors(&self) -> usize {
        (CHUNK / self.elements * self.bytes + 30) / 16
    }

    /// By how many bits codes are moved up: codes above half of their range become signed bytes when their highest bit is
    /// inverted and they are moved to the highest bits of a byte. Scales are as much smaller.
    fn lift(&self) -> Option<u32> {
        let bits: u32 = self.planes.iter().map(|plane| plane.bits).sum();
        (self.codes == Codes::Above(1 << (bits - 1))).then(|| 8 - bits)
    }

    /// The words that `decode.cuh` and the functions after it use.
    pub(super) fn words(&self) -> Vec<(&'static str, String)> {
        let flag = |on: bool| u8::from(on).to_string();
        let is_signed = self.lift().is_some() || self.codes != Codes::Above(0);
        let values = if self.codes == Codes::Float4 { "float4_values(x)" } else { "(x)" };
        let [lower, upper] = match (self.codes, self.lift()) {
            (Codes::Float4, _) => {
                ["float4_values((x) & 0x0f0f0f0fu)", "float4_values((x) >> 4 & 0x0f0f0f0fu)"]
            }
            (_, Some(_)) => {
                ["(invert(x, 0x88888888u) << 4 & 0xf0f0f0f0u)", "(invert(x, 0x88888888u) & 0xf0f0f0f0u)"]
            }
            (_, None) => ["((x) & 0x0f0f0f0fu)", "((x) >> 4 & 0x0f0f0f0fu)"],
        };
        vec![
            ("ELEMENTS", self.elements.to_string()),
            ("BYTES", self.bytes.to_string()),
            ("GROUP", self.group.to_string()),
            ("VECTORS", self.vectors().to_string()),
            ("SPAN", self.span().to_string()),
            ("BLOCK_ALIGNMENT", self.alignment().to_string()),
            ("IS_SIGNED", flag(is_signed)),
            ("WEIGHT", if is_signed { "\"s8\"" } else { "\"u8\"" }.into()),
            ("VALUES(x)", values.into()),
            ("LOWER(x)", lower.into()),
            ("UPPER(x)", upper.into()),
            ("INTERLEAVED", flag(self.interleaved)),
            ("HAS_MIN", flag(self.has_min())),
            ("IS_APART", flag(self.apart.is_some())),
            ("SCALE_BYTES", self.apart.unwrap_or(1).to_string()),
        ]
    }

    /// The text of a function that decodes weights, after its definitions.
    pub(super) fn text(&self, rest: &str) -> String {
        let mut own = String::new();
        let device = "__device__ __forceinline__";
        // Writing to a string cannot fail.
        let _ = writeln!(
            own,
            "// The codes of four elements of the block at an offset, from `base + 4 * t` on, as bytes; `base` is a multiple of \
             16.\n\
             template <int ALIGNMENT>\n\
             {device} unsigned codes_at(const Row<ALIGNMENT> &row, unsigned block, unsigned base, unsigned t) {{\n    return {};\n}}",
            codes(&self.planes, self.lift())
        );
        let share = self.lift().map_or(String::new(), |lift| format!(" * {:?}f", 1.0 / f64::from(1 << lift)));
        let scales = [("scale_at", Some(self.scale)), ("min_at", self.min)];
        for (name, scale) in scales.iter().filter_map(|(name, scale)| Some((name, (*scale)?))) {
            let _ = writeln!(
                own,
                "template <int ALIGNMENT>\n{device} float {name}(const unsigned char *block, unsigned group) {{\n    return {}{};\n}}",
                factor(scale),
                if name == &"scale_at" { &share[..] } else { "" }
            );
        }
        include_str!("decode.cuh").replace("DECODER\n", &own) + rest
    }

    /// A function with the words of this decoder and its own.
    pub(super) fn source(
        &self,
        name: &str,
        dtypes: &[(&str, DType)],
        words: &[(&str, String)],
        text: &str,
    ) -> Source {
        let own = self.words();
        let words: Vec<(&str, &str)> =
            own.iter().chain(words).map(|(word, meaning)| (*word, meaning.as_str())).collect();
        typed(name, dtypes, &words, &self.text(text))
    }
}

/// The codes of four elements as the bytes of a word: the bits of each plane, shifted to their place.
fn codes(planes: &[Plane], lift: Option<u32>) -> String {
    let mut up = lift.unwrap_or(0);
    let terms = planes.iter().enumerate().map(|(at, plane)| {
        let is_highest = lift.is_some() && at + 1 == planes.len();
        let term = plane_codes(plane, up, if is_highest { highest_bits(plane) } else { 0 });
        up += plane.bits;
        format!("({term})")
    });
    terms.collect::<Vec<_>>().join(" | ")
}

/// The highest bits of the numbers in a byte of a plane.
fn highest_bits(plane: &Plane) -> u32 {
    (0..plane.per as u32).map(|number| 1 << (plane.first + plane.bits * number + plane.bits - 1)).sum()
}

/// The bits of four elements in a plane, moved up, with some bits of its bytes inverted.
fn plane_codes(plane: &Plane, up: u32, inverted: u32) -> String {
    let &Plane { at, bits, run, first, per, apart } = plane;
    if run.is_multiple_of(16) {
        // Consecutive elements are in consecutive bytes.
        let number = format!("(base / {run})");
        let mask = u32::from(plane.mask()) * 0x0101_0101;
        let byte = format!("{at} + {run} * ({number} / {per}) + {apart} * {number} + base % {run}");
        let word = match inverted {
            0 => format!("row.word(block + ({byte}))"),
            _ => format!("invert(row.word(block + ({byte})), {:#x}u)", inverted * 0x0101_0101),
        };
        format!("({word} >> ({first} + {bits} * ({number} % {per})) & {mask:#x}u) << {up}")
    } else if (bits, run, per, first, apart) == (1, 1, 8, 0, 0) {
        format!("spread((row.start[block + {at} + base / 8 + t / 2] ^ {inverted:#x}) >> t % 2 * 4) << {up}")
    } else {
        let bytes = (0..4).map(|e| {
            let element = format!("(base + 4 * t + {e})");
            let number = format!("({element} / {run})");
            let byte = format!("{at} + {run} * ({number} / {per}) + {apart} * {number} + {element} % {run}");
            format!(
                "(unsigned)((row.start[block + {byte}] ^ {inverted:#x}) >> ({first} + {bits} * ({number} % {per})) & {:#x}) \
                 << {}",
                plane.mask(),
                8 * e + up
            )
        });
        bytes.collect::<Vec<_>>().join(" | ")
    }
}

/// The scale or the minimum of a group.
fn factor(scale: Scale) -> String {
    match scale {
        Scale::Half(at) => format!("half_at<ALIGNMENT>(block + {at})"),
        Scale::Negative(at) => format!("-half_at<ALIGNMENT>(block + {at})"),
        Scale::HalfPower(at) => format!("half_power(block[{at}])"),
        Scale::Times { half, planes, codes } => {
            let mut up = 0;
            let terms = planes.iter().map(|plane| {
                let &Plane { at, bits, run, first, per, apart } = plane;
                let number = format!("(group / {run})");
                let term = format!(
                    "((block[{at} + {run} * ({number} / {per}) + {apart} * {number} + group % {run}] >> \
                     ({first} + {bits} * ({number} % {per})) & {:#x}) << {up})",
                    plane.mask()
                );
                up += bits;
                term
            });
            let number = terms.collect::<Vec<_>>().join(" | ");
            let number = match codes {
                Codes::Signed => format!("(int)(signed char)({number})"),
                _ => format!("(int)({number}) - {}", codes.value(0).unsigned_abs()),
            };
            format!("half_at<ALIGNMENT>(block + {half}) * (float)({number})")
        }
    }
}
