//! Ranges and random numbers: their types, their errors and their values.

use max_core::{DType, DeviceRef, Dim, ErrorKind, Number, Result, TensorType, bf16};
use max_graph::{Graph, HostTensor, Operand, TensorValue, interpret, ops};

const CPU: DeviceRef = DeviceRef::CPU;

/// The output of a graph without inputs.
fn run(forward: impl FnOnce() -> Result<TensorValue>) -> Result<HostTensor> {
    let graph = Graph::build("g", Vec::<TensorType>::new(), |_| forward())?;
    Ok(interpret(&graph.body(), &[], &())?.remove(0))
}

fn floats(shape: &[i64]) -> TensorType {
    TensorType::new(DType::Float32, shape.to_vec(), CPU)
}

fn refused(result: Result<HostTensor>, part: &str) {
    let error = result.unwrap_err();
    assert!(error.kind() == ErrorKind::Value && error.to_string().contains(part), "{error}");
}

#[test]
fn ranges_count_and_step() {
    let range =
        |start: f64, stop: f64, step: f64| run(|| ops::range(start, stop, step, None, None, None)).unwrap();
    assert_eq!(*range(0.0, 1.0, 0.25).elements::<f32>().unwrap(), [0.0, 0.25, 0.5, 0.75]);
    assert_eq!(*range(1.0, -1.0, -0.75).elements::<f32>().unwrap(), [1.0, 0.25, -0.5]);
    assert_eq!(range(2.0, 2.0, -1.0).shape(), [0]);
    let ints = |start: i64, stop: i64, step: i64, dtype: DType| {
        run(|| ops::range(start, stop, step, None, dtype, CPU))
    };
    assert_eq!(*ints(0, 10, 3, DType::Int32).unwrap().elements::<i32>().unwrap(), [0, 3, 6, 9]);
    assert_eq!(*ints(255, 250, -2, DType::UInt8).unwrap().elements::<u8>().unwrap(), [255, 253, 251]);
    assert_eq!(ints(0, 256, 1, DType::UInt8).unwrap().shape(), [256]);
    refused(ints(0, 257, 1, DType::UInt8), "last number of a range");
    refused(ints(0, 3, 0, DType::Int32), "step cannot be zero");
    refused(ints(0, 3, -1, DType::Int32), "sign of step");
    refused(ints(0, 1, 1, DType::Bool), "bool");
    let wide = |start: i128, stop: i128| {
        let number = |i| ops::index::Limit::Number(Number::Int(i));
        run(|| ops::range(number(start), number(stop), 1i64, None, DType::Int64, CPU))
    };
    refused(wide(i128::MIN, i128::MAX), "64 bits");
    refused(wide(0, i128::MAX), "64 bits");
    assert!(wide(0, i64::MAX.into()).is_err() && ints(i64::MIN, i64::MAX, 1, DType::Int64).is_err());
    let no_number = |x: f64| run(move || ops::range(0.0, x, 1.0, None, None, None));
    refused(no_number(f64::NAN), "no last number");
    refused(no_number(f64::INFINITY), "no last number");
    refused(no_number(1e30), "64 bits");
}

#[test]
fn ranges_of_narrow_floats_do_not_stop_early() {
    let x = run(|| ops::range(0i64, 1000i64, 1i64, None, DType::BFloat16, CPU)).unwrap();
    let expected: Vec<bf16> = (0..1000).map(|i| bf16::from_f32(i as f32)).collect();
    assert_eq!(*x.elements::<bf16>().unwrap(), expected);
}

#[test]
fn ranges_between_dims_have_dims() {
    let types = [TensorType::new(DType::Float32, ["n"], CPU)];
    let n = Dim::from("n");
    let graph = Graph::build("g", types, |_| {
        ops::range(n.clone(), n.mul(&Dim::Static(3))?, 2i64, None, DType::Int64, CPU)
    });
    let graph = graph.unwrap();
    assert_eq!(graph.output_types().unwrap()[0].to_string(), "int64[n]");
    let x = interpret(&graph.body(), &[HostTensor::from([0f32; 5])], &()).unwrap();
    assert_eq!(*x[0].elements::<i64>().unwrap(), [5, 7, 9, 11, 13]);
    let mixed = run(|| ops::range(0.5, Dim::from("n"), 1i64, None, DType::Float32, CPU));
    refused(mixed, "whole numbers");
}

#[test]
fn ranges_between_tensors_are_checked_at_run_time() {
    let types = || (0..3).map(|_| TensorType::new(DType::Int64, (), CPU));
    let build = |out_dim: Option<Dim>| {
        Graph::build("g", types(), |x| {
            let [start, stop, step] = [0, 1, 2].map(|i| x[i].tensor().unwrap());
            ops::range(&start, &stop, &step, out_dim, None, CPU)
        })
    };
    assert!(build(None).unwrap_err().to_string().contains("needs out_dim"));
    let scalar = |i: i64| HostTensor::scalar(Number::Int(i.into()), DType::Int64).unwrap();
    let run = |out_dim: Dim, limits: [i64; 3]| -> Result<Vec<i64>> {
        let results = interpret(&build(Some(out_dim))?.body(), &limits.map(scalar), &())?;
        Ok(results[0].elements::<i64>()?.to_vec())
    };
    assert_eq!(run(Dim::from("m"), [2, 9, 3]).unwrap(), [2, 5, 8]);
    assert_eq!(run(Dim::from("m"), [2, -2, -2]).unwrap(), [2, 0]);
    assert_eq!(run(Dim::Static(0), [2, 2, 5]).unwrap(), []);
    for wrong in [[0, 5, -1], [5, 0, 1], [0, 5, 0], [i64::MIN, i64::MAX, 1]] {
        assert!(run(Dim::from("m"), wrong).is_err(), "{wrong:?}");
    }
    assert!(run(Dim::Static(4), [0, 5, 1]).is_err());
    let between = |dtype: DType, start: f64, stop: f64, step: i64| -> Result<HostTensor> {
        let types = [0, 1].map(|_| TensorType::new(dtype, (), CPU));
        let graph = Graph::build("g", types, |x| {
            let [start, stop] = [0, 1].map(|i| x[i].tensor().unwrap());
            ops::range(&start, &stop, step, Dim::from("m"), None, CPU)
        });
        let limits = [start, stop].map(|x| HostTensor::from([x]).cast(dtype).unwrap().reshaped([]).unwrap());
        Ok(interpret(&graph?.body(), &limits, &())?.remove(0))
    };
    let down = between(DType::UInt8, 9.0, 2.0, -3).unwrap();
    assert_eq!(*down.elements::<u8>().unwrap(), [9, 6, 3], "an unsigned dtype");
    assert!(between(DType::Float32, 0.0, f64::NAN, 1).is_err());
}

#[test]
fn a_draw_needs_a_seed_and_each_draw_has_its_own() {
    let error = run(|| ops::random_uniform(floats(&[4]), 0i64, 1i64, None)).unwrap_err();
    assert!(error.kind() == ErrorKind::Runtime && error.to_string().contains("No seed set"), "{error}");
    let draws = |seed: u64| {
        run(|| {
            ops::random_set_seed(seed)?;
            let draw = || ops::random_uniform(floats(&[1, 8]), 0i64, 1i64, None);
            let [a, b] = [draw()?, draw()?];
            ops::random_set_seed(seed)?;
            ops::concat([&a, &b, &draw()?], 0)
        })
    };
    let numbers = draws(7).unwrap();
    let numbers = numbers.elements::<f32>().unwrap();
    assert_ne!(numbers[..8], numbers[8..16]);
    assert_eq!(numbers[..8], numbers[16..], "the same seed again gives the same numbers");
    assert_ne!(numbers[..8], draws(8).unwrap().elements::<f32>().unwrap()[..8]);
}

#[test]
fn seeds_are_numbers_of_64_bits() {
    let draw = |seed: Operand| run(|| ops::random_gaussian(floats(&[3]), 0i64, 1i64, seed));
    let number = |i: i128| Operand::from(Number::Int(i));
    let most = HostTensor::from_vec([], vec![u64::MAX]).unwrap();
    assert_eq!(draw(number(u64::MAX.into())).unwrap(), draw(most.into()).unwrap());
    for bad in [number(1 << 64), number(-1), 0.5.into()] {
        refused(draw(bad), "from 0 to 2**64 - 1");
    }
    let graph = Graph::new("g", Vec::<TensorType>::new()).unwrap();
    let scope = graph.enter();
    assert!(ops::random_set_seed(HostTensor::from([1i64, 2])).is_err());
    assert!(ops::random_set_seed(HostTensor::from_vec([], vec![3i16]).unwrap()).is_ok());
    drop(scope);
    assert_eq!(draw(HostTensor::from([1i64]).into()).unwrap(), draw(number(1)).unwrap());
    refused(draw(HostTensor::from([1.0f32]).into()), "a seed is a whole number");
}

#[test]
fn seeds_may_be_inputs() {
    let graph = Graph::build("g", [ops::seed_type(CPU)], |x| {
        ops::random_set_seed(&x[0])?;
        ops::random_uniform(floats(&[4]), 0i64, 1i64, None)
    });
    let drawn = interpret(&graph.unwrap().body(), &[HostTensor::from([7u64])], &()).unwrap().remove(0);
    let known = run(|| ops::random_uniform(floats(&[4]), 0i64, 1i64, Operand::from(7u64))).unwrap();
    assert_eq!(drawn, known);
}

#[test]
fn parameters_of_distributions_are_checked() {
    let uniform = |low: f64, high: f64, dtype: DType| {
        run(|| ops::random_uniform(TensorType::new(dtype, [9], CPU), low, high, Operand::from(1i64)))
    };
    refused(uniform(1.0, 1.0, DType::Float32), "greater high");
    refused(uniform(2.0, 1.0, DType::Float32), "greater high");
    refused(uniform(1.0, 1.001, DType::BFloat16), "greater high");
    refused(uniform(0.0, f64::INFINITY, DType::Float32), "finite");
    refused(uniform(-3e38, 3e38, DType::Float32), "finite");
    refused(uniform(0.0, 1.0, DType::Int32), "floats");
    let gaussian = |std: f64| run(|| ops::random_gaussian(floats(&[9]), 0i64, std, Operand::from(1i64)));
    refused(gaussian(0.0), "positive std");
    refused(gaussian(-1.0), "positive std");
    refused(gaussian(f64::NAN), "positive std");
}

/// Every value between the ends is reached about equally often, and the upper end never.
#[test]
fn uniform_numbers_are_half_open_after_rounding() {
    let like = TensorType::new(DType::BFloat16, [200_000], CPU);
    let x = run(|| ops::random_uniform(like, 1.0, 1.0625, Operand::from(3i64))).unwrap();
    let mut counts = [0; 8];
    for x in x.elements::<bf16>().unwrap().iter() {
        let step = (x.to_f64() - 1.0) * 128.0;
        assert!((0.0..8.0).contains(&step), "{x}");
        counts[step as usize] += 1;
    }
    assert!(counts.iter().all(|&count| (24_000..26_000).contains(&count)), "{counts:?}");
    let like = floats(&[2_000_000]);
    let x = run(|| ops::random_uniform(like, 1.0, 2.0, Operand::from(3i64))).unwrap();
    assert!(x.elements::<f32>().unwrap().iter().all(|x| (1.0..2.0).contains(x)));
}

#[test]
fn a_range_wider_than_its_dtype_is_an_error() {
    for (dtype, end) in [(DType::Float64, f64::MAX), (DType::Float32, f32::MAX.into())] {
        let ty = TensorType::new(dtype, [2], DeviceRef::CPU);
        let error = run(|| ops::random_uniform(ty, -end, end, Some(1i64.into()))).unwrap_err();
        assert!(error.to_string().contains("finite range"), "{error}");
    }
}
