use max_core::{BufferType, DeviceRef, TensorType, Type};

use super::*;
use crate::host::HostTensor;
use crate::{Graph, interpret, interpret::interpret_in_place};

fn tensor(x: &HostTensor) -> TensorType {
    TensorType::new(
        x.dtype(),
        x.shape().iter().map(|&size| Dim::Static(size as i64)).collect::<Shape>(),
        DeviceRef::CPU,
    )
}

fn floats(shape: &[usize], elements: Vec<f32>) -> HostTensor {
    HostTensor::from_vec(shape, elements).unwrap()
}

/// The tokens drawn from logits with parameters per row: the most tokens, the probability, the temperature and the seed.
fn sample(logits: &[Vec<f32>], parameters: &[(i64, f32, f32, u64)], max_k: i64) -> Vec<i64> {
    let rows = logits.len();
    let column =
        |pick: fn(&(i64, f32, f32, u64)) -> f32| floats(&[rows], parameters.iter().map(pick).collect());
    let inputs = [
        floats(&[rows, logits[0].len()], logits.concat()),
        HostTensor::from_vec([rows], parameters.iter().map(|p| p.0).collect::<Vec<i64>>()).unwrap(),
        column(|p| p.1),
        column(|p| p.2),
        HostTensor::from_vec([rows], parameters.iter().map(|p| p.3).collect::<Vec<u64>>()).unwrap(),
    ];
    let graph = Graph::build("g", inputs.iter().map(tensor), |x| {
        topk_fused_sampling(&x[0], &x[1], &x[3], Operand::from(max_k), &x[2], &x[4])
    });
    let results = interpret(&graph.unwrap().body(), &inputs, &()).unwrap();
    assert_eq!(results[0].shape(), [rows, 1]);
    results[0].elements::<i64>().unwrap().to_vec()
}

/// The token that the definition gives.
fn expected(logits: &[f32], (k, p, t, seed): (i64, f32, f32, u64)) -> i64 {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
    if k > 0 {
        order.truncate(k as usize);
    }
    let best = f64::from(logits[order[0]]);
    let weights: Vec<f64> =
        order.iter().map(|&at| ((f64::from(logits[at]) - best) / f64::from(t)).exp()).collect();
    let total: f64 = weights.iter().sum();
    let (mut sum, mut kept) = (0.0, 0);
    while kept < weights.len() && (kept == 0 || sum < f64::from(p) * total) {
        sum += weights[kept];
        kept += 1;
    }
    let drawn = f64::from(Distribution::Uniform.draw::<f32>(seed, 0)) * sum;
    let mut before = 0.0;
    for (&token, weight) in order[..kept].iter().zip(&weights) {
        before += weight;
        if drawn < before {
            return token as i64;
        }
    }
    order[kept - 1] as i64
}

fn logits(rows: usize, tokens: usize) -> Vec<Vec<f32>> {
    let draw = |at: usize| Distribution::Normal.draw::<f32>(11, at as u64) * 2.0;
    (0..rows).map(|row| (0..tokens).map(|token| draw(row * tokens + token)).collect()).collect()
}

#[test]
fn draws_are_those_of_the_definition() {
    let logits = logits(64, 23);
    for (k, p, t) in
        [(-1, 1.0, 1.0), (5, 1.0, 0.7), (23, 0.5, 1.5), (7, 0.9, 1.0), (100, 0.01, 1.0), (1, 1.0, 1.0)]
    {
        let parameters: Vec<_> = (0..64).map(|row| (k, p, t, row * 7919)).collect();
        let wanted: Vec<i64> = logits.iter().zip(&parameters).map(|(x, &p)| expected(x, p)).collect();
        assert_eq!(sample(&logits, &parameters, -1), wanted, "{k} {p} {t}");
        assert_eq!(sample(&logits, &parameters, k.max(1).max(i64::from(k < 0) * 23)), wanted, "{k} {p} {t}");
    }
}

#[test]
fn draws_do_not_depend_on_the_rest_of_the_batch() {
    let logits = logits(8, 40);
    let parameters: Vec<_> =
        (0..8).map(|row| (3 + row, 0.8, 1.0 + row as f32 / 4.0, 99 - row as u64)).collect();
    let together = sample(&logits, &parameters, 10);
    for row in 0..8 {
        assert_eq!(sample(&logits[row..][..1], &parameters[row..][..1], 40), together[row..][..1]);
    }
}

#[test]
fn temperature_zero_is_greedy_and_ties_go_to_the_first() {
    let logits = vec![vec![1.0, 3.0, 3.0, 2.0], vec![f32::NAN, -1.0, f32::NEG_INFINITY, -1.0]];
    assert_eq!(sample(&logits, &[(-1, 1.0, 0.0, 5), (-1, 1.0, 0.0, 6)], 4), [1, 1]);
    assert_eq!(sample(&logits, &[(1, 1.0, 1.0, 5), (1, 1.0, 9.0, 6)], 4), [1, 1]);
    assert_eq!(sample(&logits, &[(-1, 1e-9, 1.0, 5), (-1, f32::NAN, 1.0, 6)], 4), [1, 1]);
}

#[test]
fn strange_logits_give_tokens_in_range() {
    let strange = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN, 0.0];
    let rows: Vec<Vec<f32>> =
        (0..216).map(|i| vec![strange[i % 6], strange[i / 6 % 6], strange[i / 36]]).collect();
    for t in [f32::NAN, -1.0, 0.0, 1e-30, 1.0, f32::INFINITY] {
        let parameters: Vec<_> = (0..216).map(|row| (row % 5 - 1, 0.9, t, row as u64)).collect();
        let tokens = sample(&rows, &parameters, 3);
        assert!(tokens.iter().all(|token| (0..3).contains(token)), "{t}: {tokens:?}");
    }
    let seeds: Vec<_> = (0..50).map(|seed| (-1, 1.0, 1.0, seed)).collect();
    let sure = sample(&vec![vec![0.0, f32::INFINITY, f32::NAN]; 50], &seeds, 3);
    assert!(sure.iter().all(|&token| token == 1), "{sure:?}");
}

#[test]
fn parameters_are_checked() {
    let x = floats(&[2, 3], vec![0.0; 6]);
    let message = |top_k: Operand, max_k: Option<Operand>, temperature: f64, top_p: f64| {
        let built = Graph::build("g", [tensor(&x)], |x| {
            topk_fused_sampling(&x[0], top_k.clone(), temperature, max_k.clone(), top_p, 0)
        });
        built.unwrap_err().to_string()
    };
    let some = || Operand::from(HostTensor::from_vec([3], vec![1i64, 2, 3]).unwrap());
    for (message, expected) in [
        (message(some(), None, 1.0, 1.0), "max_k is required"),
        (message(some(), Some(3.into()), 1.0, 1.0), "an element for each of 2 rows"),
        (message(0.into(), None, 1.0, 1.0), "top_k must be -1 or a positive integer; got 0"),
        (message(2.into(), None, -1.0, 1.0), "temperature must be not negative"),
        (message(2.into(), None, 1.0, 0.0), "top_p must be above 0"),
        (message(2.5.into(), None, 1.0, 1.0), "top_k must be -1 or a positive integer; got 2.5"),
    ] {
        assert!(message.contains(expected), "{message}");
    }
}

/// The first input, a buffer, after a graph has run.
fn in_place(
    inputs: &[HostTensor],
    build: impl Fn(&BufferValue, &[Value]) -> Result<()>,
) -> Result<HostTensor> {
    let first = tensor(&inputs[0]);
    let buffer: Type = BufferType::new(first.dtype, &first.shape, first.device).into();
    let types: Vec<Type> = [buffer].into_iter().chain(inputs[1..].iter().map(|x| tensor(x).into())).collect();
    let graph = Graph::new("g", types)?;
    let scope = graph.enter();
    build(&graph.inputs()[0].buffer()?, &graph.inputs()[1..])?;
    graph.output(Vec::<Value>::new())?;
    drop(scope);
    let mut inputs = inputs.to_vec();
    interpret_in_place(&graph.body(), &mut inputs, &())?;
    Ok(inputs.swap_remove(0))
}

fn entries(pairs: &[[i32; 2]]) -> HostTensor {
    HostTensor::from_vec([pairs.len(), 2], pairs.concat()).unwrap()
}

fn ints(elements: &[i64]) -> HostTensor {
    HostTensor::from_vec([elements.len()], elements.to_vec()).unwrap()
}

#[test]
fn penalties_are_those_of_the_definition() {
    let logits = vec![2.0, -2.0, 0.5, 0.0, -1.0, f32::NEG_INFINITY, 4.0, 1.0, -3.0, 0.25, 1.5, -0.5];
    // Three rows, of which the second has no entries; some are not tokens, and two are after the last row.
    let data = entries(&[[0, 2], [1, 1], [-1, 5], [4, 9], [1, 3], [1, 1], [3, 0], [2, 1]]);
    let (data, offsets) = (data, ints(&[0, 4, 4, 7]));
    let penalties = [0.5f32, 0.0, 0.25];
    let actual = in_place(
        &[floats(&[3, 4], logits.clone()), data, offsets, floats(&[3], penalties.to_vec())],
        |x, rest| apply_penalties_to_logits(x.clone(), &rest[0], &rest[1], &rest[2], 0.125, 2.0),
    );
    let counts = [2.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 4.0, 0.0, 0.0];
    let expected: Vec<f32> = (0..12)
        .map(|at| match (counts[at], logits[at]) {
            (0.0, x) => x,
            (count, x) => (if x > 0.0 { x / 2.0 } else { x * 2.0 }) - penalties[at / 4] * count - 0.125,
        })
        .collect();
    assert_eq!(actual.unwrap().elements::<f32>().unwrap().to_vec(), expected);
}

#[test]
fn tokens_are_counted_where_they_are_or_where_there_is_room() {
    let data = entries(&[[5, 1], [7, 2], [-1, 0], [-1, 0], [7, 1], [9, 1], [-1, 0], [3, 3], [-1, 9]]);
    let offsets = ints(&[0, 4, 6, 6, 8, 9]);
    let update = |tokens: &[i64]| {
        let inputs = [data.clone(), offsets.clone(), ints(tokens)];
        let result =
            in_place(&inputs, |x, rest| update_frequency_data(x.clone(), &rest[0], &rest[1])).unwrap();
        result.elements::<i32>().unwrap().chunks(2).map(|pair| [pair[0], pair[1]]).collect::<Vec<_>>()
    };
    let mut expected = vec![[5, 1], [7, 3], [-1, 0], [-1, 0], [7, 1], [9, 1], [8, 1], [3, 3], [0, 1]];
    assert_eq!(update(&[7, 8, 1, 8, 0]), expected);
    expected[1..3].copy_from_slice(&[[7, 2], [6, 1]]);
    expected[4..8].copy_from_slice(&[[7, 2], [9, 1], [-1, 0], [3, 4]]);
    expected[8] = [-1, 9];
    assert_eq!(update(&[6, 7, 7, 3, -1]), expected);
    let unchanged = update(&[-1, -5, i64::MIN, i64::from(i32::MAX) + 1, i64::MAX]);
    assert_eq!(unchanged.concat(), data.elements::<i32>().unwrap().to_vec());
}

#[test]
fn nothing_may_be_empty_and_everything_may_be() {
    let empty = in_place(&[entries(&[]), ints(&[0, 0]), ints(&[4])], |x, rest| {
        update_frequency_data(x.clone(), &rest[0], &rest[1])
    });
    assert_eq!(empty.unwrap().num_elements(), 0);
    let none = in_place(&[entries(&[[-1, 0]]), ints(&[0]), ints(&[])], |x, rest| {
        update_frequency_data(x.clone(), &rest[0], &rest[1])
    });
    assert_eq!(none.unwrap().elements::<i32>().unwrap().to_vec(), [-1, 0]);
    let logits = in_place(&[floats(&[0, 3], vec![]), entries(&[[1, 1]]), ints(&[0])], |x, rest| {
        apply_penalties_to_logits(x.clone(), &rest[0], &rest[1], 1.0, 1.0, 2.0)
    });
    assert_eq!(logits.unwrap().num_elements(), 0);
}

#[test]
fn constants_are_scattered_by_position() {
    let places = HostTensor::from_vec([3, 2], vec![0i64, 1, 1, 2, -1, 0]).unwrap();
    let set = |places: HostTensor| {
        let inputs = [floats(&[2, 3], vec![0.0; 6]), places];
        in_place(&inputs, |x, rest| scatter_set_constant(x.clone(), &rest[0], -9.5))
    };
    assert_eq!(set(places).unwrap().elements::<f32>().unwrap().to_vec(), [0.0, -9.5, 0.0, -9.5, 0.0, -9.5]);
    let outside = set(HostTensor::from_vec([1, 2], vec![0i64, 3]).unwrap()).unwrap_err().to_string();
    assert!(outside.contains("index 3 is out of range"), "{outside}");
    let flat = set(ints(&[1])).unwrap_err().to_string();
    assert!(flat.contains("a position for each axis"), "{flat}");
}
