//! Extreme sizes and numbers: nothing panics, hangs or allocates memory it does not need.

use max_core::{DType, DeviceRef, ErrorKind, Result, Shape, TensorType};
use max_graph::ops::slice::{Bound, Index};
use max_graph::{Graph, HostTensor, TensorValue, interpret, ops};

const HUGE: usize = 1 << 40;

fn empty(dtype: DType, shape: &[usize]) -> HostTensor {
    HostTensor::new(dtype, shape, max_core::HostBytes::new(Vec::new())).unwrap()
}

/// Builds a graph for inputs with these sizes, all symbolic, and runs it.
fn run(
    inputs: &[&HostTensor],
    forward: impl FnOnce(&[TensorValue]) -> Result<TensorValue>,
) -> Result<HostTensor> {
    let types = inputs.iter().map(|t| {
        let dims: Shape = t.shape().iter().map(|&s| s as i64).collect();
        TensorType::new(t.dtype(), dims, DeviceRef::CPU)
    });
    let graph =
        Graph::build("g", types, |x| forward(&x.iter().map(|v| v.tensor().unwrap()).collect::<Vec<_>>()))?;
    let inputs: Vec<_> = inputs.iter().map(|&t| t.clone()).collect();
    Ok(interpret(&graph.body(), &inputs, &())?.remove(0))
}

#[test]
fn empty_tensors_with_huge_axes_take_no_time() {
    let x = empty(DType::Float32, &[HUGE, 2, 0]);
    let index = HostTensor::from([0i64, 1, 1]);
    let shape = |t: Result<HostTensor>| t.unwrap().shape().to_vec();
    assert_eq!(shape(run(&[&x], |x| ops::concat([&x[0], &x[0]], 1))), [HUGE, 4, 0]);
    assert_eq!(shape(run(&[&x, &index], |x| ops::gather(&x[0], &x[1], 1))), [HUGE, 3, 0]);
    assert_eq!(shape(run(&[&x], |x| ops::matmul(x[0].T()?, x[0].T()?.T()?))), [HUGE, 0, 0]);
    assert_eq!(shape(run(&[&x], |x| ops::softmax(&x[0], 1))), [HUGE, 2, 0]);
    assert_eq!(shape(run(&[&x], |x| ops::add(&x[0], 1.0))), [HUGE, 2, 0]);
    let sum = run(&[&empty(DType::Float32, &[1 << 50, 0])], |x| ops::sum(&x[0], 1));
    assert_eq!(sum.unwrap_err().kind(), ErrorKind::Memory);
}

#[test]
fn sums_of_many_elements_are_exact() {
    let count = 1 << 20;
    let x = HostTensor::from_vec([count], vec![0.1f64; count]).unwrap();
    let first = |t: Result<HostTensor>| t.unwrap().elements::<f64>().unwrap()[0];
    assert_eq!(first(run(&[&x], |x| ops::sum(&x[0], 0))), 0.1 * count as f64);
    assert_eq!(first(run(&[&x], |x| ops::mean(&x[0], 0))), 0.1);
}

#[test]
fn convolutions_of_extreme_sizes() {
    let conv = |x: &HostTensor, filter: &HostTensor, groups| {
        let options = ops::ConvOptions { groups, ..Default::default() };
        run(&[x, filter], |x| ops::conv2d(&x[0], &x[1], None, options))
    };
    let many = empty(DType::Float32, &[1 << 50, 1, 1, 0]);
    assert_eq!(conv(&many, &empty(DType::Float32, &[1, 1, 0, 0]), 1).unwrap().num_elements(), 0);
    let ints = HostTensor::from_vec([1, 1, 1, 1], vec![i32::MAX]).unwrap();
    let two = HostTensor::from_vec([1, 1, 1, 1], vec![2i32]).unwrap();
    assert_eq!(*conv(&ints, &two, 1).unwrap().elements::<i32>().unwrap(), [-2], "integers wrap as in matmul");
    assert!(conv(&ints, &HostTensor::from_vec([0, 1, 1, 1], Vec::<i32>::new()).unwrap(), 1).is_err());
    let types = [
        TensorType::new(DType::Int32, (1, 1, 1, 2), DeviceRef::CPU),
        TensorType::new(DType::Int32, (1, 1, 1, "f"), DeviceRef::CPU),
    ];
    let options = ops::ConvOptions { groups: 2, ..Default::default() };
    let graph = Graph::build("g", types, |x| ops::conv2d(&x[0], &x[1], None, options)).unwrap();
    let [x, filter] = [2, 3].map(|n| HostTensor::from_vec([1, 1, 1, n], vec![1i32; n]).unwrap());
    let error = interpret(&graph.body(), &[x, filter], &()).unwrap_err();
    assert!(error.message().contains("groups"), "{error}");
}

#[test]
fn dynamic_slices_equal_static_ones() {
    let x = HostTensor::from([1f32, 2.0, 3.0, 4.0]);
    let slice = |start: Option<i64>, stop: Option<i64>, step: i64| {
        let given: Vec<HostTensor> =
            [start, stop].into_iter().flatten().map(|b| HostTensor::from_vec([], vec![b]).unwrap()).collect();
        let result = run(&[&x].into_iter().chain(&given).collect::<Vec<_>>(), |x| {
            let mut tensors = x[1..].iter().cloned();
            let mut bound =
                |b: Option<i64>| b.and_then(|_| tensors.next()).map_or(Bound::Natural, Bound::Tensor);
            let (start, stop) = (bound(start), bound(stop));
            x[0].slice([Index::Slice { start, stop, step, out_dim: Some("n".into()) }])
        });
        result.map(|t| t.elements::<f32>().unwrap().to_vec())
    };
    assert_eq!(slice(Some(1), None, 1).unwrap(), [2.0, 3.0, 4.0]);
    assert_eq!(slice(Some(-3), Some(-1), 1).unwrap(), [2.0, 3.0]);
    assert_eq!(slice(Some(-1), Some(-4), -1).unwrap(), [4.0, 3.0, 2.0]);
    assert_eq!(slice(Some(2), None, -2).unwrap(), [3.0, 1.0]);
    for (start, stop) in [(9, 2), (9, 9), (-9, -9), (3, 1)] {
        assert_eq!(slice(Some(start), Some(stop), 1).unwrap_err().kind(), ErrorKind::Value, "{start}:{stop}");
    }
}

#[test]
fn symbols_are_never_negative() {
    let ty = TensorType::new(DType::Float32, ["a + 5".parse::<max_core::Dim>().unwrap()], DeviceRef::CPU);
    let graph = Graph::build("g", [ty], |x| ops::relu(&x[0])).unwrap();
    let error = interpret(&graph.body(), &[HostTensor::from([1f32, 2.0])], &());
    assert!(error.unwrap_err().message().contains("negative"));
}

#[test]
fn partial_products_cannot_overflow() {
    assert!(HostTensor::new(DType::Float32, [0, HUGE, HUGE], max_core::HostBytes::new(Vec::new())).is_err());
    let wide = run(&[&empty(DType::Float32, &[0, 1, HUGE]), &empty(DType::Float32, &[0, HUGE, 1])], |x| {
        &x[0] + &x[1]
    });
    assert_eq!(wide.unwrap_err().kind(), ErrorKind::Value);
}

#[test]
fn extreme_steps_bounds_and_indices() {
    let x = HostTensor::from([[1f32, 2.0, 3.0], [4.0, 5.0, 6.0]]);
    let all = |step| Index::Slice { start: Bound::Natural, stop: Bound::Natural, step, out_dim: None };
    let one = run(&[&x], |x| x[0].slice([all(i64::MAX)])).unwrap();
    assert_eq!(*one.elements::<f32>().unwrap(), [1.0, 2.0, 3.0]);
    for step in [i64::MIN, 0] {
        assert_eq!(run(&[&x], |x| x[0].slice([all(step)])).unwrap_err().kind(), ErrorKind::Value);
    }
    let far = HostTensor::from([u64::MAX]);
    let error = run(&[&x, &far], |x| ops::gather(&x[0], &x[1], 0)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Index);
    let bounds = [i64::MIN, i64::MAX].map(|b| HostTensor::from_vec([], vec![b]).unwrap());
    let [low, high] = bounds;
    for step in [1, -1, i64::MIN, i64::MAX] {
        for (start, stop) in [(&low, &high), (&high, &low), (&high, &high)] {
            let result = run(&[&x, start, stop], |x| {
                let [start, stop] = [1, 2].map(|i| Bound::Tensor(x[i].clone()));
                x[0].slice([Index::Slice { start, stop, step, out_dim: Some("n".into()) }])
            });
            assert!(result.is_err() || result.unwrap().num_elements() == 0);
        }
    }
}
