//! How fast products with quantized weights read them, beside a copy.

use max_core::kernel::{Instr, Kernel, Loop, Reg};
use max_core::quantization::Storage;
use max_core::{DType, QuantizationEncoding, Result};
use max_driver::cuda::Event;
use max_driver::{Buffer, Device, Stream};
use max_kernels::Memory;
use max_kernels::cuda::{self, Launched, Options, Recording};

use super::case::row_major;
use super::qmatmul::plain;

/// The weights that are read one after the other have this many bytes, more than any cache.
const ROTATED: usize = 400 << 20;

/// The shortest microseconds of some replays of recorded work.
fn shortest(work: &[Launched], stream: &Stream) -> Result<f64> {
    let recording = Recording::new(stream, work, &[])?;
    let mut shortest = f64::INFINITY;
    for round in 0..7 {
        let start = Event::record(stream, true)?;
        recording.launch(&[], stream)?;
        let end = Event::record(stream, true)?;
        stream.synchronize()?;
        if round > 1 {
            shortest = shortest.min(end.microseconds_since(&start)?);
        }
    }
    Ok(shortest)
}

/// The bytes per microsecond of a copy.
fn copy_bandwidth(device: &Device, stream: &Stream) -> Result<f64> {
    let count = 128 << 20;
    let (from, to) = (row_major(0, DType::Float32, &[count]).0, row_major(1, DType::Float32, &[count]).0);
    let code = vec![Instr::Load(0), Instr::Store(1, Reg(0))];
    let kernel = Kernel::Loop(Loop { shape: vec![count], reduce: None, accesses: vec![from, to], code });
    let prepared = cuda::prepare(&[&kernel], device, Options::default())?;
    let buffers = [(); 2].map(|()| Buffer::zeros(DType::Float32, &[count as usize], device));
    let [from, to] = buffers;
    let (from, to) = (from?, to?);
    device.synchronize()?;
    let memory = vec![Memory::of(&from)?, Memory::of_mut(&to)?];
    let work = [Launched { kernel: &prepared[0], memory, scratch: Memory::EMPTY }];
    Ok(8.0 * count as f64 / shortest(&work, stream)?)
}

/// Prints a table.
pub(crate) fn report(device: &Device) -> Result<()> {
    let stream = Stream::new(device)?;
    let copy = copy_bandwidth(device, &stream)?;
    println!("copy: {:.0} GB/s", copy / 1e3);
    println!(
        "{:>8} {:>13} {:>5} {:>9} {:>9} {:>7} launches",
        "storage", "n x k", "m", "us", "GB/s", "of copy"
    );
    let encodings = [
        QuantizationEncoding::Q4_0,
        QuantizationEncoding::Q4_K,
        QuantizationEncoding::Q6_K,
        QuantizationEncoding::Q8_0,
        QuantizationEncoding::MXFP4,
    ];
    let storages =
        encodings.map(Storage::Blocks).into_iter().chain([Storage::Integers { bits: 4, group: 128 }]);
    for storage in storages {
        for (n, k) in [(14336, 4096), (4096, 4096), (4096, 14336)] {
            for m in [1, 2, 4, 8, 16, 32, 64, 128, 512] {
                let (case, bytes) = plain(DType::BFloat16, storage, [m, n, k]);
                let prepared = cuda::prepare(&[&case.kernel], device, Options::default())?;
                let scratch = Buffer::zeros(DType::UInt8, &[prepared[0].scratch_bytes()], device)?;
                let copies = ROTATED.div_ceil(bytes);
                let on_device = |buffer: &Buffer| buffer.copy(Some(device));
                let shared = case.buffers.iter().map(on_device).collect::<Result<Vec<_>>>()?;
                let rotated = (0..copies).map(|_| on_device(&case.buffers[1])).collect::<Result<Vec<_>>>()?;
                device.synchronize()?;
                let mut work = Vec::new();
                for codes in &rotated {
                    let mut memory = shared.iter().map(Memory::of).collect::<Result<Vec<_>>>()?;
                    memory[1] = Memory::of(codes)?;
                    memory[6] = Memory::of_mut(&shared[6])?;
                    let scratch = Memory::of_mut(&scratch)?;
                    work.push(Launched { kernel: &prepared[0], memory, scratch });
                }
                let time = shortest(&work, &stream)? / copies as f64;
                let rate = bytes as f64 / time;
                println!(
                    "{:>8} {:>13} {m:>5} {time:>9.2} {:>9.0} {:>6.0}% {}",
                    storage.to_string(),
                    format!("{n}x{k}"),
                    rate / 1e3,
                    100.0 * rate / copy,
                    prepared[0].launches()
                );
            }
        }
    }
    Ok(())
}
