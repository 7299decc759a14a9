use max_core::{DType, DeviceRef, Dim, Shape, TensorType};

use super::*;
use crate::{Graph, interpret};

const DEPTH: usize = 4;

fn numbers(shape: &[usize], seed: usize) -> HostTensor {
    let draw = |i: usize| ((i * 7919 + seed * 104729) % 613) as f32 / 200.0 - 1.5;
    HostTensor::from_vec(shape, (0..shape.iter().product()).map(draw).collect::<Vec<f32>>()).unwrap()
}

fn type_of(x: &HostTensor) -> TensorType {
    let dims: Vec<Dim> = x.shape().iter().map(|&size| Dim::Static(size as i64)).collect();
    TensorType::new(x.dtype(), Shape::from(dims), DeviceRef::CPU)
}

fn run(
    inputs: &[HostTensor],
    types: &[TensorType],
    build: impl Fn(&[TensorValue]) -> Result<TensorValue>,
) -> Result<Vec<f32>> {
    let graph = Graph::build("g", types.to_vec(), |x| {
        build(&x.iter().map(|x| x.tensor().unwrap()).collect::<Vec<_>>())
    })?;
    Ok(interpret(&graph.body(), inputs, &())?[0].elements::<f32>()?.to_vec())
}

/// The bias of a score if a query sees a key, by sequence, head, query and key.
type Sees<'a> = dyn Fn([usize; 4]) -> Option<f64> + 'a;

/// Attention of `[batch, tokens, heads, depth]`; queries that see nothing give zeros.
fn expected([q, k, v]: [&HostTensor; 3], scale: f64, sees: &Sees) -> Vec<f32> {
    let ([batch, tokens, heads, _], [_, keys, key_heads, _]) = (q.shape(), k.shape()) else { panic!() };
    let [q, k, v] = [q, k, v].map(|x| x.elements::<f32>().unwrap());
    let mut results = Vec::new();
    for b in 0..*batch {
        for i in 0..*tokens {
            for h in 0..*heads {
                let row = |x: &[f32], at: usize| x[at * DEPTH..][..DEPTH].to_vec();
                let own = row(&q, (b * tokens + i) * heads + h);
                let at = |j: usize| (b * keys + j) * key_heads + h / (heads / key_heads);
                let weight = |j: usize| {
                    let dot: f64 = own.iter().zip(row(&k, at(j))).map(|(a, b)| f64::from(a * b)).sum();
                    sees([b, h, i, j]).map_or(0.0, |bias| (dot * scale + bias).exp())
                };
                let weights: Vec<f64> = (0..*keys).map(weight).collect();
                let sum = weights.iter().sum::<f64>().max(f64::MIN_POSITIVE);
                results.extend((0..DEPTH).map(|c| {
                    (0..*keys).map(|j| weights[j] / sum * f64::from(row(&v, at(j))[c])).sum::<f64>() as f32
                }));
            }
        }
    }
    results
}

fn assert_close(actual: &[f32], expected: &[f32], what: &str) {
    assert_eq!(actual.len(), expected.len(), "{what}");
    let close = actual.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-5);
    assert!(close, "{what}: {actual:?} {expected:?}");
}

const MASKS: [(MaskVariant, i64); 6] = [
    (MaskVariant::Null, -1),
    (MaskVariant::Causal, -1),
    (MaskVariant::CausalAlibi, -1),
    (MaskVariant::ChunkedCausal, 3),
    (MaskVariant::SlidingWindowCausal, 2),
    (MaskVariant::SlidingWindowCausal, 100),
];

/// What a mask gives for a head and the positions of query and key.
fn seen(mask: MaskVariant, window: i64, slopes: &[f64], [head, i, j]: [usize; 3]) -> Option<f64> {
    let window = window as usize;
    let shown = match mask {
        MaskVariant::Null => true,
        MaskVariant::Causal | MaskVariant::CausalAlibi => j <= i,
        MaskVariant::ChunkedCausal => j <= i && i / window == j / window,
        MaskVariant::SlidingWindowCausal => j <= i && i - j < window,
    };
    let bias = if mask == MaskVariant::CausalAlibi { -slopes[head] * (i as f64 - j as f64) } else { 0.0 };
    shown.then_some(bias)
}

/// The slopes of six heads.
const SLOPES: [f64; 6] = [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125];

#[test]
fn masks_are_those_of_their_definition() {
    for key_heads in [6, 2, 1] {
        let inputs =
            [numbers(&[2, 7, 6, 4], 1), numbers(&[2, 7, key_heads, 4], 2), numbers(&[2, 7, key_heads, 4], 3)];
        let types = inputs.each_ref().map(type_of);
        for (mask, window) in MASKS {
            let actual =
                run(&inputs, &types, |x| flash_attention(&x[0], &x[1], &x[2], mask, 0.5, window, None))
                    .unwrap();
            let sees = |[_, h, i, j]: [usize; 4]| seen(mask, window, &SLOPES, [h, i, j]);
            assert_close(&actual, &expected(inputs.each_ref(), 0.5, &sees), &format!("{mask:?} {key_heads}"));
        }
    }
}

#[test]
fn tokens_after_the_end_do_not_count() {
    let lengths = [0u32, 3, 5, 9];
    let mut inputs = vec![numbers(&[4, 5, 6, 4], 1), numbers(&[4, 5, 3, 4], 2), numbers(&[4, 5, 3, 4], 3)];
    let whole = inputs.clone();
    // What is after the end may be anything.
    for x in &mut inputs[1..] {
        let mut elements = x.elements::<f32>().unwrap().to_vec();
        for (at, element) in elements.iter_mut().enumerate() {
            let (sequence, token) = (at / 60, at / 12 % 5);
            if token >= lengths[sequence] as usize {
                *element = f32::NAN;
            }
        }
        *x = HostTensor::from_vec([4, 5, 3, 4], elements).unwrap();
    }
    inputs.push(HostTensor::from_vec([4], lengths.to_vec()).unwrap());
    let types: Vec<TensorType> = inputs.iter().map(type_of).collect();
    for (mask, window) in MASKS {
        let actual = run(&inputs, &types, |x| {
            flash_attention(&x[0], &x[1], &x[2], mask, 0.5, window, Operand::from(&x[3]))
        })
        .unwrap();
        let sees = |[b, h, i, j]: [usize; 4]| {
            let inside = i.max(j) < lengths[b] as usize;
            seen(mask, window, &SLOPES, [h, i, j]).filter(|_| inside)
        };
        let whole = [&whole[0], &whole[1], &whole[2]];
        assert_close(&actual, &expected(whole, 0.5, &sees), &format!("{mask:?}"));
    }
}

#[test]
fn sequences_one_after_the_other_do_not_see_each_other() {
    // An empty one, and two tokens that are in none.
    let offsets = [0u32, 4, 4, 5, 10];
    let inputs = [numbers(&[12, 6, 4], 1), numbers(&[12, 2, 4], 2), numbers(&[12, 2, 4], 3)];
    let whole = inputs.each_ref().map(|x| x.reshaped([&[1], x.shape()].concat()).unwrap());
    let rows = HostTensor::from_vec([5], offsets.to_vec()).unwrap();
    let inputs: Vec<HostTensor> = inputs.into_iter().chain([rows]).collect();
    let types: Vec<TensorType> = inputs.iter().map(type_of).collect();
    for (mask, window) in MASKS {
        let actual =
            run(&inputs, &types, |x| ragged_flash_attention(&x[0], &x[1], &x[2], &x[3], mask, 0.5, window))
                .unwrap();
        let place = |row: usize| {
            let sequence = offsets.windows(2).position(|pair| (pair[0]..pair[1]).contains(&(row as u32)))?;
            Some((sequence, row - offsets[sequence] as usize))
        };
        let sees = |[_, h, i, j]: [usize; 4]| match (place(i), place(j)) {
            (Some((a, i)), Some((b, j))) if a == b => seen(mask, window, &SLOPES, [h, i, j]),
            _ => None,
        };
        assert_close(&actual, &expected(whole.each_ref(), 0.5, &sees), &format!("{mask:?}"));
    }
}

#[test]
fn sizes_may_be_symbols_and_zero() {
    let ty = |heads: i64| {
        TensorType::new(DType::Float32, [Dim::from("b"), "s".into(), heads.into(), 4.into()], DeviceRef::CPU)
    };
    for (mask, window) in MASKS {
        for [batch, tokens] in [[0, 3], [1, 0], [1, 1], [2, 5]] {
            let inputs = [6, 2, 2].map(|heads| numbers(&[batch, tokens, heads, 4], heads));
            let actual = run(&inputs, &[ty(6), ty(2), ty(2)], |x| {
                flash_attention(&x[0], &x[1], &x[2], mask, 1.0, window, None)
            });
            let sees = |[_, h, i, j]: [usize; 4]| seen(mask, window, &SLOPES, [h, i, j]);
            assert_close(&actual.unwrap(), &expected(inputs.each_ref(), 1.0, &sees), &format!("{mask:?}"));
        }
    }
}

#[test]
fn there_may_be_other_keys_than_queries_without_a_mask() {
    let inputs = [numbers(&[1, 2, 2, 4], 1), numbers(&[1, 5, 2, 4], 2), numbers(&[1, 5, 2, 4], 3)];
    let types = inputs.each_ref().map(type_of);
    let with = |mask| run(&inputs, &types, |x| flash_attention(&x[0], &x[1], &x[2], mask, 1.0, -1, None));
    assert_close(
        &with(MaskVariant::Null).unwrap(),
        &expected(inputs.each_ref(), 1.0, &|_| Some(0.0)),
        "null",
    );
    assert!(with(MaskVariant::Causal).unwrap_err().to_string().contains("as many keys as queries"));
}

#[test]
fn what_does_not_fit_is_an_error() {
    let message = |shapes: [&[usize]; 3], mask: &str, window: i64| {
        let inputs = shapes.map(|shape| numbers(shape, 1));
        let types = inputs.each_ref().map(type_of);
        let result = run(&inputs, &types, |x| {
            flash_attention(&x[0], &x[1], &x[2], mask.parse::<MaskVariant>()?, 1.0, window, None)
        });
        result.unwrap_err().to_string()
    };
    let shape: &[usize] = &[1, 3, 6, 4];
    for (shapes, mask, window, expected) in [
        ([shape, &[1, 3, 4, 4], &[1, 3, 4, 4]], "null", -1, "multiple of that of key heads; got 6 and 4"),
        ([shape, &[2, 3, 6, 4], &[2, 3, 6, 4]], "null", -1, "the same batch"),
        ([shape, &[1, 3, 6, 5], &[1, 3, 6, 5]], "null", -1, "keys as deep as queries"),
        ([shape, shape, &[1, 4, 6, 4]], "null", -1, "as many keys as values"),
        ([shape, shape, &[3, 6, 4]], "null", -1, "of rank 4"),
        ([shape; 3], "chunked_causal", 0, "a positive window; got 0"),
        ([shape; 3], "diagonal", 0, "unknown mask 'diagonal'"),
    ] {
        let message = message(shapes, mask, window);
        assert!(message.contains(expected), "{message}");
    }
}
