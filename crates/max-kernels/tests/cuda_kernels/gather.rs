//! Gathers.

use max_core::kernel::{Access, Gather, Indexed, Kernel, Slot};
use max_core::{DType, Element, ErrorKind, Result, dispatch};
use max_driver::{Buffer, CPU, Device};
use max_kernels::Memory;
use max_kernels::cuda::{self, Options};

use super::case::{Case, Random, row_major, run_on, untouched};

/// Indices from minus the size of the axis up to its end, non-negative for unsigned types.
pub(crate) fn indices(random: &mut Random, dtype: DType, size: i64, count: usize) -> Buffer {
    let signed = dtype.is_signed_integral();
    let index = |random: &mut Random| match signed {
        true => random.below(2 * size as u64) as i64 - size,
        false => random.below(size as u64) as i64,
    };
    let picked: Vec<i64> = (0..count).map(|_| index(random)).collect();
    dispatch!(dtype, T => Buffer::from(picked.iter().map(|&i| T::from_i128(i.into())).collect::<Vec<T>>()))
}

fn gather(dtype: DType, index: DType, [outer, size, picks, inner]: [i64; 4]) -> Gather<i64> {
    let indices = Access { slot: Slot(1), dtype: index, offset: 0, strides: vec![0, 1, 0, 0] };
    let index_shape = [1, picks, 1, 1];
    Gather {
        space: Indexed { outer, sizes: vec![size], inner, axis: 2, indices, index_shape },
        source: row_major(0, dtype, &[outer, size, inner]).0,
        out: row_major(2, dtype, &[outer, picks, inner]).0,
    }
}

pub(crate) fn cases() -> Vec<Case> {
    let mut random = Random(10);
    let mut cases = Vec::new();
    let types =
        [DType::UInt8, DType::BFloat16, DType::Float32, DType::Float64, DType::Bool, DType::Float8E5M2];
    for (at, dtype) in types.into_iter().cycle().take(48).enumerate() {
        let index =
            *DType::ALL.iter().filter(|dtype| dtype.is_integral()).nth(at % 8).unwrap_or(&DType::Int64);
        let shapes =
            [[1, 5, 6, 1], [3, 5, 7, 7], [2, 9, 11, 64], [4, 3, 5, 0], [0, 3, 2, 4], [1, 3, 4, 70_000]];
        let sizes = [shapes[at % 6], [400, 3, 9, 2], [1, 100, 1000, 768], [2, 4, 0, 8]][(at / 6 + at) % 4];
        let (mut k, mut count) = (gather(dtype, index, sizes), 0);
        if at % 3 == 0 {
            // Random layouts.
            (k.source, count) = random.access(0, dtype, &[sizes[0], sizes[1], sizes[3]], false);
            k.space.indices.strides[1] = 2;
        }
        let [outer, size, picks, inner] = sizes.map(|size| size as usize);
        let buffers = vec![
            random.buffer(dtype, count.max(outer * size * inner)),
            indices(&mut random, index, sizes[1], 2 * picks),
            untouched(dtype, outer * picks * inner),
        ];
        cases.push(Case::new(Kernel::Gather(k), buffers, 1));
    }
    // Two axes are indexed, in each of some batches.
    for (dtype, inner) in
        [(DType::Float32, 1), (DType::BFloat16, 8), (DType::UInt8, 5), (DType::Float64, 600)]
    {
        let (outer, picks) = (3, 70);
        let indices_of =
            Access { slot: Slot(1), dtype: DType::Int32, offset: 0, strides: vec![140, 2, 0, 1] };
        let space = Indexed {
            outer,
            sizes: vec![6, 6],
            inner,
            axis: 1,
            indices: indices_of,
            index_shape: [outer, picks, 1, 2],
        };
        let k = Gather {
            space,
            source: row_major(0, dtype, &[outer, 6, 6, inner]).0,
            out: row_major(2, dtype, &[outer, picks, inner]).0,
        };
        let buffers = vec![
            random.buffer(dtype, (outer * 36 * inner) as usize),
            indices(&mut random, DType::Int32, 6, 420),
            untouched(dtype, (outer * picks * inner) as usize),
        ];
        cases.push(Case::new(Kernel::Gather(k), buffers, 1));
    }
    cases
}

/// Indices out of range give zeros, and one error when the host waits for the device.
pub(crate) fn bad_indices(device: &Device) -> Vec<String> {
    let mut failures = Vec::new();
    for (index, size) in [(4i64, 4i64), (-5, 4), (i64::MAX, 4), (0, 0)] {
        let k = gather(DType::Float32, DType::Int64, [1, size, 3, 8]);
        let indices = [if size == 0 { index } else { 1 }, index, index];
        let source = Buffer::from(vec![1f32; size as usize * 8]);
        let buffers = vec![source, Buffer::from(indices.to_vec()), untouched(DType::Float32, 24)];
        let case = Case::new(Kernel::Gather(k), buffers, 1);
        let message = format!("index {index} is out of range for axis 2 with size {size}");
        let prepared = cuda::prepare(&[&case.kernel], device, Options::default());
        match prepared.and_then(|prepared| run_on(device, &case, &prepared[0])) {
            Err(error) if error.kind() == ErrorKind::Index && error.message() == message => {}
            Err(error) => failures.push(format!("{message}, but: {}", error.message())),
            Ok(_) => failures.push(format!("{message}, but there was no error")),
        }
        if let Err(error) = device.synchronize() {
            failures.push(format!("{message}, reported twice: {}", error.message()));
        }
    }
    failures
}

/// Slices of sixteen bytes in memory that is only aligned to four.
pub(crate) fn unaligned_memory(device: &Device) -> Option<String> {
    let run = || -> Result<Vec<f32>> {
        let elements: Vec<f32> = (0..41).map(|i| i as f32).collect();
        let source = Buffer::from(elements).to(device)?;
        let indices = Buffer::from(vec![3i32, -1]).to(device)?;
        let out = Buffer::from(vec![77f32; 9]).to(device)?;
        let k = Gather {
            source: Access { slot: Slot(0), dtype: DType::Float32, offset: 0, strides: vec![40, 8, 1] },
            out: Access { slot: Slot(2), dtype: DType::Float32, offset: 0, strides: vec![8, 4, 1] },
            ..gather(DType::Float32, DType::Int32, [1, 5, 2, 4])
        };
        let prepared = cuda::prepare(&[&Kernel::Gather(k)], device, Options::default())?;
        let memory =
            [Memory::of(&source)?.part(4, 160)?, Memory::of(&indices)?, Memory::of_mut(&out)?.part(4, 32)?];
        let scratch = Buffer::zeros(DType::UInt8, &[prepared[0].scratch_bytes()], device)?;
        prepared[0].run(&memory, Memory::of_mut(&scratch)?, &device.default_stream())?;
        device.synchronize()?;
        out.to(&CPU())?.to_vec::<f32>()
    };
    let expected = [77.0, 25.0, 26.0, 27.0, 28.0, 33.0, 34.0, 35.0, 36.0];
    match run() {
        Ok(got) if got == expected => None,
        other => Some(format!("unaligned memory: {other:?}, not {expected:?}")),
    }
}
