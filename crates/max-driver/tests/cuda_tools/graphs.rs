use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use max_core::{DType, Result, bail};
use max_driver::cuda::{Event, Function, Graph};
use max_driver::{Buffer, Stream};

use super::{add, address, download, gpu, upload};

/// Adds `b` to `out` in place, `times` times.
fn add_to(function: &Function, stream: &Stream, out: &Buffer, b: &Buffer, times: usize) -> Result<()> {
    let params = [address(out), address(b), address(out), out.num_elements() as u64];
    for _ in 0..times {
        // SAFETY: both have the same number of elements, and the tests keep them until the work is done.
        unsafe { function.launch(stream, [1, 1, 1], [64, 1, 1], 0, &params) }?;
    }
    Ok(())
}

#[test]
fn recorded_work_runs_when_it_is_launched() {
    let Some((device, gpu)) = gpu() else { return };
    let function = gpu.functions(&[add()]).unwrap().remove(0);
    let stream = Stream::new(&device).unwrap();
    let [out, other] = [0.0, 100.0].map(|value| upload(DType::Float32, &[value; 3], &device));
    let b = upload(DType::Float32, &[1.0, 2.0, 3.0], &device);
    stream.wait_for(&device).unwrap();
    let mut graph = Graph::record(&stream, || add_to(&function, &stream, &out, &b, 5)).unwrap();
    assert_eq!(graph.nodes(), 5);
    stream.synchronize().unwrap();
    assert_eq!(download(&out), [0.0, 0.0, 0.0], "recording runs nothing");
    // SAFETY: the buffers are alive until the stream is done.
    let launch =
        |graph: &Graph| unsafe { graph.launch(&stream) }.and_then(|()| stream.synchronize()).unwrap();
    launch(&graph);
    launch(&graph);
    assert_eq!(download(&out), [10.0, 20.0, 30.0]);
    // Other addresses are other parameters of the same nodes.
    graph.record_again(&stream, || add_to(&function, &stream, &other, &b, 5)).unwrap();
    launch(&graph);
    assert_eq!((download(&out), download(&other)), (vec![10.0, 20.0, 30.0], vec![105.0, 110.0, 115.0]));
    // More nodes are another graph.
    graph.record_again(&stream, || add_to(&function, &stream, &out, &b, 7)).unwrap();
    assert_eq!(graph.nodes(), 7);
    launch(&graph);
    assert_eq!(download(&out), [17.0, 34.0, 51.0]);
    // A failed recording leaves the graph as it was.
    graph.record_again(&stream, || bail!(value, "not this time")).unwrap_err();
    launch(&graph);
    assert_eq!(download(&out), [24.0, 48.0, 72.0]);
}

#[test]
fn other_threads_use_the_device_while_one_records() {
    let Some((device, gpu)) = gpu() else { return };
    let function = gpu.functions(&[add()]).unwrap().remove(0);
    let stream = Stream::new(&device).unwrap();
    let (out, b) = (upload(DType::Float32, &[0.0], &device), upload(DType::Float32, &[1.0], &device));
    stream.wait_for(&device).unwrap();
    let over = AtomicBool::new(false);
    let others = || -> Result<()> {
        while !over.load(Ordering::SeqCst) {
            let there = Buffer::new(DType::Float32, &[1000], &device)?;
            Buffer::new_pinned(DType::Float32, &[1000], &device)?.copy_from(&there)?;
            drop(there);
            Event::record(&device.default_stream(), false)?.is_done()?;
            device.synchronize()?;
        }
        Ok(())
    };
    let (recorded, other) = std::thread::scope(|scope| {
        let other = scope.spawn(others);
        let work = || {
            // Gives the other thread time to come in between.
            std::thread::sleep(Duration::from_millis(2));
            add_to(&function, &stream, &out, &b, 20)
        };
        let recorded: Vec<_> = (0..50).map(|_| Graph::record(&stream, work).map(drop)).collect();
        over.store(true, Ordering::SeqCst);
        (recorded, other.join().unwrap())
    });
    other.unwrap();
    recorded.into_iter().collect::<Result<()>>().unwrap();
}

#[test]
fn a_stream_keeps_working_after_a_failed_recording() {
    let Some((device, gpu)) = gpu() else { return };
    let function = gpu.functions(&[add()]).unwrap().remove(0);
    let stream = Stream::new(&device).unwrap();
    let (out, b) = (upload(DType::Float32, &[0.0], &device), upload(DType::Float32, &[1.0], &device));
    stream.wait_for(&device).unwrap();
    let add = || add_to(&function, &stream, &out, &b, 1);
    let failed = Graph::record(&stream, || {
        add()?;
        bail!(value, "in the middle")
    });
    assert_eq!(failed.unwrap_err().message(), "in the middle");
    assert!(Graph::record(&stream, || add().and_then(|()| stream.synchronize())).is_err());
    let spoilt = Graph::record(&stream, || {
        let _ = stream.synchronize();
        Ok(())
    });
    assert!(spoilt.unwrap_err().message().contains("cuStreamEndCapture"));
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        Graph::record(&stream, || panic!("in the middle of a recording"))
    }));
    assert!(panicked.is_err());
    let error = Graph::record(&device.default_stream(), || Ok(())).unwrap_err();
    assert!(error.message().contains("a dedicated stream"), "{error}");
    add().unwrap();
    stream.synchronize().unwrap();
    assert_eq!(download(&out), [1.0], "only what was not recorded has run");
    assert_eq!(Graph::record(&stream, add).unwrap().nodes(), 1);
}

#[test]
fn five_hundred_kernels_are_replayed() {
    let Some((device, gpu)) = gpu() else { return };
    let function = gpu.functions(&[add()]).unwrap().remove(0);
    let stream = Stream::new(&device).unwrap();
    let (out, b) = (upload(DType::Float32, &[0.0], &device), upload(DType::Float32, &[1.0], &device));
    stream.wait_for(&device).unwrap();
    let graph = Graph::record(&stream, || add_to(&function, &stream, &out, &b, 500)).unwrap();
    assert_eq!(graph.nodes(), 500);
    let (mut best, mut on_host, rounds) = (f64::INFINITY, f64::INFINITY, 20);
    for _ in 0..rounds {
        let start = Event::record(&stream, true).unwrap();
        let clock = Instant::now();
        // SAFETY: the buffers are alive until the stream is done.
        unsafe { graph.launch(&stream) }.unwrap();
        on_host = on_host.min(clock.elapsed().as_secs_f64() * 1e6);
        let end = Event::record(&stream, true).unwrap();
        stream.synchronize().unwrap();
        best = best.min(end.microseconds_since(&start).unwrap());
    }
    eprintln!("replay of 500 kernels: {:.3} us per kernel, {on_host:.1} us on the host", best / 500.0);
    assert_eq!(download(&out), [500.0 * f64::from(rounds)]);
}
