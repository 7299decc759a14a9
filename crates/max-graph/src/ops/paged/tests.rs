use max_core::{BufferType, DeviceRef, Shape};

use super::*;
use crate::text::{Constants, parse, print};
use crate::{Graph, interpret};

fn numbers(shape: &[usize], seed: usize) -> HostTensor {
    let draw = |i: usize| ((i * 7919 + seed * 104_729) % 613) as f32 / 200.0 - 1.5;
    HostTensor::from_vec(shape, (0..shape.iter().product()).map(draw).collect::<Vec<f32>>()).unwrap()
}

fn ints(shape: &[usize], values: &[i64]) -> HostTensor {
    HostTensor::from_vec(shape, values.to_vec()).unwrap()
}

/// Stores keys and values and attends.
fn graph(cache: &[i64], queries: (i64, i64), keys: (i64, i64)) -> Result<Graph> {
    let floats = |(heads, depth): (i64, i64)| {
        Type::from(TensorType::new(DType::Float32, ("tokens", heads, depth), DeviceRef::CPU))
    };
    let integers = |shape: Shape| Type::from(TensorType::new(DType::Int64, shape, DeviceRef::CPU));
    let cache = Shape::from(cache.iter().map(|&size| Dim::Static(size)).collect::<Vec<_>>());
    let types = [
        BufferType::new(DType::Float32, cache, DeviceRef::CPU).into(),
        floats(queries),
        floats(keys),
        integers((3,).into()),
        integers((2,).into()),
        integers((2, 2).into()),
    ];
    let graph = Graph::new("g", types)?;
    {
        let _scope = graph.enter();
        let cache = graph.inputs()[0].buffer()?;
        let (q, k, starts) = (graph.input(1)?, graph.input(2)?, graph.input(3)?);
        let (lengths, table) = (graph.input(4)?, graph.input(5)?);
        paged_store(&cache, &k, &starts, &lengths, &table, 0, 0)?;
        paged_store(&cache, &k, &starts, &lengths, &table, 0, 1)?;
        let all = paged_attention(&q, &cache, &starts, &lengths, &table, 0, 0.5, true, -1, 0.0)?;
        graph.output([all, ragged_positions(q, starts, lengths)?])?;
    }
    Ok(graph)
}

#[test]
fn sequences_in_pages_are_like_sequences_in_a_row() {
    let (heads, key_heads, depth, counts) = (4, 2, 2, [6, 3]);
    let built = graph(&[5, 2, 1, 4, 2, 2], (4, 2), (2, 2)).unwrap();
    let text = print(&built.body(), Constants::Full);
    assert_eq!(print(&parse(&text).unwrap(), Constants::Full), text);
    let (q, k) = (numbers(&[9, heads, depth], 1), numbers(&[9, key_heads, depth], 2));
    let cache = numbers(&[5, 2, 1, 4, 2, 2], 3);
    let tables = [ints(&[3], &[0, 6, 9]), ints(&[2], &[0, 0]), ints(&[2, 2], &[4, 0, 2, -1])];
    let [starts, lengths, table] = tables;
    let found =
        interpret(&built.body(), &[cache, q.clone(), k.clone(), starts, lengths, table], &()).unwrap();
    assert_eq!(found[1].elements::<i64>().unwrap().to_vec(), [0, 1, 2, 3, 4, 5, 0, 1, 2]);
    let found = found[0].elements::<f32>().unwrap();
    let (q, k) = (q.elements::<f32>().unwrap(), k.elements::<f32>().unwrap());
    let mut first = 0;
    for count in counts {
        let row = |x: &[f32], heads: usize| x[first * heads * depth..][..count * heads * depth].to_vec();
        let one = |heads: usize| TensorType::new(DType::Float32, (1, count, heads, depth), DeviceRef::CPU);
        let dense = Graph::build("d", [one(heads), one(key_heads)], |x| {
            ops::flash_attention(&x[0], &x[1], &x[1], ops::MaskVariant::Causal, 0.5, -1, None)
        })
        .unwrap();
        let given = [(&q, heads), (&k, key_heads)]
            .map(|(x, heads)| HostTensor::from_vec([1, count, heads, depth], row(x, heads)).unwrap());
        let expected = interpret(&dense.body(), &given, &()).unwrap();
        let expected = expected[0].elements::<f32>().unwrap();
        let found = &found[first * heads * depth..][..expected.len()];
        let close = found.iter().zip(expected.iter()).all(|(a, b)| (a - b).abs() < 1e-5);
        assert!(close, "{found:?} {expected:?}");
        first += count;
    }
}

#[test]
fn wrong_caches_are_errors() {
    let message = |cache: &[i64], queries, keys| graph(cache, queries, keys).unwrap_err().to_string();
    assert!(message(&[5, 2, 4, 2, 2], (4, 2), (2, 2)).contains("a cache has the shape"));
    assert!(message(&[5, 2, 1, 4, 2, 3], (4, 2), (2, 2)).contains("heads with 3 elements"));
    assert!(message(&[5, 2, 1, 4, 2, 2], (3, 2), (2, 2)).contains("3 heads do not share 2 heads"));
    assert!(message(&[5, 2, 1, 4, 0, 2], (3, 2), (0, 2)).contains("do not share 0 heads"));
    assert!(message(&[5, 1, 1, 4, 2, 2], (4, 2), (2, 2)).contains("has no part 1"));
}
