//! Loops as text: some compared literally, and many compiled where there is a compiler.

use std::collections::BTreeMap;

use expect_test::{Expect, expect};
use max_core::kernel::{Access, Instr, Literal, Loop, Reduction, Reg, Slot};
use max_core::scalar::{NumericOp, RealOp};
use max_core::{DType, Distribution, ScalarOp};

use super::*;
use crate::cuda::nvrtc;

/// The multiprocessors of the GPU that loops are planned for.
const MANY: u32 = 132;

fn access(slot: u32, dtype: DType, strides: &[i64]) -> Access<i64> {
    Access { slot: Slot(slot), dtype, offset: 0, strides: strides.to_vec() }
}

/// The calls of a loop.
fn calls(loop_: &Loop<i64>) -> Vec<Call> {
    let mut used = 0;
    let mut scratch = |dtype: DType, count: i64| {
        used += (count as usize * dtype.size_in_bytes()).next_multiple_of(256);
        Ok((used / dtype.size_in_bytes()) as i64)
    };
    super::calls(loop_, MANY, &mut scratch).unwrap()
}

fn apply(op: impl Into<ScalarOp>, a: u32, b: u32) -> Instr<i64> {
    Instr::Apply(op.into(), [Reg(a), Reg(b)])
}

fn check(loop_: &Loop<i64>, expected: Expect) {
    let mut text = String::new();
    for call in calls(loop_) {
        text += &call.source.code.replace(&call.source.name, "loop");
        text += &format!("{:?} {:?} {:?}\n", call.grid, call.block, call.params);
    }
    expected.assert_eq(&text);
}

/// `out = x + y`, with an inner stride of the second.
fn add(dtype: DType, shape: [i64; 2], second: [i64; 2]) -> Loop<i64> {
    let dense = [shape[1], 1];
    Loop {
        shape: shape.to_vec(),
        reduce: None,
        accesses: vec![access(0, dtype, &dense), access(1, dtype, &second), access(2, dtype, &dense)],
        code: vec![Instr::Load(0), Instr::Load(1), apply(NumericOp::Add, 0, 1), Instr::Store(2, Reg(2))],
    }
}

/// Softmax along an axis of a matrix.
fn softmax(dtype: DType, shape: [i64; 2], axis: usize) -> Loop<i64> {
    let dense = [shape[1], 1];
    Loop {
        shape: shape.to_vec(),
        reduce: Some(axis),
        accesses: vec![access(0, dtype, &dense), access(1, dtype, &dense)],
        code: vec![
            Instr::Load(0),
            Instr::Reduce(Reduction::Max, Reg(0)),
            apply(NumericOp::Sub, 0, 1),
            apply(RealOp::Exp, 2, 2),
            Instr::Reduce(Reduction::Sum, Reg(3)),
            apply(RealOp::Div, 3, 4),
            Instr::Store(1, Reg(5)),
        ],
    }
}

/// One reduction of a matrix along an axis.
fn reduction(kind: Reduction, dtype: DType, shape: [i64; 2], axis: usize) -> Loop<i64> {
    let out = if kind.gives_index() { DType::Int64 } else { dtype };
    let mut row = [1, 1];
    row[axis] = 0;
    Loop {
        shape: shape.to_vec(),
        reduce: Some(axis),
        accesses: vec![access(0, dtype, &[shape[1], 1]), access(1, out, &row)],
        code: vec![Instr::Load(0), Instr::Reduce(kind, Reg(0)), Instr::Store(1, Reg(1))],
    }
}

#[test]
fn flat_loops_read_well() {
    check(
        &add(DType::BFloat16, [1024, 4096], [0, 1]),
        expect![[r#"
            extern "C" __global__ void __launch_bounds__(256) loop(i64 items, i64 n1, u64 d1, i64 s0_0, bf16* p0, bf16* p1, bf16* p2) {
                typedef int I;
                typedef unsigned U;
                const U first = (U)blockIdx.x * 1024 + threadIdx.x;
                lane::Pack<8, bf16> x0[4];
                lane::Pack<8, bf16> x1[4];
            #pragma unroll
                for (int i = 0; i < 4; i++) {
                    const U item = first + i * 256;
                    if (item < (U)items) {
                        U rest = item;
                        const U q1 = lane::quotient(rest, d1);
                        const U i1 = rest - q1 * (U)n1;
                        rest = q1;
                        const U i0 = rest;
                        const I w0 = (I)i0 * (I)s0_0 + (I)i1 * 8;
                        const I w1 = (I)i1 * 8;
                        x0[i].fetch(p0 + w0, 8);
                        x1[i].fetch(p1 + w1, 8);
                    }
                }
            #pragma unroll
                for (int i = 0; i < 4; i++) {
                    const U item = first + i * 256;
                    if (item < (U)items) {
                        U rest = item;
                        const U q1 = lane::quotient(rest, d1);
                        const U i1 = rest - q1 * (U)n1;
                        rest = q1;
                        const U i0 = rest;
                        const I w0 = (I)i0 * (I)s0_0 + (I)i1 * 8;
                        float o3[8];
            #pragma unroll
                        for (int v = 0; v < 8; v++) {
                            const float e2 = lane::add(lane::widen(x0[i].get(v)), lane::widen(x1[i].get(v)));
                            o3[v] = e2;
                        }
                        lane::store<8>(p2 + w0, o3, 8);
                    }
                }
            }
            [512, 1, 1] [256, 1, 1] [Number(524288), Number(512), Bits(173946175488), Number(4096), Address(Address { slot: Slot(0), bytes: 0 }), Address(Address { slot: Slot(1), bytes: 0 }), Address(Address { slot: Slot(2), bytes: 0 })]
        "#]],
    );
}

#[test]
fn rows_read_well() {
    check(
        &softmax(DType::Float32, [8192, 1000], 1),
        expect![[r#"
            extern "C" __global__ void __launch_bounds__(64) loop(i64 items, i64 length, i64 s0_0, float* p0, float* p1) {
                typedef int I;
                typedef unsigned U;
                const U part = threadIdx.x % 64;
                const U item = (U)blockIdx.x * 1 + threadIdx.x / 64;
                const bool here = item < (U)items;
                const U i0 = (here ? item : (U)0);
                const I b0 = (I)i0 * (I)s0_0;
                float a1 = __int_as_float(0xff800000);
                const U start = 0;
                lane::Pack<4, float> x0[4];
            #pragma unroll
                for (int i = 0; i < 4; i++) {
                    const U j = start + (i * 64 + part) * 4;
                    if (here && j < (U)length) {
                        const I w0 = b0 + (I)j;
                        x0[i].fetch(p0 + w0, 4);
                    }
                }
            #pragma unroll
                for (int i = 0; i < 4; i++) {
                    const U j = start + (i * 64 + part) * 4;
                    if (here && j < (U)length) {
            #pragma unroll
                        for (int v = 0; v < 4; v++) {
                            a1 = lane::Max::of(a1, lane::widen(x0[i].get(v)));
                        }
                    }
                }
                const float r1 = lane::reduce<lane::Max, 64>(a1);
                float a4 = 0.0f;
                float k3[4][4];
            #pragma unroll
                for (int i = 0; i < 4; i++) {
                    const U j = start + (i * 64 + part) * 4;
                    if (here && j < (U)length) {
            #pragma unroll
                        for (int v = 0; v < 4; v++) {
                            const float e2 = lane::sub(lane::widen(x0[i].get(v)), r1);
                            k3[i][v] = lane::exp(e2);
                            a4 = lane::Sum::of(a4, k3[i][v]);
                        }
                    }
                }
                const float r4 = lane::reduce<lane::Sum, 64>(a4);
            #pragma unroll
                for (int i = 0; i < 4; i++) {
                    const U j = start + (i * 64 + part) * 4;
                    if (here && j < (U)length) {
                        const I w0 = b0 + (I)j;
                        float o6[4];
            #pragma unroll
                        for (int v = 0; v < 4; v++) {
                            const float e5 = lane::div(k3[i][v], r4);
                            o6[v] = e5;
                        }
                        lane::store<4>(p1 + w0, o6, 4);
                    }
                }
            }
            [8192, 1, 1] [64, 1, 1] [Number(8192), Number(1000), Number(1000), Address(Address { slot: Slot(0), bytes: 0 }), Address(Address { slot: Slot(1), bytes: 0 })]
        "#]],
    );
}

/// Sums over more than a thread holds at once are corrected for rounding.
#[test]
fn long_sums_read_well() {
    check(
        &reduction(Reduction::Sum, DType::Float32, [100_000, 65_536], 0),
        expect![[r#"
            extern "C" __global__ void __launch_bounds__(256) loop(i64 items, i64 length, i64 s0_r, float* p0, float* p1) {
                typedef i64 I;
                typedef u64 U;
                __shared__ uint4 room[256];
                const U part = threadIdx.y;
                const U item = (U)blockIdx.x * 32 + threadIdx.x;
                const bool here = item < (U)items;
                const U i0 = (here ? item : (U)0);
                const I b0 = (I)i0 * 4;
                const I b1 = (I)i0 * 4;
                lane::Total<float> t1[4];
            #pragma unroll
                for (int v = 0; v < 4; v++) {
                    t1[v].sum = t1[v].error = 0;
                }
                for (U start = 0; start < (U)length; start += 32) {
                    float a1[4];
            #pragma unroll
                    for (int v = 0; v < 4; v++) {
                        a1[v] = 0.0f;
                    }
                    lane::Pack<4, float> x0[4];
            #pragma unroll
                    for (int i = 0; i < 4; i++) {
                        const U j = start + i * 8 + part;
                        if (here && j < (U)length) {
                            const I w0 = b0 + (I)j * (I)s0_r;
                            x0[i].fetch(p0 + w0, 4);
                        }
                    }
            #pragma unroll
                    for (int i = 0; i < 4; i++) {
                        const U j = start + i * 8 + part;
                        if (here && j < (U)length) {
            #pragma unroll
                            for (int v = 0; v < 4; v++) {
                                a1[v] = lane::Sum::of(a1[v], lane::widen(x0[i].get(v)));
                            }
                        }
                    }
            #pragma unroll
                    for (int v = 0; v < 4; v++) {
                        t1[v].add(a1[v]);
                    }
                }
                float a1[4];
            #pragma unroll
                for (int v = 0; v < 4; v++) {
                    a1[v] = 0.0f;
                }
            #pragma unroll
                for (int v = 0; v < 4; v++) {
                    a1[v] = t1[v].sum;
                }
                lane::reduce_down<lane::Sum, 32, 8>(a1, room);
                float r1[4];
            #pragma unroll
                for (int v = 0; v < 4; v++) {
                    r1[v] = a1[v];
                }
                __syncthreads();
                if (here && part == 0) {
                    float o2[4];
            #pragma unroll
                    for (int v = 0; v < 4; v++) {
                        o2[v] = r1[v];
                    }
                    lane::store<4>(p1 + b1, o2, 4);
                }
            }
            [512, 1, 1] [32, 8, 1] [Number(16384), Number(100000), Number(65536), Address(Address { slot: Slot(0), bytes: 0 }), Address(Address { slot: Slot(1), bytes: 0 })]
        "#]],
    );
    check(
        &reduction(Reduction::Sum, DType::BFloat16, [1000, 1 << 20], 1),
        expect![[r#"
            extern "C" __global__ void __launch_bounds__(1024) loop(i64 items, i64 length, i64 s0_0, bf16* p0, bf16* p1) {
                typedef int I;
                typedef unsigned U;
                const U part = threadIdx.x % 1024;
                const U item = (U)blockIdx.x * 1 + threadIdx.x / 1024;
                const bool here = item < (U)items;
                const U i0 = (here ? item : (U)0);
                const I b0 = (I)i0 * (I)s0_0;
                const I b1 = (I)i0;
                lane::Total<float> t1;
                t1.sum = t1.error = 0;
                for (U start = 0; start < (U)length; start += 32768) {
                    float a1 = 0.0f;
                    lane::Pack<8, bf16> x0[4];
            #pragma unroll
                    for (int i = 0; i < 4; i++) {
                        const U j = start + (i * 1024 + part) * 8;
                        if (here && j < (U)length) {
                            const I w0 = b0 + (I)j;
                            x0[i].fetch(p0 + w0, 8);
                        }
                    }
            #pragma unroll
                    for (int i = 0; i < 4; i++) {
                        const U j = start + (i * 1024 + part) * 8;
                        if (here && j < (U)length) {
            #pragma unroll
                            for (int v = 0; v < 8; v++) {
                                a1 = lane::Sum::of(a1, lane::widen(x0[i].get(v)));
                            }
                        }
                    }
                    t1.add(a1);
                }
                float a1 = 0.0f;
                a1 = t1.sum;
                const float r1 = lane::reduce<lane::Sum, 1024>(a1);
                __syncthreads();
                if (here && part == 0) {
                    lane::put(p1[b1], r1);
                }
            }
            [1000, 1, 1] [1024, 1, 1] [Number(1000), Number(1048576), Number(1048576), Address(Address { slot: Slot(0), bytes: 0 }), Address(Address { slot: Slot(1), bytes: 0 })]
        "#]],
    );
}

/// Text and names depend on the structure only: other sizes need no other functions.
#[test]
fn sizes_are_parameters() {
    let names = |loop_: &Loop<i64>| calls(loop_).into_iter().map(|call| call.source.name).collect::<Vec<_>>();
    let f32 = DType::Float32;
    assert_eq!(names(&add(f32, [4096, 4096], [4096, 1])), names(&add(f32, [1000, 8192], [8192, 1])));
    assert_eq!(names(&softmax(f32, [8192, 1000], 1)), names(&softmax(f32, [5000, 1012], 1)));
    assert_ne!(names(&softmax(f32, [8192, 1000], 1)), names(&softmax(f32, [8192, 1001], 1)));
}

/// A loop that stores the results of instructions on two loads, each to its own slot. Nothing is contiguous, so that
/// each instruction is compiled only once.
fn every(dtype: DType, instrs: &[(Instr<i64>, DType)]) -> Loop<i64> {
    let mut loop_ = add(dtype, [64, 1000], [1000, 1]);
    loop_.accesses.iter_mut().for_each(|access| access.strides = vec![2000, 2]);
    loop_.code.truncate(2);
    loop_.code.extend(instrs.iter().map(|(instr, _)| instr.clone()));
    for (at, (_, to)) in instrs.iter().enumerate() {
        loop_.accesses.push(access(3 + at as u32, *to, &[2000, 2]));
        loop_.code.push(Instr::Store(3 + at as u32, Reg(2 + at as u32)));
    }
    loop_
}

/// Every op and cast on every dtype, as flat loops.
fn ops() -> Vec<Loop<i64>> {
    let mut loops = Vec::new();
    for &dtype in DType::ALL {
        let fits = |op: &ScalarOp| match op {
            ScalarOp::RealOp(_) => dtype.is_float(),
            ScalarOp::LogicalOp(_) => dtype == DType::Bool,
            _ => true,
        };
        let ops = ScalarOp::all().filter(fits).map(|op| (apply(op, 0, 1), op.result_dtype(dtype)));
        let casts = DType::ALL.iter().map(|&to| (Instr::Cast(Reg(1), to), to));
        loops.push(every(dtype, &ops.chain(casts).collect::<Vec<_>>()));
    }
    loops
}

/// Literals, sizes, positions and random numbers.
fn sources() -> Vec<Loop<i64>> {
    let mut loops = Vec::new();
    for &dtype in DType::ALL {
        let mut loop_ = add(dtype, [1000, 100], [1, 1000]);
        let literal = |bits| Instr::Literal(Literal { dtype, bits });
        loop_.code = vec![
            literal(0x8000_0000_0000_0000),
            literal(u64::MAX),
            apply(NumericOp::Max, 0, 1),
            Instr::Size(77, dtype),
            apply(NumericOp::Mul, 2, 3),
            Instr::Store(2, Reg(4)),
        ];
        loops.push(loop_);
    }
    for dtype in [DType::Float32, DType::Float64] {
        for distribution in Distribution::ALL {
            for walk in [[100, 1], [1, 1000], [-100, 0], [0, 7]] {
                let mut loop_ = add(dtype, [1000, 100], [1, 1000]);
                loop_.accesses[1] = Access { slot: Slot::NONE, ..access(0, DType::Int64, &walk) };
                loop_.code = vec![
                    Instr::Literal(Literal { dtype: DType::UInt64, bits: 3 }),
                    Instr::Index(1),
                    Instr::Random(distribution, dtype, [Reg(0), Reg(1)]),
                    Instr::Store(2, Reg(2)),
                ];
                loops.push(loop_);
            }
        }
    }
    loops
}

/// Rows of every length and direction.
fn rows() -> Vec<Loop<i64>> {
    use Reduction::{ArgMax, ArgMin, Max, Min, Prod, Sum};
    let mut loops = Vec::new();
    for &dtype in DType::ALL {
        for axis in [0, 1] {
            let mut loop_ = reduction(Sum, dtype, [300, 1000], axis);
            let row = loop_.accesses[1].strides.clone();
            loop_.accesses.truncate(1);
            loop_.code.truncate(1);
            for (at, kind) in [Sum, Prod, Max, Min, ArgMax, ArgMin].into_iter().enumerate() {
                let out = if kind.gives_index() { DType::Int64 } else { dtype };
                loop_.accesses.push(access(1 + at as u32, out, &row));
                loop_.code.push(Instr::Reduce(kind, Reg(0)));
                loop_.code.push(Instr::Store(1 + at as u32, Reg(1 + 2 * at as u32)));
            }
            loops.push(loop_);
        }
    }
    for dtype in [DType::Float32, DType::BFloat16] {
        for length in [2, 100, 1000, 4099, 32_768, 1 << 20] {
            for rows in [1, 100_000] {
                loops.extend([softmax(dtype, [rows, length], 1), softmax(dtype, [length, rows], 0)]);
                loops.push(reduction(Sum, dtype, [rows, length], 1));
                loops.push(reduction(ArgMax, dtype, [length, rows], 0));
            }
        }
    }
    loops
}

/// Many axes, and more elements than 32 bits can count.
fn shapes() -> Vec<Loop<i64>> {
    let mut loops = Vec::new();
    for rank in 1..9usize {
        let shape: Vec<i64> = (0..rank as i64).map(|axis| 3 + axis).collect();
        let dense: Vec<i64> = (0..rank).map(|axis| shape[axis + 1..].iter().product()).collect();
        let padded: Vec<i64> = (0..rank).map(|axis| 11i64.pow((rank - 1 - axis) as u32)).collect();
        let back: Vec<i64> = padded.iter().map(|stride| -stride).collect();
        let f32 = DType::Float32;
        let reversed = Access { offset: 11i64.pow(rank as u32), ..access(1, f32, &back) };
        let code = add(f32, [1, 1], [1, 1]).code;
        let accesses = vec![access(0, f32, &padded), reversed, access(2, f32, &dense)];
        loops.push(Loop { shape, reduce: None, accesses, code });
    }
    loops.push(add(DType::Float32, [1 << 20, 1 << 16], [1 << 16, 1]));
    loops.push(add(DType::UInt8, [1 << 20, 1 << 16], [0, 1]));
    loops.push(softmax(DType::Float32, [1 << 20, 1 << 14], 1));
    loops.push(softmax(DType::Float32, [1 << 14, 1 << 20], 0));
    loops.push(add(DType::Float32, [4096, 4096], [1, 4096]));
    loops.push(add(DType::BFloat16, [4096, 4096], [1, 4096]));
    loops.push(add(DType::UInt8, [100, 333], [1, 100]));
    loops
}

/// The text is valid CUDA C++, also for GPUs without an instruction that rounds to bfloat16.
#[test]
fn every_text_compiles() {
    let loops = [ops(), sources(), rows(), shapes()].concat();
    let calls = loops.iter().flat_map(calls);
    let texts: BTreeMap<String, String> = calls.map(|call| (call.source.name, call.source.code)).collect();
    let texts: Vec<(String, String)> = texts.into_iter().collect();
    let modules = texts.chunks(64).map(|texts| Source {
        name: texts[0].0.clone(),
        prelude: Cow::Borrowed(""),
        code: texts.iter().fold(PRELUDE.to_string(), |whole, (_, text)| whole + text),
    });
    nvrtc::check_for(&modules.collect::<Vec<_>>(), &["sm_90"]);
    let cast = add(DType::BFloat16, [1000, 64], [64, 1]);
    let old = super::calls(&cast, MANY, &mut |_, _| Ok(0)).unwrap().swap_remove(0).source;
    nvrtc::check_for(&[old], &["compute_75"]);
}

/// Loops that run op by op are found in the modules that are built for them.
#[test]
fn eager_ops_are_prebuilt() {
    for (dtype, count) in [(DType::Float32, 1000), (DType::BFloat16, 1 << 24), (DType::Int64, 77)] {
        let wanted = calls(&add(dtype, [1, count], [0, 1])).swap_remove(0).source.name;
        let lists = prebuilt::lists(dtype, MANY).unwrap();
        let found = lists.iter().filter(|list| list.iter().any(|source| source.name == wanted)).count();
        assert_eq!(found, 1, "{dtype} {count}");
        assert!(lists.iter().all(|list| list.len() <= 80));
    }
}
