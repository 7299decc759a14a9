//! Models on a GPU: values on both devices, weights, many threads, captures, profiles, and what works after failures.

use std::io::Write;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use max_core::{DType, DeviceRef, ErrorKind, Result, Shape, TensorType, ViewIndex};
use max_driver::{Buffer, Device, Stream};
use max_engine::{AssertLevel, InferenceSession, Model, ProfilingMode, WeightsRegistry};
use max_graph::{Graph, HostTensor, ops};

const GPU: DeviceRef = DeviceRef::gpu(0);

/// The first GPU. If there is none, one line on standard error says why, even where the output of tests is captured.
///
/// Tests take turns: an error that a kernel reports goes to whoever waits next.
fn gpu() -> Option<(Device, MutexGuard<'static, ()>)> {
    static SAID: Once = Once::new();
    static TURN: Mutex<()> = Mutex::new(());
    match Device::accelerator(None) {
        Ok(device) => Some((device, TURN.lock().unwrap_or_else(PoisonError::into_inner))),
        Err(why) => {
            SAID.call_once(|| {
                let _ = writeln!(std::io::stderr(), "skipped: no GPU: {}", why.message());
            });
            None
        }
    }
}

fn on(device: DeviceRef, shape: impl Into<Shape>) -> TensorType {
    TensorType::new(DType::Float32, shape, device)
}

fn session(device: &Device) -> InferenceSession {
    InferenceSession::new([device.clone()])
}

fn load(device: &Device, graph: Result<Graph>) -> Model {
    session(device).load(&graph.unwrap()).unwrap()
}

fn vector(elements: &[f32], device: &Device) -> Buffer {
    Buffer::from_slice(elements, &[elements.len()]).unwrap().to(device).unwrap()
}

fn values(buffer: &Buffer) -> Vec<f32> {
    buffer.to_vec().unwrap()
}

fn counted(n: usize) -> Vec<f32> {
    (0..n).map(|i| i as f32 - n as f32 / 2.0).collect()
}

#[test]
fn relu_runs_and_stays_on_the_gpu() {
    let Some((device, _turn)) = gpu() else { return };
    let model = load(&device, Graph::build("relu", [on(GPU, ["n"])], |x| ops::relu(&x[0])));
    assert_eq!((model.input_metadata()[0].device, model.output_metadata()[0].device), (GPU, GPU));
    assert!(model.devices().contains(&device) && model.devices().contains(&Device::cpu()));
    for n in [0, 1, 5, 100, 4097, 1 << 20] {
        let input = counted(n);
        let output = model.execute(&[vector(&input, &device)]).unwrap().remove(0);
        assert_eq!((output.device(), output.shape()), (&device, &[n][..]));
        let expected: Vec<f32> = input.iter().map(|x| x.max(0.0)).collect();
        assert!(values(&output) == expected, "{n} elements: {:?}", &values(&output)[..n.min(8)]);
    }
    let error = model.execute(&[Buffer::from([1f32])]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Value);
    assert!(error.message().contains("gpu:0") && error.message().contains("cpu:0"), "{error}");
}

#[test]
fn values_go_both_ways() {
    let Some((device, _turn)) = gpu() else { return };
    let graph = Graph::build("both ways", [on(DeviceRef::CPU, ("n", 4)), on(GPU, [4])], |x| {
        let doubled = (&x[0] * 2.0)?;
        let there = ops::add(ops::transfer_to(&doubled, GPU)?, &x[1])?;
        let back = ops::transfer_to(ops::relu(&there)?, DeviceRef::CPU)?;
        Ok(vec![ops::sub(back, &doubled)?, there])
    });
    let model = load(&device, graph);
    let kinds: Vec<_> = model.kernel_summaries().iter().map(|kernel| kernel.kind).collect();
    assert_eq!(kinds, ["loop", "transfer", "loop", "transfer", "loop"]);
    for rows in [1, 3, 0, 1000] {
        let x = counted(rows * 4);
        let bias = [1f32, -2.0, 3.0, -4.0];
        let inputs = [Buffer::from_slice(&x, &[rows, 4]).unwrap(), vector(&bias, &device)];
        let outputs = model.execute(&inputs).unwrap();
        let there: Vec<f32> = x.iter().enumerate().map(|(i, x)| x * 2.0 + bias[i % 4]).collect();
        let back: Vec<f32> = there.iter().zip(&x).map(|(there, x)| there.max(0.0) - x * 2.0).collect();
        assert!(outputs[0].is_host() && !outputs[1].is_host());
        assert_eq!((values(&outputs[0]), values(&outputs[1])), (back, there), "{rows} rows");
    }
    let report = model
        .memory_report(&[Buffer::from_slice(&[0f32; 400], &[100, 4]).unwrap(), vector(&[0.0; 4], &device)]);
    let report = report.unwrap();
    assert_eq!(report.peak_bytes_by_device.len(), 2);
    assert_eq!(report.peak_bytes, report.peak_bytes_by_device.iter().map(|(_, bytes)| bytes).sum::<usize>());
}

#[test]
fn sizes_come_from_data_on_the_gpu() {
    let Some((device, _turn)) = gpu() else { return };
    let bound = TensorType::new(DType::Int64, Shape::from(Vec::<i64>::new()), GPU);
    let text = r#"graph "dynamic"(%0: float32[n]@gpu:0, %1: int64[]@gpu:0) {
      %2 = dynamic_slice(%0, %1) {axis = 0, step = 1, start = true, stop = false, out_dim = `m`} : float32[m]@gpu:0
      %3 = exp(%2) : float32[m]@gpu:0
      %4 = relu(%0) : float32[n]@gpu:0
      return %3, %4
    }"#;
    let model = session(&device).load_body(max_graph::text::parse(text).unwrap()).unwrap();
    assert_eq!(model.input_metadata()[1].dtype, bound.dtype);
    for (n, start) in [(10usize, 3i64), (10, 0), (7, 7), (1000, -4)] {
        let x: Vec<f32> = counted(n).iter().map(|x| x * 10.0 / n as f32).collect();
        let start_at = Buffer::scalar(max_core::Number::Int(start.into()), DType::Int64, &device).unwrap();
        let outputs = model.execute(&[vector(&x, &device), start_at]).unwrap();
        let first = if start < 0 { n as i64 + start } else { start } as usize;
        assert_eq!(outputs[0].shape(), [n - first]);
        for (found, x) in values(&outputs[0]).iter().zip(&x[first..]) {
            assert!(
                (found - x.exp()).abs() <= 1e-5 * x.exp().abs().max(f32::MIN_POSITIVE),
                "{found} exp({x})"
            );
        }
        assert_eq!(values(&outputs[1]), x.iter().map(|x| x.max(0.0)).collect::<Vec<_>>());
    }
}

#[test]
fn weights_and_constants_come_from_anywhere() {
    let Some((device, _turn)) = gpu() else { return };
    let graph = Graph::build("weights", [on(GPU, [3])], |x| {
        let own = ops::constant_external("gpu".to_string(), on(GPU, [3]))?;
        let host = ops::constant_external("cpu".to_string(), on(DeviceRef::CPU, [3]))?;
        let constant = ops::constant(HostTensor::from_vec([3], vec![100f32, 200.0, 300.0])?, None, GPU)?;
        let sum = ops::add(ops::add(&x[0], own)?, ops::transfer_to(host, GPU)?)?;
        ops::add(sum, constant)
    })
    .unwrap();
    let on_host = vector(&[1.0, 2.0, 3.0], &Device::cpu());
    let on_gpu = vector(&[10.0, 20.0, 30.0], &device);
    let odd = vector(&[9.0, 10.0, 20.0, 30.0], &device);
    let odd = odd.index(&[ViewIndex::Slice { start: Some(1), stop: None, step: 1 }]).unwrap();
    for (own, host) in
        [(&on_gpu, &on_host), (&odd, &on_host), (&on_gpu.to(&Device::cpu()).unwrap(), &on_host)]
    {
        let registry = WeightsRegistry::from([("gpu".into(), own.clone()), ("cpu".into(), host.clone())]);
        let model = session(&device).load_with(&graph, &registry).unwrap();
        assert!(
            model.kernel_summaries().iter().all(|kernel| kernel.kind == "loop"),
            "nothing is transferred"
        );
        let output = model.execute(&[vector(&[0.5, 0.5, 0.5], &device)]).unwrap();
        assert_eq!(values(&output[0]), [111.5, 222.5, 333.5]);
    }
    // A weight that is already on the right device is used in place: writes to it show.
    let registry = WeightsRegistry::from([("gpu".into(), on_gpu.clone()), ("cpu".into(), on_host)]);
    let model = session(&device).load_with(&graph, &registry).unwrap();
    on_gpu.copy_from(&vector(&[0.0, 0.0, 0.0], &device)).unwrap();
    assert_eq!(values(&model.execute(&[vector(&[0.0; 3], &device)]).unwrap()[0]), [101.0, 202.0, 303.0]);
}

#[test]
fn inputs_may_lie_anyhow_and_be_of_other_streams() {
    let Some((device, _turn)) = gpu() else { return };
    let model = load(&device, Graph::build("double", [on(GPU, ["n"])], |x| &x[0] * 2.0));
    let whole = vector(&counted(65), &device);
    for (start, step) in [(1, 1), (0, 2), (3, 4)] {
        let part = whole.index(&[ViewIndex::Slice { start: Some(start), stop: None, step }]).unwrap();
        let expected: Vec<f32> = values(&part).iter().map(|x| x * 2.0).collect();
        assert_eq!(values(&model.execute(&[part]).unwrap()[0]), expected, "{start} by {step}");
    }
    let stream = Stream::new(&device).unwrap();
    let elsewhere =
        Buffer::from_slice(&counted(1 << 16), &[1 << 16]).unwrap().copy_to_stream(&stream).unwrap();
    let output = model.execute(std::slice::from_ref(&elsewhere)).unwrap().remove(0);
    assert_eq!(output.stream(), &device.default_stream());
    let expected: Vec<f32> = counted(1 << 16).iter().map(|x| x * 2.0).collect();
    assert!(values(&output) == expected);
}

#[test]
fn many_threads_run_many_models() {
    let Some((device, _turn)) = gpu() else { return };
    let session = session(&device);
    let chain = |k: usize| {
        Graph::build(format!("chain {k}"), [on(GPU, ["n"])], |x| {
            let mut value = ops::tensor(&x[0])?;
            for i in 0..k {
                value = ops::add(&value, i as f64)?;
                // A sum over the whole vector ends the fusion.
                value = ops::sub(&value, ops::reduce_max(&value, -1)?)?;
            }
            Ok(value)
        })
    };
    let models: Vec<Model> = (1..5).map(|k| session.load(&chain(k).unwrap()).unwrap()).collect();
    std::thread::scope(|scope| {
        for thread in 0..8usize {
            let (models, device) = (&models, &device);
            scope.spawn(move || {
                let mut outputs = Vec::new();
                for round in 0..30 {
                    let n = 1 + (thread * 37 + round * 101) % 5000;
                    let input = vector(&counted(n), device);
                    outputs.push((n, models[(thread + round) % 4].execute(&[input]).unwrap().remove(0)));
                }
                for (n, output) in outputs {
                    let top = counted(n)[n - 1];
                    let expected: Vec<f32> = counted(n).iter().map(|x| x - top).collect();
                    assert!(values(&output) == expected, "{n} elements on thread {thread}");
                }
            });
        }
    });
}

#[test]
fn captures_are_replayed_wherever_inputs_lie() {
    let Some((device, _turn)) = gpu() else { return };
    // Columns, then rows: no single kernel does both.
    let graph = Graph::build("steps", [on(GPU, ("rows", 125)), on(GPU, ("rows", 125))], |x| {
        let scaled = ops::sub(&x[0], ops::reduce_max(&x[0], 0)?)?;
        let more = ops::mul(&scaled, &x[1])?;
        ops::add(&more, ops::reduce_max(&more, 1)?)
    });
    let session = session(&device);
    session.gpu_profiling(ProfilingMode::On);
    let model = session.load(&graph.unwrap()).unwrap();
    assert!(model.kernel_summaries().len() > 1);
    let expected = |x: &[f32], y: &[f32]| {
        let top = |of: &mut dyn Iterator<Item = f32>| of.fold(f32::MIN, f32::max);
        let column = |at: usize| top(&mut x[at % 125..].iter().step_by(125).copied());
        let more: Vec<f32> = (0..x.len()).map(|at| (x[at] - column(at)) * y[at]).collect();
        let rows = more.chunks(125).flat_map(|row| {
            let top = top(&mut row.iter().copied());
            row.iter().map(move |x| x + top)
        });
        rows.collect::<Vec<f32>>()
    };
    let matrix = |elements: &[f32], device: &Device| {
        vector(elements, device).view(DType::Float32, Some(&[elements.len() / 125, 125])).unwrap()
    };
    let (x, y) = (counted(1000), vec![0.5f32; 1000]);
    let inputs = [matrix(&x, &device), matrix(&y, &device)];
    let output = model.capture(7, &inputs).unwrap().remove(0);
    assert_eq!(values(&output), expected(&x, &y), "a capture runs");
    // The same memory with other elements.
    let other: Vec<f32> = x.iter().map(|x| x * 3.0).collect();
    inputs[0].copy_from(&matrix(&other, &device)).unwrap();
    model.replay(7, &inputs).unwrap();
    assert_eq!(values(&output), expected(&other, &y));
    // Other memory, then the first again, without waiting in between.
    let elsewhere = [matrix(&y, &device), matrix(&x, &device)];
    model.replay(7, &elsewhere).unwrap();
    let seen = output.copy(None).unwrap();
    model.replay(7, &inputs).unwrap();
    assert_eq!(values(&seen), expected(&y, &x));
    assert_eq!(values(&output), expected(&other, &y));
    // The output as an input, again and again.
    let mut now = values(&output);
    for _ in 0..5 {
        model.replay(7, &[output.clone(), inputs[1].clone()]).unwrap();
        now = expected(&now, &y);
        assert_eq!(values(&output), now);
    }
    model.debug_verify_replay(7, &inputs).unwrap();
    let table = model.profile_table().unwrap();
    let replays = table.lines().find(|line| line.ends_with(" replay")).expect(&table);
    assert_eq!(replays.split_whitespace().nth(1), Some("8"), "{table}");
    let shorter = [matrix(&x[..250], &device), matrix(&y[..250], &device)];
    assert!(model.replay(7, &shorter).unwrap_err().message().contains("captured for inputs of the shapes"));
    assert!(model.debug_verify_replay(7, &shorter).unwrap_err().message().contains("does not match"));
    model.capture(8, &shorter).unwrap();
    model.release_captured_graph(7).unwrap();
    assert_eq!(values(&output), now, "the outputs outlive the capture");
    assert_eq!(model.replay(7, &inputs).unwrap_err().kind(), ErrorKind::Runtime);
    model.replay(8, &shorter).unwrap();
}

#[test]
fn what_cannot_be_captured_says_why() {
    let Some((device, _turn)) = gpu() else { return };
    let graph = Graph::build("mixed", [on(DeviceRef::CPU, [4])], |x| {
        let there = ops::transfer_to(&x[0], GPU)?;
        ops::exp(there)
    });
    let model = load(&device, graph);
    let error = model.capture(1, &[Buffer::from([1f32; 4])]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Runtime);
    assert!(error.message().contains("transfers values between devices"), "{error}");
    let graph = Graph::build("apart", [on(DeviceRef::CPU, [4]), on(GPU, [4])], |x| {
        Ok(vec![ops::exp(&x[0])?, ops::exp(&x[1])?])
    });
    let error = load(&device, graph).capture(1, &[Buffer::from([1f32; 4]), vector(&[1.0; 4], &device)]);
    assert!(error.unwrap_err().message().contains("runs on cpu:0 and on gpu:0"));
}

#[test]
fn profiles_tell_the_time_of_the_device() {
    let Some((device, _turn)) = gpu() else { return };
    for mode in [ProfilingMode::On, ProfilingMode::Detailed] {
        let session = session(&device);
        session.gpu_profiling(mode);
        let graph = Graph::build("profiled", [on(DeviceRef::CPU, ["n"])], |x| {
            let there = ops::exp(ops::transfer_to(&x[0], GPU)?)?;
            ops::transfer_to(ops::sub(&there, ops::reduce_max(&there, -1)?)?, DeviceRef::CPU)
        });
        let model = session.load(&graph.unwrap()).unwrap();
        for _ in 0..3 {
            model.execute(&[Buffer::from(vec![1f32; 1 << 18])]).unwrap();
        }
        let table = model.profile_table().unwrap();
        assert_eq!(table.lines().count(), 1 + model.kernel_summaries().len(), "{table}");
        let kernels: Vec<&str> = table.lines().filter(|line| line.ends_with("on gpu:0")).collect();
        assert!(!kernels.is_empty(), "{table}");
        for line in kernels {
            let fields: Vec<_> = line.split_whitespace().collect();
            let time: f64 = fields[2].parse().unwrap();
            assert!(fields[1] == "3" && time > 0.0 && time < 1e6, "{table}");
        }
        let path =
            std::env::temp_dir().join(format!("max-rs-gpu-{}-{}.json", mode.name(), std::process::id()));
        model.save_trace(&path).unwrap();
        let trace = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let trace: serde_json::Value = serde_json::from_str(&trace).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        assert!(events.iter().any(|event| event["pid"] == 2) && events.iter().any(|event| event["pid"] == 1));
    }
}

#[test]
fn prints_and_checks_read_the_gpu() {
    let Some((device, _turn)) = gpu() else { return };
    let graph = Graph::build("prints", [on(GPU, [3])], |x| {
        let y = ops::exp(&x[0])?;
        ops::print(&y, "seen".to_string())?;
        ops::add(&y, 1.0)
    });
    let output = load(&device, graph).execute(&[vector(&[0.0; 3], &device)]).unwrap();
    assert_eq!(values(&output[0]), [2.0; 3]);

    let session = session(&device);
    session.set_mojo_assert_level(AssertLevel::All);
    let graph =
        Graph::build("logs", [on(GPU, ["n"])], |x| ops::exp(ops::log((&x[0] - 2.0)?)? * 3.0)).unwrap();
    let model = session.load(&graph).unwrap();
    let error = model.execute(&[vector(&[5.0, 1.0], &device)]).unwrap_err();
    assert!(error.to_string().contains("log made NaN at element 1"), "{error}");
}

#[test]
fn a_bad_index_is_told_at_the_next_wait() {
    let Some((device, _turn)) = gpu() else { return };
    let indices = TensorType::new(DType::Int64, ["k"], GPU);
    let model =
        load(&device, Graph::build("pick", [on(GPU, ["n"]), indices], |x| ops::gather(&x[0], &x[1], 0)));
    let pick = |indices: &[i64]| {
        let indices = Buffer::from_slice(indices, &[indices.len()]).unwrap().to(&device).unwrap();
        model
            .execute(&[vector(&counted(10), &device), indices])
            .and_then(|mut outputs| outputs.remove(0).to_vec::<f32>())
    };
    assert_eq!(pick(&[0, 9, -1]).unwrap(), [-5.0f32, 4.0, 4.0]);
    let error = pick(&[3, 10]).unwrap_err();
    assert!(error.kind() == ErrorKind::Index && error.message().contains("10"), "{error}");
    assert_eq!(pick(&[5]).unwrap(), [0.0f32]);
}

#[test]
fn a_session_works_on_without_memory() {
    let Some((device, _turn)) = gpu() else { return };
    let model = load(
        &device,
        Graph::build("large", [on(GPU, ["n"]), on(GPU, ("m", 1))], |x| {
            ops::reduce_max(ops::add(&x[0], &x[1])?, 1)
        }),
    );
    let wide = load(&device, Graph::build("wide", [on(GPU, ("n", 1)), on(GPU, (1, "m"))], |x| &x[0] + &x[1]));
    let inputs = |n: usize| {
        let column = vector(&vec![1f32; n], &device).view(DType::Float32, Some(&[n, 1])).unwrap();
        let row = vector(&vec![2f32; n], &device).view(DType::Float32, Some(&[1, n])).unwrap();
        [column, row]
    };
    // 2^42 bytes for the output: more than any GPU has.
    let error = wide.execute(&inputs(1 << 20)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Memory, "{error}");
    let output = wide.execute(&inputs(100)).unwrap();
    assert_eq!((output[0].shape(), values(&output[0])[9_999]), (&[100, 100][..], 3.0));
    let [column, _] = inputs(50);
    assert_eq!(values(&model.execute(&[vector(&[1.0, 5.0], &device), column]).unwrap()[0])[49], 6.0);
}

#[test]
fn products_may_be_rounded_where_that_is_allowed() {
    let Some((device, _turn)) = gpu() else { return };
    let session = session(&device);
    let graph =
        Graph::build("product", [on(GPU, (64, 64)), on(GPU, (64, 64))], |x| ops::matmul(&x[0], &x[1]))
            .unwrap();
    // 1 + 2^-12 has more bits than the rounded format.
    let fine = vector(&[1.0 + 1.0 / 4096.0; 64 * 64], &device).view(DType::Float32, Some(&[64, 64])).unwrap();
    let ones = vector(&[1.0; 64 * 64], &device).view(DType::Float32, Some(&[64, 64])).unwrap();
    let exact = session.load(&graph).unwrap();
    session.set_allow_tf32(true);
    assert!(session.allows_tf32());
    let rounded = session.load(&graph).unwrap();
    let product = |model: &Model| values(&model.execute(&[fine.clone(), ones.clone()]).unwrap()[0])[0];
    assert_eq!(product(&exact), 64.0 + 64.0 / 4096.0);
    assert!((product(&rounded) - 64.0).abs() < 0.1);
}
