//! Programs with two devices, both of which are the host: transfers and arenas work as with any two devices.

use max_compiler::{Options, Target, compile};
use max_core::{DeviceKind, DeviceRef};
use max_graph::text;

use super::*;
use crate::settings::{AssertLevel, Settings};

const OTHER: DeviceRef = DeviceRef { kind: DeviceKind::Cpu, id: 1 };

fn runtime(graph: &str, weights: &[Buffer], fuse: bool) -> Runtime {
    let target =
        Target { devices: vec![DeviceRef::CPU, OTHER], options: Options { fuse, fold_exactly: false } };
    let program = compile(text::parse(graph).unwrap(), &target, &mut |_, _| ()).unwrap();
    assert_eq!(program.devices, [DeviceRef::CPU, OTHER]);
    let config = Config {
        pool: Arc::new(Pool::new(1)),
        keep: Keep::Arenas,
        check_plans: true,
        cuda: cuda::Options::default(),
    };
    Runtime::new(Arc::new(program), weights, config).unwrap()
}

fn observed<T>(asserts: AssertLevel, work: impl FnOnce(&Observer) -> T) -> T {
    let settings = Settings::from_environment();
    let go_on = || Ok(());
    work(&Observer { checkpoint: &go_on, settings: &settings, profile: None, asserts, tracing: false })
}

fn run(runtime: &Runtime, inputs: &[Buffer]) -> Result<Vec<Vec<f32>>> {
    let outputs = observed(AssertLevel::None, |observer| runtime.run(inputs, observer))?;
    outputs.iter().map(Buffer::to_vec).collect()
}

fn matrix(rows: usize, columns: usize) -> Buffer {
    let elements: Vec<f32> = (0..rows * columns).map(|i| (i as f32 * 0.7).sin()).collect();
    Buffer::from_slice(&elements, &[rows, columns]).unwrap()
}

const TWO: &str = r#"graph "two"(%0: float32[n, 4], %1: float32[4]@cpu:1) {
  %2 = negate(%0) : float32[n, 4]
  %3 = transfer_to(%2) {device = "cpu:1"} : float32[n, 4]@cpu:1
  %4 = add(%3, %1) : float32[n, 4]@cpu:1
  %5 = relu(%4) : float32[n, 4]@cpu:1
  %6 = transfer_to(%5) {device = "cpu:0"} : float32[n, 4]
  %7 = mul(%6, %2) : float32[n, 4]
  return %7, %4
}"#;

#[test]
fn values_go_between_devices() {
    for fuse in [true, false] {
        let runtime = runtime(TWO, &[], fuse);
        let bias = [0.5f32, -0.5, 0.25, 2.0];
        // Large and small inputs alternate, so that arenas both grow and are kept.
        for rows in [1, 7, 0, 300, 2, 300] {
            let x = matrix(rows, 4);
            let found = run(&runtime, &[x.clone(), Buffer::from(bias)]).unwrap();
            let x: Vec<f32> = x.to_vec().unwrap();
            let there: Vec<f32> = x.iter().enumerate().map(|(i, x)| -x + bias[i % 4]).collect();
            let back: Vec<f32> = there.iter().zip(&x).map(|(there, x)| there.max(0.0) * -x).collect();
            assert_eq!(found, [back, there], "{rows} rows");
        }
        assert_eq!(lock(&runtime.storage)[0].arenas.len(), 2);
    }
}

const DYNAMIC: &str = r#"graph "dynamic"(%0: float32[n], %1: int64[]) {
  %2 = transfer_to(%0) {device = "cpu:1"} : float32[n]@cpu:1
  %3 = transfer_to(%1) {device = "cpu:1"} : int64[]@cpu:1
  %4 = negate(%2) : float32[n]@cpu:1
  %5 = dynamic_slice(%4, %3) {axis = 0, step = 1, start = true, stop = false, out_dim = `m`} : float32[m]@cpu:1
  %6 = transfer_to(%5) {device = "cpu:0"} : float32[m]
  %7 = relu(%6) : float32[m]
  return %7
}"#;

#[test]
fn sizes_depend_on_data_of_another_device() {
    let runtime = runtime(DYNAMIC, &[], true);
    for (start, expected) in [(1i64, &[2f32, 0.0, 3.0][..]), (-1, &[3.0]), (4, &[])] {
        let found = run(&runtime, &[Buffer::from([1f32, -2.0, 4.0, -3.0]), scalar(start)]).unwrap();
        assert_eq!(found, [expected]);
    }
}

#[test]
fn the_sizes_that_were_used_last_stay_ready() {
    let apart = runtime(TWO, &[], true);
    let bias = Buffer::from([0f32; 4]);
    let ready = |rows| apart.ready(&[matrix(rows, 4), bias.clone()]).unwrap();
    for rows in 1..KEPT_SIZES {
        ready(rows);
    }
    let hot = ready(KEPT_SIZES);
    // The oldest is used, and then one more comes.
    ready(1);
    ready(KEPT_SIZES + 1);
    assert!(Arc::ptr_eq(&hot, &ready(KEPT_SIZES)));
    assert_eq!(lock(&apart.ready).len(), KEPT_SIZES);
}

#[test]
fn sizes_from_data_that_were_used_last_stay_ready() {
    let runtime = runtime(DYNAMIC, &[], true);
    let x = Buffer::from_slice(&[1f32; 3 * KEPT_SIZES], &[3 * KEPT_SIZES]).unwrap();
    let segment = |start: usize| {
        let inputs = [x.clone(), scalar(start as i64)];
        run(&runtime, &inputs).unwrap();
        let ready = runtime.ready(&inputs).unwrap();
        lock(&ready.later).iter().next().unwrap().2.clone()
    };
    let hot = segment(0);
    for start in 1..2 * KEPT_SIZES {
        segment(start);
        assert!(Arc::ptr_eq(&hot, &segment(0)), "after {start} sizes");
    }
}

fn scalar(value: i64) -> Buffer {
    Buffer::from_slice(&[value], &[]).unwrap()
}

#[test]
fn weights_are_where_they_are_used() {
    let runtime = runtime(
        r#"graph "weights"(%0: float32[2, 3]@cpu:1) {
          %1 = constant_external() {name = "w", dtype = "float32", shape = [k, 2], device = "cpu:0", layout = ""} : float32[k, 2]
          %2 = transfer_to(%1) {device = "cpu:1"} : float32[k, 2]@cpu:1
          %3 = rebind(%2) {shape = [3, 2], layout = "", message = ""} : float32[3, 2]@cpu:1
          %4 = matmul(%0, %3) : float32[2, 2]@cpu:1
          %5 = constant() {value = dense(float32[2], [10.0, 20.0]), device = "cpu:1"} : float32[2]@cpu:1
          %6 = add(%4, %5) : float32[2, 2]@cpu:1
          %7 = relu(%1) : float32[k, 2]
          return %6, %7
        }"#,
        &[Buffer::from_slice(&[1f32, 0.0, 0.0, -1.0, 1.0, 1.0], &[3, 2]).unwrap()],
        true,
    );
    let x = Buffer::from_slice(&[1f32, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3]).unwrap();
    let found = run(&runtime, &[x]).unwrap();
    assert_eq!(found, [vec![14.0, 21.0, 20.0, 21.0], vec![1.0, 0.0, 0.0, 0.0, 1.0, 1.0]]);
}

#[test]
fn values_are_checked_wherever_they_are() {
    let runtime = runtime(
        r#"graph "logs"(%0: float32[n]) {
          %1 = transfer_to(%0) {device = "cpu:1"} : float32[n]@cpu:1
          %2 = log(%1) : float32[n]@cpu:1
          %3 = transfer_to(%2) {device = "cpu:0"} : float32[n]
          %4 = exp(%3) : float32[n]
          return %4
        }"#,
        &[],
        false,
    );
    let input = [Buffer::from([1f32, -1.0])];
    let error = observed(AssertLevel::All, |observer| runtime.run(&input, observer)).unwrap_err();
    assert!(error.message().contains("log made NaN at element 1"), "{error}");
}

#[test]
fn only_programs_of_one_device_are_captured() {
    let transfers = runtime(TWO, &[], true);
    let error = transfers.freeze(&[matrix(1, 4), Buffer::from([0f32; 4])]).unwrap_err();
    assert!(error.message().contains("model 'two' transfers values between devices"), "{error}");
    let apart = runtime(
        r#"graph "apart"(%0: float32[2], %1: float32[2]@cpu:1) {
          %2 = exp(%0) : float32[2]
          %3 = exp(%1) : float32[2]@cpu:1
          return %2, %3
        }"#,
        &[],
        true,
    );
    let error = apart.freeze(&[Buffer::from([0f32; 2]), Buffer::from([0f32; 2])]).unwrap_err();
    assert!(error.message().contains("runs on cpu:0 and on cpu:1"), "{error}");
}
