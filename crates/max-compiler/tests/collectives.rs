//! Golden programs of collectives: as transfers and kernels, and as steps of NCCL.

use expect_test::{Expect, expect};
use max_compiler::{Options, Program, Target, compile};
use max_core::DeviceRef;
use max_graph::text;

fn program(graph: &str, nccl: bool) -> Program {
    let devices = vec![DeviceRef::CPU, DeviceRef::gpu(0), DeviceRef::gpu(1)];
    let target = Target { devices, options: Options { fuse: true, fold_exactly: false, nccl } };
    let program = compile(text::parse(graph).unwrap(), &target, &mut |_, _| ()).unwrap();
    program.verify().unwrap();
    program
}

fn check(graph: &str, nccl: bool, expected: Expect) {
    expected.assert_eq(&program(graph, nccl).to_string());
}

/// A sharded matmul: the parts of the sum are added.
const SHARDED: &str = r#"graph "sharded"(%0: bfloat16[n, 4]@gpu:0, %1: bfloat16[4, 8]@gpu:0, %2: bfloat16[n, 4]@gpu:1, %3: bfloat16[4, 8]@gpu:1) {
  %4 = matmul(%0, %1) : bfloat16[n, 8]@gpu:0
  %5 = matmul(%2, %3) : bfloat16[n, 8]@gpu:1
  %6, %7 = collective(%4, %5) {kind = "allreduce_sum", axis = 0, devices = "gpu:0,gpu:1"} : bfloat16[n, 8]@gpu:0, bfloat16[n, 8]@gpu:1
  %8 = relu(%6) : bfloat16[n, 8]@gpu:0
  return %8, %7
}"#;

#[test]
fn a_sum_is_computed_once() {
    check(
        SHARDED,
        false,
        expect![[r#"
        program "sharded"
          s0: bfloat16[n, 8] on gpu:0 temporary 0..3
          s1: bfloat16[n, 4] on gpu:0 input 0
          s2: bfloat16[4, 8] on gpu:0 input 1
          s3: bfloat16[n, 8] on gpu:1 temporary 1..2
          s4: bfloat16[n, 4] on gpu:1 input 2
          s5: bfloat16[4, 8] on gpu:1 input 3
          s6: bfloat16[n, 8] on gpu:0 temporary 2..3
          s7: bfloat16[n, 8] on gpu:0 temporary 3..4 in place of s0
          s8: bfloat16[n, 8] on gpu:0 output 0
          s9: bfloat16[n, 8] on gpu:1 output 1
          0 matmul on gpu:0: matmul s1 [4, 1] x s2 [8, 1] k 4 over [n, 8]
            r0 = product bfloat16
            store bfloat16 s0 [8, 1] r0
          1 matmul on gpu:1: matmul s4 [4, 1] x s5 [8, 1] k 4 over [n, 8]
            r0 = product bfloat16
            store bfloat16 s3 [8, 1] r0
          2 collective on gpu:0: transfer s3 to s6
          3 collective+relu on gpu:0: loop over [n, 8]
            r0 = load bfloat16 s0 [8, 1]
            r1 = load bfloat16 s6 [8, 1]
            r2 = add r0 r1
            r3 = cast r2 bfloat16
            r4 = relu r3
            store bfloat16 s7 [8, 1] r3
            store bfloat16 s8 [8, 1] r4
          4 collective on gpu:1: transfer s7 to s9
    "#]],
    );
}

#[test]
fn a_sum_by_nccl() {
    check(
        SHARDED,
        true,
        expect![[r#"
            program "sharded"
              s0: bfloat16[n, 8] on gpu:0 temporary 0..2
              s1: bfloat16[n, 4] on gpu:0 input 0
              s2: bfloat16[4, 8] on gpu:0 input 1
              s3: bfloat16[n, 8] on gpu:1 temporary 1..2
              s4: bfloat16[n, 4] on gpu:1 input 2
              s5: bfloat16[4, 8] on gpu:1 input 3
              s6: bfloat16[n, 8] on gpu:0 temporary 2..3
              s7: bfloat16[n, 8] on gpu:1 output 1
              s8: bfloat16[n, 8] on gpu:0 output 0
              0 matmul on gpu:0: matmul s1 [4, 1] x s2 [8, 1] k 4 over [n, 8]
                r0 = product bfloat16
                store bfloat16 s0 [8, 1] r0
              1 matmul on gpu:1: matmul s4 [4, 1] x s5 [8, 1] k 4 over [n, 8]
                r0 = product bfloat16
                store bfloat16 s3 [8, 1] r0
              2 collective on gpu:0: allreduce_sum from s0 s3 to s6 s7
              3 relu on gpu:0: loop over [n, 8]
                r0 = load bfloat16 s6 [8, 1]
                r1 = relu r0
                store bfloat16 s8 [8, 1] r1
        "#]],
    );
}

const MOVED: &str = r#"graph "moved"(%0: int16[6, n]@gpu:0, %1: int16[6, n]@gpu:1, %9: float32[6, n]@gpu:0, %10: float32[6, n]@gpu:1) {
  %2, %3 = collective(%0, %1) {kind = "allgather", axis = 1, devices = "gpu:0,gpu:1"} : int16[6, n * 2]@gpu:0, int16[6, n * 2]@gpu:1
  %4, %5 = collective(%1) {kind = "broadcast", axis = 0, devices = "gpu:0,gpu:1"} : int16[6, n]@gpu:0, int16[6, n]@gpu:1
  %7, %8 = collective(%9, %10) {kind = "reducescatter_sum", axis = 0, devices = "gpu:0,gpu:1"} : float32[3, n]@gpu:0, float32[3, n]@gpu:1
  return %2, %3, %4, %5, %7, %8
}"#;

#[test]
fn what_nccl_has_is_a_step() {
    check(
        MOVED,
        true,
        expect![[r#"
            program "moved"
              s0: int16[6, n] on gpu:0 input 0
              s1: int16[6, n] on gpu:1 input 1
              s2: int16[2, 6, n] on gpu:0 temporary 0..1
              s3: int16[2, 6, n] on gpu:1 temporary 0..2
              s4: int16[6, 2, n] on gpu:0 output 0
              s5: int16[6, 2, n] on gpu:1 output 1
              s6: int16[6, n] on gpu:0 output 2
              s7: int16[6, n] on gpu:1 output 3
              s8: float32[6, n] on gpu:0 input 2
              s9: float32[6, n] on gpu:1 input 3
              s10: float32[3, n] on gpu:0 output 4
              s11: float32[3, n] on gpu:1 output 5
              0 collective on gpu:0: allgather from s0 s1 to s2 s3
              1 collective on gpu:0: loop over [6, 2, n]
                r0 = load int16 s2 [n, n * 6, 1]
                store int16 s4 [n * 2, n, 1] r0
              2 collective on gpu:1: loop over [6, 2, n]
                r0 = load int16 s3 [n, n * 6, 1]
                store int16 s5 [n * 2, n, 1] r0
              3 collective on gpu:0: broadcast from s1 to s6 s7
              4 collective on gpu:0: reducescatter_sum from s8 s9 to s10 s11
        "#]],
    );
}

/// Parts of different sizes, sizes that may not be divisible, and int16 are not for NCCL; nor is anything on the host.
#[test]
fn what_nccl_has_not_is_not() {
    let graphs = [
        r#"graph "g"(%0: int16[6]@gpu:0, %1: int16[6]@gpu:1) {
          %2, %3 = collective(%0, %1) {kind = "allreduce_sum", axis = 0, devices = "gpu:0,gpu:1"} : int16[6]@gpu:0, int16[6]@gpu:1
          return %2, %3
        }"#,
        r#"graph "g"(%0: int32[a]@gpu:0, %1: int32[b]@gpu:1) {
          %2, %3 = collective(%0, %1) {kind = "allgather", axis = 0, devices = "gpu:0,gpu:1"} : int32[a + b]@gpu:0, int32[a + b]@gpu:1
          return %2, %3
        }"#,
        r#"graph "g"(%0: int32[n]@gpu:0, %1: int32[n]@gpu:1) {
          %2, %3 = collective(%0, %1) {kind = "reducescatter_sum", axis = 0, devices = "gpu:0,gpu:1"} : int32[(n + 1) // 2]@gpu:0, int32[n // 2]@gpu:1
          return %2, %3
        }"#,
        r#"graph "g"(%0: int32[6], %1: int32[6]@gpu:1) {
          %2, %3 = collective(%0, %1) {kind = "allreduce_sum", axis = 0, devices = "cpu:0,gpu:1"} : int32[6], int32[6]@gpu:1
          return %2, %3
        }"#,
    ];
    for graph in graphs {
        let program = program(graph, true);
        let kinds: Vec<_> = (0..program.steps.len()).map(|step| program.step_kind(step)).collect();
        assert!(!kinds.contains(&"collective") && kinds.contains(&"transfer"), "{program}");
    }
}

#[test]
fn a_collective_of_wrong_slots_is_found() {
    let mut wrong = program(SHARDED, true);
    for step in &mut wrong.steps {
        if let max_compiler::program::Work::Collective { to, .. } = &mut step.work {
            to.reverse();
        }
    }
    assert!(wrong.verify().unwrap_err().message().contains("is a AllReduceSum from"), "{wrong}");
}
