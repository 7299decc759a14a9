//! Attention on a GPU against the CPU: layouts, grouped heads, masks, windows, lengths that do not fill a tile.

mod gpu;

use gpu::gpu;
use max_core::kernel::{Access, Attention, Instr, Kernel, Loop, Reg, Slot};
use max_core::scalar::NumericOp;
use max_core::{DType, Element, dispatch};
use max_driver::{Buffer, Device};
use max_kernels::{Memory, Pool, cuda, prepare};

/// Pseudo-random numbers, the same in every run.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as f64 / (1u64 << 31) as f64 * 2.0 - 1.0
    }

    fn buffer(&mut self, dtype: DType, count: i64) -> Buffer {
        dispatch!(dtype, T => {
            let elements = (0..count).map(|_| match T::DTYPE {
                DType::Bool => T::from_double(f64::from(self.next() > -0.5)),
                _ => T::from_double(self.next()),
            });
            Buffer::from(elements.collect::<Vec<T>>())
        })
    }
}

#[derive(Clone, Copy, Debug)]
struct Case {
    dtype: DType,
    /// Batch, groups of heads, heads per group, queries, keys, depth and width.
    sizes: [i64; 7],
    causal: bool,
    window: usize,
    mask: Option<DType>,
    /// Whether the first row of the mask hides all keys with the lowest finite number.
    lowest: bool,
    /// Whether heads are side by side in a row, as matmuls leave them.
    rows: bool,
    /// Whether a residual is added to the result.
    residual: bool,
}

fn contiguous(shape: &[i64]) -> Vec<i64> {
    (0..shape.len()).map(|axis| shape[axis + 1..].iter().product()).collect()
}

/// The strides of `[batch, groups, heads, length, size]`, with the heads side by side in a row or not.
fn strides(case: Case, length: i64, size: i64, heads: i64) -> Vec<i64> {
    let [_, groups, ..] = case.sizes;
    let mut strides = match case.rows {
        true => {
            let row = groups * heads * size;
            vec![length * row, heads * size, size, row, 1]
        }
        false => contiguous(&[1, groups, heads, length, size]),
    };
    if heads == 1 {
        strides[2] = 0;
    }
    strides
}

/// The same elements, with the first `count` replaced by the lowest finite number.
fn with_lowest(buffer: &Buffer, count: usize) -> Buffer {
    let lowest = match buffer.dtype() {
        DType::Float64 => f64::MIN,
        DType::Float32 => f32::MIN.into(),
        DType::BFloat16 => f64::from(f32::from_bits(0xff7f_0000)),
        _ => -65504.0,
    };
    dispatch!(buffer.dtype(), T => {
        let mut elements = buffer.to_vec::<T>().unwrap();
        elements[..count].fill(T::from_double(lowest));
        Buffer::from(elements)
    })
}

fn attention(case: Case, numbers: &mut Numbers) -> (Attention<i64>, Vec<Buffer>) {
    let [batch, groups, heads, queries, keys, depth, width] = case.sizes;
    let mut slots = Vec::new();
    let mut operand = |dtype: DType, strides: Vec<i64>, count: i64| {
        slots.push(numbers.buffer(dtype, count));
        Access { slot: Slot(slots.len() as u32 - 1), dtype, offset: 0, strides }
    };
    let all = batch * groups * heads;
    let query = operand(case.dtype, strides(case, queries, depth, heads), all * queries * depth);
    let key = operand(case.dtype, strides(case, keys, depth, 1), batch * groups * keys * depth);
    let value = operand(case.dtype, strides(case, keys, width, 1), batch * groups * keys * width);
    let mask =
        case.mask.map(|dtype| operand(dtype, vec![queries * keys, 0, 0, keys, 1], batch * queries * keys));
    let out = strides(case, queries, width, heads);
    let residual = operand(case.dtype, out.clone(), all * queries * width);
    if let Some(mask) = mask.as_ref().filter(|_| case.lowest) {
        let mask = &mut slots[mask.slot.0 as usize];
        *mask = with_lowest(mask, keys as usize);
    }
    let place = Access { slot: Slot(slots.len() as u32), dtype: case.dtype, offset: 0, strides: out };
    let mut code = vec![Instr::Product(case.dtype)];
    if case.residual {
        code.extend([Instr::Load(1), Instr::Apply(NumericOp::Add.into(), [Reg(0), Reg(1)])]);
    }
    code.push(Instr::Store(0, Reg(code.len() as u32 - 1)));
    let epilogue = Loop {
        shape: vec![batch, groups, heads, queries, width],
        reduce: None,
        accesses: vec![place, residual],
        code,
    };
    let attention = Attention {
        batch: vec![batch, groups, heads],
        queries,
        keys,
        depth,
        width,
        query,
        key,
        value,
        mask,
        scale: 1.5 / (depth as f64).sqrt(),
        causal: case.causal,
        window: case.window,
        epilogue,
    };
    (attention, slots)
}

fn on_cpu(kernel: &Kernel<i64>, slots: &[Buffer], out: &Buffer) {
    let mut memory: Vec<Memory> = slots.iter().map(|slot| Memory::of(slot).unwrap()).collect();
    memory.push(Memory::of_mut(out).unwrap());
    prepare(kernel).unwrap().run(&memory, &Pool::new(2)).unwrap();
}

fn on_gpu(kernel: &Kernel<i64>, slots: &[Buffer], out: &Buffer, device: &Device) -> Buffer {
    let slots: Vec<Buffer> = slots.iter().map(|slot| slot.to(device).unwrap()).collect();
    let out = out.to(device).unwrap();
    let mut memory: Vec<Memory> = slots.iter().map(|slot| Memory::of(slot).unwrap()).collect();
    memory.push(Memory::of_mut(&out).unwrap());
    let prepared = cuda::prepare(&[kernel], device, cuda::Options::default()).unwrap().remove(0);
    let scratch = Buffer::uninit_pooled(DType::UInt8, &[prepared.scratch_bytes().max(1)], device).unwrap();
    prepared.run(&memory, Memory::of_mut(&scratch).unwrap(), &device.default_stream()).unwrap();
    out.to(&Device::cpu()).unwrap()
}

fn numbers_of(buffer: &Buffer) -> Vec<f64> {
    dispatch!(buffer.dtype(), T => buffer.to_vec::<T>().unwrap().iter().map(|x| x.to_f64()).collect())
}

#[test]
fn results_match_the_cpu() {
    let Some(device) = gpu() else { return };
    let base = Case {
        dtype: DType::BFloat16,
        sizes: [2, 2, 3, 100, 100, 64, 64],
        causal: false,
        window: 0,
        mask: None,
        lowest: false,
        rows: true,
        residual: false,
    };
    let mut cases = Vec::new();
    for dtype in [DType::BFloat16, DType::Float16, DType::Float32, DType::Float64] {
        cases.push(Case { dtype, ..base });
        cases.push(Case { dtype, causal: true, rows: false, ..base });
        cases.push(Case { dtype, causal: true, sizes: [1, 1, 2, 70, 200, 128, 128], ..base });
        cases.push(Case { dtype, causal: true, window: 33, sizes: [1, 2, 1, 200, 300, 32, 48], ..base });
        cases.push(Case { dtype, mask: Some(dtype), residual: true, ..base });
        cases.push(Case { dtype, mask: Some(dtype), lowest: true, ..base });
        cases.push(Case { dtype, mask: Some(DType::Bool), causal: true, ..base });
        cases.push(Case { dtype, causal: true, sizes: [2, 1, 3, 300, 333, 64, 64], ..base });
        cases.push(Case { dtype, causal: true, window: 77, sizes: [1, 1, 2, 400, 400, 48, 64], ..base });
        cases.push(Case { dtype, sizes: [1, 1, 2, 257, 130, 64, 32], rows: false, ..base });
        cases.push(Case { dtype, sizes: [1, 1, 1, 1, 1, 8, 8], ..base });
        cases.push(Case { dtype, sizes: [3, 1, 4, 1, 513, 80, 80], ..base });
        cases.push(Case { dtype, sizes: [1, 2, 2, 65, 129, 40, 72], rows: false, ..base });
        cases.push(Case { dtype, sizes: [1, 1, 2, 5, 9, 7, 3], ..base });
        cases.push(Case { dtype, sizes: [1, 1, 1, 4, 0, 16, 16], ..base });
        // Around the borders of tiles of 64 and 128 queries and keys.
        for (queries, keys, depth) in [(64, 128, 128), (65, 127, 128), (129, 129, 64), (128, 257, 96)] {
            cases.push(Case { dtype, sizes: [1, 2, 2, queries, keys, depth, depth], ..base });
            cases.push(Case { dtype, sizes: [1, 1, 2, queries, keys, depth, depth], causal: true, ..base });
        }
        cases.push(Case { dtype, sizes: [1, 1, 2, 200, 190, 192, 128], residual: true, ..base });
        cases.push(Case { dtype, sizes: [1, 1, 2, 150, 193, 256, 256], causal: true, window: 65, ..base });
        cases.push(Case { dtype, sizes: [1, 2, 1, 1, 700, 256, 256], ..base });
        cases.push(Case {
            dtype,
            sizes: [1, 1, 2, 140, 150, 136, 8],
            mask: Some(dtype),
            rows: false,
            ..base
        });
        // Queries that see no key, and more tiles than blocks run at a time.
        cases.push(Case { dtype, sizes: [1, 1, 2, 300, 100, 64, 64], causal: true, ..base });
        cases.push(Case { dtype, sizes: [9, 4, 5, 270, 270, 16, 16], causal: true, ..base });
        cases.push(Case { dtype, sizes: [9, 4, 9, 30, 70, 16, 16], ..base });
    }
    // Enough scores that they are computed in parts of different sizes.
    cases.push(Case { dtype: DType::Float32, sizes: [1, 1, 1, 12_001, 11_203, 16, 16], ..base });
    cases.push(Case { dtype: DType::BFloat16, sizes: [1, 1, 1, 12_001, 11_203, 12, 12], ..base });
    let mut numbers = Numbers(11);
    let mut wrong = Vec::new();
    for case in cases {
        let (attention, slots) = attention(case, &mut numbers);
        let kernel = Kernel::Attention(attention);
        let count = case.sizes[..4].iter().product::<i64>() * case.sizes[6];
        let out = numbers.buffer(case.dtype, count);
        let expected = out.copy(None).unwrap();
        on_cpu(&kernel, &slots, &expected);
        let [first, second] = [0, 1].map(|_| on_gpu(&kernel, &slots, &out, &device));
        if first.host_bytes().unwrap() != second.host_bytes().unwrap() {
            wrong.push(format!("{case:?}: not the same bits twice"));
        }
        let tolerance = match case.dtype {
            DType::BFloat16 => 2e-2,
            DType::Float16 => 3e-3,
            DType::Float32 => 2e-5,
            _ => 1e-10,
        };
        let (actual, expected) = (numbers_of(&first), numbers_of(&expected));
        let close = |a: f64, b: f64| (a - b).abs() <= tolerance || a.is_nan() && b.is_nan();
        let pairs = actual.iter().zip(&expected).enumerate();
        if let Some((at, (a, b))) = pairs.into_iter().find(|(_, (a, b))| !close(**a, **b)) {
            wrong.push(format!("{case:?}: element {at} is {a}, expected {b}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
