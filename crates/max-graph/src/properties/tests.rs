//! What every op states, on one screen, and what follows from effects.

use std::collections::BTreeMap;
use std::sync::Arc;

use expect_test::expect;
use max_core::scalar::LogicalOp;
use max_core::{DType, DeviceRef, ScalarOp, TensorType};

use super::*;
use crate::OpKind;
use crate::custom::{CustomOp, KernelLibrary, Meaning, Place};
use crate::text::parse_in;

/// Properties in words; those that are usual are left out.
fn words(properties: Properties) -> String {
    let Properties { effects, checks, form, folding, heavy, rounds_operands } = properties;
    let words = [
        (effects.reads, "reads"),
        (effects.writes, "writes"),
        (effects.observable, "observable"),
        (checks, "checks"),
        (heavy, "heavy"),
        (rounds_operands, "rounds operands"),
    ];
    let words = words.iter().filter(|(holds, _)| *holds).map(|(_, word)| (*word).to_owned());
    let folding = match folding {
        Folding::Never => "never folds".to_owned(),
        folding => format!("folds {}", format!("{folding:?}").to_lowercase()),
    };
    let all = [format!("{form:?}").to_lowercase(), folding].into_iter().chain(words);
    all.collect::<Vec<_>>().join(", ")
}

/// Ops whose properties depend on types are there more than once.
#[test]
fn structured_ops() {
    let library = KernelLibrary::new();
    let meaning = Meaning::Kernel(Arc::new(()), Place::Host);
    library.add(CustomOp::new("f", "here", meaning)).unwrap();
    let body = parse_in(
        "region @0 \"same\"(%0: float32[n, 4]) {
          return %0
        }
        region @1 \"store\"(%0: &float32[n, 4], %1: float32[n, 4]) {
          buffer_store(%0, %1)
          return
        }
        region @2 \"body\"(%0: bool[]) {
          return %0
        }
        graph \"g\"(%60: &float32[n, 4], %61: bool[], %0: float32[n, 4], %1: int32[n, 4], %2: int64[], %3: bool[n, 4], %4: float32[4], %5: float32[2, h, h, 1], %6: int64[2], %7: float32[3, 3, 1, 2], %8: uint8[n, 36]) {
          %10 = attention(%0, %0, %0) {scale = 1.0, causal = false, window = 0} : float32[n, 4]
          %11 = broadcast_to(%0) {shape = [3, n, 4]} : float32[3, n, 4]
          %12 = broadcast_to(%4) {shape = [n + -1, 4]} : float32[n + -1, 4]
          %13 = broadcast_to(%4, %6) {shape = [r, 4]} : float32[r, 4]
          %14 = cast(%0) {dtype = \"int32\"} : int32[n, 4]
          %49 = transfer_to(%0) {device = \"gpu:1\"} : float32[n, 4]@gpu:1
          %50 = transfer_to(%1) {device = \"gpu:1\"} : int32[n, 4]@gpu:1
          %51, %52 = collective(%0, %49) {kind = \"allgather\", axis = 0, devices = \"cpu:0,gpu:1\"} : float32[n * 2, 4], float32[n * 2, 4]@gpu:1
          %53, %54 = collective(%0, %49) {kind = \"allreduce_sum\", axis = 0, devices = \"cpu:0,gpu:1\"} : float32[n, 4], float32[n, 4]@gpu:1
          %55, %56 = collective(%1, %50) {kind = \"reducescatter_sum\", axis = 1, devices = \"cpu:0,gpu:1\"} : int32[n, 2], int32[n, 2]@gpu:1
          %57, %58 = collective(%0) {kind = \"broadcast\", axis = 0, devices = \"cpu:0,gpu:1\"} : float32[n, 4], float32[n, 4]@gpu:1
          %15 = concat(%0, %0) {axis = 0} : float32[n * 2, 4]
          %16 = constant() {value = dense(float32[], [1.0]), device = \"cpu:0\"} : float32[]
          %17 = constant_external() {name = \"w\", dtype = \"float32\", shape = [2], device = \"cpu:0\", layout = \"\"} : float32[2]
          %18 = constant_external() {name = \"s\", dtype = \"float32\", shape = [k], device = \"cpu:0\", layout = \"\"} : float32[k]
          %19 = conv2d(%5, %7) {stride = [1, 1], dilation = [1, 1], padding = [0, 0, 0, 0], groups = 1, input_layout = \"NHWC\", filter_layout = \"RSCF\"} : float32[2, h + -2, h + -2, 2]
          %48 = cumsum(%0) {axis = 0, exclusive = false, reverse = false} : float32[n, 4]
          %150 = dequantize(%8) {encoding = \"q4_0\"} : float32[n, 64]
          %151 = qmatmul(%150, %8) {storage = \"q4_0\", grouped = false} : float32[n, n]
          %90 = pool2d(%5) {pooling = \"max\", window = [3, 3], stride = [1, 1], dilation = [1, 1], padding = [1, 1, 1, 1], ceil = false} : float32[2, h, h, 1]
          %91 = pool2d(%5) {pooling = \"mean\", window = [3, h], stride = [1, 1], dilation = [1, 1], padding = [0, 0, 0, 0], ceil = false} : float32[2, h + -2, 1, 1]
          %92 = resample(%5) {axis = 1, sizes = [4, h * 2], interpolation = \"linear\", coordinates = \"half_pixel\"} : float32[2, 4, h * 2, 1]
          %93 = resample(%5) {axis = 3, sizes = [2], interpolation = \"nearest_floor\", coordinates = \"asymmetric\"} : float32[2, h, h, 2]
          %20 = dynamic_slice(%0, %2) {axis = 0, step = 1, start = true, stop = false, out_dim = `d`} : float32[d, 4]
          %21 = gather(%0, %2) {axis = 0} : float32[4]
          %82 = gather_nd(%0, %6) {batch_dims = 0} : float32[]
          %22 = index() {shape = [n], device = \"cpu:0\"} : int64[n]
          %23 = index() {shape = [n + -1], device = \"cpu:0\"} : int64[n + -1]
          %24 = layer_norm(%0, %4, %4) {epsilon = 1e-5} : float32[n, 4]
          %25 = permute(%0) {dims = [1, 0]} : float32[4, n]
          %26 = matmul(%0, %25) : float32[n, n]
          %27 = permute(%1) {dims = [1, 0]} : int32[4, n]
          %28 = matmul(%1, %27) : int32[n, n]
          print(%0) {label = \"x\"}
          %29 = random(%2, %22) {distribution = \"uniform\", dtype = \"float32\"} : float32[n]
          %30 = rebind(%0) {shape = [n, 4], message = \"\", layout = \"\"} : float32[n, 4]
          %31 = rebind(%0) {shape = [m, 4], message = \"\", layout = \"\"} : float32[m, 4]
          %32 = reduce(%0) {kind = \"sum\", axis = 0} : float32[1, 4]
          %33 = reduce(%1) {kind = \"sum\", axis = 0} : int32[1, 4]
          %34 = reduce(%0) {kind = \"max\", axis = 0} : float32[1, 4]
          %35 = reduce(%0) {kind = \"argmax\", axis = 0} : int64[1, 4]
          %36 = reshape(%0) {shape = [n, 2, 2]} : float32[n, 2, 2]
          %37 = rms_norm(%0, %4) {epsilon = 1e-5, weight_offset = 0.0, multiply_before_cast = false} : float32[n, 4]
          %83 = scatter(%0, %0, %1) {axis = 0, combine = \"add\"} : float32[n, 4]
          %84 = scatter_nd(%0, %16, %6) {combine = \"assign\"} : float32[n, 4]
          %38 = shape_to_tensor() {dims = [n], scalar = false} : int64[1]
          %39 = slice(%0) {starts = [0, 1], sizes = [n, 2], steps = [1, 2]} : float32[n, 2]
          %40 = slice(%0) {starts = [1, 0], sizes = [n + -1, 4], steps = [1, 1]} : float32[n + -1, 4]
          %41 = softmax(%0) {axis = 1, log = false} : float32[n, 4]
          %140, %141 = sort(%0) {axis = 1, count = 3, descending = true} : float32[n, 3], int64[n, 3]
          %142, %143 = sort(%0) {axis = 0, count = 3, descending = false} : float32[3, 4], int64[3, 4]
          %42, %43 = split(%0) {sizes = [1, 3], axis = 1} : float32[n, 1], float32[n, 3]
          %44, %45 = split(%0) {sizes = [1, n + -1], axis = 0} : float32[1, 4], float32[n + -1, 4]
          %46 = transfer_to(%0) {device = \"gpu:0\"} : float32[n, 4]@gpu:0
          %47 = where(%3, %0, %0) : float32[n, 4]
          %62 = buffer_create() {dtype = \"float32\", shape = [n, 4], device = \"cpu:0\"} : &float32[n, 4]
          %63 = buffer_load(%60) : float32[n, 4]
          buffer_store(%60, %0)
          buffer_store_slice(%60, %0) {starts = [0, 0], steps = [1, 1], axes = [], stops = []}
          %64 = call(%0) {regions = [@0]} : float32[n, 4]
          call(%60, %0) {regions = [@1]}
          %65 = cond(%61, %0) {regions = [@0, @0]} : float32[n, 4]
          cond(%61, %60, %0) {regions = [@1, @1]}
          while(%61, %61) {regions = [@2]}
          fence(%0)
          %100 = irfft(%0) {n = 6, axis = 1, normalization = \"ortho\", complex = false} : float32[n, 6]
          %101 = irfft(%0) {n = `n * 2 + -2`, axis = 0, normalization = \"backward\", complex = false} : float32[n * 2 + -2, 4]
          %102 = reshape(%0) {shape = [1, n, 4]} : float32[1, n, 4]
          %103 = reshape(%25) {shape = [1, 4, n]} : float32[1, 4, n]
          %104, %105 = non_maximum_suppression(%102, %103, %2, %16, %16) : int64[n * 4, 3], int64[]
          %106 = constant() {value = dense(float32[1, 5], [0.0, 0.0, 0.0, 2.0, 2.0]), device = \"cpu:0\"} : float32[1, 5]
          %107 = roi_align(%5, %106) {height = 2, width = 3, scale = 1.0, samples = 0, aligned = false, max = false} : float32[1, 2, 3, 1]
          %160 = buffer_create() {dtype = \"float32\", shape = [2, 2, 1, 4, 1, 4], device = \"cpu:0\"} : &float32[2, 2, 1, 4, 1, 4]
          %161 = buffer_load(%160) : float32[2, 2, 1, 4, 1, 4]
          %162 = index() {shape = [2], device = \"cpu:0\"} : int64[2]
          %163 = index() {shape = [1], device = \"cpu:0\"} : int64[1]
          %164 = index() {shape = [1, 1], device = \"cpu:0\"} : int64[1, 1]
          %165 = paged_attention(%102, %161, %162, %163, %164, %2) {scale = 1.0, causal = true, window = 0, softcap = 0.0} : float32[1, n, 4]
          %166 = reshape(%0) {shape = [n, 1, 4]} : float32[n, 1, 4]
          paged_store(%160, %166, %162, %163, %164, %2) {part = 0}
          %80 = custom(%0) {op = op(\"f\", 1), device = \"cpu:0\", parameters = {\"a b\" = 3, \"c\" = float32, \"d\" = true, \"e\" = \"x\"}, types = types(float32[n])} : float32[n]
          custom(%60) {op = op(\"f\", 1), device = \"cpu:0\", parameters = {}, types = types()}
          return
        }",
        &library,
    )
    .unwrap();
    let line = |op: &Op| {
        let types = |ids: &[_]| body.types_of(ids).map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let what = format!("{}({}) -> {}", op.kind.name(), types(&op.operands), types(&op.results));
        format!("{what}: {}\n", words(body.properties(op)))
    };
    expect![[r#"
        attention(float32[n, 4], float32[n, 4], float32[n, 4]) -> float32[n, 4]: kernel, folds approximately, heavy
        broadcast_to(float32[n, 4]) -> float32[3, n, 4]: part, never folds
        broadcast_to(float32[4]) -> float32[n + -1, 4]: part, never folds, checks
        broadcast_to(float32[4], int64[2]) -> float32[r, 4]: part, never folds, checks
        cast(float32[n, 4]) -> int32[n, 4]: elementwise, folds exactly, rounds operands
        transfer_to(float32[n, 4]) -> float32[n, 4]@gpu:1: whole, folds exactly
        transfer_to(int32[n, 4]) -> int32[n, 4]@gpu:1: whole, folds exactly
        collective(float32[n, 4], float32[n, 4]@gpu:1) -> float32[n * 2, 4], float32[n * 2, 4]@gpu:1: whole, folds exactly
        collective(float32[n, 4], float32[n, 4]@gpu:1) -> float32[n, 4], float32[n, 4]@gpu:1: whole, folds approximately
        collective(int32[n, 4], int32[n, 4]@gpu:1) -> int32[n, 2], int32[n, 2]@gpu:1: whole, folds exactly
        collective(float32[n, 4]) -> float32[n, 4], float32[n, 4]@gpu:1: whole, folds exactly
        concat(float32[n, 4], float32[n, 4]) -> float32[n * 2, 4]: whole, folds exactly
        constant() -> float32[]: source, never folds
        constant_external() -> float32[2]: source, never folds
        constant_external() -> float32[k]: source, never folds, checks
        conv2d(float32[2, h, h, 1], float32[3, 3, 1, 2]) -> float32[2, h + -2, h + -2, 2]: kernel, folds approximately, checks, heavy
        cumsum(float32[n, 4]) -> float32[n, 4]: whole, folds approximately
        dequantize(uint8[n, 36]) -> float32[n, 64]: kernel, folds exactly
        qmatmul(float32[n, 64], uint8[n, 36]) -> float32[n, n]: kernel, never folds, heavy
        pool2d(float32[2, h, h, 1]) -> float32[2, h, h, 1]: kernel, folds exactly, heavy
        pool2d(float32[2, h, h, 1]) -> float32[2, h + -2, 1, 1]: kernel, folds approximately, checks, heavy
        resample(float32[2, h, h, 1]) -> float32[2, 4, h * 2, 1]: whole, folds approximately, checks, heavy
        resample(float32[2, h, h, 1]) -> float32[2, h, h, 2]: whole, folds exactly, heavy
        dynamic_slice(float32[n, 4], int64[]) -> float32[d, 4]: part, folds exactly, checks
        gather(float32[n, 4], int64[]) -> float32[4]: whole, folds exactly, checks
        gather_nd(float32[n, 4], int64[2]) -> float32[]: whole, folds exactly, checks
        index() -> int64[n]: source, folds exactly
        index() -> int64[n + -1]: source, folds exactly, checks
        layer_norm(float32[n, 4], float32[4], float32[4]) -> float32[n, 4]: kernel, folds approximately
        permute(float32[n, 4]) -> float32[4, n]: view, folds exactly
        matmul(float32[n, 4], float32[4, n]) -> float32[n, n]: kernel, folds approximately, heavy
        permute(int32[n, 4]) -> int32[4, n]: view, folds exactly
        matmul(int32[n, 4], int32[4, n]) -> int32[n, n]: kernel, folds exactly, heavy
        print(float32[n, 4]) -> : whole, never folds, observable
        random(int64[], int64[n]) -> float32[n]: elementwise, never folds
        rebind(float32[n, 4]) -> float32[n, 4]: view, folds exactly
        rebind(float32[n, 4]) -> float32[m, 4]: view, folds exactly, checks
        reduce(float32[n, 4]) -> float32[1, 4]: kernel, folds approximately
        reduce(int32[n, 4]) -> int32[1, 4]: kernel, folds exactly
        reduce(float32[n, 4]) -> float32[1, 4]: kernel, folds exactly
        reduce(float32[n, 4]) -> int64[1, 4]: kernel, folds exactly, rounds operands
        reshape(float32[n, 4]) -> float32[n, 2, 2]: view, folds exactly
        rms_norm(float32[n, 4], float32[4]) -> float32[n, 4]: kernel, folds approximately
        scatter(float32[n, 4], float32[n, 4], int32[n, 4]) -> float32[n, 4]: whole, folds exactly, checks
        scatter_nd(float32[n, 4], float32[], int64[2]) -> float32[n, 4]: whole, folds exactly, checks
        shape_to_tensor() -> int64[1]: source, folds exactly
        slice(float32[n, 4]) -> float32[n, 2]: part, folds exactly
        slice(float32[n, 4]) -> float32[n + -1, 4]: part, folds exactly, checks
        softmax(float32[n, 4]) -> float32[n, 4]: kernel, folds approximately
        sort(float32[n, 4]) -> float32[n, 3], int64[n, 3]: kernel, folds exactly, heavy
        sort(float32[n, 4]) -> float32[3, 4], int64[3, 4]: kernel, folds exactly, checks, heavy
        split(float32[n, 4]) -> float32[n, 1], float32[n, 3]: part, folds exactly
        split(float32[n, 4]) -> float32[1, 4], float32[n + -1, 4]: part, folds exactly, checks
        transfer_to(float32[n, 4]) -> float32[n, 4]@gpu:0: whole, folds exactly
        where(bool[n, 4], float32[n, 4], float32[n, 4]) -> float32[n, 4]: elementwise, folds exactly
        buffer_create() -> &float32[n, 4]: whole, never folds, writes
        buffer_load(&float32[n, 4]) -> float32[n, 4]: whole, never folds, reads
        buffer_store(&float32[n, 4], float32[n, 4]) -> : whole, never folds, writes
        buffer_store_slice(&float32[n, 4], float32[n, 4]) -> : whole, never folds, writes, checks
        call(float32[n, 4]) -> float32[n, 4]: whole, never folds, heavy
        call(&float32[n, 4], float32[n, 4]) -> : whole, never folds, writes, heavy
        cond(bool[], float32[n, 4]) -> float32[n, 4]: whole, never folds, heavy
        cond(bool[], &float32[n, 4], float32[n, 4]) -> : whole, never folds, writes, heavy
        while(bool[], bool[]) -> : whole, never folds, checks, heavy
        fence(float32[n, 4]) -> : whole, never folds, observable
        irfft(float32[n, 4]) -> float32[n, 6]: whole, never folds, heavy
        irfft(float32[n, 4]) -> float32[(n * 2) + -2, 4]: whole, never folds, checks, heavy
        reshape(float32[n, 4]) -> float32[1, n, 4]: view, folds exactly
        reshape(float32[4, n]) -> float32[1, 4, n]: view, folds exactly
        non_maximum_suppression(float32[1, n, 4], float32[1, 4, n], int64[], float32[], float32[]) -> int64[n * 4, 3], int64[]: whole, never folds, heavy
        constant() -> float32[1, 5]: source, never folds
        roi_align(float32[2, h, h, 1], float32[1, 5]) -> float32[1, 2, 3, 1]: whole, never folds, checks, heavy
        buffer_create() -> &float32[2, 2, 1, 4, 1, 4]: whole, never folds, writes
        buffer_load(&float32[2, 2, 1, 4, 1, 4]) -> float32[2, 2, 1, 4, 1, 4]: whole, never folds, reads
        index() -> int64[2]: source, folds exactly
        index() -> int64[1]: source, folds exactly
        index() -> int64[1, 1]: source, folds exactly
        paged_attention(float32[1, n, 4], float32[2, 2, 1, 4, 1, 4], int64[2], int64[1], int64[1, 1], int64[]) -> float32[1, n, 4]: kernel, never folds, checks, heavy
        reshape(float32[n, 4]) -> float32[n, 1, 4]: view, folds exactly
        paged_store(&float32[2, 2, 1, 4, 1, 4], float32[n, 1, 4], int64[2], int64[1], int64[1, 1], int64[]) -> : kernel, never folds, writes, checks
        custom(float32[n, 4]) -> float32[n]: whole, never folds, checks, heavy, rounds operands
        custom(&float32[n, 4]) -> : whole, never folds, reads, writes, checks, heavy, rounds operands
    "#]].assert_eq(&body.ops().map(line).collect::<String>());
    for name in OpKind::NAMES {
        assert!(body.ops().any(|op| op.kind.name() == *name), "{name} is missing above");
    }
}

#[test]
fn scalar_ops() {
    let mut groups: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for op in ScalarOp::all() {
        for dtype in [DType::Float32, DType::Int32, DType::Bool] {
            let ty = TensorType::new(dtype, [2], DeviceRef::CPU);
            let mut body = Body::new("g", vec![ty.into(); op.arity()]);
            let Ok(id) = body.push(op.into(), body.block.arguments.clone(), None) else { continue };
            let words = words(body.properties(body.op(id)));
            groups.entry(format!("{dtype}: {words}")).or_default().push(op.name());
        }
    }
    let lines = groups.iter().map(|(properties, ops)| format!("{properties}: {}\n", ops.join(" ")));
    expect![[r#"
        bool: elementwise, folds approximately: exp log log1p sin cos acos tanh atanh erf sigmoid silu gelu gelu_tanh gelu_quick
        bool: elementwise, folds exactly: add sub mul floor_div mod pow max min abs negate relu floor ceil round trunc div sqrt rsqrt logical_and logical_or logical_xor logical_not
        bool: elementwise, folds exactly, rounds operands: equal not_equal greater greater_equal is_nan is_inf
        float32: elementwise, folds approximately: pow exp log log1p sin cos acos tanh atanh erf sigmoid silu gelu gelu_tanh gelu_quick
        float32: elementwise, folds exactly: add sub mul floor_div mod max min abs negate relu floor ceil round trunc div sqrt rsqrt
        float32: elementwise, folds exactly, rounds operands: equal not_equal greater greater_equal is_nan is_inf
        int32: elementwise, folds approximately: exp log log1p sin cos acos tanh atanh erf sigmoid silu gelu gelu_tanh gelu_quick
        int32: elementwise, folds exactly: add sub mul floor_div mod pow max min abs negate relu floor ceil round trunc div sqrt rsqrt
        int32: elementwise, folds exactly, rounds operands: equal not_equal greater greater_equal is_nan is_inf
    "#]].assert_eq(&lines.collect::<String>());
}

const READ: Effects = Effects { reads: true, ..Effects::NONE };
const WRITE: Effects = Effects { writes: true, ..Effects::NONE };
const SHOW: Effects = Effects { observable: true, ..Effects::NONE };

#[test]
fn reads_are_equal_only_between_the_same_writes() {
    let mut order = Order::default();
    let ops = [READ, Effects::NONE, READ, WRITE, READ, Effects::NONE, SHOW, READ, WRITE, READ];
    let states = ops.map(|effects| order.next(effects));
    let [first, pure, second, write, third, still_pure, show, fourth, _, last] = states;
    assert!(first.is_some() && first == second);
    assert!(write.is_none() && show.is_none());
    assert!(third.is_some() && third != first && third == fourth && last != third);
    assert!(pure.is_some() && pure == still_pure);
}

#[test]
fn an_op_that_reads_and_writes_is_never_repeated() {
    let mut order = Order::default();
    let both = Effects { reads: true, ..WRITE };
    assert_eq!([order.next(both), order.next(both)], [None, None]);
}

#[test]
fn unused_ops_run_if_they_show_or_check() {
    let mut body = Body::new("g", [TensorType::new(DType::Bool, [2], DeviceRef::CPU).into()]);
    let not = body.push(ScalarOp::from(LogicalOp::LogicalNot).into(), body.block.arguments.clone(), None);
    let plain = body.properties(body.op(not.unwrap()));
    assert!(!plain.must_run());
    assert!(!Properties { effects: READ, ..plain }.must_run());
    assert!(Properties { effects: WRITE, ..plain }.must_run());
    assert!(Properties { effects: SHOW, ..plain }.must_run());
    assert!(Properties { checks: true, ..plain }.must_run());
}
