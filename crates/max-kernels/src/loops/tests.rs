mod random;
mod reference;

use max_core::kernel::{Access, Instr, Kernel, Literal, Loop, Reduction, Reg, Slot};
use max_core::scalar::{NumericOp, RealOp};
use max_core::{DType, Distribution, Element, ScalarOp, dispatch};
use max_driver::Buffer;

use super::*;
use crate::prepare;
use random::{Dice, elements, random_loop};
use reference::close;

fn buffers(memory: &[Vec<u8>]) -> Vec<Buffer> {
    memory.iter().map(|bytes| Buffer::from(bytes.clone())).collect()
}

fn run(loop_: &Loop<i64>, memory: &[Vec<u8>], threads: usize) -> Vec<Vec<u8>> {
    let buffers = buffers(memory);
    let pieces: Vec<Memory> = buffers.iter().map(|b| Memory::of_mut(b).unwrap()).collect();
    prepare(&Kernel::Loop(loop_.clone())).unwrap().run(&pieces, &Pool::new(threads)).unwrap();
    // SAFETY: the buffers are contiguous and have `num_bytes` bytes.
    let bytes = |b: &Buffer| unsafe { std::slice::from_raw_parts(b.data_ptr(), b.num_bytes()) }.to_vec();
    buffers.iter().map(bytes).collect()
}

/// Compares with the reference, and runs with different numbers of threads with each other.
fn check(loop_: &Loop<i64>, memory: &[Vec<u8>]) {
    let mut expected = memory.to_vec();
    reference::run(loop_, &mut expected, &[]);
    let got = run(loop_, memory, 1);
    let mut dtypes = vec![DType::UInt8; memory.len()];
    loop_.stored().for_each(|access| dtypes[access.slot.0 as usize] = access.dtype);
    for (slot, dtype) in dtypes.into_iter().enumerate() {
        let size = dtype.size_in_bytes();
        let pairs = got[slot].chunks(size).zip(expected[slot].chunks(size)).enumerate();
        for (element, (got, expected)) in pairs {
            assert!(
                close(dtype, got, expected),
                "slot {slot}, element {element}: {got:?}, not {expected:?}\n{loop_:?}"
            );
        }
    }
    for threads in [2, 3] {
        assert!(run(loop_, memory, threads) == got, "{threads} threads differ\n{loop_:?}");
    }
}

fn access(slot: u32, dtype: DType, strides: &[i64]) -> Access<i64> {
    Access { slot: Slot(slot), dtype, offset: 0, strides: strides.to_vec() }
}

#[test]
fn random_loops_agree_with_the_reference() {
    for seed in 1..400 {
        let (loop_, memory) = random_loop(seed);
        let case = std::panic::catch_unwind(|| check(&loop_, &memory));
        if let Err(panic) = case {
            println!("seed {seed}");
            std::panic::resume_unwind(panic);
        }
    }
}

fn size_of_all(shape: &[i64]) -> usize {
    shape.iter().product::<i64>() as usize
}

/// Row-major strides.
fn dense(shape: &[i64]) -> Vec<i64> {
    (0..shape.len()).map(|axis| shape[axis + 1..].iter().product()).collect()
}

/// Softmax with the sums, the largest elements and their positions stored as well.
fn softmax(shape: &[i64], axis: usize, dtype: DType) -> Loop<i64> {
    let strides = dense(shape);
    let mut kept = shape.to_vec();
    kept[axis] = 1;
    let mut row = dense(&kept);
    row[axis] = 0;
    Loop {
        shape: shape.to_vec(),
        reduce: Some(axis),
        accesses: vec![
            access(0, dtype, &strides),
            access(1, dtype, &strides),
            access(2, dtype, &row),
            access(3, DType::Int64, &row),
        ],
        code: vec![
            Instr::Load(0),
            Instr::Reduce(Reduction::Max, Reg(0)),
            Instr::Apply(NumericOp::Sub.into(), [Reg(0), Reg(1)]),
            Instr::Apply(RealOp::Exp.into(), [Reg(2), Reg(2)]),
            Instr::Reduce(Reduction::Sum, Reg(3)),
            Instr::Apply(RealOp::Div.into(), [Reg(3), Reg(4)]),
            Instr::Store(1, Reg(5)),
            Instr::Store(2, Reg(4)),
            Instr::Reduce(Reduction::ArgMax, Reg(0)),
            Instr::Store(3, Reg(8)),
        ],
    }
}

#[test]
fn rows_of_every_length_and_direction() {
    let mut dice = Dice(7);
    let shapes: [(&[i64], usize); 12] = [
        (&[1, 150_001], 1),
        (&[2, 70_000], 1),
        (&[150_001, 3], 0),
        (&[9_000, 40], 0),
        (&[3, 2_500, 33], 1),
        (&[2_000, 17], 1),
        (&[700, 97], 1),
        (&[60, 1_000], 1),
        (&[5, 6, 7, 200], 1),
        (&[300, 2], 1),
        (&[65, 64], 1),
        (&[130, 4_097], 0),
    ];
    for (shape, axis) in shapes {
        for dtype in [DType::Float32, DType::BFloat16] {
            let loop_ = softmax(shape, axis, dtype);
            let (all, rows) = (size_of_all(shape), size_of_all(shape) / shape[axis] as usize);
            let size = dtype.size_in_bytes();
            let input = elements(&mut dice, dtype, all);
            let memory = vec![input, vec![0; all * size], vec![0; rows * size], vec![0; rows * 8]];
            check(&loop_, &memory);
        }
    }
}

/// The sums of the rows along an axis, or of their squares.
fn sum(shape: &[i64], axis: usize, dtype: DType, squares: bool) -> Loop<i64> {
    let mut kept = shape.to_vec();
    kept[axis] = 1;
    let mut row = dense(&kept);
    row[axis] = 0;
    let mut code = vec![Instr::Load(0)];
    if squares {
        code.push(Instr::Apply(NumericOp::Mul.into(), [Reg(0), Reg(0)]));
    }
    let last = Reg(code.len() as u32 - 1);
    code.extend([Instr::Reduce(Reduction::Sum, last), Instr::Store(1, Reg(last.0 + 1))]);
    let accesses = vec![access(0, dtype, &dense(shape)), access(1, dtype, &row)];
    Loop { shape: shape.to_vec(), reduce: Some(axis), accesses, code }
}

/// Rows that are reduced whole, in parts by several threads, and side by side.
#[test]
fn sums_of_many_elements_are_exact() {
    fn check<T: Element>(shape: &[i64], axis: usize) {
        let (all, length) = (size_of_all(shape), shape[axis] as f64);
        let memory = [
            bytemuck::cast_slice(&vec![T::from_double(0.1); all]).to_vec(),
            vec![0; all / length as usize * size_of::<T>()],
        ];
        let expected = T::from_double(0.1).to_f64() * length;
        let epsilon = if T::DTYPE == DType::Float64 { f64::EPSILON } else { f64::from(f32::EPSILON) };
        for threads in [1, 2, 3] {
            let results = run(&sum(shape, axis, T::DTYPE, false), &memory, threads).remove(1);
            for result in results.chunks(size_of::<T>()) {
                let error = (bytemuck::pod_read_unaligned::<T>(result).to_f64() / expected - 1.0).abs();
                assert!(error <= 8.0 * epsilon, "{} {shape:?} {axis}: {error:e}", T::DTYPE);
            }
        }
    }
    let shapes: [(&[i64], usize); 6] = [
        (&[1 << 21], 0),
        (&[3, 1 << 19], 1),
        (&[17, 1 << 16], 1),
        (&[1 << 16, 17], 0),
        (&[1 << 13, 300], 0),
        (&[40, 1 << 14, 3], 1),
    ];
    for (shape, axis) in shapes {
        for dtype in [DType::Float32, DType::Float64] {
            dispatch!(dtype, T => check::<T>(shape, axis));
        }
    }
}

/// The order of a sum is that of its length alone.
#[test]
fn rows_have_the_same_sums_alone_and_in_company() {
    for length in [100i64, 5_000, 100_000, 300_001] {
        let fractions = (0..20 * length).map(|i| (i * 7919 % 6007) as f32 / 3000.0);
        let input: Vec<u8> = fractions.flat_map(f32::to_le_bytes).collect();
        for squares in [false, true] {
            let sums = |rows: i64, from: &[u8]| {
                let memory = [from.to_vec(), vec![0; rows as usize * 4]];
                run(&sum(&[rows, length], 1, DType::Float32, squares), &memory, 2).remove(1)
            };
            let alone: Vec<u8> = input.chunks(length as usize * 4).flat_map(|row| sums(1, row)).collect();
            assert!(sums(20, &input) == alone, "{length} {squares}");
        }
    }
}

#[test]
fn loops_work_in_place() {
    for shape in [&[40i64, 300][..], &[300, 40], &[1, 140_000], &[50, 7]] {
        for axis in [0, 1] {
            let mut loop_ = softmax(shape, axis, DType::Float32);
            loop_.accesses[1].slot = Slot(0);
            let rows = size_of_all(shape) / shape[axis] as usize;
            let input = elements(&mut Dice(3), DType::Float32, size_of_all(shape));
            check(&loop_, &[input, vec![], vec![0; rows * 4], vec![0; rows * 8]]);
        }
    }
    // Two pieces of memory change places.
    let strides = [1];
    let swap = Loop {
        shape: vec![1_000],
        reduce: None,
        accesses: vec![access(0, DType::Int32, &strides), access(1, DType::Int32, &strides)],
        code: vec![Instr::Load(0), Instr::Load(1), Instr::Store(0, Reg(1)), Instr::Store(1, Reg(0))],
    };
    let [a, b] = [1, 2].map(|seed| elements(&mut Dice(seed), DType::Int32, 1_000));
    check(&swap, &[a, b]);
}

#[test]
fn transposed_memory_is_read_and_written() {
    let mut dice = Dice(11);
    for shape in [[200i64, 300], [3, 5_000], [5_000, 3], [65, 129]] {
        for dtype in [DType::Float32, DType::BFloat16, DType::Float64, DType::UInt8, DType::Bool] {
            let (rows, columns) = ([shape[1], 1], [1, shape[0]]);
            let all = size_of_all(&shape);
            let loop_ = Loop {
                shape: shape.to_vec(),
                reduce: None,
                accesses: vec![
                    access(0, dtype, &columns),
                    access(1, dtype, &rows),
                    access(2, dtype, &rows),
                    access(3, dtype, &columns),
                ],
                code: vec![
                    Instr::Load(0),
                    Instr::Load(1),
                    Instr::Apply(NumericOp::Max.into(), [Reg(0), Reg(1)]),
                    Instr::Store(2, Reg(2)),
                    Instr::Store(3, Reg(1)),
                ],
            };
            let inputs = [elements(&mut dice, dtype, all), elements(&mut dice, dtype, all)];
            let [a, b] = inputs;
            let out = vec![0; all * dtype.size_in_bytes()];
            check(&loop_, &[a, b, out.clone(), out]);
        }
    }
}

#[test]
fn empty_rows_have_results() {
    let loop_ = softmax(&[3, 0], 1, DType::Float32);
    let memory = [vec![], vec![], vec![9; 12], vec![9; 24]];
    check(&loop_, &memory);
    let small = buffers(&[vec![], vec![], vec![0; 8], vec![0; 24]]);
    let pieces: Vec<Memory> = small.iter().map(|b| Memory::of_mut(b).unwrap()).collect();
    let prepared = prepare(&Kernel::Loop(loop_)).unwrap();
    assert!(prepared.run(&pieces, &Pool::new(1)).is_err());
}

#[test]
fn epilogues_run_on_blocks() {
    let (batch, rows, cols) = (2i64, 37i64, 700i64);
    let shape = vec![batch, rows, cols];
    let all = size_of_all(&shape);
    for dtype in [DType::Float32, DType::BFloat16, DType::Int32] {
        let loop_ = Loop {
            shape: shape.clone(),
            reduce: None,
            accesses: vec![
                access(0, dtype, &[0, 0, 1]),
                access(1, dtype, &[rows * cols, 1, rows]),
                access(2, dtype, &dense(&shape)),
            ],
            code: vec![
                Instr::Product(dtype),
                Instr::Load(0),
                Instr::Apply(NumericOp::Add.into(), [Reg(0), Reg(1)]),
                Instr::Load(1),
                Instr::Apply(NumericOp::Mul.into(), [Reg(2), Reg(3)]),
                Instr::Store(2, Reg(4)),
            ],
        };
        let plain = Loop { code: vec![Instr::Product(dtype), Instr::Store(2, Reg(0))], ..loop_.clone() };
        for loop_ in [loop_, plain] {
            let mut dice = Dice(5);
            let held = if dtype == DType::BFloat16 { DType::Float32 } else { dtype };
            let products = elements(&mut dice, held, all);
            let bits_of =
                |bytes: &[u8]| u64::from(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
            let product_bits: Vec<u64> = products.chunks(4).map(bits_of).collect();
            let size = dtype.size_in_bytes();
            let memory = [
                elements(&mut dice, dtype, cols as usize),
                elements(&mut dice, dtype, all),
                vec![0; all * size],
            ];
            let mut expected = memory.to_vec();
            reference::run(&loop_, &mut expected, &product_bits);
            for [down, right] in [[8, 48], [1, 700], [37, 64], [5, 513]] {
                let buffers = buffers(&memory);
                let pieces: Vec<Memory> = buffers.iter().map(|b| Memory::of_mut(b).unwrap()).collect();
                let epilogue = Epilogue::new(&loop_).unwrap();
                for outer in 0..2 {
                    for row in (0..37).step_by(down) {
                        for col in (0..700).step_by(right) {
                            let at = (outer * 37 + row) * 700 + col;
                            let (rows, cols) = (row..37.min(row + down), col..700.min(col + right));
                            // SAFETY: the block is inside the loop's space, and the memory holds all accesses.
                            unsafe {
                                epilogue.run(&pieces, outer, rows, cols, products[at * 4..].as_ptr(), 700)
                            };
                        }
                    }
                }
                // SAFETY: the buffer is contiguous and has `all * size` bytes.
                let got = unsafe { std::slice::from_raw_parts(buffers[2].data_ptr(), all * size) };
                for (got, expected) in got.chunks(size).zip(expected[2].chunks(size)) {
                    assert!(close(dtype, got, expected), "{dtype} {down} {right}: {got:?}, not {expected:?}");
                }
            }
        }
    }
}

#[test]
fn products_belong_to_epilogues() {
    let product = Instr::Product(DType::Float32);
    let loop_ = Loop { shape: vec![], reduce: None, accesses: vec![], code: vec![product] };
    assert!(PreparedLoop::new(&loop_).is_err() && Epilogue::new(&loop_).is_err());
}

/// Positions and random numbers of every stride, with everything that affects tiles: transposed stores and loads, and
/// rows that are reduced whole, in parts, and side by side.
#[test]
fn positions_are_right_for_every_tiling() {
    let normal = Instr::Random(Distribution::Normal, DType::Float32, [Reg(0), Reg(1)]);
    let seed = Instr::Literal(Literal { dtype: DType::UInt64, bits: 0x1234_5678_9abc_def0 });
    for shape in [[3, 5], [1, 1], [130, 70], [2, 5000], [300, 3], [40, 200], [2, 300_000]] {
        let [rows, cols] = shape;
        let all = size_of_all(&shape);
        for walk in [[cols, 1], [1, rows], [0, 1], [1, 0], [-cols, 2]] {
            let index = Access { slot: Slot::NONE, dtype: DType::Int64, offset: 7, strides: walk.to_vec() };
            for store in [[cols, 1], [1, rows]] {
                let accesses = vec![
                    index.clone(),
                    access(0, DType::Float32, &[cols, 1]),
                    access(1, DType::Float32, &store),
                    access(2, DType::Int64, &store),
                ];
                let mut code = vec![seed.clone(), Instr::Index(0), normal.clone(), Instr::Load(1)];
                code.push(Instr::Apply(NumericOp::Add.into(), [Reg(2), Reg(3)]));
                code.extend([Instr::Store(2, Reg(4)), Instr::Store(3, Reg(1))]);
                let memory =
                    [elements(&mut Dice(9), DType::Float32, all), vec![0; all * 4], vec![0; all * 8]];
                check(&Loop { shape: shape.to_vec(), reduce: None, accesses, code }, &memory);
            }
            for reduce in [0, 1] {
                let kept = if reduce == 0 { [0, 1] } else { [1, 0] };
                let accesses = vec![
                    index.clone(),
                    access(0, DType::Int64, &kept),
                    Access { strides: kept.to_vec(), ..index.clone() },
                    access(1, DType::Int64, &[cols, 1]),
                ];
                let add = |a, b| Instr::Apply(NumericOp::Add.into(), [Reg(a), Reg(b)]);
                let mut code = vec![Instr::Index(0), Instr::Load(3), add(0, 1)];
                code.extend([Instr::Reduce(Reduction::Sum, Reg(2)), Instr::Index(2), add(3, 4)]);
                code.push(Instr::Store(1, Reg(5)));
                let results = vec![0; shape[1 - reduce] as usize * 8];
                let memory = [results, elements(&mut Dice(9), DType::Int64, all)];
                let loop_ = Loop { shape: shape.to_vec(), reduce: Some(reduce), accesses, code };
                check(&loop_, &memory);
                // The same without positions along the rows, which are then reduced in place.
                let mut plain = loop_.clone();
                plain.code[2] = add(1, 1);
                plain.code[3] = Instr::Reduce(Reduction::Sum, Reg(1));
                check(&plain, &memory);
            }
        }
    }
}

/// Layer norm with a scale and a shift per column, as the compiler writes it.
fn layer_norm(shape: &[i64], axis: usize, dtype: DType) -> Loop<i64> {
    let strides = dense(shape);
    let mut column = vec![0; shape.len()];
    column[shape.len() - 1] = 1;
    let apply = |op: ScalarOp, a, b| Instr::Apply(op, [Reg(a), Reg(b)]);
    let f32 = DType::Float32;
    Loop {
        shape: shape.to_vec(),
        reduce: Some(axis),
        accesses: vec![
            access(0, dtype, &strides),
            access(1, dtype, &strides),
            access(2, dtype, &column),
            access(3, dtype, &column),
        ],
        code: vec![
            Instr::Load(0),
            Instr::Load(2),
            Instr::Load(3),
            Instr::Cast(Reg(0), f32),
            Instr::Cast(Reg(1), f32),
            Instr::Cast(Reg(2), f32),
            Instr::Reduce(Reduction::Sum, Reg(3)),
            Instr::Size(shape[axis], f32),
            apply(RealOp::Div.into(), 6, 7),
            apply(NumericOp::Sub.into(), 3, 8),
            apply(NumericOp::Mul.into(), 9, 9),
            Instr::Reduce(Reduction::Sum, Reg(10)),
            apply(RealOp::Div.into(), 11, 7),
            Instr::Literal(Literal { dtype: f32, bits: u64::from(1e-5f32.to_bits()) }),
            apply(NumericOp::Add.into(), 12, 13),
            apply(RealOp::Rsqrt.into(), 14, 14),
            apply(NumericOp::Mul.into(), 9, 15),
            apply(NumericOp::Mul.into(), 16, 4),
            apply(NumericOp::Add.into(), 5, 17),
            Instr::Cast(Reg(18), dtype),
            Instr::Store(1, Reg(19)),
        ],
    }
}

/// Softmax as the compiler writes it, without positions.
fn plain_softmax(shape: &[i64], axis: usize, dtype: DType) -> Loop<i64> {
    let mut loop_ = softmax(shape, axis, dtype);
    loop_.code.truncate(8);
    loop_.accesses.truncate(3);
    loop_
}

/// A chain computes the same bits as calls on tiles.
#[test]
fn chains_agree_with_tiles() {
    let mut dice = Dice(11);
    let shapes: [(&[i64], usize); 12] = [
        (&[70, 64], 1),
        (&[33, 65], 1),
        (&[20, 100], 1),
        (&[19, 1_024], 1),
        (&[17, 4_096], 1),
        (&[17, 4_097], 1),
        (&[16, 13_000], 1),
        (&[3, 7, 300], 2),
        (&[2, 10], 1),
        (&[300, 128], 0),
        (&[6, 200, 192], 1),
        (&[16, 70, 64], 1),
    ];
    for (shape, axis) in shapes {
        for dtype in [DType::Float32, DType::BFloat16] {
            for loop_ in [layer_norm(shape, axis, dtype), plain_softmax(shape, axis, dtype)] {
                agree(&loop_, &mut dice, dtype, shape);
            }
        }
    }
}

fn agree(loop_: &Loop<i64>, dice: &mut Dice, dtype: DType, shape: &[i64]) {
    let all = size_of_all(shape);
    let mut input = elements(dice, dtype, all);
    let (size, nan) = (dtype.size_in_bytes(), [0xc0, 0x7f]);
    input[7 * size - 2..7 * size].copy_from_slice(&nan);
    let columns = elements(dice, dtype, shape[shape.len() - 1] as usize);
    let memory = [input, vec![0; all * size], vec![0; all * size], columns.clone()];
    let memory = if loop_.accesses.len() == 4 {
        [memory[0].clone(), memory[1].clone(), columns, memory[3].clone()]
    } else {
        memory
    };
    let (dtypes, live) = (loop_.dtypes().unwrap(), program::live(&loop_.code));
    let uses = uses(loop_, &live);
    let space = || space::space(loop_, &uses).unwrap();
    let Some(chain) = PreparedChain::new(loop_, &dtypes, &live, &uses, &space()) else {
        assert!(tile::chain().is_none(), "{loop_:?} is no chain");
        return;
    };
    let tiles = PreparedLoop::Tiles(Box::new(Plan::new(loop_, &dtypes, &live, &uses, space()).unwrap()));
    let results = [PreparedLoop::Chain(Box::new(chain)), tiles].map(|prepared| {
        let buffers = buffers(&memory);
        let pieces: Vec<Memory> = buffers.iter().map(|b| Memory::of_mut(b).unwrap()).collect();
        // SAFETY: the buffers have the sizes of the loop.
        unsafe { prepared.run(&pieces, &Pool::new(2)) }.unwrap();
        buffers.iter().map(|b| b.to_vec::<u8>().unwrap()).collect::<Vec<_>>()
    });
    assert!(results[0] == results[1], "{loop_:?}");
}

/// `x / (|x| + 0.5)` where it is read, for lengths with and without whole groups.
#[test]
fn chains_work_in_place() {
    let mut dice = Dice(5);
    for length in [1i64, 15, 64, 65, 300, 20_000] {
        let half = Literal { dtype: DType::Float32, bits: u64::from(0.5f32.to_bits()) };
        let loop_ = Loop {
            shape: vec![length],
            reduce: None,
            accesses: vec![access(0, DType::Float32, &[1])],
            code: vec![
                Instr::Load(0),
                Instr::Apply(NumericOp::Abs.into(), [Reg(0); 2]),
                Instr::Literal(half),
                Instr::Apply(NumericOp::Add.into(), [Reg(1), Reg(2)]),
                Instr::Apply(RealOp::Div.into(), [Reg(0), Reg(3)]),
                Instr::Store(0, Reg(4)),
            ],
        };
        check(&loop_, &[elements(&mut dice, DType::Float32, length as usize)]);
    }
}
