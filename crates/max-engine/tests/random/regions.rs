//! Random programs with branches, loops, subgraphs and buffers, on any device, and how they are compared with the reference.

use std::panic::{AssertUnwindSafe, catch_unwind};

use max_core::{BufferType, DType, DeviceRef, Dim, Result, Shape, TensorType, Type};
use max_driver::{Buffer, Device};
use max_engine::{InferenceSession, Model, TensorSpec};
use max_graph::interpret::interpret_in_place;
use max_graph::ops::slice::{Bound, Index, Indices};
use max_graph::text::{self, Constants};
use max_graph::{BufferValue, Graph, HostTensor, TensorValue, Value, ops};

use super::rng::Rng;

/// How deep regions are nested.
const DEEPEST: usize = 2;

/// What is in scope while ops are recorded.
#[derive(Clone, Default)]
struct Scope {
    tensors: Vec<TensorValue>,
    buffers: Vec<BufferValue>,
    subgraphs: Vec<Graph>,
}

struct Maker {
    rng: Rng,
    device: DeviceRef,
    rows: Dim,
    columns: Dim,
}

impl Maker {
    fn matrix(&self) -> Shape {
        Shape::from(vec![self.rows.clone(), self.columns.clone()])
    }

    fn vector(&self) -> Shape {
        Shape::from(vec![self.columns.clone()])
    }

    fn shape(&mut self) -> Shape {
        match self.rng.below(4) {
            0 => self.vector(),
            1 => Shape::default(),
            _ => self.matrix(),
        }
    }

    fn tensor(&mut self, scope: &Scope, shape: &Shape) -> Result<TensorValue> {
        let fitting: Vec<_> = scope.tensors.iter().filter(|tensor| tensor.shape() == shape).collect();
        if !fitting.is_empty() && !self.rng.chance(10) {
            return Ok((*self.rng.pick(&fitting)).clone());
        }
        let number = self.rng.between(-5, 5) as i32;
        let constant = ops::constant(HostTensor::from_vec([], vec![number])?, None, self.device)?;
        ops::broadcast_to(&constant, shape.clone())
    }

    fn buffer(&mut self, scope: &Scope) -> BufferValue {
        self.rng.pick(&scope.buffers).clone()
    }

    /// A tensor of a shape, computed from others.
    fn compute(&mut self, scope: &Scope, shape: &Shape) -> Result<TensorValue> {
        let x = self.tensor(scope, shape)?;
        match self.rng.below(9) {
            0 => ops::negate(&x),
            1 => ops::mul(&x, self.tensor(scope, shape)?),
            2 => ops::sub(&x, self.tensor(scope, shape)?),
            3 => ops::max(&x, self.tensor(scope, shape)?),
            4 if shape.rank() > 0 => {
                let backwards =
                    Index::Slice { start: Bound::Natural, stop: Bound::Natural, step: -1, out_dim: None };
                x.slice(vec![backwards])
            }
            5 if shape.rank() == 2 => ops::add(&x, ops::sum(&x, 0i64)?),
            6 if shape.rank() == 2 => ops::matmul(x.T()?, &x).and_then(|square| ops::matmul(&x, square)),
            7 => ops::add(&x, self.tensor(scope, &Shape::default())?),
            _ => ops::add(&x, self.tensor(scope, shape)?),
        }
    }

    fn flag(&mut self, scope: &Scope) -> Result<TensorValue> {
        let number = self.compute(scope, &Shape::default())?;
        ops::transfer_to(ops::greater(&number, self.rng.between(-3, 3))?, DeviceRef::CPU)
    }

    fn store(&mut self, scope: &Scope) -> Result<()> {
        let buffer = self.buffer(scope);
        let whole = Index::Slice { start: Bound::Natural, stop: Bound::Natural, step: 1, out_dim: None };
        if buffer.shape().rank() < 2 || self.rng.chance(40) {
            let source = self.compute(scope, &buffer.shape().clone())?;
            return ops::buffer_store(buffer, &source);
        }
        let row = self.compute(scope, &self.vector())?;
        let at = self.rng.between(-2, 1);
        let index = match self.rng.below(3) {
            0 if self.rows.as_static().is_none_or(|rows| rows >= 2) => Index::At(Dim::Static(at)),
            0 | 1 => Index::Tensor(ops::constant(HostTensor::from_vec([], vec![at])?, None, self.device)?),
            _ => {
                let start = ops::constant(HostTensor::from_vec([], vec![at.abs()])?, None, self.device)?;
                let stop = ops::add(&start, 1i64)?;
                let one = Some(Dim::Static(1));
                let slice = Index::Slice {
                    start: Bound::Tensor(start),
                    stop: Bound::Tensor(stop),
                    step: 1,
                    out_dim: one,
                };
                let row = ops::unsqueeze(&row, 0i64)?;
                return ops::buffer_store_slice(buffer, &row, Indices::from(vec![slice, whole]));
            }
        };
        let indices = if self.rng.chance(50) { vec![index, whole] } else { vec![index] };
        ops::buffer_store_slice(buffer, &row, Indices::from(indices))
    }

    fn cond(&mut self, scope: &mut Scope, depth: usize) -> Result<()> {
        let device = self.device;
        let flag = self.flag(scope)?;
        let shapes: Vec<Shape> = (0..self.rng.below(3)).map(|_| self.shape()).collect();
        let types = shapes.iter().map(|shape| Type::Tensor(TensorType::new(DType::Int32, shape, device)));
        let types: Vec<Type> = types.collect();
        let graph = Graph::current()?;
        let branches = ["then", "else"].map(|name| -> Result<Graph> {
            let branch = graph.nested(name, Vec::<Type>::new())?;
            let entered = branch.enter();
            let results = self.block(&mut scope.clone(), depth + 1, &shapes)?;
            branch.output(results)?;
            drop(entered);
            Ok(branch)
        });
        let [then, otherwise] = branches;
        let results = ops::control::cond_of(&flag, Some(types), then?, otherwise?)?;
        scope.tensors.extend(results.iter().map(Value::tensor).collect::<Result<Vec<_>>>()?);
        Ok(())
    }

    fn repeat(&mut self, scope: &mut Scope, depth: usize) -> Result<()> {
        let count = self.rng.below(5) as i64;
        let shape = self.shape();
        let counter = ops::constant(HostTensor::from_vec([], vec![0i64])?, None, None)?;
        let initial: Vec<Value> = vec![counter.into(), self.tensor(scope, &shape)?.into()];
        let results = ops::while_loop(
            initial,
            |values| ops::greater(count, &values[0]),
            |values| -> Result<Vec<Value>> {
                let mut inner = scope.clone();
                inner.tensors.push(values[1].tensor()?);
                let [carried] = &self.block(&mut inner, depth + 1, std::slice::from_ref(&shape))?[..] else {
                    unreachable!("as many results as shapes")
                };
                let next = ops::add(&values[0], 1i64)?;
                Ok(vec![next.into(), carried.into()])
            },
        )?;
        scope.tensors.push(results[1].tensor()?);
        Ok(())
    }

    fn call(&mut self, scope: &mut Scope) -> Result<()> {
        let graph = self.rng.pick(&scope.subgraphs).clone();
        let inputs = graph.inputs();
        let arguments = inputs.iter().map(|input| match input.type_() {
            Type::Buffer(ty) => {
                let fitting: Vec<_> =
                    scope.buffers.iter().filter(|buffer| buffer.buffer_type() == ty).collect();
                Ok((*self.rng.pick(&fitting)).value().clone())
            }
            ty => self.tensor(scope, ty.array().expect("a tensor").1).map(Value::from),
        });
        let results = ops::call(&graph, arguments.collect::<Result<Vec<Value>>>()?, "")?;
        scope.tensors.extend(results.iter().map(Value::tensor).collect::<Result<Vec<_>>>()?);
        Ok(())
    }

    /// Some ops, and results of these shapes.
    fn block(&mut self, scope: &mut Scope, depth: usize, shapes: &[Shape]) -> Result<Vec<TensorValue>> {
        for _ in 0..self.rng.between(1, if depth == 0 { 14 } else { 5 }) {
            match self.rng.below(16) {
                0..3 => {
                    let buffer = self.buffer(scope);
                    scope.tensors.push(ops::buffer_load(buffer)?);
                }
                3..6 => self.store(scope)?,
                6 if depth < DEEPEST => self.cond(scope, depth)?,
                7 if depth < DEEPEST => self.repeat(scope, depth)?,
                8 if !scope.subgraphs.is_empty() => self.call(scope)?,
                9 if self.rng.chance(30) => {
                    let ty = BufferType::new(DType::Int32, self.matrix(), self.device);
                    scope.buffers.push(ops::buffer_create(ty, None)?);
                }
                10 if self.rng.chance(30) => {
                    let value = self.rng.pick(&scope.tensors).clone();
                    ops::fence(vec![value])?;
                }
                _ => {
                    let shape = self.shape();
                    scope.tensors.push(self.compute(scope, &shape)?);
                }
            }
        }
        shapes.iter().map(|shape| self.compute(scope, shape)).collect()
    }

    /// A graph that others call: of a matrix, a vector and a buffer.
    fn subgraph(&mut self, name: &str) -> Result<Graph> {
        let device = self.device;
        let ty = |shape: Shape| TensorType::new(DType::Int32, shape, device);
        let buffer: Type = ty(self.matrix()).as_buffer().into();
        let types =
            vec![ty(self.matrix()).into(), ty(self.vector()).into(), ty(Shape::default()).into(), buffer];
        let graph = Graph::new(name, types)?;
        let entered = graph.enter();
        let inputs = graph.inputs();
        let mut scope = Scope {
            tensors: inputs[..3].iter().map(Value::tensor).collect::<Result<_>>()?,
            buffers: vec![inputs[3].buffer()?],
            subgraphs: Vec::new(),
        };
        let shapes: Vec<Shape> = (0..self.rng.below(3)).map(|_| self.shape()).collect();
        let results = self.block(&mut scope, 1, &shapes)?;
        graph.output(results)?;
        drop(entered);
        Ok(graph)
    }
}

/// A random program, and the sizes of its rows and columns.
pub fn program(seed: u64, device: DeviceRef) -> Result<(Graph, [usize; 2])> {
    let mut rng = Rng::new(seed, 0);
    let sizes = [rng.below(4) + usize::from(rng.chance(80)), rng.below(5)];
    let dim = |rng: &mut Rng, name: &str, size: usize| match rng.chance(50) {
        true => Dim::symbolic(name),
        false => Ok(Dim::Static(size as i64)),
    };
    let (rows, columns) = (dim(&mut rng, "r", sizes[0])?, dim(&mut rng, "c", sizes[1])?);
    let mut maker = Maker { rng, device, rows, columns };
    let mut subgraphs = Vec::new();
    for number in 0..maker.rng.below(3) {
        subgraphs.push(maker.subgraph(&format!("subgraph{number}"))?);
    }
    let ty = |shape: Shape| TensorType::new(DType::Int32, shape, device);
    let (matrix, vector) = (ty(maker.matrix()), ty(maker.vector()));
    let types: Vec<Type> = vec![
        matrix.clone().into(),
        vector.clone().into(),
        ty(Shape::default()).into(),
        matrix.as_buffer().into(),
        matrix.as_buffer().into(),
        vector.as_buffer().into(),
    ];
    let graph = Graph::new(format!("random{seed}"), types)?;
    let entered = graph.enter();
    let inputs = graph.inputs();
    let mut scope = Scope {
        tensors: inputs[..3].iter().map(Value::tensor).collect::<Result<_>>()?,
        buffers: inputs[3..].iter().map(Value::buffer).collect::<Result<_>>()?,
        subgraphs,
    };
    maker.block(&mut scope, 0, &[])?;
    let mut outputs: Vec<Value> = Vec::new();
    for tensor in &scope.tensors {
        if maker.rng.chance(40) {
            outputs.push(tensor.into());
        }
    }
    outputs.extend(scope.buffers.iter().take(3).filter(|_| maker.rng.chance(20)).map(Value::from));
    graph.output(outputs)?;
    drop(entered);
    Ok((graph, sizes))
}

fn inputs(seed: u64, [rows, columns]: [usize; 2]) -> Vec<HostTensor> {
    let mut rng = Rng::new(seed, 1);
    let shapes: [&[usize]; 6] =
        [&[rows, columns], &[columns], &[], &[rows, columns], &[rows, columns], &[columns]];
    let tensor = |shape: &&[usize]| {
        let elements = (0..shape.iter().product()).map(|_| rng.between(-9, 9) as i32).collect::<Vec<i32>>();
        HostTensor::from_vec(*shape, elements).expect("as many elements")
    };
    shapes.iter().map(tensor).collect()
}

fn host(buffer: &Buffer) -> Result<HostTensor> {
    HostTensor::new(buffer.dtype(), buffer.shape(), buffer.copy(Some(&Device::cpu()))?.host_bytes()?)
}

/// The results of the engine, and the contents of all inputs afterwards.
fn execute(model: &Model, inputs: &[HostTensor]) -> Result<(Vec<HostTensor>, Vec<HostTensor>)> {
    let own = |(v, spec): (&HostTensor, &TensorSpec)| {
        let device = Device::from_ref(spec.device)?;
        Buffer::from_host_bytes(v.bytes().clone(), v.dtype(), v.shape())?.copy(Some(&device))
    };
    let buffers = inputs.iter().zip(model.input_metadata()).map(own).collect::<Result<Vec<_>>>()?;
    let outputs = model.execute(&buffers)?;
    // Errors that kernels detect while they run are only known once they have finished.
    model.devices().iter().try_for_each(Device::synchronize)?;
    Ok((outputs.iter().map(host).collect::<Result<_>>()?, buffers.iter().map(host).collect::<Result<_>>()?))
}

fn check(seed: u64, session: &InferenceSession, device: DeviceRef) -> std::result::Result<bool, String> {
    let (graph, sizes) = program(seed, device).map_err(|e| format!("cannot be built: {e}"))?;
    let given = inputs(seed, sizes);
    let mut changed = given.clone();
    let expected = interpret_in_place(&graph.body(), &mut changed, &());
    // The text form says everything.
    let text = text::print(&graph.body(), Constants::Full);
    let parsed = text::parse(&text).map_err(|e| format!("cannot be parsed: {e}"))?;
    if text::print(&parsed, Constants::Full) != text {
        return Err("is printed differently after parsing".into());
    }
    let run = AssertUnwindSafe(|| {
        let model = session.load(&graph)?;
        execute(&model, &given)?;
        execute(&model, &given)
    });
    let got = catch_unwind(run).map_err(|_| "the engine panics".to_owned())?;
    match (expected, got) {
        (Err(_), Err(_)) => Ok(false),
        (Err(e), Ok(_)) => Err(format!("the engine gives results, but the reference fails: {e}")),
        (Ok(_), Err(e)) => Err(format!("the engine fails, but the reference does not: {e}")),
        (Ok(expected), Ok((got, left))) if expected == got && changed == left => Ok(true),
        (Ok(expected), Ok((got, left))) => {
            let differ = |name: &str, a: &[HostTensor], b: &[HostTensor]| {
                let at = a.iter().zip(b).position(|(a, b)| a != b);
                at.map(|at| {
                    format!(
                        "{name} {at}: expected {:?}, got {:?}\n",
                        a[at].to_integers(),
                        b[at].to_integers()
                    )
                })
            };
            let outputs = differ("output", &expected, &got).unwrap_or_default();
            Err(outputs + &differ("input", &changed, &left).unwrap_or_default())
        }
    }
}

/// Tries programs with these seeds, or those that the environment names; panics at the first that is wrong.
pub fn check_all(default: std::ops::Range<u64>, session: &InferenceSession, device: DeviceRef) {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let seeds = match (number("RANDOM_SEED"), number("RANDOM_GRAPHS")) {
        (Some(seed), _) => seed..seed + 1,
        (None, Some(count)) => 0..count,
        _ => default,
    };
    let tried = seeds.end - seeds.start;
    let mut gave = 0;
    for seed in seeds {
        match check(seed, session, device) {
            Ok(results) => gave += u64::from(results),
            Err(why) => {
                let text = program(seed, device).map_or(String::new(), |(graph, _)| graph.to_string());
                panic!("program {seed}: {why}\n{text}");
            }
        }
    }
    assert!(tried < 100 || gave > tried / 2, "only {gave} of {tried} programs give results");
}
