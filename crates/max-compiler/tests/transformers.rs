//! Golden programs of the parts of transformers: one kernel for each step a layer takes, and no copies between them.

use expect_test::{Expect, expect};
use max_compiler::{Options, Program, Target, compile};
use max_core::{DType, DeviceRef, Dim, Result, Shape, TensorType};
use max_graph::{Graph, HostTensor, TensorValue, Value, Weight, ops};

const CPU: DeviceRef = DeviceRef::CPU;

/// The program of a graph whose inputs have these types.
fn program(
    inputs: &[TensorType],
    fuse: bool,
    build: impl FnOnce(&[TensorValue]) -> Result<TensorValue>,
) -> Program {
    let graph = Graph::new("g", inputs.iter().cloned()).unwrap();
    let scope = graph.enter();
    let values = graph.inputs().iter().map(Value::tensor).collect::<Result<Vec<_>>>().unwrap();
    graph.output(build(&values).unwrap()).unwrap();
    drop(scope);
    let target = Target {
        devices: vec![CPU, DeviceRef::gpu(0)],
        options: Options { fuse, fold_exactly: false, nccl: false },
    };
    compile(graph.body().clone(), &target, &mut |_, _| ()).unwrap()
}

fn check(inputs: &[TensorType], build: impl FnOnce(&[TensorValue]) -> Result<TensorValue>, expected: Expect) {
    expected.assert_eq(&program(inputs, true, build).to_string());
}

/// The names of the steps of a program.
fn steps(program: &Program) -> Vec<String> {
    (0..program.steps.len()).map(|step| program.step_name(step)).collect()
}

fn f32s(shape: impl Into<Shape>) -> TensorType {
    TensorType::new(DType::Float32, shape, CPU)
}

/// A constant in the graph, unlike others with other seeds.
fn constant(shape: &[usize], seed: usize) -> Result<TensorValue> {
    let numbers = (0..shape.iter().product()).map(|i: usize| ((i + seed) % 7) as f32);
    ops::constant(HostTensor::from_vec(shape, numbers.collect::<Vec<_>>())?, None, None)
}

/// A value that is only known when the program is loaded.
fn weight(name: &str, shape: &[usize], device: DeviceRef) -> Result<TensorValue> {
    Weight::new(name, DType::Float32, shape.iter().copied().collect::<Shape>(), device)?.value()
}

/// Two heads of four.
const WIDTH: usize = 8;

fn heads(x: TensorValue) -> Result<TensorValue> {
    let shape = Shape::from(("b", "s", 2, 4));
    ops::permute(ops::reshape(x, shape), vec![0, 2, 1, 3])
}

fn attention(q: TensorValue, k: TensorValue, v: TensorValue) -> Result<TensorValue> {
    let scores = ops::mul(ops::matmul(heads(q)?, ops::transpose(heads(k)?, -1, -2)), 0.5);
    let mixed = ops::matmul(ops::softmax(scores, -1), heads(v)?);
    ops::reshape(ops::permute(mixed, vec![0, 2, 1, 3]), Shape::from(("b", "s", WIDTH as i64)))
}

/// Attention over three products of an input.
fn self_attention(
    x: &TensorValue,
    projected: impl Fn(&TensorValue, usize) -> Result<TensorValue>,
) -> Result<TensorValue> {
    attention(projected(x, 0)?, projected(x, 1)?, projected(x, 2)?)
}

#[test]
fn products_with_biases_are_one() {
    let projected = |x: &TensorValue, at: usize| {
        ops::add(ops::matmul(x, constant(&[WIDTH, WIDTH], at)?), constant(&[WIDTH], at)?)
    };
    check(
        &[f32s(("b", "s", 8))],
        |x| self_attention(&x[0], projected),
        expect![[r#"
        program "g"
          s0: float32[b, s, 24] temporary 0..1
          s1: float32[24] constant of 96 bytes
          s2: float32[b, s, 8] input 0
          s3: float32[8, 24] constant of 768 bytes
          s4: float32[b, s, 2, 4] output 0
          0 matmul+add: matmul s2 [s * 8, 8, 1] x s3 [0, 24, 1] k 8 over [b, s, 24]
            r0 = product float32
            r1 = load float32 s1 [0, 0, 1]
            r2 = add r0 r1
            store float32 s0 [s * 24, 24, 1] r2
          1 attention+reshape: attention s0 [s * 24, 4, 24, 1] x s0 + 8 [s * 24, 4, 24, 1] x s0 + 16 [s * 24, 4, 24, 1] keys s scale 0.5 over [b, 2, s, 4]
            r0 = product float32
            store float32 s4 [s * 8, 4, 8, 1] r0
    "#]],
    );
}

#[test]
fn products_of_which_one_has_no_bias_are_one() {
    let projected = |x: &TensorValue, at: usize| {
        let product = ops::matmul(x, constant(&[WIDTH, WIDTH], at)?)?;
        if at == 1 { Ok(product) } else { ops::add(product, constant(&[WIDTH], at)?) }
    };
    check(
        &[f32s(("b", "s", 8))],
        |x| self_attention(&x[0], projected),
        expect![[r#"
        program "g"
          s0: float32[b, s, 24] temporary 0..1
          s1: float32[24] constant of 96 bytes
          s2: float32[b, s, 8] input 0
          s3: float32[8, 24] constant of 768 bytes
          s4: float32[b, s, 2, 4] output 0
          0 matmul+add: matmul s2 [s * 8, 8, 1] x s3 [0, 24, 1] k 8 over [b, s, 24]
            r0 = product float32
            r1 = load float32 s1 [0, 0, 1]
            r2 = add r0 r1
            store float32 s0 [s * 24, 24, 1] r2
          1 attention+reshape: attention s0 [s * 24, 4, 24, 1] x s0 + 8 [s * 24, 4, 24, 1] x s0 + 16 [s * 24, 4, 24, 1] keys s scale 0.5 over [b, 2, s, 4]
            r0 = product float32
            store float32 s4 [s * 8, 4, 8, 1] r0
    "#]],
    );
}

#[test]
fn products_with_transposed_weights_are_one() {
    let projected =
        |x: &TensorValue, at: usize| ops::matmul(x, ops::transpose(constant(&[WIDTH, WIDTH], at)?, 0, 1));
    check(
        &[f32s(("b", "s", 8))],
        |x| self_attention(&x[0], projected),
        expect![[r#"
        program "g"
          s0: float32[b, s, 24] temporary 0..1
          s1: float32[b, s, 8] input 0
          s2: float32[8, 24] constant of 768 bytes
          s3: float32[b, s, 2, 4] output 0
          0 matmul: matmul s1 [s * 8, 8, 1] x s2 [0, 24, 1] k 8 over [b, s, 24]
            r0 = product float32
            store float32 s0 [s * 24, 24, 1] r0
          1 attention+reshape: attention s0 [s * 24, 4, 24, 1] x s0 + 8 [s * 24, 4, 24, 1] x s0 + 16 [s * 24, 4, 24, 1] keys s scale 0.5 over [b, 2, s, 4]
            r0 = product float32
            store float32 s3 [s * 8, 4, 8, 1] r0
    "#]],
    );
}

#[test]
fn products_with_weights_are_one_step() {
    let projected = |x: &TensorValue, at: usize| {
        let bias = weight(&format!("{at}.bias"), &[WIDTH], CPU)?;
        ops::add(ops::matmul(x, ops::transpose(weight(&format!("{at}"), &[WIDTH, WIDTH], CPU)?, 0, 1)), bias)
    };
    check(
        &[f32s(("b", "s", 8))],
        |x| self_attention(&x[0], projected),
        expect![[r#"
            program "g"
              s0: float32[b, s, 8] temporary 0..1
              s1: float32[b, s, 8] temporary 0..1
              s2: float32[b, s, 8] temporary 0..1
              s3: float32[8] weight "0.bias"
              s4: float32[8] weight "1.bias"
              s5: float32[8] weight "2.bias"
              s6: float32[b, s, 8] input 0
              s7: float32[8, 8] weight "0"
              s8: float32[8, 8] weight "1"
              s9: float32[8, 8] weight "2"
              s10: float32[b, s, 2, 4] output 0
              0 matmul+add+matmul+add+matmul+add: matmul s6 [s * 8, 8, 1] x s7 [0, 1, 8] k 8 over [b, s, 8]
                r0 = product float32
                r1 = load float32 s3 [0, 0, 1]
                r2 = add r0 r1
                store float32 s0 [s * 8, 8, 1] r2
              and matmul s6 [s * 8, 8, 1] x s8 [0, 1, 8] k 8 over [b, s, 8]
                r0 = product float32
                r1 = load float32 s4 [0, 0, 1]
                r2 = add r0 r1
                store float32 s1 [s * 8, 8, 1] r2
              and matmul s6 [s * 8, 8, 1] x s9 [0, 1, 8] k 8 over [b, s, 8]
                r0 = product float32
                r1 = load float32 s5 [0, 0, 1]
                r2 = add r0 r1
                store float32 s2 [s * 8, 8, 1] r2
              1 attention+reshape: attention s0 [s * 8, 4, 8, 1] x s1 [s * 8, 4, 8, 1] x s2 [s * 8, 4, 8, 1] keys s scale 0.5 over [b, 2, s, 4]
                r0 = product float32
                store float32 s10 [s * 8, 4, 8, 1] r0
        "#]],
    );
}

/// Products move to the first one, across the loop that follows it; what is done with each of the results
/// stays with it.
#[test]
fn products_with_weights_and_different_ends_are_one_step() {
    let projected =
        |x: &TensorValue, name: &str, width: usize| ops::matmul(x, weight(name, &[WIDTH, width], CPU)?);
    check(
        &[f32s(("s", 8)), f32s(("s", 4))],
        |x| {
            let query = ops::softmax(projected(&x[0], "q", 8)?, -1)?;
            let key = ops::mul(projected(&x[0], "k", 4)?, &x[1])?;
            let value = ops::gelu(projected(&x[0], "v", 4)?)?;
            ops::concat([query, key, value], 1)
        },
        expect![[r#"
            program "g"
              s0: float32[s, 8] temporary 0..1
              s1: float32[s, 16] output 0
              s2: float32[s, 4] input 1
              s3: float32[s, 8] input 0
              s4: float32[8, 8] weight "q"
              s5: float32[8, 4] weight "k"
              s6: float32[8, 4] weight "v"
              0 matmul+matmul+mul+concat+matmul+gelu+1 more: matmul s3 [8, 1] x s4 [8, 1] k 8 over [s, 8]
                r0 = product float32
                store float32 s0 [8, 1] r0
              and matmul s3 [8, 1] x s5 [4, 1] k 8 over [s, 4]
                r0 = product float32
                r1 = load float32 s2 [4, 1]
                r2 = mul r0 r1
                store float32 s1 + 8 [16, 1] r2
              and matmul s3 [8, 1] x s6 [4, 1] k 8 over [s, 4]
                r0 = product float32
                r1 = gelu r0
                store float32 s1 + 12 [16, 1] r1
              1 softmax+concat: loop over [s, 8] reducing axis 1
                r0 = load float32 s0 [8, 1]
                R1 = reduce max r0
                r2 = sub r0 R1
                r3 = exp r2
                R4 = reduce sum r3
                R5 = float32 1.0
                R6 = div R5 R4
                r7 = mul r3 R6
                store float32 s1 [16, 1] r7
        "#]],
    );
}

#[test]
fn products_stay_apart_that_cannot_run_at_the_same_time() {
    let x = [f32s(("s", 8))];
    let product =
        |x: &TensorValue, name: &str, device| ops::matmul(x, weight(name, &[WIDTH, WIDTH], device)?);
    let gated =
        |x: &[TensorValue]| ops::mul(ops::silu(product(&x[0], "gate", CPU)?), product(&x[0], "up", CPU)?);
    assert_eq!(steps(&program(&x, true, gated)), ["matmul+silu", "matmul+mul"]);
    let read = |x: &[TensorValue]| ops::matmul(&x[0], ops::transpose(product(&x[0], "a", CPU)?, 0, 1));
    assert_eq!(steps(&program(&x, true, read)), ["matmul", "matmul"]);
    // With another product in between, the result would wait in memory.
    let later = |x: &[TensorValue]| {
        let first = product(&product(&x[0], "a", CPU)?, "b", CPU)?;
        ops::concat([first, product(&x[0], "c", CPU)?], 1)
    };
    assert_eq!(steps(&program(&x, true, later)).len(), 3);
    let many = |x: &[TensorValue]| {
        let all = (0..10).map(|at| product(&x[0], &at.to_string(), CPU)).collect::<Result<Vec<_>>>()?;
        ops::concat(all, 1)
    };
    let counts = |program: &Program| -> Vec<usize> {
        program
            .to_string()
            .split(": matmul")
            .skip(1)
            .map(|step| step.matches("and matmul").count() + 1)
            .collect()
    };
    assert_eq!(counts(&program(&x, true, many)), [8, 2]);
    assert_eq!(counts(&program(&x, false, many)), [1; 10]);
    let gpu = DeviceRef::gpu(0);
    let two = |x: &[TensorValue]| ops::concat([product(&x[0], "a", gpu)?, product(&x[0], "b", gpu)?], 1);
    // On a GPU one function may compute both.
    let on_gpu = TensorType::new(DType::Float32, ("s", 8), gpu);
    assert_eq!(counts(&program(&[on_gpu], true, two)), [2]);
}

#[test]
fn a_gated_layer_multiplies_in_its_second_product() {
    check(
        &[f32s(("b", "s", 8))],
        |x| {
            let gate = ops::silu(ops::matmul(&x[0], constant(&[WIDTH, 16], 0)?));
            let up = ops::matmul(&x[0], constant(&[WIDTH, 16], 1)?);
            ops::add(&x[0], ops::matmul(ops::mul(gate, up), constant(&[16, WIDTH], 2)?))
        },
        expect![[r#"
            program "g"
              s0: float32[b, s, 16] temporary 0..1
              s1: float32[b, s, 8] input 0
              s2: float32[8, 16] constant of 512 bytes
              s3: float32[b, s, 16] temporary 1..2 in place of s0
              s4: float32[8, 16] constant of 512 bytes
              s5: float32[b, s, 8] output 0
              s6: float32[16, 8] constant of 512 bytes
              0 matmul+silu: matmul s1 [s * 8, 8, 1] x s2 [0, 16, 1] k 8 over [b, s, 16]
                r0 = product float32
                r1 = silu r0
                store float32 s0 [s * 16, 16, 1] r1
              1 matmul+mul: matmul s1 [s * 8, 8, 1] x s4 [0, 16, 1] k 8 over [b, s, 16]
                r0 = product float32
                r1 = load float32 s0 [s * 16, 16, 1]
                r2 = mul r1 r0
                store float32 s3 [s * 16, 16, 1] r2
              2 matmul+add: matmul s3 [s * 16, 16, 1] x s6 [0, 8, 1] k 16 over [b, s, 8]
                r0 = product float32
                r1 = load float32 s1 [s * 8, 8, 1]
                r2 = add r1 r0
                store float32 s5 [s * 8, 8, 1] r2
        "#]],
    );
}

#[test]
fn gates_of_a_cell_are_one_product_and_one_loop() {
    check(
        &[f32s(("b", 8)), f32s(("b", 4))],
        |x| {
            let gate =
                |at: usize| ops::add(ops::matmul(&x[0], constant(&[WIDTH, 4], at)?), constant(&[4], at)?);
            let kept = ops::mul(ops::sigmoid(gate(0)?), &x[1]);
            let state = ops::add(kept, ops::mul(ops::sigmoid(gate(1)?), ops::tanh(gate(2)?)));
            ops::mul(ops::sigmoid(gate(3)?), ops::tanh(state))
        },
        expect![[r#"
            program "g"
              s0: float32[b, 16] temporary 0..1
              s1: float32[16] constant of 64 bytes
              s2: float32[b, 8] input 0
              s3: float32[8, 16] constant of 512 bytes
              s4: float32[b, 4] output 0
              s5: float32[b, 4] input 1
              0 matmul+add: matmul s2 [8, 1] x s3 [16, 1] k 8 over [b, 16]
                r0 = product float32
                r1 = load float32 s1 [0, 1]
                r2 = add r0 r1
                store float32 s0 [16, 1] r2
              1 sigmoid+mul+sigmoid+tanh+mul+add+3 more: loop over [b, 4]
                r0 = load float32 s0 [16, 1]
                r1 = sigmoid r0
                r2 = load float32 s5 [4, 1]
                r3 = mul r1 r2
                r4 = load float32 s0 + 4 [16, 1]
                r5 = sigmoid r4
                r6 = load float32 s0 + 8 [16, 1]
                r7 = tanh r6
                r8 = mul r5 r7
                r9 = add r3 r8
                r10 = load float32 s0 + 12 [16, 1]
                r11 = sigmoid r10
                r12 = tanh r9
                r13 = mul r11 r12
                store float32 s4 [4, 1] r13
        "#]],
    );
}

#[test]
fn queries_and_keys_are_turned_in_one_loop() {
    check(
        &[f32s(("s", 8)), f32s(("s", 2)), f32s(("s", 2))],
        |x| {
            let split = |product: TensorValue| {
                ops::permute(ops::reshape(product, Shape::from(("s", 2, 4))), vec![1, 0, 2])
            };
            let turned = |x: TensorValue, sin: &TensorValue, cos: &TensorValue| {
                let halves = ops::split(x, Shape::from([2, 2]), -1)?;
                let [a, b] = &halves[..] else { unreachable!("two halves") };
                let first = ops::sub(ops::mul(a, cos), ops::mul(b, sin))?;
                let second = ops::add(ops::mul(b, cos), ops::mul(a, sin))?;
                ops::concat(vec![first, second], -1)
            };
            let h = ops::rms_norm(&x[0], constant(&[WIDTH], 0)?, 1e-5, 0.0, false)?;
            let product = |at: usize| split(ops::matmul(&h, constant(&[WIDTH, WIDTH], at)?)?);
            let (q, k, v) = (product(1)?, product(2)?, product(3)?);
            let (q, k) = (turned(q, &x[1], &x[2])?, turned(k, &x[1], &x[2])?);
            let scores = ops::mul(ops::matmul(q, ops::transpose(k, -1, -2)), 0.5);
            let mixed = ops::permute(ops::matmul(ops::softmax(scores, -1), v), vec![1, 0, 2]);
            let mixed = ops::reshape(mixed, Shape::from(("s", 8)));
            ops::add(&x[0], ops::matmul(mixed, constant(&[WIDTH, WIDTH], 4)?))
        },
        expect![[r#"
            program "g"
              s0: float32[s, 8] temporary 0..1
              s1: float32[s, 8] input 0
              s2: float32[8] constant of 32 bytes
              s3: float32[s, 24] temporary 1..3
              s4: float32[8, 24] constant of 768 bytes
              s5: float32[2, s, 4] temporary 2..3
              s6: float32[2, s, 4] temporary 2..3
              s7: float32[s, 2] input 2
              s8: float32[s, 2] input 1
              s9: float32[s, 2, 4] temporary 3..4
              s10: float32[s, 8] output 0
              s11: float32[8, 8] constant of 256 bytes
              0 rms_norm: loop over [s, 8] reducing axis 1
                r0 = load float32 s1 [8, 1]
                r1 = load float32 s2 [0, 1]
                r2 = mul r0 r0
                R3 = reduce sum r2
                R4 = float32 size 8
                R5 = div R3 R4
                R6 = float32 1e-5
                R7 = add R5 R6
                R8 = rsqrt R7
                r9 = mul r0 R8
                r10 = mul r9 r1
                store float32 s0 [8, 1] r10
              1 matmul: matmul s0 [8, 1] x s4 [24, 1] k 8 over [s, 24]
                r0 = product float32
                store float32 s3 [24, 1] r0
              2 mul+mul+sub+mul+mul+add+8 more: loop over [2, s, 2]
                r0 = load float32 s3 [4, 24, 1]
                r1 = load float32 s7 [0, 2, 1]
                r2 = mul r0 r1
                r3 = load float32 s3 + 2 [4, 24, 1]
                r4 = load float32 s8 [0, 2, 1]
                r5 = mul r3 r4
                r6 = sub r2 r5
                r7 = mul r3 r1
                r8 = mul r0 r4
                r9 = add r7 r8
                r10 = load float32 s3 + 8 [4, 24, 1]
                r11 = mul r10 r1
                r12 = load float32 s3 + 10 [4, 24, 1]
                r13 = mul r12 r4
                r14 = sub r11 r13
                r15 = mul r12 r1
                r16 = mul r10 r4
                r17 = add r15 r16
                store float32 s5 [s * 4, 4, 1] r6
                store float32 s5 + 2 [s * 4, 4, 1] r9
                store float32 s6 [s * 4, 4, 1] r14
                store float32 s6 + 2 [s * 4, 4, 1] r17
              3 attention+reshape: attention s5 [s * 4, 4, 1] x s6 [s * 4, 4, 1] x s3 + 16 [4, 24, 1] keys s scale 0.5 over [2, s, 4]
                r0 = product float32
                store float32 s9 [4, 8, 1] r0
              4 matmul+add: matmul s9 [8, 1] x s11 [8, 1] k 8 over [s, 8]
                r0 = product float32
                r1 = load float32 s1 [8, 1]
                r2 = add r1 r0
                store float32 s10 [8, 1] r2
        "#]],
    );
}

/// Four heads share two of keys and values.
fn shared(x: &[TensorValue], repeat: impl Fn(&TensorValue) -> Result<TensorValue>) -> Result<TensorValue> {
    let [query, key, value, mask @ ..] = x else { unreachable!("three inputs or four") };
    let scores = ops::matmul(query, ops::transpose(repeat(key)?, -1, -2));
    let mut scores = ops::mul(scores, 0.5)?;
    for mask in mask {
        scores = ops::add(scores, mask)?;
    }
    ops::matmul(ops::softmax(scores, -1), repeat(value)?)
}

#[test]
fn heads_that_share_keys_attend_without_copies() {
    let repeat = |x: &TensorValue| ops::repeat_interleave(x, 2, Some(1), None);
    check(
        &[f32s(("b", 4, "q", 8)), f32s(("b", 2, "k", 8)), f32s(("b", 2, "k", 8)), f32s(("b", 1, "q", "k"))],
        |x| shared(x, repeat),
        expect![[r#"
            program "g"
              s0: float32[b, 2, 2, q, 8] output 0
              s1: float32[b, 4, q, 8] input 0
              s2: float32[b, 2, k, 8] input 1
              s3: float32[b, 2, k, 8] input 2
              s4: float32[b, 1, q, k] input 3
              0 attention: attention s1 [q * 32, q * 16, q * 8, 8, 1] x s2 [k * 16, k * 8, 0, 8, 1] x s3 [k * 16, k * 8, 0, 8, 1] keys k scale 0.5 mask s4 [k * q, 0, 0, k, 1] over [b, 2, 2, q, 8]
                r0 = product float32
                store float32 s0 [q * 32, q * 16, q * 8, 8, 1] r0
        "#]],
    );
}

/// What follows attention sees one axis of heads again, behind that of positions.
#[test]
fn heads_that_share_keys_are_stored_in_their_places() {
    let repeat =
        |x: &TensorValue| ops::permute(ops::repeat_interleave(x, 2, Some(2), None), vec![0, 2, 1, 3]);
    check(
        &[f32s(("b", 4, "q", 8)), f32s(("b", "k", 2, 8)), f32s(("b", "k", 2, 8))],
        |x| {
            let mixed = ops::permute(shared(x, repeat)?, vec![0, 2, 1, 3]);
            let mixed = ops::reshape(mixed, Shape::from(("b", "q", 32)));
            ops::matmul(mixed, constant(&[32, WIDTH], 0)?)
        },
        expect![[r#"
            program "g"
              s0: float32[b, q, 4, 8] temporary 0..1
              s1: float32[b, 4, q, 8] input 0
              s2: float32[b, k, 2, 8] input 1
              s3: float32[b, k, 2, 8] input 2
              s4: float32[b, q, 8] output 0
              s5: float32[32, 8] constant of 1024 bytes
              0 attention+reshape: attention s1 [q * 32, q * 16, q * 8, 8, 1] x s2 [k * 16, 8, 0, 16, 1] x s3 [k * 16, 8, 0, 16, 1] keys k scale 0.5 over [b, 2, 2, q, 8]
                r0 = product float32
                store float32 s0 [q * 32, 16, 8, 32, 1] r0
              1 matmul: matmul s0 [q * 32, 32, 1] x s5 [0, 8, 1] k 32 over [b, q, 8]
                r0 = product float32
                store float32 s4 [q * 8, 8, 1] r0
        "#]],
    );
}

#[test]
fn embeddings_are_gathered_and_normalized_in_one_loop() {
    let ids = TensorType::new(DType::Int64, ("b", 16), CPU);
    check(
        &[ids],
        |ids| {
            let words = ops::mul(ops::gather(constant(&[32, WIDTH], 0)?, &ids[0], 0), 2.0);
            let embedded = ops::add(words, constant(&[16, WIDTH], 1)?);
            ops::layer_norm(embedded, constant(&[WIDTH], 2)?, constant(&[WIDTH], 3)?, 1e-5)
        },
        expect![[r#"
            program "g"
              s0: float32[32, 8] constant of 1024 bytes
              s1: int64[b, 16] input 0
              s2: float32[b, 16, 8] temporary 0..1
              s3: float32[b, 16, 8] output 0
              s4: float32[16, 8] constant of 512 bytes
              s5: float32[8] constant of 32 bytes
              s6: float32[8] constant of 32 bytes
              0 gather: gather s0 [256, 8, 1] by s1 [b * 16, 1, 1, 1] into s2 [b * 128, 8, 1] size 32
              1 mul+add+layer_norm: loop over [b, 16, 8] reducing axis 2
                r0 = load float32 s2 [128, 8, 1]
                R1 = float32 2.0
                r2 = mul r0 R1
                r3 = load float32 s4 [0, 8, 1]
                r4 = add r2 r3
                r5 = load float32 s5 [0, 0, 1]
                r6 = load float32 s6 [0, 0, 1]
                R7 = reduce sum r4
                R8 = float32 size 8
                R9 = div R7 R8
                r10 = sub r4 R9
                r11 = mul r10 r10
                R12 = reduce sum r11
                R13 = float32 size 8
                R14 = div R12 R13
                R15 = float32 1e-5
                R16 = add R14 R15
                R17 = rsqrt R16
                r18 = mul r10 R17
                r19 = mul r18 r5
                r20 = add r19 r6
                store float32 s3 [128, 8, 1] r20
        "#]],
    );
}

#[test]
fn embeddings_of_three_tables_are_gathered_and_summed() {
    let ids = |shape: (&str, &str)| TensorType::new(DType::Int64, shape, CPU);
    check(
        &[ids(("b", "s")), ids(("b", "s"))],
        |ids| {
            let words = ops::gather(constant(&[32, WIDTH], 0)?, &ids[0], 0)?;
            let kinds = ops::gather(constant(&[2, WIDTH], 1)?, &ids[1], 0)?;
            let places = ops::gather(
                constant(&[64, WIDTH], 2)?,
                ops::range(0, Dim::from("s"), 1, None, Some(DType::Int64), Some(CPU))?,
                0,
            )?;
            let embedded = ops::add(ops::add(words, kinds), places);
            ops::layer_norm(embedded, constant(&[WIDTH], 2)?, constant(&[WIDTH], 3)?, 1e-5)
        },
        expect![[r#"
            program "g"
              s0: float32[32, 8] constant of 1024 bytes
              s1: int64[b, s] input 0
              s2: float32[b, s, 8] temporary 0..4
              s3: float32[2, 8] constant of 64 bytes
              s4: int64[b, s] input 1
              s5: float32[b, s, 8] temporary 1..4
              s6: int64[s] temporary 2..3
              s7: float32[64, 8] constant of 2048 bytes
              s8: float32[s, 8] temporary 3..4
              s9: float32[b, s, 8] output 0
              s10: float32[8] constant of 32 bytes
              s11: float32[8] constant of 32 bytes
              0 gather: gather s0 [256, 8, 1] by s1 [b * s, 1, 1, 1] into s2 [b * s * 8, 8, 1] size 32
              1 gather: gather s3 [16, 8, 1] by s4 [b * s, 1, 1, 1] into s5 [b * s * 8, 8, 1] size 2
              2 copy: loop over [s]
                r0 = index at [1]
                store int64 s6 [1] r0
              3 gather: gather s7 [512, 8, 1] by s6 [s, 1, 1, 1] into s8 [s * 8, 8, 1] size 64
              4 add+add+layer_norm: loop over [b, s, 8] reducing axis 2
                r0 = load float32 s2 [s * 8, 8, 1]
                r1 = load float32 s5 [s * 8, 8, 1]
                r2 = add r0 r1
                r3 = load float32 s8 [0, 8, 1]
                r4 = add r2 r3
                r5 = load float32 s10 [0, 0, 1]
                r6 = load float32 s11 [0, 0, 1]
                R7 = reduce sum r4
                R8 = float32 size 8
                R9 = div R7 R8
                r10 = sub r4 R9
                r11 = mul r10 r10
                R12 = reduce sum r11
                R13 = float32 size 8
                R14 = div R12 R13
                R15 = float32 1e-5
                R16 = add R14 R15
                R17 = rsqrt R16
                r18 = mul r10 R17
                r19 = mul r18 r5
                r20 = add r19 r6
                store float32 s9 [s * 8, 8, 1] r20
        "#]],
    );
}

#[test]
fn weights_that_are_widened_are_read_as_they_are() {
    let projected = |x: &TensorValue, at: usize| {
        let weight = Weight::new(format!("{at}"), DType::BFloat16, Shape::from([WIDTH, WIDTH]), CPU)?;
        ops::matmul(x, ops::transpose(ops::cast(&weight.value()?, DType::Float32), 0, 1))
    };
    check(
        &[f32s(("b", "s", 8))],
        |x| self_attention(&x[0], projected),
        expect![[r#"
        program "g"
          s0: float32[b, s, 8] temporary 0..1
          s1: float32[b, s, 8] temporary 0..1
          s2: float32[b, s, 8] temporary 0..1
          s3: float32[b, s, 8] input 0
          s4: bfloat16[8, 8] weight "0"
          s5: bfloat16[8, 8] weight "1"
          s6: bfloat16[8, 8] weight "2"
          s7: float32[b, s, 2, 4] output 0
          0 matmul+matmul+matmul: matmul s3 [s * 8, 8, 1] x s4 [0, 1, 8] k 8 over [b, s, 8]
            r0 = product float32
            store float32 s0 [s * 8, 8, 1] r0
          and matmul s3 [s * 8, 8, 1] x s5 [0, 1, 8] k 8 over [b, s, 8]
            r0 = product float32
            store float32 s1 [s * 8, 8, 1] r0
          and matmul s3 [s * 8, 8, 1] x s6 [0, 1, 8] k 8 over [b, s, 8]
            r0 = product float32
            store float32 s2 [s * 8, 8, 1] r0
          1 attention+reshape: attention s0 [s * 8, 4, 8, 1] x s1 [s * 8, 4, 8, 1] x s2 [s * 8, 4, 8, 1] keys s scale 0.5 over [b, 2, s, 4]
            r0 = product float32
            store float32 s7 [s * 8, 4, 8, 1] r0
    "#]],
    );
}
