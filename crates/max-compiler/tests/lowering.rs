//! Golden programs: what graphs become.

use expect_test::{Expect, expect};
use max_compiler::{Options, Target, compile};
use max_core::DeviceRef;
use max_graph::text;

fn check(graph: &str, expected: Expect) {
    let body = text::parse(graph).unwrap();
    let target = Target {
        devices: vec![DeviceRef::CPU],
        options: Options { fuse: true, fold_exactly: false, nccl: false },
    };
    expected.assert_eq(&compile(body, &target, &mut |_, _| ()).unwrap().to_string());
}

#[test]
fn a_chain_is_one_loop() {
    check(
        r#"graph "g"(%0: float32[n, 8], %1: float32[8]) {
          %2 = add(%0, %1) : float32[n, 8]
          %3 = relu(%2) : float32[n, 8]
          %4 = softmax(%3) {axis = 1, log = false} : float32[n, 8]
          %5 = permute(%4) {dims = [1, 0]} : float32[8, n]
          %6 = exp(%5) : float32[8, n]
          return %3, %6
        }"#,
        expect![[r#"
            program "g"
              s0: float32[n, 8] output 0
              s1: float32[n, 8] temporary 0..1
              s2: float32[n, 8] input 0
              s3: float32[8] input 1
              s4: float32[8, n] output 1
              0 add+relu+softmax: loop over [n, 8] reducing axis 1
                r0 = load float32 s2 [8, 1]
                r1 = load float32 s3 [0, 1]
                r2 = add r0 r1
                r3 = relu r2
                R4 = reduce max r3
                r5 = sub r3 R4
                r6 = exp r5
                R7 = reduce sum r6
                R8 = float32 1.0
                R9 = div R8 R7
                r10 = mul r6 R9
                store float32 s0 [8, 1] r3
                store float32 s1 [8, 1] r10
              1 exp: loop over [8, n]
                r0 = load float32 s1 [1, 8]
                r1 = exp r0
                store float32 s4 [n, 1] r1
        "#]],
    );
}

#[test]
fn a_transformer_block() {
    check(
        r#"graph "block"(%0: float32[b, s, 768], %1: float32[768, 2304], %2: float32[768, 768], %3: float32[768, 3072], %4: float32[3072, 768], %5: float32[768], %6: float32[768], %7: float32[768], %8: float32[768]) {
          %9 = layer_norm(%0, %5, %6) {epsilon = 1e-5} : float32[b, s, 768]
          %10 = matmul(%9, %1) : float32[b, s, 2304]
          %11 = reshape(%10) {shape = [b, s, 3, 12, 64]} : float32[b, s, 3, 12, 64]
          %12 = slice(%11) {starts = [0, 0, 0, 0, 0], sizes = [b, s, 1, 12, 64], steps = [1, 1, 1, 1, 1]} : float32[b, s, 1, 12, 64]
          %13 = reshape(%12) {shape = [b, s, 12, 64]} : float32[b, s, 12, 64]
          %14 = permute(%13) {dims = [0, 2, 1, 3]} : float32[b, 12, s, 64]
          %15 = slice(%11) {starts = [0, 0, 1, 0, 0], sizes = [b, s, 1, 12, 64], steps = [1, 1, 1, 1, 1]} : float32[b, s, 1, 12, 64]
          %16 = reshape(%15) {shape = [b, s, 12, 64]} : float32[b, s, 12, 64]
          %17 = permute(%16) {dims = [0, 2, 1, 3]} : float32[b, 12, s, 64]
          %18 = slice(%11) {starts = [0, 0, 2, 0, 0], sizes = [b, s, 1, 12, 64], steps = [1, 1, 1, 1, 1]} : float32[b, s, 1, 12, 64]
          %19 = reshape(%18) {shape = [b, s, 12, 64]} : float32[b, s, 12, 64]
          %20 = permute(%19) {dims = [0, 2, 1, 3]} : float32[b, 12, s, 64]
          %21 = permute(%17) {dims = [0, 1, 3, 2]} : float32[b, 12, 64, s]
          %22 = matmul(%14, %21) : float32[b, 12, s, s]
          %23 = constant() {value = dense(float32[], [0.125]), device = "cpu:0"} : float32[]
          %24 = mul(%22, %23) : float32[b, 12, s, s]
          %25 = softmax(%24) {axis = 3, log = false} : float32[b, 12, s, s]
          %26 = matmul(%25, %20) : float32[b, 12, s, 64]
          %27 = permute(%26) {dims = [0, 2, 1, 3]} : float32[b, s, 12, 64]
          %28 = reshape(%27) {shape = [b, s, 768]} : float32[b, s, 768]
          %29 = matmul(%28, %2) : float32[b, s, 768]
          %30 = add(%0, %29) : float32[b, s, 768]
          %31 = layer_norm(%30, %7, %8) {epsilon = 1e-5} : float32[b, s, 768]
          %32 = matmul(%31, %3) : float32[b, s, 3072]
          %33 = gelu(%32) : float32[b, s, 3072]
          %34 = matmul(%33, %4) : float32[b, s, 768]
          %35 = add(%30, %34) : float32[b, s, 768]
          return %35
        }"#,
        expect![[r#"
            program "block"
              s0: float32[b, s, 768] temporary 0..1
              s1: float32[b, s, 768] input 0
              s2: float32[768] input 5
              s3: float32[768] input 6
              s4: float32[b, s, 2304] temporary 1..2
              s5: float32[768, 2304] input 1
              s6: float32[b, s, 12, 64] temporary 2..3
              s7: float32[b, s, 768] temporary 3..6
              s8: float32[768, 768] input 2
              s9: float32[b, s, 768] temporary 4..5
              s10: float32[768] input 7
              s11: float32[768] input 8
              s12: float32[b, s, 3072] temporary 5..6
              s13: float32[768, 3072] input 3
              s14: float32[b, s, 768] output 0
              s15: float32[3072, 768] input 4
              0 layer_norm: loop over [b, s, 768] reducing axis 2
                r0 = load float32 s1 [s * 768, 768, 1]
                r1 = load float32 s2 [0, 0, 1]
                r2 = load float32 s3 [0, 0, 1]
                R3 = reduce sum r0
                R4 = float32 size 768
                R5 = div R3 R4
                r6 = sub r0 R5
                r7 = mul r6 r6
                R8 = reduce sum r7
                R9 = float32 size 768
                R10 = div R8 R9
                R11 = float32 1e-5
                R12 = add R10 R11
                R13 = rsqrt R12
                r14 = mul r6 R13
                r15 = mul r14 r1
                r16 = add r15 r2
                store float32 s0 [s * 768, 768, 1] r16
              1 matmul: matmul s0 [s * 768, 768, 1] x s5 [0, 2304, 1] k 768 over [b, s, 2304]
                r0 = product float32
                store float32 s4 [s * 2304, 2304, 1] r0
              2 attention+reshape: attention s4 [s * 2304, 64, 2304, 1] x s4 + 768 [s * 2304, 64, 2304, 1] x s4 + 1536 [s * 2304, 64, 2304, 1] keys s scale 0.125 over [b, 12, s, 64]
                r0 = product float32
                store float32 s6 [s * 768, 64, 768, 1] r0
              3 matmul+add: matmul s6 [s * 768, 768, 1] x s8 [0, 768, 1] k 768 over [b, s, 768]
                r0 = product float32
                r1 = load float32 s1 [s * 768, 768, 1]
                r2 = add r1 r0
                store float32 s7 [s * 768, 768, 1] r2
              4 layer_norm: loop over [b, s, 768] reducing axis 2
                r0 = load float32 s7 [s * 768, 768, 1]
                r1 = load float32 s10 [0, 0, 1]
                r2 = load float32 s11 [0, 0, 1]
                R3 = reduce sum r0
                R4 = float32 size 768
                R5 = div R3 R4
                r6 = sub r0 R5
                r7 = mul r6 r6
                R8 = reduce sum r7
                R9 = float32 size 768
                R10 = div R8 R9
                R11 = float32 1e-5
                R12 = add R10 R11
                R13 = rsqrt R12
                r14 = mul r6 R13
                r15 = mul r14 r1
                r16 = add r15 r2
                store float32 s9 [s * 768, 768, 1] r16
              5 matmul+gelu: matmul s9 [s * 768, 768, 1] x s13 [0, 3072, 1] k 768 over [b, s, 3072]
                r0 = product float32
                r1 = gelu r0
                store float32 s12 [s * 3072, 3072, 1] r1
              6 matmul+add: matmul s12 [s * 3072, 3072, 1] x s15 [0, 768, 1] k 3072 over [b, s, 768]
                r0 = product float32
                r1 = load float32 s7 [s * 768, 768, 1]
                r2 = add r1 r0
                store float32 s14 [s * 768, 768, 1] r2
        "#]],
    );
}

#[test]
fn heads_in_groups_repeat_nothing() {
    check(
        r#"graph "g"(%0: float32[b, q, 512], %1: float32[b, s, 128], %2: float32[b, s, 128]) {
          %3 = reshape(%0) {shape = [b, q, 8, 64]} : float32[b, q, 8, 64]
          %4 = permute(%3) {dims = [0, 2, 1, 3]} : float32[b, 8, q, 64]
          %5 = reshape(%1) {shape = [b, s, 2, 1, 64]} : float32[b, s, 2, 1, 64]
          %6 = broadcast_to(%5) {shape = [b, s, 2, 4, 64]} : float32[b, s, 2, 4, 64]
          %7 = reshape(%6) {shape = [b, s, 8, 64]} : float32[b, s, 8, 64]
          %8 = permute(%7) {dims = [0, 2, 3, 1]} : float32[b, 8, 64, s]
          %9 = reshape(%2) {shape = [b, s, 2, 1, 64]} : float32[b, s, 2, 1, 64]
          %10 = broadcast_to(%9) {shape = [b, s, 2, 4, 64]} : float32[b, s, 2, 4, 64]
          %11 = reshape(%10) {shape = [b, s, 8, 64]} : float32[b, s, 8, 64]
          %12 = permute(%11) {dims = [0, 2, 1, 3]} : float32[b, 8, s, 64]
          %13 = matmul(%4, %8) : float32[b, 8, q, s]
          %14 = constant() {value = dense(float32[], [0.125]), device = "cpu:0"} : float32[]
          %15 = mul(%13, %14) : float32[b, 8, q, s]
          %16 = softmax(%15) {axis = 3, log = false} : float32[b, 8, q, s]
          %17 = matmul(%16, %12) : float32[b, 8, q, 64]
          %18 = permute(%17) {dims = [0, 2, 1, 3]} : float32[b, q, 8, 64]
          %19 = reshape(%18) {shape = [b, q, 512]} : float32[b, q, 512]
          return %19
        }"#,
        expect![[r#"
            program "g"
              s0: float32[b, q, 8, 64] output 0
              s1: float32[b, q, 512] input 0
              s2: float32[b, s, 128] input 1
              s3: float32[b, s, 128] input 2
              0 attention+reshape: attention s1 [q * 512, 256, 64, 512, 1] x s2 [s * 128, 64, 0, 128, 1] x s3 [s * 128, 64, 0, 128, 1] keys s scale 0.125 over [b, 2, 4, q, 64]
                r0 = product float32
                store float32 s0 [q * 512, 256, 64, 512, 1] r0
        "#]],
    );
}

#[test]
fn what_a_concat_joins_is_computed_in_its_place() {
    check(
        r#"graph "g"(%0: float32[n, 4], %1: float32[m, 4]) {
          %2 = exp(%0) : float32[n, 4]
          %3 = concat(%2, %1, %2) {axis = 0} : float32[m + n * 2, 4]
          %4 = relu(%1) : float32[m, 4]
          %5 = concat(%4, %3) {axis = 0} : float32[m * 2 + n * 2, 4]
          return %5
        }"#,
        expect![[r#"
            program "g"
              s0: float32[(m * 2) + (n * 2), 4] output 0
              s1: float32[n, 4] input 0
              s2: float32[m, 4] input 1
              0 exp+concat: loop over [n, 4]
                r0 = load float32 s1 [4, 1]
                r1 = exp r0
                store float32 s0 + (m * 8) + (n * 4) [4, 1] r1
                store float32 s0 + m * 4 [4, 1] r1
              1 relu+concat: loop over [m, 4]
                r0 = load float32 s2 [4, 1]
                r1 = relu r0
                store float32 s0 [4, 1] r1
                store float32 s0 + (m * 4) + (n * 4) [4, 1] r0
        "#]],
    );
}

#[test]
fn a_pad_of_two_axes_copies_the_interior_once() {
    check(
        r#"graph "g"(%0: float32[n, m]) {
          %1 = constant() {value = dense(float32[], [0]), device = "cpu:0"} : float32[]
          %2 = broadcast_to(%1) {shape = [n, 1]} : float32[n, 1]
          %3 = concat(%2, %0, %2) {axis = 1} : float32[n, m + 2]
          %4 = broadcast_to(%1) {shape = [1, m + 2]} : float32[1, m + 2]
          %5 = concat(%4, %3, %4) {axis = 0} : float32[n + 2, m + 2]
          return %5
        }"#,
        expect![[r#"
            program "g"
              s0: float32[n + 2, m + 2] output 0
              s1: float32[n, m] input 0
              0 concat: loop over [1, m + 2]
                r0 = float32 0.0
                store float32 s0 [m + 2, 1] r0
              1 concat: loop over [n, 1]
                r0 = float32 0.0
                store float32 s0 + m + 2 [m + 2, 1] r0
              2 concat: loop over [n, m]
                r0 = load float32 s1 [m, 1]
                store float32 s0 + m + 3 [m + 2, 1] r0
              3 concat: loop over [n, 1]
                r0 = float32 0.0
                store float32 s0 + (m * 2) + 3 [m + 2, 1] r0
              4 concat: loop over [1, m + 2]
                r0 = float32 0.0
                store float32 s0 + (m * n) + m + (n * 2) + 2 [m + 2, 1] r0
        "#]],
    );
}

#[test]
fn a_size_that_depends_on_data_starts_a_segment() {
    check(
        r#"graph "g"(%0: float32[n], %1: int64[]) {
          %2 = exp(%0) : float32[n]
          %3 = dynamic_slice(%2, %1) {axis = 0, step = 1, start = false, stop = true, out_dim = `k`} : float32[k]
          %4 = relu(%3) : float32[k]
          %5 = reduce(%2) {kind = "sum", axis = 0} : float32[1]
          return %4, %5
        }"#,
        expect![[r#"
            program "g"
              s0: float32[n] temporary 0..3
              s1: float32[n] input 0
              s2: float32[k] output 0
              s3: float32[1] output 1
              s4: int64[] input 1
              0 exp: loop over [n]
                r0 = load float32 s1 [1]
                r1 = exp r0
                store float32 s0 [1] r1
              fact Bounds { axis: 0, size: Dim('n'), start: None, stop: Some(Access { slot: Slot(4), dtype: Int64, offset: Dim(0), strides: [] }), step: 1, first: "start of %3", count: Dim('k') }
              1 relu: loop over [k]
                r0 = load float32 s0 + start of %3 [1]
                r1 = relu r0
                store float32 s2 [1] r1
              2 reduce: loop over [n] reducing axis 0
                r0 = load float32 s0 [1]
                R1 = reduce sum r0
                store float32 s3 [0] R1
        "#]],
    );
}

#[test]
fn convolutions_end_in_what_follows_them() {
    check(
        r#"graph "g"(%0: float32[1, 8, h, w], %1: float32[16, 8, 3, 3], %2: float32[16, 1, 1]) {
          %3 = conv2d(%0, %1) {stride = [1, 1], dilation = [1, 1], padding = [1, 1, 1, 1], groups = 1, input_layout = "NCHW", filter_layout = "FCRS"} : float32[1, 16, h, w]
          %4 = add(%3, %2) : float32[1, 16, h, w]
          %5 = silu(%4) : float32[1, 16, h, w]
          return %5
        }"#,
        expect![[r#"
            program "g"
              s0: float32[1, 16, h, w] output 0
              s1: float32[16, 1, 1] input 2
              s2: float32[1, 8, h, w] input 0
              s3: float32[16, 8, 3, 3] input 1
              0 conv2d+add+silu: conv2d s2 [h * w * 8, w, 1, h * w] x s3 [3, 1, 9, 72] [3, 3] stride [1, 1] dilation [1, 1] padding [1, 1] groups 1 over [1, h, w, 16]
                r0 = product float32
                r1 = load float32 s1 [0, 0, 0, 1]
                r2 = add r0 r1
                r3 = silu r2
                store float32 s0 [h * w * 16, w, 1, h * w] r3
        "#]],
    );
}

#[test]
fn pooling_ends_in_what_follows_it() {
    check(
        r#"graph "g"(%0: float32[n, h, w, 8]) {
          %1 = pool2d(%0) {pooling = "max", window = [3, 3], stride = [2, 2], dilation = [1, 1], padding = [1, 1, 1, 1], ceil = false} : float32[n, (h + 1) // 2, (w + 1) // 2, 8]
          %2 = relu(%1) : float32[n, (h + 1) // 2, (w + 1) // 2, 8]
          return %2
        }"#,
        expect![[r#"
            program "g"
              s0: float32[n, (h + 1) // 2, (w + 1) // 2, 8] output 0
              s1: float32[n, h, w, 8] input 0
              0 pool2d+relu: window max s1 [h * w * 8, w * 8, 8, 1] [3, 3] stride [2, 2] dilation [1, 1] padding [1, 1, 1, 1] over [n, (h + 1) // 2, (w + 1) // 2, 8]
                r0 = product float32
                r1 = relu r0
                store float32 s0 [((h + 1) // 2) * ((w + 1) // 2) * 8, ((w + 1) // 2) * 8, 8, 1] r1
        "#]],
    );
}

#[test]
fn two_axes_are_resampled_together() {
    check(
        r#"graph "g"(%0: float32[n, 3, h, w]) {
          %1 = resample(%0) {axis = 2, sizes = [h * 2, 7], interpolation = "linear", coordinates = "half_pixel"} : float32[n, 3, h * 2, 7]
          %2 = relu(%1) : float32[n, 3, h * 2, 7]
          return %2
        }"#,
        expect![[r#"
            program "g"
              s0: float32[n, 3, h, w] input 0
              s1: float32[n, 3, h * 2, 7] temporary 0..1
              s2: float32[n, 3, h * 2, 7] output 0
              fact Resampled(Dim('h'))
              fact Resampled(Dim('w'))
              0 resample: resample s0 [h * w, w, 1, 1] into s1 [h * 14, 7, 1, 1] from [h, w] to [h * 2, 7] by linear half_pixel
              1 relu: loop over [n, 3, h * 2, 7]
                r0 = load float32 s1 [h * 42, h * 14, 7, 1]
                r1 = relu r0
                store float32 s2 [h * 42, h * 14, 7, 1] r1
        "#]],
    );
}

#[test]
fn blocks_are_decoded_in_rows_that_are_apart_but_not_turned() {
    check(
        r#"graph "g"(%0: uint8[n, 60], %1: uint8[40, n]) {
          %2 = slice(%0) {starts = [0, 20], sizes = [n, 40], steps = [1, 1]} : uint8[n, 40]
          %3 = dequantize(%2) {encoding = "q4_1"} : float32[n, 64]
          %4 = permute(%1) {dims = [1, 0]} : uint8[n, 40]
          %5 = dequantize(%4) {encoding = "q4_1"} : float32[n, 64]
          return %3, %5
        }"#,
        expect![[r#"
            program "g"
              s0: uint8[n, 60] input 0
              s1: float32[n, 64] output 0
              s2: uint8[n, 40] temporary 1..2
              s3: uint8[40, n] input 1
              s4: float32[n, 64] output 1
              0 dequantize: dequantize q4_1 s0 + 20 [60, 1] into s1 [64, 1]
              1 dequantize: loop over [n, 40]
                r0 = load uint8 s3 [1, n]
                store uint8 s2 [40, 1] r0
              2 dequantize: dequantize q4_1 s2 [40, 1] into s4 [64, 1]
        "#]],
    );
}

#[test]
fn a_temporary_takes_over_memory_that_is_read_for_the_last_time() {
    check(
        r#"graph "g"(%0: float32[n, n]) {
          %1 = matmul(%0, %0) : float32[n, n]
          %2 = exp(%0) : float32[n, n]
          %3 = matmul(%2, %0) : float32[n, n]
          %4 = add(%3, %1) : float32[n, n]
          %5 = matmul(%4, %0) : float32[n, n]
          return %5
        }"#,
        expect![[r#"
            program "g"
              s0: float32[n, n] temporary 0..1
              s1: float32[n, n] temporary 0..1
              s2: float32[n, n] input 0
              s3: float32[n, n] temporary 1..2 in place of s0
              s4: float32[n, n] output 0
              0 matmul+exp: matmul s2 [n, 1] x s2 [n, 1] k n over [n, n]
                r0 = product float32
                r1 = load float32 s2 [n, 1]
                r2 = exp r1
                store float32 s0 [n, 1] r0
                store float32 s1 [n, 1] r2
              1 matmul+add: matmul s1 [n, 1] x s2 [n, 1] k n over [n, n]
                r0 = product float32
                r1 = load float32 s0 [n, 1]
                r2 = add r0 r1
                store float32 s3 [n, 1] r2
              2 matmul: matmul s3 [n, 1] x s2 [n, 1] k n over [n, n]
                r0 = product float32
                store float32 s4 [n, 1] r0
        "#]],
    );
}

#[test]
fn positions_are_computed_where_they_are_used() {
    check(
        r#"graph "g"(%0: float32[n, 8], %1: int64[]) {
          %2 = index() {shape = [n, 1], device = "cpu:0"} : int64[n, 1]
          %3 = index() {shape = [8], device = "cpu:0"} : int64[8]
          %4 = greater_equal(%2, %3) : bool[n, 8]
          %5 = index() {shape = [8, n], device = "cpu:0"} : int64[8, n]
          %6 = random(%1, %5) {distribution = "uniform", dtype = "float32"} : float32[8, n]
          %7 = permute(%5) {dims = [1, 0]} : int64[n, 8]
          %8 = random(%1, %7) {distribution = "normal", dtype = "float32"} : float32[n, 8]
          %9 = where(%4, %0, %8) : float32[n, 8]
          return %9, %6
        }"#,
        expect![[r#"
            program "g"
              s0: bool[n, 8] temporary 0..2
              s1: int64[8] constant of 64 bytes
              s2: float32[8, n] output 1
              s3: int64[] input 1
              s4: float32[n, 8] output 0
              s5: float32[n, 8] input 0
              0 greater_equal: loop over [n, 8]
                r0 = index at [1, 0]
                r1 = load int64 s1 [0, 1]
                r2 = greater_equal r0 r1
                store bool s0 [8, 1] r2
              1 random: loop over [8, n]
                r0 = load int64 s3 [0, 0]
                r1 = index at [n, 1]
                r2 = random uniform float32 r0 r1
                store float32 s2 [n, 1] r2
              2 random+where: loop over [n, 8]
                r0 = load int64 s3 [0, 0]
                r1 = index at [1, n]
                r2 = random normal float32 r0 r1
                r3 = load bool s0 [8, 1]
                r4 = load float32 s5 [8, 1]
                r5 = select r3 r4 r2
                store float32 s4 [8, 1] r5
        "#]],
    );
}

/// Float8 operands are read as they are, one of them computed, and the scales join the product.
#[test]
fn scaled_float8_is_not_widened_in_memory() {
    check(
        r#"graph "g"(%0: float32[m, 64], %1: float8_e4m3fn[32, 64], %2: float32[m, 1], %3: float32[]) {
          %4 = cast(%0) {dtype = "float8_e4m3fn"} : float8_e4m3fn[m, 64]
          %5 = cast(%4) {dtype = "float32"} : float32[m, 64]
          %6 = permute(%1) {dims = [1, 0]} : float8_e4m3fn[64, 32]
          %7 = cast(%6) {dtype = "float32"} : float32[64, 32]
          %8 = matmul(%5, %7) : float32[m, 32]
          %9 = mul(%8, %2) : float32[m, 32]
          %10 = mul(%9, %3) : float32[m, 32]
          %11 = cast(%10) {dtype = "bfloat16"} : bfloat16[m, 32]
          return %11
        }"#,
        expect![[r#"
            program "g"
              s0: float8_e4m3fn[m, 64] temporary 0..1
              s1: float32[m, 64] input 0
              s2: bfloat16[m, 32] output 0
              s3: float32[m, 1] input 2
              s4: float32[] input 3
              s5: float8_e4m3fn[32, 64] input 1
              0 cast+cast: loop over [m, 64]
                r0 = load float32 s1 [64, 1]
                r1 = cast r0 float8_e4m3fn
                store float8_e4m3fn s0 [64, 1] r1
              1 matmul+mul+mul+cast: matmul s0 [64, 1] x s5 [1, 64] k 64 over [m, 32]
                r0 = product float32
                r1 = load float32 s3 [1, 0]
                r2 = mul r0 r1
                r3 = load float32 s4 [0, 0]
                r4 = mul r2 r3
                r5 = cast r4 bfloat16
                store bfloat16 s2 [32, 1] r5
        "#]],
    );
}
