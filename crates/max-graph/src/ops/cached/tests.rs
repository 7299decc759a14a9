use max_core::{BufferType, DeviceRef, Shape, TensorType, Type};

use super::*;
use crate::host::HostTensor;
use crate::{Graph, Value, interpret};

const CACHE: [i64; 6] = [5, 2, 1, 4, 2, 4];

fn numbers(shape: &[usize], seed: usize) -> HostTensor {
    let draw = |i: usize| ((i * 7919 + seed * 104_729) % 613) as f32 / 200.0 - 1.5;
    HostTensor::from_vec(shape, (0..shape.iter().product()).map(draw).collect::<Vec<f32>>()).unwrap()
}

/// Runs a function of a cache and tensors.
fn run(
    tensors: &[HostTensor],
    build: impl Fn(&BufferValue, &[Value]) -> Result<Vec<TensorValue>>,
) -> Result<Vec<Vec<f32>>> {
    let cache = Shape::from(CACHE.map(Dim::Static).to_vec());
    let types = tensors.iter().map(|x| {
        let shape = x.shape().iter().map(|&size| Dim::Static(size as i64)).collect::<Shape>();
        Type::from(TensorType::new(x.dtype(), shape, DeviceRef::CPU))
    });
    let cache = Type::from(BufferType::new(DType::Float32, cache, DeviceRef::CPU));
    let graph = Graph::new("g", [cache].into_iter().chain(types))?;
    {
        let _scope = graph.enter();
        let inputs = graph.inputs();
        graph.output(build(&inputs[0].buffer()?, &inputs[1..])?)?;
    }
    let sizes: Vec<usize> = CACHE.iter().map(|&size| size as usize).collect();
    let given: Vec<_> = [numbers(&sizes, 9)].into_iter().chain(tensors.iter().cloned()).collect();
    let results = interpret(&graph.body(), &given, &())?;
    results.iter().map(|x| Ok(x.elements::<f32>()?.to_vec())).collect()
}

fn layer(cache: &BufferValue, starts: &[i64], lengths: &[i64]) -> Result<CacheLayer> {
    let ints = |shape: &[usize], x: &[i64]| HostTensor::from_vec(shape, x.to_vec());
    let pages = ints(&[2, 2], &[4, 0, 2, 9])?;
    CacheLayer::new(cache, ints(&[starts.len()], starts)?, ints(&[lengths.len()], lengths)?, pages, 0)
}

fn assert_close(found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len());
    let close = found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 2e-5);
    assert!(close, "{found:?} {expected:?}");
}

/// Queries, keys and values of five tokens, and a table of angles.
fn tensors() -> [HostTensor; 4] {
    [numbers(&[5, 16], 1), numbers(&[5, 8], 2), numbers(&[5, 8], 3), numbers(&[8, 4], 4)]
}

#[test]
fn what_is_stored_first_and_changed_there_is_the_same() {
    let found = run(&tensors(), |cache, x| {
        let place = || layer(cache, &[0, 4, 5], &[0, 0]);
        let at_once = cached_self_attention(
            &x[0],
            &x[1],
            &x[2],
            place()?,
            0.5,
            Operand::from(&x[3]),
            true,
            MaskVariant::Causal,
            -1,
        )?;
        let queries = cache_qkv(ops::concat([&x[0], &x[1], &x[2]], 1)?, place()?, 4)?;
        let queries = ops::reshape(queries, vec![Dim::Static(5), Dim::Static(4), Dim::Static(4)])?;
        let turned = cache_rope(queries, place()?, &x[3], true, None, vec![])?;
        let flat = ops::reshape(turned, vec![Dim::Static(5), Dim::Static(16)])?;
        let seen = |window| {
            cached_attention(&flat, place()?, MaskVariant::SlidingWindowCausal, 0.5, window, None, None)
        };
        let dense = cached_attention(&flat, place()?, MaskVariant::ChunkedCausal, 0.5, 8, None, None)?;
        Ok(vec![at_once, seen(8)?, dense])
    });
    let found = found.unwrap();
    assert_close(&found[1], &found[0]);
    assert_close(&found[2], &found[0]);
}

#[test]
fn what_is_added_and_normalized_is_only_what_is_new() {
    let [_, k, v, _] = tensors();
    let found = run(&[k.clone(), v.clone(), numbers(&[1, 16], 5)], |cache, x| {
        cache_kv(ops::concat([&x[0], &x[1]], 1)?, layer(cache, &[0, 4, 5], &[0, 0])?, 2)?;
        let before = ops::buffer_load(cache)?;
        cache_add(&x[2], layer(cache, &[0, 4, 5], &[0, 0])?, 1)?;
        let place = layer(cache, &[0, 0, 1], &[4, 0])?;
        cache_key_norm(
            place,
            HostTensor::from_vec([4], vec![2.0f32; 4])?,
            0.0,
            Dim::Static(1),
            0.0,
            true,
            true,
        )?;
        Ok(vec![before, ops::buffer_load(cache)?])
    })
    .unwrap();
    let (k, v, more) = (k.elements::<f32>().unwrap(), v.elements::<f32>().unwrap(), numbers(&[1, 16], 5));
    let more = more.elements::<f32>().unwrap();
    let mut expected = found[0].clone();
    // The first token of page 2 is that of the second sequence.
    let (keys, values) = (2 * 64, 2 * 64 + 32);
    for head in 0..2 {
        let sum = |i: usize| k[32 + head * 4 + i] + more[head * 4 + i];
        let mean = (0..4).map(|i| sum(i) * sum(i)).sum::<f32>() / 4.0;
        for i in 0..4 {
            expected[keys + head * 4 + i] = sum(i) / mean.sqrt() * 2.0;
            expected[values + head * 4 + i] = v[32 + head * 4 + i] + more[8 + head * 4 + i];
        }
    }
    assert_close(&found[1], &expected);
}

#[test]
fn wrong_sizes_are_errors() {
    let message = |build: &dyn Fn(&CacheLayer, &[Value]) -> Result<TensorValue>| {
        let built = run(&tensors(), |cache, x| {
            let place = layer(cache, &[0, 4, 5], &[0, 0])?;
            Ok(vec![build(&place, x)?])
        });
        built.unwrap_err().to_string()
    };
    let text = message(&|place, x| cache_qkv(&x[0], place.clone(), 4));
    assert!(
        text.contains("queries of 4 heads with keys and values of 2 heads of 4 elements are [tokens, 32]"),
        "{text}"
    );
    let text = message(&|place, x| {
        cached_attention(&x[1], place.clone(), MaskVariant::ChunkedCausal, 1.0, 0, None, None)
    });
    assert!(text.contains("needs a positive window; got 0"), "{text}");
    let text = message(&|place, x| {
        cached_attention(&x[0], place.clone(), MaskVariant::Causal, 1.0, -1, Operand::from(&x[1]), None)
    });
    assert!(text.contains("a sink for each of 4 heads"), "{text}");
    let text = message(&|place, x| {
        let queries = ops::reshape(&x[0], vec![Dim::Static(5), Dim::Static(4), Dim::Static(4)])?;
        cache_rope(queries, place.clone(), &x[0], true, None, vec![])
    });
    assert!(text.contains("for 16 elements is too wide for heads of 4 elements"), "{text}");
    let wrong = run(&tensors(), |cache, x| {
        let place = layer(cache, &[0, 5], &[0, 0])?;
        Ok(vec![cache_qkv(&x[0], place, 4)?])
    });
    assert!(wrong.unwrap_err().to_string().contains("2 sequences of a cache have 3 row offsets"));
}

#[test]
fn a_token_beyond_its_pages_is_an_error() {
    let wrong = run(&tensors(), |cache, _| {
        let place = layer(cache, &[0, 4, 5], &[5, 0])?;
        Ok(vec![place.rows(&Dim::Static(5), 0)?])
    });
    assert!(wrong.unwrap_err().to_string().contains("out of range"));
}
