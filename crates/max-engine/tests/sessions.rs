//! Loading and executing as a user does: files, weights, metadata, wrong inputs, threads.

use std::fs;
use std::path::PathBuf;

use max_core::{DType, DeviceRef, ErrorKind, Shape, TensorType, ViewIndex};
use max_driver::{Buffer, Device};
use max_engine::{InferenceSession, WeightsRegistry, save_graph};
use max_graph::{Graph, HostTensor, Weight, ops};

fn f32s(shape: impl Into<Shape>) -> TensorType {
    TensorType::new(DType::Float32, shape, DeviceRef::CPU)
}

fn session() -> InferenceSession {
    InferenceSession::new([Device::cpu()])
}

/// A fresh folder that is deleted with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("max-rs-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn linear() -> Graph {
    Graph::build("linear", [f32s(("batch", 32))], |x| {
        let weights: Vec<f32> = (0..64).map(|i| i as f32).collect();
        let w = ops::constant(HostTensor::from_vec([32, 2], weights)?, None, None)?;
        ops::matmul(&x[0], &w)
    })
    .unwrap()
}

#[test]
fn a_saved_graph_loads_and_runs() {
    let folder = Folder::new("save");
    let path = folder.0.join("linear.maxgraph");
    save_graph(&linear(), &path).unwrap();
    let model = session().load(path.as_path()).unwrap();
    let result = model.execute(&[Buffer::from_slice(&[1f32; 64], &[2, 32]).unwrap()]).unwrap();
    assert_eq!(result[0].to_vec::<f32>().unwrap(), [992., 1024., 992., 1024.]);
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 1, "no partial file is left behind");
}

#[test]
fn damaged_files_are_runtime_errors() {
    let folder = Folder::new("damage");
    let path = folder.0.join("g.maxgraph");
    save_graph(&linear(), &path).unwrap();
    let whole = fs::read(&path).unwrap();
    for len in 0..whole.len() {
        fs::write(&path, &whole[..len]).unwrap();
        let error = session().load(path.as_path()).expect_err("a truncated file");
        assert_eq!(error.kind(), ErrorKind::Runtime, "{len}");
    }
    fs::write(folder.0.join("empty"), "").unwrap();
    for (path, phrase) in [
        ("missing.maxgraph", "missing.maxgraph': the file does not exist"),
        (".", "it is a directory"),
        ("empty", "empty': the file is empty"),
        ("g.maxgraph/inside", "the file cannot be read"),
        ("package.mojopkg", "Graph.save"),
    ] {
        let error = session().load(folder.0.join(path).as_path()).expect_err("a bad path");
        assert_eq!(error.kind(), ErrorKind::Runtime);
        assert!(
            error.message().contains(phrase) && error.message().contains("a model is a Graph"),
            "{error}"
        );
    }
    #[cfg(unix)]
    assert!(session().load("/dev/null").unwrap_err().message().contains("not a regular file"));
    let elsewhere = folder.0.join("no/such/folder/g");
    assert_eq!(save_graph(&linear(), &elsewhere).unwrap_err().kind(), ErrorKind::Runtime);
}

#[test]
fn weights_come_from_the_registry() {
    let weight = Weight::new("w", DType::Float32, ["n"], DeviceRef::CPU).unwrap();
    let graph = Graph::build("g", [f32s(["n"])], |x| &x[0] + &weight).unwrap();
    let load =
        |buffer: Buffer| session().load_with(&graph, &WeightsRegistry::from([("w".to_string(), buffer)]));
    let model = load(Buffer::from([1f32, 2.0])).unwrap();
    assert_eq!(
        model.execute(&[Buffer::from([10f32, 20.0])]).unwrap()[0].to_vec::<f32>().unwrap(),
        [11., 22.]
    );
    let mismatch = model.execute(&[Buffer::from([10f32])]).unwrap_err().to_string();
    assert!(mismatch.contains("symbolic dimension 'n'"), "{mismatch}");
    for (error, phrase) in [
        (session().load(&graph).unwrap_err(), "missing"),
        (load(Buffer::from([1f64])).unwrap_err(), "dtype"),
        (load(Buffer::from_slice(&[1f32], &[1, 1]).unwrap()).unwrap_err(), "shape"),
    ] {
        assert!(error.message().contains("'w'") && error.message().contains(phrase), "{error}");
    }
}

#[test]
fn metadata_and_wrong_inputs() {
    let model = session().load(&linear()).unwrap();
    let input = &model.input_metadata()[0];
    assert_eq!((input.name.as_str(), input.shape.as_slice()), ("input0", [None, Some(32)].as_slice()));
    assert_eq!(model.output_metadata()[0].shape, [None, Some(2)]);
    for (inputs, phrase) in [
        (vec![], "takes 1 inputs, got 0"),
        (vec![Buffer::from([1f64; 32])], "input0 must be float32, got float64"),
        (vec![Buffer::from([1f32; 32])], "rank"),
        (vec![Buffer::from_slice(&[1f32; 4], &[2, 2]).unwrap()], "must be 32; got 2"),
    ] {
        let error = model.execute(&inputs).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Value);
        assert!(error.message().contains(phrase), "{phrase}: {error}");
    }
    assert!(session().with_num_threads(0).is_err());
}

#[test]
fn strided_inputs_and_many_threads() {
    let graph = Graph::build("g", [f32s(["n"])], |x| &x[0] * 2.0).unwrap();
    let model = session().load(&graph).unwrap();
    let every_second = ViewIndex::Slice { start: None, stop: None, step: -2 };
    let view = Buffer::from([1f32, 2.0, 3.0, 4.0, 5.0]).index(&[every_second]).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50 {
                    let result = model.execute(std::slice::from_ref(&view)).unwrap();
                    assert_eq!(result[0].to_vec::<f32>().unwrap(), [10., 6., 2.]);
                }
            });
        }
    });
}

#[test]
fn graphs_as_data_bring_no_weights() {
    let graph = Graph::build("weighted", [f32s([2])], |x| {
        &x[0] + ops::constant_external("w".to_string(), f32s([2]))?
    })
    .unwrap();
    let error = session().load_body(graph.body()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Value);
    assert!(error.message().contains("weight 'w'") && error.message().contains("missing"), "{error}");
}
