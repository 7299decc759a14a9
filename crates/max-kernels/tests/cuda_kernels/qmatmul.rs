//! Products with quantized weights, against what their definition gives, number by number.

use max_core::kernel::{Access, Experts, Instr, Kernel, Loop, Projection, QMatmul, Reg, Slot};
use max_core::quantization::{Format, Scale, Storage};
use max_core::scalar::NumericOp;
use max_core::{DType, Element, QuantizationEncoding, Result, dispatch};
use max_driver::{Buffer, Device};
use max_kernels::cuda::{self, Options, Prepared};

use super::case::{Case, Random, row_major, run_on, untouched};

const F32: DType = DType::Float32;

/// The most rows whose activations are rounded to bytes.
const MOST_ROWS: usize = 128;

/// What happens to a product.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Ending {
    Store,
    Bias,
    /// More than functions do themselves.
    Square,
}

/// An ending whose results a dtype has: squares are too large for float16.
fn fitting(dtype: DType, ending: Ending) -> Ending {
    if dtype == DType::Float16 && ending == Ending::Square { Ending::Bias } else { ending }
}

/// Groups of rows: where they start and end, and their matrices.
#[derive(Clone, Debug)]
struct Groups {
    starts: Vec<i64>,
    ids: Vec<i64>,
    count: usize,
}

/// A product with what it is made of.
struct Product {
    name: String,
    case: Case,
    expected: Vec<f64>,
    tolerance: Vec<f64>,
}

/// Scales of a moderate size in a block of random bytes.
fn set_scales(random: &mut Random, format: &Format, block: &mut [u8]) {
    for scale in [Some(format.scale), format.min].into_iter().flatten() {
        match scale {
            Scale::Half(at) | Scale::Negative(at) | Scale::Times { half: at, .. } => {
                // Float16 between 1/64 and 1/8 in magnitude.
                block[at] = random.below(256) as u8;
                block[at + 1] = (0x24 + random.below(12)) as u8 | (random.below(2) << 7) as u8;
            }
            Scale::HalfPower(at) => block[at] = (120 + random.below(8)) as u8,
        }
    }
}

/// The bytes of the codes and the scales of rows.
pub(crate) fn weights(random: &mut Random, storage: Storage, rows: usize, k: usize) -> (Vec<u8>, Vec<u8>) {
    let mut bytes = |count: usize| (0..count).map(|_| random.below(256) as u8).collect::<Vec<u8>>();
    match storage {
        Storage::Blocks(encoding) => {
            let format = encoding.format().unwrap();
            let mut codes = bytes(rows * k / format.elements * format.bytes);
            codes.chunks_exact_mut(format.bytes).for_each(|block| set_scales(random, format, block));
            (codes, vec![])
        }
        Storage::Integers { bits, group } => {
            let codes = bytes(rows * k * bits as usize / 8);
            let mut scales = bytes(rows * k / group * 2);
            scales.chunks_exact_mut(2).for_each(|scale| scale[1] = 0x24 + scale[1] % 12);
            (codes, scales)
        }
        Storage::Float4 => {
            let codes = bytes(rows * k / 2);
            let scales = bytes(rows * k / 32).into_iter().map(|byte| 120 + byte % 8).collect();
            (codes, scales)
        }
        Storage::Floats { dtype, group } => {
            let codes = random.buffer(dtype, rows * k);
            let codes = codes.host_bytes().unwrap().as_ref().to_vec();
            let scales = match group {
                0 => vec![],
                _ => (0..rows * k / group)
                    .flat_map(|_| ((1 + random.below(8)) as f32 / 8.0).to_le_bytes())
                    .collect(),
            };
            (codes, scales)
        }
    }
}

/// The activations of a row as products use them: rounded to 255 steps for each 32 elements.
fn rounded(row: &[f64]) -> Vec<f64> {
    let groups = row.chunks(32).flat_map(|group| {
        let most = group.iter().fold(0.0f32, |most, &x| most.max((x as f32).abs()));
        let finite = group.iter().all(|x| x.is_finite());
        let unit = most / 127.0;
        group.iter().map(move |&x| match finite {
            false => f64::NAN,
            true if most < 2f32.powi(-100) => 0.0,
            true => f64::from((x as f32 / unit).round_ties_even()) * f64::from(unit),
        })
    });
    groups.collect()
}

impl Product {
    fn new(
        random: &mut Random,
        (dtype, storage): (DType, Storage),
        [m, n, k]: [usize; 3],
        ending: Ending,
        groups: Option<Groups>,
        columns_first: bool,
    ) -> Product {
        let element = |random: &mut Random| (random.below(4001) as f64 - 2000.0) / 512.0;
        let x: Vec<f64> = (0..m * k).map(|_| element(random)).collect();
        let bias: Vec<f64> = (0..n).map(|_| element(random)).collect();
        let of = |dtype: DType, values: &[f64]| {
            dispatch!(dtype, T => {
                Buffer::from(values.iter().map(|&x| T::from_double(x)).collect::<Vec<T>>())
            })
        };
        let lhs = of(dtype, &x);
        let x = numbers(&lhs);
        let matrices = groups.as_ref().map_or(1, |groups| groups.count);
        let (codes, scales) = weights(random, storage, matrices * n, k);
        let (code_size, scale_length) = (storage.dtype().size_in_bytes(), storage.scales(k));
        let length = codes.len() / (matrices * n) / code_size;
        let scale_bytes = scales.len() / (matrices * n);

        let (mut expected, mut tolerance) = (vec![0.0; m * n], vec![0.0; m * n]);
        let mut decoded = vec![0.0f32; k];
        let whole = vec![(0..m, 0)];
        let ranges = groups.as_ref().map_or(whole, |groups| {
            let ranges = groups.starts.windows(2).zip(&groups.ids).filter(|(_, id)| **id >= 0);
            ranges.map(|(range, id)| (range[0] as usize..range[1] as usize, *id as usize)).collect()
        });
        let by_bytes = storage.is_integers() && (groups.is_some() || m <= MOST_ROWS);
        let rows: Vec<Vec<f64>> =
            x.chunks(k).map(|row| if by_bytes { rounded(row) } else { row.to_vec() }).collect();
        // Rounding of sums, or of both operands to bfloat16.
        let share = match (by_bytes, storage) {
            (true, _) => 3e-5,
            (false, Storage::Floats { .. }) if dtype != DType::BFloat16 => 3e-5,
            (false, _) => 0.008,
        };
        for (range, matrix) in ranges {
            for column in 0..n {
                let at = matrix * n + column;
                let row = length * code_size;
                let scales = &scales[at * scale_bytes..][..scale_bytes];
                storage.dequantize(&codes[at * row..][..row], scales, &mut decoded).unwrap();
                for r in range.clone() {
                    let (mut sum, mut size) = (0.0, 0.0);
                    for (x, w) in rows[r].iter().zip(&decoded) {
                        let term = x * f64::from(*w);
                        (sum, size) = (sum + term, size + term.abs());
                    }
                    expected[r * n + column] = sum;
                    tolerance[r * n + column] = size * share;
                }
            }
        }
        let rounding = match dtype {
            DType::Float32 => 1e-6,
            DType::Float16 => 2e-3,
            _ => 1.6e-2,
        };
        let bias = of(dtype, &bias);
        let added = numbers(&bias);
        for (at, (value, tolerance)) in expected.iter_mut().zip(&mut tolerance).enumerate() {
            match ending {
                Ending::Store => {}
                Ending::Bias => *value += added[at % n],
                Ending::Square => {
                    *tolerance = 2.0 * *tolerance * (value.abs() + *tolerance);
                    *value *= *value;
                }
            }
            *tolerance += rounding * (value.abs() + 1e-3);
        }

        let access = |slot, dtype, strides: &[i64]| Access {
            slot: Slot(slot),
            dtype,
            offset: 0,
            strides: strides.to_vec(),
        };
        let places = |slot, dtype, length: usize| {
            let length = length as i64;
            match (&groups, columns_first) {
                (Some(_), _) => access(slot, dtype, &[n as i64 * length, length, 1]),
                (None, true) => access(slot, dtype, &[1, n as i64]),
                (None, false) => access(slot, dtype, &[length, 1]),
            }
        };
        // Columns first in memory.
        let turned = |bytes: Vec<u8>, length: usize| match columns_first {
            true => (0..bytes.len()).map(|at| bytes[at % n * length + at / n]).collect(),
            false => bytes,
        };
        let (starts, ids) = groups.as_ref().map_or((vec![], vec![]), |g| (g.starts.clone(), g.ids.clone()));
        let of_groups = groups.as_ref().map(|g| Experts {
            count: g.count as i64,
            groups: g.ids.len() as i64,
            starts: access(4, DType::UInt32, &[1]),
            ends: g.starts.len() as i64,
            ids: access(5, DType::Int32, &[1]),
        });
        let add = |op: NumericOp, a, b| Instr::Apply(op.into(), [Reg(a), Reg(b)]);
        let (product, store) = (Instr::Product(dtype), |reg| Instr::Store(0, Reg(reg)));
        let code = match ending {
            Ending::Store => vec![product, store(0)],
            Ending::Bias => vec![product, Instr::Load(1), add(NumericOp::Add, 0, 1), store(2)],
            Ending::Square => vec![product, add(NumericOp::Mul, 0, 0), store(1)],
        };
        let (out, count) = row_major(6, dtype, &[m as i64, n as i64]);
        let epilogue = Loop {
            shape: vec![m as i64, n as i64],
            reduce: None,
            accesses: vec![out, access(3, dtype, &[0, 1])],
            code,
        };
        let scale_places =
            storage.scales_dtype().map(|dtype| (scale_length as i64, places(2, dtype, scale_length)));
        let projection = Projection {
            storage,
            n: n as i64,
            length: length as i64,
            codes: places(1, storage.dtype(), length),
            scales: scale_places,
            epilogue,
        };
        let kernel = QMatmul {
            batch: vec![],
            m: m as i64,
            k: k as i64,
            lhs: row_major(0, dtype, &[m as i64, k as i64]).0,
            experts: of_groups,
            all: vec![projection],
        };
        let as_dtype = |bytes: Vec<u8>, dtype: DType| {
            let shape = [bytes.len() / dtype.size_in_bytes()];
            Buffer::from(bytes).view(dtype, Some(&shape)).unwrap()
        };
        let (codes, scales) = (turned(codes, length), turned(scales, scale_bytes));
        let buffers = vec![
            lhs,
            as_dtype(codes, storage.dtype()),
            as_dtype(scales, storage.scales_dtype().unwrap_or(DType::UInt8)),
            bias,
            Buffer::from(starts.iter().map(|&start| start as u32).collect::<Vec<_>>()),
            Buffer::from(ids.iter().map(|&id| id as i32).collect::<Vec<_>>()),
            untouched(dtype, count),
        ];
        let name =
            format!("{dtype} {storage} {m}x{n}x{k} {ending:?} {groups:?} columns first: {columns_first}");
        Product { name, case: Case::new(Kernel::QMatmul(kernel), buffers, 1), expected, tolerance }
    }

    /// What is wrong with results.
    fn compare(&self, got: &Buffer) -> Option<String> {
        let got = numbers(got);
        let is_wrong = |at: &usize| {
            let (got, expected) = (got[*at], self.expected[*at]);
            !((got - expected).abs() <= self.tolerance[*at] || (got.is_nan() && expected.is_nan()))
        };
        let wrong: Vec<usize> = (0..got.len()).filter(is_wrong).collect();
        let (&first, &last) = (wrong.first()?, wrong.last()?);
        let samples = wrong
            .iter()
            .take(6)
            .map(|&at| format!("[{at}] {} not {} +- {}", got[at], self.expected[at], self.tolerance[at]));
        let samples = samples.collect::<Vec<_>>().join(", ");
        Some(format!(
            "{}: {} of {} are wrong, from {first} to {last}: {samples}",
            self.name,
            wrong.len(),
            got.len()
        ))
    }
}

fn numbers(buffer: &Buffer) -> Vec<f64> {
    dispatch!(buffer.dtype(), T => buffer.to_vec::<T>().unwrap().into_iter().map(|x| x.to_f64()).collect())
}

fn encodings() -> impl Iterator<Item = Storage> {
    let blocks = QuantizationEncoding::ALL.iter().filter(|encoding| encoding.blocks().is_some());
    blocks.map(|&encoding| Storage::Blocks(encoding))
}

/// All storages with many numbers of rows, of columns and of elements.
fn products() -> Vec<Product> {
    let mut random = Random(31);
    let mut products = Vec::new();
    let apart = [(4, 128), (8, 32), (4, 96)].map(|(bits, group)| Storage::Integers { bits, group });
    for (number, storage) in encodings().chain(apart).chain([Storage::Float4]).enumerate() {
        let unit = match storage {
            Storage::Blocks(encoding) => encoding.format().unwrap().elements,
            Storage::Integers { group, .. } => group,
            _ => 32,
        };
        for (at, m) in [1, 2, 3, 4, 5, 8, 16, 17, 64, 150].into_iter().enumerate() {
            for (turn, (n, k)) in
                [(1, 256), (16, 4096), (40, 512), (257, 256), (40, 32)].into_iter().enumerate()
            {
                // Everything for few rows, some of it for many.
                if m > 16 && turn % 2 != at % 2 {
                    continue;
                }
                let k = k.max(unit).next_multiple_of(unit);
                let dtype = [DType::BFloat16, F32, DType::Float16][(number + at) % 3];
                let ending = [Ending::Store, Ending::Bias, Ending::Store, Ending::Square, Ending::Bias][turn];
                let ending = fitting(dtype, ending);
                products.push(Product::new(&mut random, (dtype, storage), [m, n, k], ending, None, false));
            }
        }
        if storage.scales_dtype().is_some() {
            for m in [1, 5, 150] {
                let sizes = [m, 48, 2 * unit];
                products.push(Product::new(&mut random, (F32, storage), sizes, Ending::Store, None, true));
            }
        }
    }
    let floats = [(F32, 0), (DType::BFloat16, 0), (DType::Float16, 0), (DType::Float8E4M3FN, 32)];
    for (dtype, group) in floats {
        for lhs in [DType::BFloat16, F32, DType::Float16] {
            let storage = Storage::Floats { dtype, group };
            products.push(Product::new(&mut random, (lhs, storage), [5, 40, 64], Ending::Bias, None, false));
        }
    }
    products
}

/// Groups of rows, some empty, some without a matrix, and rows outside of all.
fn grouped() -> Vec<Product> {
    let mut random = Random(32);
    let groups = Groups { starts: vec![2, 5, 5, 22, 23, 40], ids: vec![2, 0, 1, -1, 0], count: 3 };
    let mut products = Vec::new();
    for (number, storage) in encodings().chain([Storage::Float4]).enumerate() {
        let dtype = [DType::BFloat16, F32, DType::Float16][number % 3];
        let ending = fitting(dtype, [Ending::Store, Ending::Bias, Ending::Square][number % 3]);
        let groups = Some(groups.clone());
        products.push(Product::new(&mut random, (dtype, storage), [43, 40, 512], ending, groups, false));
    }
    products
}

/// The products whose definition does not give finite numbers.
pub(crate) fn without_numbers() -> Vec<String> {
    let is_odd = |product: &Product| {
        let numbers = product.expected.iter().chain(&product.tolerance);
        product.expected.iter().all(|&x| x == 0.0) || numbers.into_iter().any(|x| !x.is_finite())
    };
    products().into_iter().chain(grouped()).filter(is_odd).map(|product| product.name).collect()
}

/// The result of a product, prepared alone.
fn run_alone(device: &Device, case: &Case) -> Result<Buffer> {
    let prepared = cuda::prepare(&[&case.kernel], device, Options::default())?;
    Ok(run_on(device, case, &prepared[0])?.swap_remove(0))
}

/// What is wrong with a product, run twice.
fn check(device: &Device, product: &Product, prepared: &Prepared) -> Result<Option<String>> {
    let got = run_on(device, &product.case, prepared)?;
    let again = run_on(device, &product.case, prepared)?;
    if got[0].host_bytes()?.as_ref() != again[0].host_bytes()?.as_ref() {
        return Ok(Some(format!("{}: other bits in the second run", product.name)));
    }
    Ok(product.compare(&got[0]))
}

/// Runs all products; returns the failures.
pub(crate) fn failures(device: &Device) -> Vec<String> {
    let products: Vec<Product> = products().into_iter().chain(grouped()).collect();
    let kernels: Vec<_> = products.iter().map(|product| &product.case.kernel).collect();
    let mut failures = Vec::new();
    let mut prepared = match cuda::prepare(&kernels, device, Options::default()) {
        Ok(prepared) => prepared.into_iter(),
        Err(error) => {
            failures.push(format!("all together: {}", error.message()));
            vec![].into_iter()
        }
    };
    for product in &products {
        let outcome = match prepared.next() {
            Some(prepared) => check(device, product, &prepared),
            // If preparing all together fails, preparing each alone shows which one fails.
            None => run_alone(device, &product.case).map(|got| product.compare(&got)),
        };
        match outcome {
            Ok(None) => {}
            Ok(Some(failure)) => failures.push(failure),
            Err(error) => failures.push(format!("{}: error: {}", product.name, error.message())),
        }
        if failures.len() > 25 {
            failures.push("and maybe more".into());
            break;
        }
    }
    failures.extend(same_rows(device));
    failures.extend(same_places(device));
    failures.extend(same_together(device));
    failures.extend(odd_numbers(device));
    failures.extend(bad_groups(device));
    failures
}

/// A row has the same bits however many rows there are: a few, or more.
fn same_rows(device: &Device) -> Vec<String> {
    let mut failures = Vec::new();
    let (n, k) = (40, 4096);
    let mut random = Random(33);
    let row: Vec<f32> = (0..k).map(|_| random.below(2001) as f32 / 512.0 - 2.0).collect();
    for storage in encodings() {
        let (codes, _) = weights(&mut random, storage, n, k);
        let mut first: Option<Vec<f64>> = None;
        for m in [1, 2, 3, 4, 5, 8, 16, 17, 100] {
            if m == 5 {
                first = None;
            }
            let (mut case, _) = plain(F32, storage, [m, n, k]);
            // The other rows are multiples of the first.
            let rows: Vec<f32> = (0..m).flat_map(|r| row.iter().map(move |x| x * (1.0 + r as f32))).collect();
            (case.buffers[0], case.buffers[1]) = (Buffer::from(rows), Buffer::from(codes.clone()));
            match run_alone(device, &case) {
                Err(error) => failures.push(format!("{storage} with {m} rows: {}", error.message())),
                Ok(got) => {
                    let got = numbers(&got)[..n].to_vec();
                    if first.as_ref().is_some_and(|first| *first != got) {
                        failures.push(format!(
                            "{storage}: the first of {m} rows has other bits than with fewer rows"
                        ));
                    }
                    first.get_or_insert(got);
                }
            }
        }
    }
    failures
}

/// A product has the same bits wherever its operands are: codes at odd addresses, rows with gaps and elements apart, and
/// rows in batches.
fn same_places(device: &Device) -> Vec<String> {
    let mut failures = Vec::new();
    let apart = Storage::Integers { bits: 4, group: 96 };
    for (number, storage) in encodings().chain([apart, Storage::Float4]).enumerate() {
        let k = if storage == apart { 96 * 11 } else { 256 * 5 };
        for m in [1, 4] {
            let plain =
                Product::new(&mut Random(38), (F32, storage), [m, 41, k], Ending::Bias, None, false).case;
            let mut shifted = plain.clone();
            let Kernel::QMatmul(kernel) = &mut shifted.kernel else { unreachable!() };
            let codes = &mut kernel.all[0].codes;
            if codes.dtype == DType::UInt8 {
                codes.offset = [1, 2, 4, 16][number % 4];
                let bytes = plain.buffers[1].host_bytes().unwrap().as_ref().to_vec();
                shifted.buffers[1] = Buffer::from([&vec![0u8; codes.offset as usize], &bytes[..]].concat());
            }
            let mut strided = plain.clone();
            let Kernel::QMatmul(kernel) = &mut strided.kernel else { unreachable!() };
            kernel.lhs.strides = vec![2 * k as i64 + 3, 2];
            let rows = plain.buffers[0].to_vec::<f32>().unwrap();
            let row = |row: &[f32]| row.iter().flat_map(|&x| [x, -7.0]).chain([9.0; 3]).collect::<Vec<_>>();
            strided.buffers[0] = Buffer::from(rows.chunks(k).flat_map(row).collect::<Vec<_>>());
            let mut batched = plain.clone();
            let Kernel::QMatmul(kernel) = &mut batched.kernel else { unreachable!() };
            let batch = m.min(2) as i64;
            (kernel.batch, kernel.m) = (vec![batch], m as i64 / batch);
            let with_batch = |access: &mut Access<i64>| {
                let row = access.strides[0];
                access.strides.insert(0, row * (m as i64 / batch));
            };
            with_batch(&mut kernel.lhs);
            let epilogue = &mut kernel.all[0].epilogue;
            epilogue.accesses.iter_mut().for_each(with_batch);
            epilogue.shape = vec![batch, m as i64 / batch, 41];
            let all = [("plain", plain), ("shifted", shifted), ("strided", strided), ("batched", batched)];
            let mut expected: Option<Vec<f64>> = None;
            for (name, case) in all {
                match run_alone(device, &case) {
                    Err(error) => failures.push(format!("{storage} {name}: {}", error.message())),
                    Ok(got) => {
                        let got = numbers(&got);
                        if expected.as_ref().is_some_and(|expected| *expected != got) {
                            failures.push(format!("{storage} with {m} rows: other bits if {name}"));
                        }
                        expected.get_or_insert(got);
                    }
                }
            }
        }
    }
    failures
}

/// Products of one left operand have the bits that they have alone.
fn same_together(device: &Device) -> Vec<String> {
    let mut failures = Vec::new();
    let block = Storage::Blocks;
    let [q4, q6] = [QuantizationEncoding::Q4_0, QuantizationEncoding::Q6_K].map(block);
    let int8 = Storage::Integers { bits: 8, group: 64 };
    for m in [1, 3, 5] {
        let parts = [
            (q4, 40, Ending::Bias),
            (q4, 1, Ending::Square),
            (q6, 9, Ending::Store),
            (int8, 300, Ending::Store),
            (int8, 17, Ending::Bias),
        ];
        let mut random = Random(39);
        let mut cases = parts.map(|(storage, n, ending)| {
            Product::new(&mut random, (DType::BFloat16, storage), [m, n, 1280], ending, None, false).case
        });
        let lhs = cases[0].buffers[0].clone();
        cases.iter_mut().for_each(|case| case.buffers[0] = lhs.clone());
        let Kernel::QMatmul(mut kernel) = cases[0].kernel.clone() else { unreachable!() };
        kernel.all.clear();
        let (mut buffers, mut results) = (Vec::new(), Vec::new());
        for case in &cases {
            let Kernel::QMatmul(part) = &case.kernel else { unreachable!() };
            let mut projection = part.all[0].clone();
            let first = buffers.len() as u32;
            let scales = projection.scales.iter_mut().map(|(_, scales)| scales);
            let others = scales.chain(projection.epilogue.accesses.iter_mut());
            others.chain([&mut projection.codes]).for_each(|access| access.slot.0 += first);
            kernel.all.push(projection);
            buffers.extend(case.buffers.iter().cloned());
            results.push(buffers.len() - 1);
        }
        let together = Case { kernel: Kernel::QMatmul(kernel), buffers, results };
        let prepared = cuda::prepare(&[&together.kernel], device, Options::default());
        let got = match prepared.and_then(|prepared| run_on(device, &together, &prepared[0])) {
            Ok(got) => got,
            Err(error) => {
                failures.push(format!("{m} rows together: {}", error.message()));
                continue;
            }
        };
        for ((case, got), part) in cases.iter().zip(got).zip(parts) {
            match run_alone(device, case) {
                Err(error) => failures.push(format!("{part:?}: {}", error.message())),
                Ok(alone) if numbers(&alone) != numbers(&got) => {
                    failures.push(format!("{part:?} with {m} rows: other bits than alone"))
                }
                Ok(_) => {}
            }
        }
    }
    failures
}

/// Numbers that are not finite make their rows NaN, and tiny ones count as zero.
fn odd_numbers(device: &Device) -> Vec<String> {
    let mut failures = Vec::new();
    for encoding in [QuantizationEncoding::Q4_0, QuantizationEncoding::Q4_K, QuantizationEncoding::Q6_K] {
        let sizes = [3, 40, 512];
        let storage = Storage::Blocks(encoding);
        let mut product = Product::new(&mut Random(35), (F32, storage), sizes, Ending::Store, None, false);
        let mut x = vec![1.0f32; 3 * 512];
        (x[5], x[512 + 300]) = (f32::INFINITY, f32::NAN);
        x[1024..].fill(1e-35);
        product.case.buffers[0] = Buffer::from(x);
        product.expected = (0..120).map(|at| if at < 80 { f64::NAN } else { 0.0 }).collect();
        product.tolerance.fill(0.0);
        match run_alone(device, &product.case) {
            Ok(got) => failures.extend(product.compare(&got)),
            Err(error) => failures.push(format!("{}: error: {}", product.name, error.message())),
        }
    }
    failures
}

/// Groups that are out of range are errors.
fn bad_groups(device: &Device) -> Vec<String> {
    let mut failures = Vec::new();
    let storage = Storage::Blocks(QuantizationEncoding::Q4_0);
    for (starts, ids) in
        [([0u32, 4, 8], [0i32, 3]), ([0, 4, 9], [0, 1]), ([5, 4, 8], [0, 1]), ([0, 4, u32::MAX], [0, 1])]
    {
        let groups = Some(Groups { starts: vec![0, 4, 8], ids: vec![0, 1], count: 3 });
        let mut product =
            Product::new(&mut Random(36), (F32, storage), [8, 40, 64], Ending::Store, groups, false);
        product.case.buffers[4] = Buffer::from(starts.to_vec());
        product.case.buffers[5] = Buffer::from(ids.to_vec());
        match run_alone(device, &product.case) {
            Err(error) if error.message().contains("out of range") => {}
            Err(error) => failures.push(format!("groups {starts:?} {ids:?}: {}", error.message())),
            Ok(_) => failures.push(format!("groups {starts:?} {ids:?} are no error")),
        }
    }
    failures
}

/// A product that is stored, whose rows of weights are the same, and the bytes of its weights.
pub(crate) fn plain(dtype: DType, storage: Storage, [m, n, k]: [usize; 3]) -> (Case, usize) {
    let product = Product::new(&mut Random(37), (dtype, storage), [m, 1, k], Ending::Store, None, false);
    let Kernel::QMatmul(mut kernel) = product.case.kernel else { unreachable!() };
    let row = product.case.buffers[1].num_bytes();
    let scale_row = product.case.buffers[2].num_bytes();
    kernel.all[0].n = n as i64;
    kernel.all[0].epilogue.shape[1] = n as i64;
    kernel.all[0].epilogue.accesses[0].strides[0] = n as i64;
    let mut buffers = product.case.buffers;
    let repeated = |buffer: &Buffer| {
        let bytes = buffer.host_bytes().unwrap().as_ref().to_vec();
        Buffer::from(bytes.repeat(n))
    };
    (buffers[1], buffers[2]) = (repeated(&buffers[1]), repeated(&buffers[2]));
    buffers[3] = untouched(dtype, n);
    buffers[6] = untouched(dtype, m * n);
    (Case::new(Kernel::QMatmul(kernel), buffers, 1), (row + scale_row) * n)
}
