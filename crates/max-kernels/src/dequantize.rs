//! Decodes quantized weights: a task has some blocks, one after the other, in code that is compiled for each format.

use max_core::kernel::Dequantize;
use max_core::quantization::Format;
use max_core::{QuantizationEncoding, Result, bail};

use crate::indexed::Along;
use crate::matmul::count;
use crate::simd::{Isa, versions};
use crate::{Memory, Pool};

/// Roughly how many elements a task decodes.
const TASK: usize = 1 << 15;

/// Room for the bytes of blocks that are copied together: what has only just been written is slow to read in other pieces.
const ROOM: usize = 2048;

/// Decoding that is ready to run.
#[derive(Debug)]
pub(crate) struct PreparedDequantize {
    rows: usize,
    /// The blocks of a row.
    blocks: usize,
    format: &'static Format,
    source: Along<1>,
    out: Along<1>,
    decode: unsafe fn(Job),
}

/// Some neighbouring blocks.
#[derive(Clone, Copy)]
struct Job {
    source: *const u8,
    out: *mut f32,
    blocks: usize,
}

impl Job {
    /// The same after some blocks of a format.
    #[inline(always)]
    fn after(self, blocks: usize, format: &Format) -> Job {
        Job {
            source: self.source.wrapping_add(blocks * format.bytes),
            out: self.out.wrapping_add(blocks * format.elements),
            blocks: self.blocks - blocks,
        }
    }
}

impl PreparedDequantize {
    pub(crate) fn new(k: &Dequantize<i64>) -> Result<PreparedDequantize> {
        let blocks = k.blocks()?;
        count(&[k.rows, k.bytes])?;
        count(&[k.rows, k.elements])?;
        Ok(PreparedDequantize {
            rows: k.rows as usize,
            blocks: blocks as usize,
            format: k.encoding.format()?,
            source: Along::new(&k.source, [0]),
            out: Along::new(&k.out, [0]),
            decode: decoder(k.encoding, Isa::best().shorter())?,
        })
    }

    /// Runs it.
    ///
    /// # Safety
    ///
    /// The memory was checked for the kernel.
    pub(crate) unsafe fn run(&self, memory: &[Memory], pool: &Pool) -> Result<()> {
        let &PreparedDequantize { rows, blocks, format, .. } = self;
        let all = rows * blocks;
        let together = TASK / format.elements;
        pool.run(all.div_ceil(together), &|task| {
            let (mut block, end) = (task * together, all.min((task + 1) * together));
            while block < end {
                let (row, first) = (block / blocks, block % blocks);
                let blocks = (blocks - first).min(end - block);
                let source = self.source.at(memory, [row]).cast_const();
                let out = self.out.at(memory, [row]).cast::<f32>();
                let job = Job { source, out, blocks: first + blocks };
                // SAFETY: the caller checked the memory for the kernel, and every block is in one task.
                unsafe { (self.decode)(job.after(first, format)) };
                block += blocks;
            }
        });
        Ok(())
    }
}

trait Body {
    /// # Safety
    ///
    /// The blocks can be read, and their elements written.
    unsafe fn run<const FMA: bool>(job: Job);
}

versions!(version: Body, fn(job: Job));

/// Decodes blocks of the encoding with a number, whose format is a constant.
struct Decode<const ENCODING: usize>;

impl<const ENCODING: usize> Body for Decode<ENCODING> {
    #[inline(always)]
    unsafe fn run<const FMA: bool>(job: Job) {
        let format = const { format(ENCODING) };
        let mut room = [0; ROOM];
        let mut codes = [0; Format::ELEMENTS];
        let (mut scales, mut mins) = ([0.0; Format::GROUPS], [0.0; Format::GROUPS]);
        let mut left = job;
        while left.blocks > 0 {
            let count = left.blocks.min(ROOM / format.bytes);
            // SAFETY: guaranteed by the caller. Others may write to the memory meanwhile, so a copy is decoded.
            unsafe { std::ptr::copy_nonoverlapping(left.source, room.as_mut_ptr(), count * format.bytes) };
            for (number, block) in room[..count * format.bytes].chunks_exact(format.bytes).enumerate() {
                format.read_codes(block, &mut codes);
                format.read_scales(block, &mut scales, &mut mins);
                let out = left.out.wrapping_add(number * format.elements);
                for (group, codes) in codes[..format.elements].chunks_exact(format.group).enumerate() {
                    let (scale, min) = (scales[group], mins[group]);
                    for (at, &code) in codes.iter().enumerate() {
                        let value = scale * format.codes.value(code) as f32 - min;
                        // SAFETY: as above.
                        unsafe { out.add(group * format.group + at).write_unaligned(value) };
                    }
                }
            }
            left = left.after(count, format);
        }
    }
}

const fn format(encoding: usize) -> &'static Format {
    match QuantizationEncoding::ALL[encoding].blocks() {
        Some(format) if format.bytes <= ROOM => format,
        _ => panic!("an encoding without blocks, or with larger ones"),
    }
}

/// The function that decodes an encoding.
fn decoder(encoding: QuantizationEncoding, isa: Isa) -> Result<unsafe fn(Job)> {
    macro_rules! decoders {
        ($($number:literal)*) => {
            match encoding as usize {
                $($number => version::<Decode<$number>>(isa),)*
                _ => bail!(internal, "blocks of {encoding} cannot be decoded"),
            }
        };
    }
    Ok(decoders!(0 1 2 3 4 5 6 7 8 9 10))
}

#[cfg(test)]
mod tests {
    use max_core::kernel::{Access, Kernel, Slot};
    use max_core::{DType, ErrorKind};
    use max_driver::Buffer;

    use super::*;
    use crate::prepare;

    fn encodings() -> impl Iterator<Item = (QuantizationEncoding, &'static Format)> {
        QuantizationEncoding::ALL.iter().filter_map(|e| Some((*e, e.blocks()?)))
    }

    /// Bytes that are no pattern; as float16 they are finite.
    fn bytes(count: usize) -> Vec<u8> {
        (0..count).map(|at| ((at * 7919 + at / 251 * 13) % 120) as u8).collect()
    }

    /// Rows that are apart by some blocks, with bytes before the first.
    fn kernel(
        encoding: QuantizationEncoding,
        rows: i64,
        blocks: i64,
        gap: i64,
        before: i64,
    ) -> Dequantize<i64> {
        let format = encoding.format().unwrap();
        let (bytes, elements) = (blocks * format.bytes as i64, blocks * format.elements as i64);
        Dequantize {
            encoding,
            rows,
            bytes,
            elements,
            source: Access {
                slot: Slot(0),
                dtype: DType::UInt8,
                offset: before,
                strides: vec![bytes + gap * format.bytes as i64, 1],
            },
            out: Access { slot: Slot(1), dtype: DType::Float32, offset: 0, strides: vec![elements, 1] },
        }
    }

    #[test]
    fn blocks_are_decoded_as_the_format_says() {
        for (encoding, format) in encodings() {
            for (rows, blocks, gap, before) in
                [(1, 1, 0, 0), (3, 5, 0, 3), (2, 700, 1, 1), (700, 3, 2, 0), (0, 4, 0, 0), (4, 0, 0, 0)]
            {
                let k = kernel(encoding, rows, blocks, gap, before);
                let source = bytes((before + rows * k.source.strides[0]) as usize);
                let mut expected = vec![0.0; (rows * k.elements) as usize];
                for row in 0..rows {
                    let at = (before + row * k.source.strides[0]) as usize;
                    let to = (row * k.elements) as usize;
                    let (bytes, elements) = (k.bytes as usize, k.elements as usize);
                    format.dequantize(&source[at..at + bytes], &mut expected[to..to + elements]);
                }
                let out = Buffer::from(vec![f32::NAN; expected.len()]);
                let source = Buffer::from(source);
                let memory = [Memory::of(&source).unwrap(), Memory::of_mut(&out).unwrap()];
                prepare(&Kernel::Dequantize(k)).unwrap().run(&memory, &Pool::new(2)).unwrap();
                assert_eq!(out.to_vec::<f32>().unwrap(), expected, "{encoding} {rows} {blocks} {gap}");
            }
        }
    }

    #[test]
    fn every_version_gives_the_same_bits() {
        for (encoding, format) in encodings() {
            let source = bytes(5 * format.bytes);
            let mut expected = vec![0.0; 5 * format.elements];
            format.dequantize(&source, &mut expected);
            for isa in Isa::available() {
                let mut out = vec![0f32; 5 * format.elements];
                let job = Job { source: source.as_ptr(), out: out.as_mut_ptr(), blocks: 5 };
                // SAFETY: this machine has the instruction set, and both arrays have five blocks.
                unsafe { decoder(encoding, isa).unwrap()(job) };
                assert_eq!(out, expected, "{encoding}");
            }
        }
    }

    #[test]
    fn other_sizes_are_errors() {
        let good = || kernel(QuantizationEncoding::Q4_K, 2, 3, 0, 0);
        let wrong: [fn(&mut Dequantize<i64>); 5] = [
            |k| k.bytes += 1,
            |k| k.elements -= 256,
            |k| k.source.strides[1] = 2,
            |k| k.source.dtype = DType::Int8,
            |k| k.encoding = QuantizationEncoding::Q6_K,
        ];
        assert!(PreparedDequantize::new(&good()).is_ok());
        for change in wrong {
            let mut k = good();
            change(&mut k);
            assert_eq!(PreparedDequantize::new(&k).unwrap_err().kind(), ErrorKind::Internal, "{k:?}");
        }
    }
}
