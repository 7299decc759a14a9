//! Golden text, and round trips: parsing a printed body gives the same body.

use expect_test::expect;
use max_core::{DType, DeviceRef, TensorType};

use super::*;
use crate::{Graph, HostTensor, ops};

fn round_trip(graph: &Graph) -> String {
    let text = print(&graph.body(), Constants::Full);
    let back = parse(&text).unwrap();
    assert_eq!(print(&back, Constants::Full), text);
    text
}

#[test]
fn prints_golden_text_and_parses_it_back() {
    let x = TensorType::new(DType::Float32, ("batch", 4), DeviceRef::CPU);
    let graph = Graph::build("say \"hi\"\n", [x], |x| {
        let x = x[0].tensor()?;
        let w = ops::constant(
            HostTensor::from([[0.1f32, f32::INFINITY], [-0.0, 1e-30], [3.0, 4.0], [5.0, 6.0]]),
            None,
            None,
        )?;
        let w2 = ops::constant(2.0, DType::Float32, DeviceRef::CPU)?;
        let y = (ops::matmul(&x, &w) * &w2)?;
        let halves = ops::split(y, (1, 1), -1)?;
        ops::print(&halves[0], "left".to_string())?;
        let tail = x.slice((1.., ..))?;
        Ok::<_, max_core::Error>(vec![ops::concat(halves, 0)?, ops::softmax(tail, -1)?])
    })
    .unwrap();
    expect![[r#"
        graph "say \"hi\"\n"(%0: float32[batch, 4]) {
          %1 = constant() {value = dense(float32[4, 2], [0.1, inf, -0.0, 1e-30, 3.0, 4.0, 5.0, 6.0]), device = "cpu:0"} : float32[4, 2]
          %2 = constant() {value = dense(float32[], [2.0]), device = "cpu:0"} : float32[]
          %3 = matmul(%0, %1) : float32[batch, 2]
          %4 = mul(%3, %2) : float32[batch, 2]
          %5, %6 = split(%4) {sizes = [1, 1], axis = 1} : float32[batch, 1], float32[batch, 1]
          print(%5) {label = "left"}
          %7 = slice(%0) {starts = [1, 0], sizes = [batch + -1, 4], steps = [1, 1]} : float32[batch + -1, 4]
          %8 = concat(%5, %6) {axis = 0} : float32[batch * 2, 1]
          %9 = softmax(%7) {axis = 1, log = false} : float32[batch + -1, 4]
          return %8, %9
        }
    "#]].assert_eq(&round_trip(&graph));
}
