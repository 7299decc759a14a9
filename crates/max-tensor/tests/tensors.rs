//! When tensors are computed, and what happens when they are not.

use max_core::{DType, DeviceRef, Dim, ErrorKind, Result, TensorType};
use max_graph::ops::slice::{Bound, Index};
use max_graph::{Graph, HostTensor, Operand, ops};
use max_tensor::{Defaults, Region, RegionKind, Tensor, functional, functions as F, lazy};

fn x() -> Tensor {
    Tensor::from([1.0f32, -2.0, 3.0])
}

/// A tensor that fails when it is computed, and so when it is read.
fn doomed() -> Result<Tensor> {
    F::gather(x(), Tensor::from([7i64]), 0)
}

#[test]
fn a_bare_op_has_run() {
    let y = F::relu(x()).unwrap();
    assert!(y.is_real());
    assert_eq!(y.to_vec::<f32>().unwrap(), [1.0, 0.0, 3.0]);
    assert_eq!(doomed().unwrap_err().kind(), ErrorKind::Index);
}

#[test]
fn a_region_runs_at_its_end() {
    let kept = functional(|| {
        let a = F::relu(x())?;
        assert!(!a.is_real());
        let b = (&a + 1.0)?;
        let c = functional(|| &b * 2.0)?;
        assert!(!c.is_real(), "a region inside another one joins it");
        Ok((a, c))
    });
    let (a, c) = kept.unwrap();
    assert!(a.is_real() && c.is_real());
    assert_eq!(a.to_vec::<f32>().unwrap(), [1.0, 0.0, 3.0]);
    assert_eq!(c.to_vec::<f32>().unwrap(), [4.0, 2.0, 8.0]);
}

#[test]
fn reading_in_a_region_computes_what_is_read() {
    functional(|| {
        let (a, b) = (F::relu(x())?, F::exp(x())?);
        let c = (&a * 2.0)?;
        assert_eq!(c.to_vec::<f32>()?, [2.0, 0.0, 6.0]);
        assert!(a.is_real(), "it was computed on the way and is held");
        assert!(!b.is_real());
        let d = (&c + &b)?;
        assert!(!d.is_real());
        Ok(d)
    })
    .unwrap();
}

#[test]
fn operands_that_change_places_are_other_programs() {
    for _ in 0..2 {
        let difference = functional(|| x() - 1.0f64).unwrap();
        assert_eq!(difference.to_vec::<f32>().unwrap(), [0.0, -3.0, 2.0]);
        let difference = functional(|| 1.0f64 - x()).unwrap();
        assert_eq!(difference.to_vec::<f32>().unwrap(), [0.0, 3.0, -2.0]);
    }
}

#[test]
fn arrays_share_sizes_with_what_stands_before_them() {
    for size in [7, 5, 9] {
        let array = HostTensor::from_vec([size], vec![1.0f32; size]).unwrap();
        let (five, other) = functional(|| Ok((Tensor::full([5], 2.0)?, F::negate(array)?))).unwrap();
        assert_eq!(five.to_vec::<f32>().unwrap(), [2.0; 5]);
        assert_eq!(other.to_vec::<f32>().unwrap(), vec![-1.0; size]);
    }
}

/// What was seen before decides what is compiled, but never what the result is.
#[test]
fn what_ran_before_changes_no_bit() {
    let of_number = |x: f64| F::cos(x).unwrap().to_vec::<f32>().unwrap();
    let first = of_number(-1.048);
    of_number(0.5);
    assert_eq!(of_number(-1.048), first);
    let of_size = |size: i64| {
        let x = Tensor::ones([size]).unwrap();
        functional(|| &x * F::sin(Tensor::arange(size)?)?).unwrap().to_vec::<f32>().unwrap()
    };
    let first = of_size(100);
    of_size(101);
    assert_eq!(of_size(100), first);
    let x = F::sin(Tensor::arange(64).unwrap()).unwrap().reshape([2, 4, 8]).unwrap();
    let attention = |scale: f64| {
        let scores = || F::matmul(&x, F::transpose(&x, -1, -2)?)? * scale;
        functional(|| F::matmul(F::softmax(scores()?, -1)?, &x)).unwrap().to_vec::<f32>().unwrap()
    };
    let first = attention(0.25);
    attention(0.5);
    assert_eq!(attention(0.25), first);
    let x = x.cast(DType::BFloat16).unwrap();
    let norm = |epsilon: f64| {
        let root = || F::rsqrt((F::mean((&x * &x)?, -1)? + epsilon)?);
        functional(|| F::cast((&x * root()?)?, DType::Float32)).unwrap().to_vec::<f32>().unwrap()
    };
    let first = norm(1e-3);
    norm(1e-2);
    assert_eq!(norm(1e-3), first);
}

#[test]
fn what_is_only_moved_is_not_kept_on_the_way() {
    let (huge, corner) = lazy(|| -> Result<_> {
        let huge = Tensor::zeros([1i64 << 40, 1 << 10])?;
        let corner = (huge.slice((..2, ..2))? + 1.0)?;
        Ok((huge, corner))
    })
    .unwrap();
    assert_eq!(corner.to_vec::<f32>().unwrap(), [1.0; 4]);
    assert!(!huge.is_real());
    let parts = lazy(|| F::split(x(), [1, 2], 0)).unwrap();
    parts[0].realize().unwrap();
    assert!(!parts[1].is_real());
}

#[test]
fn what_nobody_holds_is_never_computed() {
    functional(|| {
        drop(doomed()?);
        F::relu(x())
    })
    .unwrap();
}

#[test]
fn lazy_tensors_wait_for_a_reader() {
    let (y, never) = lazy(|| (F::relu(x()).unwrap(), doomed().unwrap()));
    assert!(!y.is_real() && !never.is_real());
    let z = F::exp(&y).unwrap();
    assert!(y.is_real() && z.is_real(), "a bare op computes what it reads");
    assert_eq!(never.realize().unwrap_err().kind(), ErrorKind::Index);
    assert_eq!(never.to_vec::<f32>().unwrap_err().kind(), ErrorKind::Index);
}

#[test]
fn errors_break_nothing() {
    let (a, b) = (x(), Tensor::from([1.0f32, 2.0]));
    let region = Region::new(RegionKind::Eager);
    let entered = region.enter();
    let good = (&a * 3.0).unwrap();
    let error = (&a + &b).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Value);
    let text = error.to_string();
    assert!(text.contains("[3]") && text.contains("[2]") && text.contains("float32"), "{text}");
    let bad = doomed().unwrap();
    drop(entered);
    assert_eq!(region.realize_all().unwrap_err().kind(), ErrorKind::Index);
    assert!(!bad.is_real());
    assert_eq!(good.to_vec::<f32>().unwrap(), [3.0, -6.0, 9.0]);
    assert_eq!(region.pending().len(), 1);
    drop(bad);
    region.realize_all().unwrap();
    assert_eq!(functional(|| doomed().map(|_| ())), Ok(()));
    assert_eq!(F::relu(&a).unwrap().to_vec::<f32>().unwrap(), [1.0, 0.0, 3.0]);
}

#[test]
fn what_is_recorded_while_a_region_is_computed_stays_in_it() {
    let region = Region::new(RegionKind::Eager);
    let record = || region.record(|| Ok(vec![ops::exp(Operand::from(&x()))?.into()]));
    let (first, meanwhile) = (record().unwrap(), std::cell::RefCell::new(Vec::new()));
    region.realize_all_until(&|| record().map(|tensors| meanwhile.borrow_mut().extend(tensors))).unwrap();
    assert!(first[0].is_real() && !meanwhile.borrow()[0].is_real());
    region.realize_all().unwrap();
    assert!(meanwhile.borrow()[0].is_real());
}

#[test]
fn a_region_that_fails_computes_nothing() {
    let mut made = None;
    let failed: Result<()> = functional(|| {
        made = Some(F::relu(x())?);
        Err(max_core::Error::value("enough"))
    });
    assert!(failed.is_err());
    let made = made.unwrap();
    assert!(!made.is_real());
    assert_eq!(made.to_vec::<f32>().unwrap(), [1.0, 0.0, 3.0]);
}

#[test]
fn many_ops_in_a_row_wait_in_parts() {
    let sum = lazy(|| -> Result<Tensor> {
        let mut sum = Tensor::from([0.0f32]);
        for _ in 0..20_000 {
            sum = (&sum + 1.0)?;
        }
        Ok(sum)
    });
    assert_eq!(sum.unwrap().to_vec::<f32>().unwrap(), [20_000.0]);
}

#[test]
fn several_results_of_one_op() {
    let parts = functional(|| F::split(Tensor::from([1i32, 2, 3, 4]), [1, 3], 0)).unwrap();
    assert_eq!(parts[0].to_vec::<i32>().unwrap(), [1]);
    assert_eq!(parts[1].to_vec::<i32>().unwrap(), [2, 3, 4]);
    let parts = lazy(|| F::split(F::relu(Tensor::from([1i32, 2, 3, 4]))?, [1, 3], 0)).unwrap();
    parts[0].realize().unwrap();
    assert!(parts[1].is_real(), "it was computed on the way and is held");
}

#[test]
fn an_op_that_gives_its_operand_gives_the_tensor() {
    let a = x();
    assert_eq!(F::cast(&a, DType::Float32).unwrap().to_vec::<f32>().unwrap(), [1.0, -2.0, 3.0]);
    let b = lazy(|| F::cast(&a, DType::Float32)).unwrap();
    assert!(b.is_real());
}

#[test]
fn sizes_that_depend_on_data_are_known_at_once() {
    let n = Tensor::from([2i64]).reshape(()).unwrap();
    let cut = |x: &Tensor| {
        let region = Region::new(RegionKind::Lazy);
        region.record(|| {
            let (x, n) = (Operand::from(x).tensor()?, Operand::from(&n).tensor()?);
            let stop = max_graph::ops::slice::Bound::Tensor(n);
            let start = max_graph::ops::slice::Bound::Natural;
            let index =
                max_graph::ops::slice::Index::Slice { start, stop, step: 1, out_dim: Some("n".into()) };
            Ok(vec![ops::slice_tensor(x, vec![index])?.into()])
        })
    };
    let y = cut(&x()).unwrap().pop().unwrap();
    assert!(y.is_real());
    assert_eq!(y.shape().to_string(), "[2]");
}

#[test]
fn symbols_may_have_any_name() {
    for size in [3, 4, 5] {
        let x = Tensor::ones([size]).unwrap();
        let (stop, out_dim) = (Bound::Dim(2.into()), Some(Dim::symbolic("_size0").unwrap()));
        let slice = Index::Slice { start: Bound::Natural, stop, step: 1, out_dim };
        assert_eq!(x.slice(vec![slice]).unwrap().to_vec::<f32>().unwrap(), [1.0; 2]);
    }
}

#[test]
fn tensors_in_graphs_are_constants_and_values() {
    let (a, ty) = (x(), TensorType::new(DType::Float32, ["n"], DeviceRef::CPU));
    let mut kept = None;
    let graph = Graph::build("g", [ty], |inputs| {
        let input = Tensor::from_value(inputs[0].tensor()?);
        assert!(!input.is_real() && input.realize().is_err());
        let y = F::relu(&input)?;
        assert!(y.value().is_some());
        assert!(functional(|| F::relu(&input))?.value().is_some());
        kept = Some(y.clone());
        let rebound = ops::rebind(&y, [3], String::new())?;
        ops::add(rebound, &a)
    })
    .unwrap();
    assert_eq!(graph.output_types().unwrap()[0].to_string(), "float32[3]");
    let error = F::relu(kept.unwrap()).unwrap_err();
    assert!(error.to_string().contains("outside of that graph"), "{error}");
}

#[test]
fn threads_share_pending_tensors() {
    let shared = lazy(|| -> Result<Vec<Tensor>> {
        let mut sums = vec![x()];
        for i in 0..40 {
            sums.push((&sums[i] + 1.0)?);
        }
        Ok(sums)
    })
    .unwrap();
    let read = || shared.iter().rev().map(|sum| sum.to_vec::<f32>().unwrap()[0]).collect::<Vec<_>>();
    let results = std::thread::scope(|scope| [0, 1, 2].map(|_| scope.spawn(read)).map(|t| t.join().unwrap()));
    let expected: Vec<f32> = (0..=40).rev().map(|i| 1.0 + i as f32).collect();
    assert!(results.iter().all(|result| *result == expected));
}

#[test]
fn defaults_and_constructors() {
    assert_eq!(
        Tensor::ones([2]).unwrap().to_string(),
        "Tensor([1. 1.], shape=[2], dtype=float32, device=cpu:0)"
    );
    assert_eq!(Tensor::full((2, 1), 2.5).unwrap().to_vec::<f32>().unwrap(), [2.5, 2.5]);
    let ints = Defaults { dtype: Some(DType::Int32), ..Defaults::default() };
    let (zeros, fails) = ints.during(|| (Tensor::zeros([3]).unwrap(), Tensor::full([3], 1.5)));
    assert_eq!(zeros.to_vec::<i32>().unwrap(), [0; 3]);
    assert!(fails.unwrap_err().to_string().contains("Unsafe cast"));
    assert_eq!(Tensor::zeros([0, 3]).unwrap().num_elements().unwrap(), 0);
}

#[test]
fn operators_and_methods() {
    let a = Tensor::from_buffer(max_driver::Buffer::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2]).unwrap());
    let b = ((2.0f64 - &a) * &a).unwrap();
    assert_eq!(b.to_vec::<f32>().unwrap(), [1.0, 0.0, -3.0, -8.0]);
    assert_eq!(a.matmul(a.T()).unwrap().to_vec::<f32>().unwrap(), [5.0, 11.0, 11.0, 25.0]);
    assert_eq!(a.slice((1, ..)).unwrap().to_vec::<f32>().unwrap(), [3.0, 4.0]);
    assert_eq!(a.sum(-1).unwrap().to_vec::<f32>().unwrap(), [3.0, 7.0]);
    assert_eq!(a.clip(Some(2.0), Some(3.0)).unwrap().to_vec::<f32>().unwrap(), [2.0, 2.0, 3.0, 3.0]);
    assert_eq!(a.max(0).unwrap().reshape([2]).unwrap().to_vec::<f32>().unwrap(), [3.0, 4.0]);
    assert_eq!(
        (-&a).unwrap().sum(0).unwrap().sum(1).unwrap().item().unwrap(),
        max_core::Number::Float(-10.0)
    );
    assert!(a.item().unwrap_err().to_string().contains("expected only 1"));
    let elided = Tensor::zeros([2000]).unwrap().to_string();
    assert!(elided.contains("...") && elided.len() < 120, "{elided}");
}

/// How many models are compiled for ops on tensors of many sizes.
fn compiled(ops: impl Fn(&Tensor) -> Result<Tensor>) -> u64 {
    let before = max_tensor::cache_stats().misses;
    for size in 20..100 {
        let x = max_driver::Buffer::zeros(DType::Float32, &[size, 6], &max_driver::CPU()).unwrap();
        ops(&Tensor::from_buffer(x)).unwrap();
    }
    max_tensor::cache_stats().misses - before
}

#[test]
fn sizes_that_follow_from_others_vary_with_them() {
    let settles = |name: &str, ops: &dyn Fn(&Tensor) -> Result<Tensor>| {
        let misses = compiled(ops);
        // Other tests of this process compile meanwhile, but not nearly as much as eighty sizes would need.
        assert!(misses < 60, "{name} compiled {misses} times");
    };
    settles("the rest of an axis", &|x| x.slice((1.., ..)));
    settles("the last of an axis", &|x| x.slice((-1, ..)));
    settles("all but the last", &|x| x.slice((..-1, ..)));
    settles("a flat tensor", &|x| x.flatten(0, -1));
    settles("a flat tensor in a region", &|x| functional(|| (x.flatten(0, -1)? + 1.0)?.slice(2..)));
    settles("a row repeated", &|x| {
        functional(|| x.flatten(0, -1)?.broadcast_to((3, x.num_elements()? as i64)))
    });
}
