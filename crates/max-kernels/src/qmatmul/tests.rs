//! Products against plain arithmetic.

use max_core::HostBytes;
use max_core::kernel::{Access, Experts, Instr, Kernel, Loop, Projection, QMatmul, Reg, Slot};
use max_core::quantization::Storage;
use max_core::{DType, QuantizationEncoding, f16};
use max_driver::Buffer;

use super::activations::{HEIGHTS, Rows, TALL};
use super::panel::{DEPTH, Source, WIDTH};
use super::tile::{self, kernels};
use crate::matmul::Matrix;
use crate::{Constant, Memory, Pool, prepare};

/// Random numbers.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        self.0 >> 33
    }

    fn float(&mut self) -> f32 {
        (self.next() % 2001) as f32 / 1000.0 - 1.0
    }
}

/// Codes and scales of random rows.
fn weights(storage: Storage, rows: usize, depth: usize, random: &mut Random) -> (Vec<u8>, Vec<u8>) {
    let codes = match storage {
        Storage::Blocks(encoding) => {
            let format = encoding.format().unwrap();
            let mut bytes: Vec<u8> =
                (0..rows * depth / format.elements * format.bytes).map(|_| random.next() as u8).collect();
            // Every float16 in the blocks gets a moderate exponent, wherever the format has them.
            for block in bytes.chunks_exact_mut(format.bytes) {
                let mut values = vec![0.0; format.elements];
                loop {
                    format.dequantize(block, &mut values);
                    if values.iter().all(|value| value.abs() < 100.0) {
                        break;
                    }
                    block.iter_mut().for_each(|byte| *byte = random.next() as u8);
                }
            }
            bytes
        }
        Storage::Integers { bits, .. } => {
            (0..rows * depth * bits as usize / 8).map(|_| random.next() as u8).collect()
        }
        Storage::Float4 => (0..rows * depth / 2).map(|_| random.next() as u8).collect(),
        Storage::Floats { dtype: DType::Float32, .. } => {
            (0..rows * depth).flat_map(|_| random.float().to_le_bytes()).collect()
        }
        Storage::Floats { dtype, .. } => {
            let high = |random: &mut Random| random.next() as u8 & 0xbf;
            match dtype.size_in_bytes() {
                // Neither of these codes is NaN in any of the types.
                1 => (0..rows * depth).map(|_| high(random) | 1).collect(),
                _ => (0..rows * depth).flat_map(|_| [random.next() as u8, high(random)]).collect(),
            }
        }
    };
    let scales = storage.scales(depth) * rows;
    let scales = match storage {
        Storage::Integers { .. } => {
            (0..scales / 2).flat_map(|_| f16::from_f32(random.float()).to_le_bytes()).collect()
        }
        Storage::Floats { .. } => (0..scales).flat_map(|_| random.float().to_le_bytes()).collect(),
        _ => (0..scales).map(|_| 120 + (random.next() % 8) as u8).collect(),
    };
    (codes, scales)
}

/// What the product must be, with quantized activations, and what it may be off.
fn expected(storage: Storage, x: &[f32], w: &[f32]) -> (f64, f64) {
    let (mut sum, mut size) = (0.0, 0.0);
    for (x, w) in x.chunks(32).zip(w.chunks(32)) {
        let largest = x.iter().fold(0f32, |largest, x| largest.max(x.abs()));
        let (scale, inverse) = if largest > 0.0 { (largest / 127.0, 127.0 / largest) } else { (0.0, 0.0) };
        for (x, w) in x.iter().zip(w) {
            let x = if storage.is_integers() { (x * inverse).round_ties_even() * scale } else { *x };
            sum += f64::from(x) * f64::from(*w);
            size += f64::from(x.abs()) * f64::from(w.abs());
        }
    }
    // With minima, terms cancel: what is rounded is larger than the values.
    (sum, 1e-4 * size + 1e-5)
}

fn access(slot: u32, dtype: DType, strides: &[i64]) -> Access<i64> {
    Access { slot: Slot(slot), dtype, offset: 0, strides: strides.to_vec() }
}

/// Stores the product of some rows and columns in a slot.
fn stored(slot: u32, m: i64, n: i64) -> Loop<i64> {
    Loop {
        shape: vec![m, n],
        reduce: None,
        accesses: vec![access(slot, DType::Float32, &[n, 1])],
        code: vec![Instr::Product(DType::Float32), Instr::Store(0, Reg(0))],
    }
}

/// A product of one matrix of weights with rows, and its kernel.
struct Case {
    storage: Storage,
    size: [usize; 3],
    x: Vec<f32>,
    codes: Vec<u8>,
    scales: Vec<u8>,
}

impl Case {
    fn new(storage: Storage, size: [usize; 3], seed: u64) -> Case {
        let ([m, k, n], mut random) = (size, Random(seed));
        let x = (0..m * k).map(|_| random.float()).collect();
        let (codes, scales) = weights(storage, n, k, &mut random);
        Case { storage, size, x, codes, scales }
    }

    fn kernel(&self) -> Kernel<i64> {
        let [m, k, n] = self.size.map(|size| size as i64);
        let dtype = self.storage.dtype();
        let length = (self.codes.len() / self.size[2].max(1) / dtype.size_in_bytes()) as i64;
        let scales = self.storage.scales_dtype().map(|dtype| {
            let length = self.storage.scales(self.size[1]) as i64;
            (length, access(3, dtype, &[length, 1]))
        });
        let codes = access(1, dtype, &[length, 1]);
        let projection =
            Projection { storage: self.storage, n, length, codes, scales, epilogue: stored(2, m, n) };
        let lhs = access(0, DType::Float32, &[k, 1]);
        QMatmul { batch: vec![], m, k, lhs, experts: None, all: vec![projection] }.into()
    }

    /// The product, with constant weights or others.
    fn run(&self, constant: bool, threads: usize) -> Vec<f32> {
        let count = self.size[0] * self.size[2];
        let result = Buffer::from(vec![f32::NAN; count]);
        let codes = HostBytes::from_vec(self.codes.clone());
        let scales = HostBytes::from_vec(self.scales.clone());
        let (x, constants) = (
            HostBytes::from_vec(self.x.clone()),
            [Constant::new(codes.clone()), Constant::new(scales.clone())],
        );
        let [codes, scales] = match constant {
            true => [Memory::of_constant(&constants[0]), Memory::of_constant(&constants[1])],
            false => [Memory::of_bytes(&codes), Memory::of_bytes(&scales)],
        };
        let memory = [Memory::of_bytes(&x), codes, Memory::of_mut(&result).unwrap(), scales];
        prepare(&self.kernel()).unwrap().run(&memory, &Pool::new(threads)).unwrap();
        result.to_vec().unwrap()
    }

    fn check(&self, got: &[f32]) {
        let [m, k, n] = self.size;
        let row = |bytes: &[u8], at: usize| {
            let length = bytes.len() / n.max(1);
            bytes[at * length..][..length].to_vec()
        };
        let mut w = vec![0.0; k];
        for j in 0..n {
            self.storage.dequantize(&row(&self.codes, j), &row(&self.scales, j), &mut w).unwrap();
            for i in 0..m {
                let (value, bound) = expected(self.storage, &self.x[i * k..][..k], &w);
                let got = f64::from(got[i * n + j]);
                assert!(
                    (got - value).abs() <= bound,
                    "{} {:?} [{i}, {j}]: {got} != {value}",
                    self.storage,
                    self.size
                );
            }
        }
    }
}

fn storages() -> Vec<Storage> {
    let blocks =
        QuantizationEncoding::ALL.iter().filter(|e| e.blocks().is_some()).map(|&e| Storage::Blocks(e));
    let others = ["int4/32", "int4/128", "int8/64", "float4/32", "float32", "bfloat16", "float16"];
    let floats =
        ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz/32", "float8_e5m2fnuz", "float8_e4m3fn/128"];
    blocks.chain(others.iter().chain(&floats).map(|text| text.parse().unwrap())).collect()
}

#[test]
fn products_match_plain_arithmetic() {
    for storage in storages() {
        for (m, n) in
            [(1, 1), (1, 16), (2, 17), (3, 40), (7, 5), (8, 33), (16, 20), (21, 30), (39, 17), (100, 70)]
        {
            let case = Case::new(storage, [m, 256 * (1 + (m + n) % 3), n], (m * 1000 + n) as u64);
            let result = case.run(true, 2);
            case.check(&result);
            assert_eq!(result, case.run(false, 1), "{storage} {m} {n}");
        }
    }
}

#[test]
fn a_row_has_the_same_bits_alone_and_in_company() {
    for storage in storages() {
        let case = Case::new(storage, [61, 512, 70], 7);
        let all = case.run(true, 2);
        for row in [0, 3, 9, 20, 47, 52, 57, 60] {
            let x = case.x[row * 512..][..512].to_vec();
            let alone = Case {
                size: [1, 512, 70],
                x,
                codes: case.codes.clone(),
                scales: case.scales.clone(),
                storage,
            };
            assert_eq!(alone.run(true, 1), all[row * 70..][..70], "{storage} row {row}");
        }
    }
}

/// Some rows as tiles of one height, multiplied by a panel.
fn tiles(kernel: tile::Tile, panel: &[u8], x: &[f32], blocks: usize, height: usize) -> Vec<f32> {
    let (depth, count) = (blocks * DEPTH, x.len() / (blocks * DEPTH));
    let (mut elements, mut scales) = (vec![0u8; count * depth], vec![0f32; count * blocks]);
    let [mut whole, mut halves] = [vec![0f32; count * blocks], vec![0f32; 2 * count * blocks]];
    let rows = Rows {
        elements: elements.as_mut_ptr(),
        scales: scales.as_mut_ptr(),
        sums: [whole.as_mut_ptr(), halves.as_mut_ptr()],
        size: 1,
        scaled: false,
    };
    let mut result = vec![f32::NAN; count * WIDTH];
    // SAFETY: there is room for the rows; the kernel can run here, and the operands have their sizes.
    unsafe {
        for (number, row) in x.chunks(depth).enumerate() {
            let (tile, at) = (number / height, number % height);
            rows.at(tile * height, blocks).quantize(row.as_ptr(), blocks, at, height);
        }
        kernel(blocks, panel.as_ptr(), rows, count / height, result.as_mut_ptr(), WIDTH);
    }
    result
}

#[test]
fn every_unit_and_height_computes_the_same() {
    for encoding in QuantizationEncoding::ALL.iter().copied().filter(|e| e.blocks().is_some()) {
        let storage = Storage::Blocks(encoding);
        let several = encoding.blocks().unwrap().elements / DEPTH;
        for blocks in [several, 24, (21 / several).max(1) * several] {
            let mut random = Random(3);
            let (codes, _) = weights(storage, WIDTH, blocks * DEPTH, &mut random);
            let layout = kernels(encoding).unwrap().0;
            let length = codes.len() / WIDTH;
            let matrix =
                Matrix { start: codes.as_ptr(), strides: [length as isize, 1], size: [WIDTH, length] };
            let mut panel = vec![0; layout.panel(blocks)];
            // SAFETY: the matrix has the codes, and the panel has its size.
            unsafe {
                Source { storage, codes: matrix, scales: None }.pack(layout, 0, blocks, panel.as_mut_ptr())
            };
            let x: Vec<f32> = (0..3 * TALL * blocks * DEPTH).map(|_| random.float()).collect();
            let results = tile::units(encoding).flat_map(|(unit, kernels)| {
                let heights = HEIGHTS.into_iter().zip(kernels);
                heights.map(move |(height, kernel)| (unit, height, *kernel))
            });
            let results: Vec<_> = results
                .map(|(unit, height, kernel)| (unit, height, tiles(kernel, &panel, &x, blocks, height)))
                .collect();
            let first = &results[0].2;
            let largest = first.iter().fold(0f32, |largest, x| largest.max(x.abs()));
            for (unit, height, result) in &results {
                // Plain code rounds products and sums, others only sums.
                let same = |(a, b): (&f32, &f32)| match *unit {
                    "plain" => (a - b).abs() <= 1e-4 * largest,
                    _ => a.to_bits() == b.to_bits(),
                };
                assert!(result.iter().zip(first).all(same), "{encoding} {blocks} {height} {unit}");
            }
        }
    }
}

#[test]
fn without_depth_products_are_zeros() {
    for (storage, m) in storages().into_iter().flat_map(|storage| [(storage, 1), (storage, 40)]) {
        let case = Case::new(storage, [m, 0, 20], 1);
        assert!(
            [true, false].iter().all(|&constant| case.run(constant, 2) == vec![0.0; m * 20]),
            "{storage}"
        );
    }
}

#[test]
fn what_is_not_finite_stays_in_its_row() {
    for storage in storages() {
        let mut case = Case::new(storage, [3, 256, 20], 11);
        (case.x[256 + 40], case.x[2]) = (f32::NAN, 0.0);
        case.x[512..].fill(1e-40);
        let result = case.run(true, 1);
        assert!(result[20..40].iter().all(|x| x.is_nan()), "{storage}");
        assert!(result[..20].iter().chain(&result[40..]).all(|x| x.is_finite()), "{storage}");
        case.x[256 + 40] = f32::INFINITY;
        assert!(case.run(false, 1)[20..40].iter().all(|x| !x.is_finite()), "{storage}");
    }
}

/// Rows that several matrices multiply.
fn experts(starts: &[i32], ids: &[i64]) -> max_core::Result<Vec<f32>> {
    let (m, k, n, count) = (30, 64, 20, 3);
    let storage = Storage::Blocks(QuantizationEncoding::Q8_0);
    let mut case = Case::new(storage, [m, k, count * n], 5);
    case.size[2] = n;
    let Kernel::QMatmul(mut kernel) = case.kernel() else { unreachable!() };
    let projection = &mut kernel.all[0];
    projection.length = 68;
    projection.codes.strides = vec![68 * n as i64, 68, 1];
    kernel.experts = Some(Experts {
        count: count as i64,
        groups: ids.len() as i64,
        starts: access(3, DType::Int32, &[1]),
        ends: starts.len() as i64,
        ids: access(4, DType::Int64, &[1]),
    });
    let result = Buffer::from(vec![f32::NAN; m * n]);
    let codes = Constant::new(HostBytes::from_vec(case.codes.clone()));
    let (x, starts, ids) = (
        HostBytes::from_vec(case.x.clone()),
        HostBytes::from_vec(starts.to_vec()),
        HostBytes::from_vec(ids.to_vec()),
    );
    let memory = [
        Memory::of_bytes(&x),
        Memory::of_constant(&codes),
        Memory::of_mut(&result).unwrap(),
        Memory::of_bytes(&starts),
        Memory::of_bytes(&ids),
    ];
    prepare(&kernel.into())?.run(&memory, &Pool::new(2))?;
    let got = result.to_vec::<f32>()?;
    for id in 0..count {
        let codes = case.codes[id * n * 68..][..n * 68].to_vec();
        let one = Case { size: [m, k, n], x: case.x.clone(), codes, scales: vec![], storage }.run(true, 1);
        let groups: &[i64] = bytemuck::cast_slice(&ids);
        let starts: &[i32] = bytemuck::cast_slice(&starts);
        for (bounds, _) in starts.windows(2).zip(groups).filter(|(_, group)| **group == id as i64) {
            let range = bounds[0] as usize * n..bounds[1] as usize * n;
            assert_eq!(got[range.clone()], one[range]);
        }
    }
    Ok(got)
}

#[test]
fn groups_of_rows_have_matrices_of_their_own() {
    let got = experts(&[2, 2, 13, 14, 30], &[1, 2, 0, 1]).unwrap();
    assert!(got[..2 * 20].iter().all(|&x| x == 0.0) && got.iter().all(|x| x.is_finite()));
    let got = experts(&[0, 10, 20], &[2, -1]).unwrap();
    assert!(got[10 * 20..].iter().all(|&x| x == 0.0));
    assert!(experts(&[5], &[]).unwrap().iter().all(|&x| x == 0.0));
    for (starts, ids) in [([0, 31], [0]), ([-1, 3], [0]), ([4, 3], [0]), ([0, 3], [3]), ([0, i32::MAX], [-1])]
    {
        let error = experts(&starts, &ids).unwrap_err();
        assert!(error.message().contains("is not among 30 rows and 3 matrices"), "{error}");
    }
}

#[test]
fn merged_products_share_their_rows() {
    let (first, second) = (
        Case::new(Storage::Blocks(QuantizationEncoding::Q4_K), [3, 256, 33], 1),
        Case::new(Storage::Blocks(QuantizationEncoding::Q6_K), [3, 256, 20], 2),
    );
    let (Kernel::QMatmul(mut both), Kernel::QMatmul(other)) = (first.kernel(), second.kernel()) else {
        unreachable!()
    };
    let mut projection = other.all[0].clone();
    projection.codes.slot = Slot(3);
    projection.epilogue.accesses[0].slot = Slot(4);
    both.all.push(projection);
    let results = [3 * 33, 3 * 20].map(|count| Buffer::from(vec![f32::NAN; count]));
    let bytes = [&first.codes, &second.codes].map(|codes| HostBytes::from_vec(codes.clone()));
    let x = HostBytes::from_vec(first.x.clone());
    let memory = [
        Memory::of_bytes(&x),
        Memory::of_bytes(&bytes[0]),
        Memory::of_mut(&results[0]).unwrap(),
        Memory::of_bytes(&bytes[1]),
        Memory::of_mut(&results[1]).unwrap(),
    ];
    prepare(&both.into()).unwrap().run(&memory, &Pool::new(2)).unwrap();
    assert_eq!(results[0].to_vec::<f32>().unwrap(), first.run(true, 1));
    let second = Case { x: first.x.clone(), ..second };
    assert_eq!(results[1].to_vec::<f32>().unwrap(), second.run(true, 1));
}
