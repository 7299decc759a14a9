//! Recorded products that read what the ones before them write, and write what those read: they may start early.

use max_core::kernel::{Access, Instr, Kernel, Loop, Reg, Slot};
use max_core::quantization::Storage;
use max_core::{DType, QuantizationEncoding, Result};
use max_driver::{Buffer, CPU, Device, Stream};
use max_kernels::Memory;
use max_kernels::cuda::{self, Launched, Options, Prepared, Recording};

use super::case::Random;
use super::qmatmul::{plain, weights};

/// The rows and columns of the weights, and the number of products.
const SIZE: usize = 2048;
const PRODUCTS: usize = 8;

/// Some products that go back and forth between two rows, with weights of their own.
struct Chain {
    prepared: Vec<Prepared>,
    codes: Vec<Buffer>,
    rows: [Buffer; 2],
    empty: Buffer,
}

impl Chain {
    fn new(device: &Device, storage: Storage) -> Result<Chain> {
        let mut random = Random(41);
        let (case, _) = plain(DType::Float32, storage, [1, SIZE, SIZE]);
        let prepared = cuda::prepare(&[&case.kernel], device, Options::default())?;
        let codes = (0..PRODUCTS).map(|_| {
            let (codes, _) = weights(&mut random, storage, SIZE, SIZE);
            Buffer::from(codes).to(device)
        });
        let row = Buffer::from((0..SIZE).map(|at| (at % 17) as f32 - 8.0).collect::<Vec<_>>());
        Ok(Chain {
            prepared,
            codes: codes.collect::<Result<_>>()?,
            rows: [row.copy(Some(device))?, row.copy(Some(device))?],
            empty: Buffer::zeros(DType::Float32, &[SIZE], device)?,
        })
    }

    /// What is launched. Slots are those of `plain`.
    fn work(&self) -> Result<Vec<Launched<'_>>> {
        let launched = |(number, codes)| {
            let (from, to) = (&self.rows[number % 2], &self.rows[(number + 1) % 2]);
            let empty = Memory::of(&self.empty)?;
            let memory =
                vec![Memory::of(from)?, Memory::of(codes)?, empty, empty, empty, empty, Memory::of_mut(to)?];
            Ok(Launched { kernel: &self.prepared[0], memory, scratch: Memory::EMPTY })
        };
        self.codes.iter().enumerate().map(launched).collect()
    }
}

/// The bits of both rows.
fn bits(chain: &Chain) -> Result<Vec<u8>> {
    let rows = chain.rows.each_ref().map(|row| row.to(&CPU()));
    let [a, b] = rows;
    Ok([a?.host_bytes()?.as_ref(), b?.host_bytes()?.as_ref()].concat())
}

/// What is wrong with recorded chains: other bits than from products one at a time.
pub(crate) fn failures(device: &Device) -> Result<Vec<String>> {
    let mut failures = Vec::new();
    for encoding in [QuantizationEncoding::Q4_0, QuantizationEncoding::Q6_K] {
        let chain = Chain::new(device, Storage::Blocks(encoding))?;
        let default = device.default_stream();
        for launch in chain.work()? {
            launch.kernel.run(&launch.memory, launch.scratch, &default)?;
            device.synchronize()?;
        }
        let expected = bits(&chain)?;
        if chain.rows[0].to_vec::<f32>()?.iter().any(|x| !x.is_finite() || *x == 0.0) {
            failures.push(format!("{encoding:?}: a chain does not give finite numbers"));
        }
        for round in 0..3 {
            let chain = Chain::new(device, Storage::Blocks(encoding))?;
            device.synchronize()?;
            let (stream, work) = (Stream::new(device)?, chain.work()?);
            Recording::new(&stream, &work, &[])?.launch(&[], &stream)?;
            stream.synchronize()?;
            if bits(&chain)? != expected {
                failures.push(format!("{encoding:?}: a recorded chain has other bits in round {round}"));
            }
        }
    }
    Ok(failures)
}

/// Weights that the launch before writes are no constants: a recorded product of them waits for it.
pub(crate) fn written_weights(device: &Device) -> Result<Option<String>> {
    let storage = Storage::Blocks(QuantizationEncoding::Q8_0);
    let chain = Chain::new(device, storage)?;
    let size = chain.codes[0].num_bytes();
    let bytes = |slot| Access { slot, dtype: DType::UInt8, offset: 0, strides: vec![1] };
    let copy = Kernel::Loop(Loop {
        shape: vec![size as i64],
        reduce: None,
        accesses: vec![bytes(Slot(0)), bytes(Slot(1))],
        code: vec![Instr::Load(0), Instr::Store(1, Reg(0))],
    });
    let copy = cuda::prepare(&[&copy], device, Options::default())?;
    let written = Buffer::zeros(DType::UInt8, &[size], device)?;
    device.synchronize()?;
    let stream = Stream::new(device)?;
    let mut work = chain.work()?;
    work.truncate(1);
    Recording::new(&stream, &work, &[])?.launch(&[], &stream)?;
    stream.synchronize()?;
    let expected = bits(&chain)?;
    let chain = Chain::new(device, storage)?;
    device.synchronize()?;
    let mut work = chain.work()?;
    work.truncate(1);
    let memory = vec![Memory::of(&chain.codes[0])?, Memory::of_mut(&written)?];
    work.insert(0, Launched { kernel: &copy[0], memory, scratch: Memory::EMPTY });
    work[1].memory[1] = Memory::of(&written)?;
    Recording::new(&stream, &work, &[])?.launch(&[], &stream)?;
    stream.synchronize()?;
    Ok((bits(&chain)? != expected).then(|| "weights were read before they were written".to_owned()))
}
