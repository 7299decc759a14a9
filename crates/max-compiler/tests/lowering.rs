//! Golden programs: what graphs become.

use expect_test::{Expect, expect};
use max_compiler::{Options, Target, compile};
use max_core::DeviceRef;
use max_graph::text;

fn check(graph: &str, expected: Expect) {
    let body = text::parse(graph).unwrap();
    let target = Target { devices: vec![DeviceRef::CPU], options: Options { fuse: true } };
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
