//! What a block format is, and how blocks are read.

use half::f16;

/// How a block encodes its elements.
///
/// Elements have integer *codes*, whose bits are in one or more [planes](Plane). Each group of elements shares a scale and,
/// in some formats, a minimum: the value of an element is `scale * code - min`.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Format {
    /// The number of elements of a block.
    pub elements: usize,
    /// The number of bytes of a block.
    pub bytes: usize,
    /// The number of elements that share a scale.
    pub group: usize,
    /// The bits of the codes, least significant first.
    pub planes: &'static [Plane],
    /// The numbers that codes stand for.
    pub codes: Codes,
    /// The scale of each group.
    pub scale: Scale,
    /// What is subtracted from each element of a group.
    pub min: Option<Scale>,
}

/// Bits of consecutive numbers: `run` numbers are in as many consecutive bytes, the next ones in the next higher bits of the
/// same bytes, and so on until a byte has `per` of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Plane {
    /// The first byte.
    pub at: usize,
    /// How many bits of each number it has.
    pub bits: u32,
    /// How many numbers are in consecutive bytes.
    pub run: usize,
    /// The first of the bits of a byte.
    pub first: u32,
    /// How many numbers are in a byte.
    pub per: usize,
    /// How many bytes are skipped after each run.
    pub apart: usize,
}

/// The numbers that codes stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Codes {
    /// The code itself, less a number.
    Above(u8),
    /// Signed bytes.
    Signed,
    /// The codes of float4 (1 sign bit, 2 exponent bits, 1 significand bit) stand for twice the float.
    Float4,
}

/// The scales of the groups of a block, or their minima.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scale {
    /// A float16 at a byte.
    Half(usize),
    /// The negative of a float16 at a byte.
    Negative(usize),
    /// Half of the power of two whose biased exponent is in a byte.
    HalfPower(usize),
    /// A float16 times an integer for each group.
    Times {
        /// The byte where the float16 is.
        half: usize,
        /// The codes of the integers.
        planes: &'static [Plane],
        /// The integers.
        codes: Codes,
    },
}

impl Plane {
    /// Numbers of some bits that start at a byte and fill every byte.
    pub const fn new(at: usize, bits: u32, run: usize) -> Plane {
        Plane { at, bits, run, first: 0, per: 8 / bits as usize, apart: 0 }
    }

    /// The same starting at another bit of each byte.
    pub const fn from(self, first: u32) -> Plane {
        Plane { first, ..self }
    }

    /// The same with this many numbers per byte.
    pub const fn each(self, per: usize) -> Plane {
        Plane { per, ..self }
    }

    /// The same with bytes between its runs.
    pub const fn apart(self, apart: usize) -> Plane {
        Plane { apart, ..self }
    }

    /// The byte where the run with a number starts, and the bit in it.
    #[inline(always)]
    pub const fn place(self, run: usize) -> (usize, u32) {
        let byte = self.at + self.run * (run / self.per) + self.apart * run;
        (byte, self.first + self.bits * (run % self.per) as u32)
    }

    /// The bits of one number as the lowest bits of a byte.
    pub const fn mask(self) -> u8 {
        (0xff_u16 >> (8 - self.bits)) as u8
    }

    /// Adds its bits to numbers, above the lowest `up`.
    #[inline(always)]
    fn read(self, block: &[u8], up: u32, numbers: &mut [u8]) {
        let mask = self.mask();
        let (mut start, mut run) = (0, 0);
        while start < numbers.len() {
            let (byte, shift) = self.place(run);
            let end = usize::min(start + self.run, numbers.len());
            let numbers = &mut numbers[start..end];
            let bytes = &block[byte..byte + numbers.len()];
            let mut at = 0;
            // Eight numbers at a time, as bytes of a word: what comes into a byte from the next one is masked.
            while let (Some(to), Some(from)) =
                (numbers[at..].first_chunk_mut::<8>(), bytes[at..].first_chunk())
            {
                let more = (u64::from_ne_bytes(*from) >> shift & u64::from_ne_bytes([mask; 8])) << up;
                *to = (u64::from_ne_bytes(*to) | more).to_ne_bytes();
                at += 8;
            }
            while at < numbers.len() {
                numbers[at] |= (bytes[at] >> shift & mask) << up;
                at += 1;
            }
            (start, run) = (start + self.run, run + 1);
        }
    }

    /// Sets its bits in a block of which they are zero, from numbers whose lowest `up` bits are in other planes.
    fn write(self, block: &mut [u8], up: u32, numbers: &[u8]) {
        let mask = self.mask();
        for (run, numbers) in numbers.chunks(self.run).enumerate() {
            let (byte, shift) = self.place(run);
            for (number, byte) in numbers.iter().zip(&mut block[byte..]) {
                *byte |= (number >> up & mask) << shift;
            }
        }
    }
}

/// Reads numbers whose bits are in planes.
#[inline(always)]
pub(super) fn read(planes: &[Plane], block: &[u8], numbers: &mut [u8]) {
    numbers.fill(0);
    let mut up = 0;
    for plane in planes {
        plane.read(block, up, numbers);
        up += plane.bits;
    }
}

/// Writes numbers to planes of a block whose bits are zero.
pub(super) fn write(planes: &[Plane], block: &mut [u8], numbers: &[u8]) {
    let mut up = 0;
    for plane in planes {
        plane.write(block, up, numbers);
        up += plane.bits;
    }
}

impl Codes {
    /// The number that a code stands for.
    #[inline(always)]
    pub const fn value(self, code: u8) -> i32 {
        const FLOAT4: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];
        match self {
            Codes::Above(offset) => code as i32 - offset as i32,
            Codes::Signed => code as i8 as i32,
            Codes::Float4 => FLOAT4[code as usize % 16] as i32,
        }
    }

    /// What is added to values so that none is negative: zero or a power of two.
    pub const fn offset(self) -> i32 {
        match self {
            Codes::Above(offset) => offset as i32,
            Codes::Signed => 128,
            Codes::Float4 => 16,
        }
    }
}

impl Scale {
    /// What the scales of a block are made of: the bits of a float16 or the biased exponent of a power of two, and, if
    /// groups differ, the integer of each by which that is multiplied.
    #[inline(always)]
    pub fn parts(self, block: &[u8], multipliers: &mut [i8]) -> u16 {
        let half = |at: usize| u16::from_le_bytes([block[at], block[at + 1]]);
        match self {
            Scale::Half(at) => half(at),
            Scale::Negative(at) => half(at) ^ 0x8000,
            Scale::HalfPower(at) => block[at].into(),
            Scale::Times { half: at, planes, codes } => {
                let mut numbers = [0; Format::GROUPS];
                let numbers = &mut numbers[..multipliers.len()];
                read(planes, block, numbers);
                for (multiplier, &number) in multipliers.iter_mut().zip(&*numbers) {
                    *multiplier = codes.value(number) as i8;
                }
                half(at)
            }
        }
    }

    /// The scale of each group of a block.
    #[inline(always)]
    fn read(self, block: &[u8], scales: &mut [f32]) {
        let half = |at: usize| f16::from_le_bytes([block[at], block[at + 1]]).to_f32();
        match self {
            Scale::Half(at) => scales.fill(half(at)),
            Scale::Negative(at) => scales.fill(-half(at)),
            Scale::HalfPower(at) => scales.fill(half_power(block[at])),
            Scale::Times { half: at, planes, codes } => {
                let mut numbers = [0; Format::GROUPS];
                let numbers = &mut numbers[..scales.len()];
                read(planes, block, numbers);
                for (scale, &number) in scales.iter_mut().zip(&*numbers) {
                    *scale = half(at) * codes.value(number) as f32;
                }
            }
        }
    }
}

/// Half of the power of two with a biased exponent; 255 is NaN.
#[inline(always)]
pub fn half_power(exponent: u8) -> f32 {
    let bits = match exponent {
        // Subnormal.
        0 => 0x0020_0000,
        1 => 0x0040_0000,
        255 => return f32::NAN,
        other => (u32::from(other) - 1) << 23,
    };
    f32::from_bits(bits)
}

impl Format {
    /// The most elements of a block.
    pub const ELEMENTS: usize = 256;

    /// The most groups of a block.
    pub const GROUPS: usize = 16;

    /// The number of groups of a block.
    pub const fn groups(&self) -> usize {
        self.elements / self.group
    }

    /// The number of bits of a code.
    pub fn bits(&self) -> u32 {
        self.planes.iter().map(|plane| plane.bits).sum()
    }

    /// Reads the codes of a block.
    #[inline(always)]
    pub fn read_codes(&self, block: &[u8], codes: &mut [u8]) {
        read(self.planes, block, &mut codes[..self.elements]);
    }

    /// Reads what the scales of a block are made of: see [`Scale::parts`].
    #[inline(always)]
    pub fn read_parts(&self, block: &[u8], multipliers: &mut [i8]) -> u16 {
        self.scale.parts(block, &mut multipliers[..self.groups()])
    }

    /// The same for its minima, if the format has any.
    #[inline(always)]
    pub fn read_min_parts(&self, block: &[u8], multipliers: &mut [i8]) -> Option<u16> {
        Some(self.min?.parts(block, &mut multipliers[..self.groups()]))
    }

    /// Reads the scale and the minimum of each group of a block; the minima of a format without any are zero.
    #[inline(always)]
    pub fn read_scales(&self, block: &[u8], scales: &mut [f32], mins: &mut [f32]) {
        self.scale.read(block, &mut scales[..self.groups()]);
        match self.min {
            Some(min) => min.read(block, &mut mins[..self.groups()]),
            None => mins[..self.groups()].fill(0.0),
        }
    }

    /// Decodes blocks: `values` has [`Format::elements`] for each [`Format::bytes`] of `blocks`.
    pub fn dequantize(&self, blocks: &[u8], values: &mut [f32]) {
        let mut codes = [0; Format::ELEMENTS];
        let (mut scales, mut mins) = ([0.0; Format::GROUPS], [0.0; Format::GROUPS]);
        for (block, values) in blocks.chunks_exact(self.bytes).zip(values.chunks_exact_mut(self.elements)) {
            self.read_codes(block, &mut codes);
            self.read_scales(block, &mut scales, &mut mins);
            let groups = values.chunks_exact_mut(self.group).zip(codes.chunks_exact(self.group));
            for ((values, codes), (scale, min)) in groups.zip(scales.iter().zip(&mins)) {
                for (value, &code) in values.iter_mut().zip(codes) {
                    *value = scale * self.codes.value(code) as f32 - min;
                }
            }
        }
    }
}
