//! Golden programs of graphs with values on several devices, and the memory they are planned.

use expect_test::{Expect, expect};
use max_compiler::program::Work;
use max_compiler::{Options, Program, Target, compile};
use max_core::{Bindings, DeviceRef};
use max_graph::text;

fn program(graph: &str, fuse: bool) -> Program {
    let devices = vec![DeviceRef::CPU, DeviceRef::gpu(0), DeviceRef::gpu(1)];
    let target = Target { devices, options: Options { fuse, fold_exactly: false, nccl: false } };
    let program = compile(text::parse(graph).unwrap(), &target, &mut |_, _| ()).unwrap();
    program.verify().unwrap();
    program
}

fn check(graph: &str, expected: Expect) {
    expected.assert_eq(&program(graph, true).to_string());
}

/// Both operands stay float8 for the GPU's instructions, and the scales are part of the step.
#[test]
fn scaled_float8_is_one_step() {
    check(
        r#"graph "g"(%0: float8_e4m3fn[m, 64]@gpu:0, %1: float8_e4m3fn[32, 64]@gpu:0, %2: float32[]@gpu:0, %3: float32[]@gpu:0) {
          %4 = cast(%0) {dtype = "float32"} : float32[m, 64]@gpu:0
          %5 = permute(%1) {dims = [1, 0]} : float8_e4m3fn[64, 32]@gpu:0
          %6 = cast(%5) {dtype = "float32"} : float32[64, 32]@gpu:0
          %7 = matmul(%4, %6) : float32[m, 32]@gpu:0
          %8 = mul(%7, %2) : float32[m, 32]@gpu:0
          %9 = mul(%8, %3) : float32[m, 32]@gpu:0
          %10 = cast(%9) {dtype = "bfloat16"} : bfloat16[m, 32]@gpu:0
          return %10
        }"#,
        expect![[r#"
            program "g"
              s0: bfloat16[m, 32] on gpu:0 output 0
              s1: float32[] on gpu:0 input 2
              s2: float32[] on gpu:0 input 3
              s3: float8_e4m3fn[m, 64] on gpu:0 input 0
              s4: float8_e4m3fn[32, 64] on gpu:0 input 1
              0 matmul+mul+mul+cast on gpu:0: matmul s3 [64, 1] x s4 [1, 64] k 64 over [m, 32]
                r0 = product float32
                r1 = load float32 s1 [0, 0]
                r2 = mul r0 r1
                r3 = load float32 s2 [0, 0]
                r4 = mul r2 r3
                r5 = cast r4 bfloat16
                store bfloat16 s0 [32, 1] r5
        "#]],
    );
}

#[test]
fn a_graph_on_two_devices() {
    check(
        r#"graph "two"(%0: float32[n, 4], %1: float32[4]@gpu:0) {
          %2 = exp(%0) : float32[n, 4]
          %3 = transfer_to(%2) {device = "gpu:0"} : float32[n, 4]@gpu:0
          %4 = add(%3, %1) : float32[n, 4]@gpu:0
          %5 = relu(%4) : float32[n, 4]@gpu:0
          %6 = transfer_to(%5) {device = "cpu:0"} : float32[n, 4]
          %7 = mul(%6, %2) : float32[n, 4]
          return %7, %4
        }"#,
        expect![[r#"
            program "two"
              s0: float32[n, 4] temporary 0..4
              s1: float32[n, 4] input 0
              s2: float32[n, 4] on gpu:0 temporary 1..2
              s3: float32[n, 4] on gpu:0 output 1
              s4: float32[n, 4] on gpu:0 temporary 2..3 in place of s2
              s5: float32[4] on gpu:0 input 1
              s6: float32[n, 4] temporary 3..4
              s7: float32[n, 4] output 0
              0 exp: loop over [n, 4]
                r0 = load float32 s1 [4, 1]
                r1 = exp r0
                store float32 s0 [4, 1] r1
              1 transfer_to on gpu:0: transfer s0 to s2
              2 add+relu on gpu:0: loop over [n, 4]
                r0 = load float32 s2 [4, 1]
                r1 = load float32 s5 [0, 1]
                r2 = add r0 r1
                r3 = relu r2
                store float32 s3 [4, 1] r2
                store float32 s4 [4, 1] r3
              3 transfer_to: transfer s4 to s6
              4 mul: loop over [n, 4]
                r0 = load float32 s6 [4, 1]
                r1 = load float32 s0 [4, 1]
                r2 = mul r0 r1
                store float32 s7 [4, 1] r2
        "#]],
    );
}

#[test]
fn only_what_is_seen_is_transferred() {
    check(
        r#"graph "views"(%0: float32[8, 4], %1: float32[4]) {
          %2 = slice(%0) {starts = [2, 0], sizes = [3, 4], steps = [1, 1]} : float32[3, 4]
          %3 = transfer_to(%2) {device = "gpu:0"} : float32[3, 4]@gpu:0
          %4 = permute(%0) {dims = [1, 0]} : float32[4, 8]
          %5 = transfer_to(%4) {device = "gpu:0"} : float32[4, 8]@gpu:0
          %6 = broadcast_to(%1) {shape = [3, 4]} : float32[3, 4]
          %7 = transfer_to(%6) {device = "gpu:0"} : float32[3, 4]@gpu:0
          %8 = add(%3, %7) : float32[3, 4]@gpu:0
          %9 = exp(%5) : float32[4, 8]@gpu:0
          return %8, %9
        }"#,
        expect![[r#"
            program "views"
              s0: float32[3, 4] temporary 0..1
              s1: float32[8, 4] input 0
              s2: float32[3, 4] on gpu:0 temporary 1..4
              s3: float32[8, 4] on gpu:0 temporary 2..5
              s4: float32[4] input 1
              s5: float32[4] on gpu:0 temporary 3..4
              s6: float32[3, 4] on gpu:0 output 0
              s7: float32[4, 8] on gpu:0 output 1
              0 transfer_to: loop over [3, 4]
                r0 = load float32 s1 + 8 [4, 1]
                store float32 s0 [4, 1] r0
              1 transfer_to on gpu:0: transfer s0 to s2
              2 transfer_to on gpu:0: transfer s1 to s3
              3 transfer_to on gpu:0: transfer s4 to s5
              4 add on gpu:0: loop over [3, 4]
                r0 = load float32 s2 [4, 1]
                r1 = load float32 s5 [0, 1]
                r2 = add r0 r1
                store float32 s6 [4, 1] r2
              5 exp on gpu:0: loop over [4, 8]
                r0 = load float32 s3 [1, 4]
                r1 = exp r0
                store float32 s7 [8, 1] r1
        "#]],
    );
}

#[test]
fn what_has_no_place_yet_needs_no_transfer() {
    check(
        r#"graph "fixed"(%0: float32[3, 4]@gpu:0) {
          %1 = constant_external() {name = "w", dtype = "float32", shape = [4, 3], device = "cpu:0", layout = ""} : float32[4, 3]
          %2 = permute(%1) {dims = [1, 0]} : float32[3, 4]
          %3 = transfer_to(%2) {device = "gpu:0"} : float32[3, 4]@gpu:0
          %4 = constant() {value = dense(float32[2], [1.0, 2.0]), device = "cpu:0"} : float32[2]
          %5 = reshape(%4) {shape = [2, 1, 1]} : float32[2, 1, 1]
          %6 = broadcast_to(%5) {shape = [2, 3, 4]} : float32[2, 3, 4]
          %7 = transfer_to(%6) {device = "gpu:0"} : float32[2, 3, 4]@gpu:0
          %8 = index() {shape = [4], device = "cpu:0"} : int64[4]
          %9 = transfer_to(%8) {device = "gpu:0"} : int64[4]@gpu:0
          %10 = cast(%9) {dtype = "float32"} : float32[4]@gpu:0
          %11 = add(%0, %3) : float32[3, 4]@gpu:0
          %12 = add(%11, %7) : float32[2, 3, 4]@gpu:0
          %13 = add(%12, %10) : float32[2, 3, 4]@gpu:0
          return %13
        }"#,
        expect![[r#"
            program "fixed"
              s0: float32[3, 4] on gpu:0 temporary 0..1
              s1: float32[3, 4] on gpu:0 input 0
              s2: float32[4, 3] on gpu:0 weight "w"
              s3: float32[2, 3, 4] on gpu:0 output 0
              s4: float32[2, 1, 1] on gpu:0 constant of 8 bytes
              s5: float32[4] on gpu:0 constant of 16 bytes
              0 add on gpu:0: loop over [3, 4]
                r0 = load float32 s1 [4, 1]
                r1 = load float32 s2 [1, 3]
                r2 = add r0 r1
                store float32 s0 [4, 1] r2
              1 add+add on gpu:0: loop over [2, 3, 4]
                r0 = load float32 s0 [0, 4, 1]
                r1 = load float32 s4 [1, 0, 0]
                r2 = add r0 r1
                r3 = load float32 s5 [0, 0, 1]
                r4 = add r2 r3
                store float32 s3 [12, 4, 1] r4
        "#]],
    );
}

#[test]
fn operands_that_a_type_rule_lets_be_elsewhere_are_moved() {
    check(
        r#"graph "gather"(%0: float32[n, 4]@gpu:0, %1: int64[3], %2: int64[]) {
          %3 = gather(%0, %1) {axis = 0} : float32[3, 4]@gpu:0
          %4 = dynamic_slice(%0, %2) {axis = 0, step = 1, start = true, stop = false, out_dim = `m`} : float32[m, 4]@gpu:0
          %5 = exp(%4) : float32[m, 4]@gpu:0
          return %3, %5
        }"#,
        expect![[r#"
            program "gather"
              s0: int64[3] input 1
              s1: int64[3] on gpu:0 temporary 0..1
              s2: float32[n, 4] on gpu:0 input 0
              s3: float32[3, 4] on gpu:0 output 0
              s4: float32[m, 4] on gpu:0 output 1
              s5: int64[] input 2
              0 copy on gpu:0: transfer s0 to s1
              1 gather on gpu:0: gather s2 [n * 4, 4, 1] by s1 [3, 1, 1, 1] into s3 [12, 4, 1] size n
              fact Bounds { axis: 0, size: Dim('n'), start: Some(Access { slot: Slot(5), dtype: Int64, offset: Dim(0), strides: [] }), stop: None, step: 1, first: "start of %4", count: Dim('m') }
              2 exp on gpu:0: loop over [m, 4]
                r0 = load float32 s2 + start of %4 * 4 [4, 1]
                r1 = exp r0
                store float32 s4 [4, 1] r1
        "#]],
    );
}

#[test]
fn sizes_are_written_where_they_are_wanted() {
    check(
        r#"graph "sizes"(%0: int64[n]@gpu:0) {
          %1 = shape_to_tensor() {dims = [n], scalar = true} : int64[]
          %2 = transfer_to(%1) {device = "gpu:0"} : int64[]@gpu:0
          %3 = add(%0, %2) : int64[n]@gpu:0
          return %3
        }"#,
        expect![[r#"
            program "sizes"
              s0: int64[] on gpu:0 temporary 0..1
              s1: int64[n] on gpu:0 output 0
              s2: int64[n] on gpu:0 input 0
              0 shape_to_tensor on gpu:0: loop over []
                r0 = int64 size n
                store int64 s0 [] r0
              1 add on gpu:0: loop over [n]
                r0 = load int64 s2 [1]
                r1 = load int64 s0 [0]
                r2 = add r0 r1
                store int64 s1 [1] r2
        "#]],
    );
}

#[test]
fn every_device_has_an_arena() {
    let program = program(
        r#"graph "arenas"(%0: float32[100]) {
          %1 = exp(%0) : float32[100]
          %2 = transfer_to(%1) {device = "gpu:0"} : float32[100]@gpu:0
          %3 = sin(%2) : float32[100]@gpu:0
          %4 = cos(%3) : float32[100]@gpu:0
          %5 = add(%4, %2) : float32[100]@gpu:0
          %6 = transfer_to(%5) {device = "gpu:1"} : float32[100]@gpu:1
          %7 = sin(%6) : float32[100]@gpu:1
          %8 = transfer_to(%7) {device = "cpu:0"} : float32[100]
          %9 = sin(%8) : float32[100]
          %10 = add(%9, %1) : float32[100]
          return %10
        }"#,
        false,
    );
    assert_eq!(program.devices, [DeviceRef::CPU, DeviceRef::gpu(0), DeviceRef::gpu(1)]);
    let transfers = program.steps.iter().filter(|step| matches!(step.work, Work::Transfer { .. }));
    assert_eq!(transfers.count(), 3);
    let mut bound = program.bind(0, &Bindings::new()).unwrap();
    // On the host what comes back takes the place of sin; on the first GPU cos works in place of sin, and the sum of it.
    assert_eq!(bound.plan.bytes, [2 * 448, 2 * 448, 448]);
    program.check_plan(0, &bound).unwrap();
    bound.plan.bytes[1] = 448;
    assert!(program.check_plan(0, &bound).is_err());
}

#[test]
fn a_step_on_two_devices_is_found() {
    let mut wrong =
        program(r#"graph "g"(%0: float32[4]@gpu:0) { %1 = exp(%0) : float32[4]@gpu:0 return %1 }"#, true);
    wrong.steps[0].device = DeviceRef::CPU;
    let error = wrong.verify().unwrap_err();
    assert!(error.message().contains("step 0 on cpu:0 touches slot") && error.message().contains("gpu:0"));
}
