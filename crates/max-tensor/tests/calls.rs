//! Calls of ops by name: each is like the ones before it, and yet its own.

use max_core::{DType, DeviceRef, ErrorKind, FileName, Location, Result, TensorType};
use max_graph::graph::located;
use max_graph::registry::{Arg, Output};
use max_graph::{Graph, HostTensor};
use max_tensor::{Region, RegionKind, Tensor, clear_cache};

fn arg(tensor: &Tensor) -> Arg {
    Arg::Object(tensor.into())
}

fn call(region: &Region, name: &str, args: Vec<Arg>) -> Result<Tensor> {
    match region.call_until(name, args, &|| Ok(()))? {
        Output::One(tensor) => Ok(tensor),
        _ => panic!("{name} returns one tensor"),
    }
}

fn floats(tensor: &Tensor) -> Vec<f32> {
    tensor.to_vec().unwrap()
}

/// Often enough that a call is kept, and used.
const OFTEN: usize = 4;

const KINDS: [RegionKind; 3] = [RegionKind::Bare, RegionKind::Eager, RegionKind::Lazy];

#[test]
fn calls_with_the_same_types_use_their_own_tensors() {
    for region in KINDS.map(Region::new) {
        for round in 0..OFTEN {
            let a = Tensor::from([1.0f32, 2.0, 3.0 + round as f32]);
            let b = Tensor::from([10.0f32, 20.0, 30.0]);
            let sub = |x: &Tensor, y: &Tensor| floats(&call(&region, "sub", vec![arg(x), arg(y)]).unwrap());
            assert_eq!(sub(&a, &b), [-9.0, -18.0, round as f32 - 27.0]);
            assert_eq!(sub(&b, &a), [9.0, 18.0, 27.0 - round as f32]);
            assert_eq!(sub(&a, &a), [0.0; 3]);
            let list = vec![Arg::List(vec![arg(&b), arg(&a), arg(&b)]), 0.into()];
            let joined = floats(&call(&region, "concat", list).unwrap());
            assert_eq!(joined[..6], [10.0, 20.0, 30.0, 1.0, 2.0, 3.0 + round as f32]);
        }
    }
}

#[test]
fn calls_with_other_sizes_dtypes_and_numbers_are_others() {
    for region in KINDS.map(Region::new) {
        let (three, four) = (Tensor::from([1.0f32, 2.0, 3.0]), Tensor::from([1.0f32, 2.0, 3.0, 4.0]));
        let integers = Tensor::from([1i32, 2, 3]);
        for _ in 0..OFTEN {
            let div = |x: &Tensor, by: Arg| call(&region, "div", vec![arg(x), by]);
            assert_eq!(floats(&div(&three, 2.0.into()).unwrap()), [0.5, 1.0, 1.5]);
            assert_eq!(floats(&div(&three, 4.0.into()).unwrap()), [0.25, 0.5, 0.75]);
            assert_eq!(floats(&div(&three, 0.0.into()).unwrap()), [f32::INFINITY; 3]);
            assert_eq!(floats(&div(&three, (-0.0).into()).unwrap()), [f32::NEG_INFINITY; 3]);
            assert_eq!(floats(&div(&four, 2.0.into()).unwrap()), [0.5, 1.0, 1.5, 2.0]);
            assert_eq!(div(&integers, 2.into()).unwrap().dtype(), DType::Float64);
            let add = |y: Arg| call(&region, "add", vec![arg(&integers), y]);
            assert_eq!(add(1.into()).unwrap().to_vec::<i32>().unwrap(), [2, 3, 4]);
            assert_eq!(add(0.5.into()).unwrap_err().kind(), ErrorKind::Value);
            let sum = |axis: i64| call(&region, "sum", vec![arg(&three), axis.into()]);
            assert_eq!(floats(&sum(0).unwrap()), [6.0]);
            assert_eq!(sum(1).unwrap_err().kind(), ErrorKind::Value);
            let cast = |dtype| call(&region, "cast", vec![arg(&three), Arg::DType(dtype)]).unwrap();
            assert_eq!(
                [DType::Int8, DType::Float32].map(|to| cast(to).dtype()),
                [DType::Int8, DType::Float32]
            );
        }
    }
}

#[test]
fn arrays_are_read_anew() {
    let (region, x) = (Region::new(RegionKind::Bare), Tensor::from([1.0f32, 2.0]));
    for round in 0..OFTEN {
        let array = HostTensor::from_vec([2], vec![round as f32, 1.0]).unwrap();
        let y = call(&region, "add", vec![arg(&x), Arg::Array(array)]).unwrap();
        assert_eq!(floats(&y), [1.0 + round as f32, 3.0]);
    }
}

#[test]
fn a_value_of_a_graph_is_refused_as_the_first_time() {
    let ty = TensorType::new(DType::Float32, [3], DeviceRef::CPU);
    let graph = Graph::new("other", [ty]).unwrap();
    let value = Tensor::from_value(graph.input(0).unwrap());
    for region in KINDS.map(Region::new) {
        let first = call(&region, "tanh", vec![arg(&value)]).unwrap_err();
        for _ in 0..OFTEN {
            call(&region, "tanh", vec![arg(&Tensor::from([1.0f32, 2.0, 3.0]))]).unwrap();
        }
        assert_eq!(call(&region, "tanh", vec![arg(&value)]).unwrap_err().to_string(), first.to_string());
    }
}

#[test]
fn each_call_has_its_own_location() {
    let region = Region::new(RegionKind::Bare);
    let (x, good, bad) = (Tensor::from([1.0f32, 2.0]), Tensor::from([1i64]), Tensor::from([7i64]));
    for line in 1..10 {
        let gather = |index| {
            let location = Location { file: FileName::Static("user.py"), line };
            located("gather", location, || call(&region, "gather", vec![arg(&x), arg(index), 0.into()]))
        };
        assert_eq!(floats(&gather(&good).unwrap()), [2.0]);
        let error = gather(&bad).unwrap_err().to_string();
        assert!(error.contains(&format!("user.py:{line}")), "{error}");
    }
}

#[test]
fn models_may_leave_the_cache_at_any_time() {
    let (region, x) = (Region::new(RegionKind::Bare), Tensor::from([1.0f32, -2.0]));
    for round in 0..3 * OFTEN {
        if round % 3 == 2 {
            clear_cache();
        }
        assert_eq!(floats(&call(&region, "abs", vec![arg(&x)]).unwrap()), [1.0, 2.0]);
    }
}

#[test]
fn a_thread_that_called_ops_can_end() {
    let work = || {
        let (region, x) = (Region::new(RegionKind::Bare), Tensor::from([1.0f32, -2.0]));
        (0..OFTEN)
            .for_each(|_| assert_eq!(floats(&call(&region, "abs", vec![arg(&x)]).unwrap()), [1.0, 2.0]));
    };
    std::thread::spawn(work).join().unwrap();
}

#[test]
fn an_op_without_results_and_one_with_several() {
    let (region, x) = (Region::new(RegionKind::Eager), Tensor::from([1.0f32, -2.0, 3.0]));
    for _ in 0..OFTEN {
        let sizes = Arg::List(vec![1.into(), 2.into()]);
        let split = region.call_until("split", vec![arg(&x), sizes, 0.into()], &|| Ok(())).unwrap();
        let Output::Many(parts) = split else { panic!("split returns a list") };
        assert_eq!(parts.iter().map(floats).collect::<Vec<_>>(), [vec![1.0], vec![-2.0, 3.0]]);
        let print = region.call_until("print", vec![arg(&x), "x".into()], &|| Ok(())).unwrap();
        assert!(matches!(print, Output::None));
    }
}
