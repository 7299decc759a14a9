//! Random graphs with inputs to run them on. A seed gives the same graph everywhere, and a graph of fewer steps is a
//! prefix of the one with more, so that a failing graph can be shortened.
//!
//! Each value carries a bound on its elements and an estimate of how far two correct ways to compute it may differ.
//! Zero means that all correct ways agree to the bit: movement, integers, and the arithmetic that IEEE 754 defines.
//! Only such values are compared, rounded, truncated or searched for their largest element.

use std::collections::BTreeSet;

use max_core::{
    Bindings, DType, DeviceRef, Dim, Element, ErrorKind, HostBytes, Result, Shape, TensorType, dispatch,
};
use max_graph::{Graph, HostTensor, TensorValue};

use super::recipes::RECIPES;
use super::rng::Rng;

/// The most elements of a value, in an ordinary graph and in one with a large input.
const ORDINARY: usize = 20_000;
const LARGE: usize = 300_000;

/// A value of the graph under construction, and what is known about its elements.
#[derive(Clone)]
pub struct Node {
    pub value: TensorValue,
    /// Its sizes in the execution that the graph is made for.
    pub sizes: Vec<usize>,
    /// The largest magnitude of any element, except for infinities in inputs.
    pub bound: f64,
    /// How far two correct results may differ; zero if they must be the same.
    pub error: f64,
}

impl Node {
    pub fn dtype(&self) -> DType {
        self.value.dtype()
    }

    pub fn rank(&self) -> usize {
        self.sizes.len()
    }

    pub fn elements(&self) -> usize {
        self.sizes.iter().product()
    }

    pub fn is_exact(&self) -> bool {
        self.error == 0.0
    }

    pub fn is_float(&self) -> bool {
        self.dtype().is_float()
    }
}

/// Which part of a random graph to build.
#[derive(Clone, Copy)]
pub struct Extent {
    /// The most steps to take.
    pub steps: usize,
    /// Whether the result of the last step is the only output.
    pub last_only: bool,
}

impl Extent {
    pub const WHOLE: Extent = Extent { steps: usize::MAX, last_only: false };
}

/// A random graph, and an execution of it.
pub struct Case {
    pub graph: Graph,
    pub types: Vec<TensorType>,
    pub bindings: Bindings,
    /// How far each output may be from the reference.
    pub tolerances: Vec<f64>,
    /// How many steps were taken to build it.
    pub steps: usize,
    seed: u64,
}

impl Case {
    pub fn new(seed: u64, extent: Extent) -> Case {
        let mut rng = Rng::new(seed, 0);
        let large = rng.chance(2);
        let shapes = match large {
            true => Some(LARGE_SHAPES),
            false => rng.chance(12).then_some(HOLLOW_SHAPES),
        };
        let palette = Palette::new(&mut rng, shapes);
        let types: Vec<TensorType> =
            (0..rng.between(1, 3)).map(|i| palette.input(&mut rng, i == 0)).collect();
        let graph = Graph::new(format!("random{seed}"), types.clone()).expect("a graph of valid types");
        let scope = graph.enter();
        let limit = if large { LARGE } else { ORDINARY };
        let steps = rng.between(1, if large { 8 } else { 25 }) as usize;
        let mut maker =
            Maker { rng: Rng::new(seed, 1), palette, limit, nodes: vec![], doomed: vec![], symbols: 0 };
        for value in graph.inputs() {
            let value = value.tensor().expect("inputs are tensors");
            let bound = input_bound(value.dtype());
            maker.add(value, bound, 0.0);
        }
        let inputs = maker.nodes.len();
        let mut taken = 0;
        let mut last = 0;
        for _ in 0..steps * 4 {
            if taken == steps.min(extent.steps) {
                break;
            }
            let before = (maker.nodes.len(), maker.doomed.len());
            let recipe = *maker.rng.weighted(RECIPES);
            recipe(&mut maker);
            if (maker.nodes.len(), maker.doomed.len()) != before {
                (taken, last) = (taken + 1, before.0);
            }
        }
        let outputs = match extent.last_only {
            true if last < maker.nodes.len() => maker.nodes[last..].to_vec(),
            true => maker.doomed.split_off(maker.doomed.len() - 1),
            false => maker.outputs(&mut Rng::new(seed, 2), inputs),
        };
        graph.output(outputs.iter().map(|n| &n.value).collect::<Vec<_>>()).expect("outputs of this graph");
        drop(scope);
        let tolerances = outputs.iter().map(|n| 4.0 * n.error).collect();
        Case { graph, types, bindings: maker.palette.bindings, tolerances, steps: taken, seed }
    }

    /// Inputs for the given sizes of the symbols; a different number gives different data.
    pub fn inputs(&self, bindings: &Bindings, data: u64) -> Vec<HostTensor> {
        let mut rng = Rng::new(self.seed, 100 + data);
        let input = |ty: &TensorType| {
            random_tensor(&mut rng, ty.dtype, ty.shape.evaluate(bindings).expect("symbols with sizes"), true)
        };
        self.types.iter().map(input).collect()
    }

    /// Smaller sizes for the symbols of the inputs, such that everything known about the values still holds.
    pub fn smaller(&self, variant: u64) -> Bindings {
        let mut rng = Rng::new(self.seed, 200 + variant);
        let symbols = self.types.iter().flat_map(|ty| ty.shape.parameters());
        symbols
            .map(|name| (name.clone(), self.bindings[&name]))
            .map(|(name, size)| {
                let low = size.min(1);
                (name, rng.between(low, size))
            })
            .collect()
    }

    /// The sizes with one symbol of the inputs at zero, for each of them.
    pub fn emptied(&self) -> Vec<Bindings> {
        let symbols: BTreeSet<_> = self.types.iter().flat_map(|ty| ty.shape.parameters()).collect();
        let mut known = self.bindings.clone();
        known.retain(|name, _| symbols.contains(name));
        let size = |name: &_, known: &_, size| if name == known { 0 } else { size };
        let empty =
            |name| known.iter().map(|(known, &old)| (known.clone(), size(name, known, old))).collect();
        symbols.iter().map(empty).collect()
    }
}

fn input_bound(dtype: DType) -> f64 {
    match dtype {
        DType::Bool => 1.0,
        dtype if dtype.is_float() => 2.0,
        _ => 6.0,
    }
}

/// A tensor of moderate elements; inputs sometimes hold extreme ones.
pub fn random_tensor(rng: &mut Rng, dtype: DType, sizes: Vec<usize>, extremes: bool) -> HostTensor {
    let count: usize = sizes.iter().product();
    let extremes = extremes && rng.chance(4);
    if dtype == DType::Bool {
        // Any byte but zero is true.
        let bytes = (0..count).map(|_| rng.below(if extremes { 4 } else { 2 }) as u8);
        return HostTensor::new(dtype, sizes, HostBytes::from_vec(bytes.collect())).expect("as many bytes");
    }
    let extreme = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -0.0];
    let mut draw = || match dtype.is_float() {
        true if extremes && rng.chance(5) => *rng.pick(&extreme),
        true => rng.tame(),
        false if dtype.is_unsigned_integral() => rng.below(7) as f64,
        false => rng.between(-6, 6) as f64,
    };
    dispatch!(dtype, T => {
        HostTensor::from_vec(sizes, (0..count).map(|_| T::from_double(draw())).collect::<Vec<T>>())
    })
    .expect("as many elements")
}

/// The dims from which inputs and constants of a graph are made: few, so that shapes match often.
pub struct Palette {
    dims: Vec<Dim>,
    /// The shape of the first input, if it is prescribed.
    first: Option<&'static [usize]>,
    pub bindings: Bindings,
}

const SIZES: &[(usize, i64)] = &[
    (3, 0),
    (5, 1),
    (6, 2),
    (6, 3),
    (5, 5),
    (5, 7),
    (4, 13),
    (4, 16),
    (4, 17),
    (3, 31),
    (3, 64),
    (3, 97),
    (1, 130),
];

/// Shapes of large first inputs.
const LARGE_SHAPES: &[&[usize]] = &[&[70_003], &[263_167], &[613, 211], &[3, 70_003]];

/// Shapes of first inputs that would be large if their empty axis were not empty.
const HOLLOW_SHAPES: &[&[usize]] = &[&[0, 33, 257], &[33, 0, 257], &[33, 257, 0], &[0, 131], &[1000, 0]];

const DTYPES: &[(usize, DType)] = &[
    (55, DType::Float32),
    (8, DType::Float64),
    (8, DType::BFloat16),
    (7, DType::Float16),
    (6, DType::Int32),
    (6, DType::Int64),
    (4, DType::UInt8),
    (6, DType::Bool),
];

impl Palette {
    fn new(rng: &mut Rng, shapes: Option<&[&'static [usize]]>) -> Palette {
        let mut bindings = Bindings::new();
        let names = ["a", "b", "c"];
        let dims = names.iter().map(|&name| {
            let size = *rng.weighted(SIZES);
            if rng.chance(50) {
                return Dim::Static(size);
            }
            bindings.insert(name.into(), size);
            Dim::from(name)
        });
        let dims = dims.collect();
        let first = shapes.map(|shapes| *rng.pick(shapes));
        Palette { dims, first, bindings }
    }

    fn input(&self, rng: &mut Rng, is_first: bool) -> TensorType {
        let dtype = *rng.weighted(DTYPES);
        let shape = match self.first {
            Some(sizes) if is_first => sizes.iter().copied().collect(),
            _ => self.shape(rng),
        };
        TensorType::new(dtype, shape, DeviceRef::CPU)
    }

    /// A shape with few enough elements.
    pub fn shape(&self, rng: &mut Rng) -> Shape {
        loop {
            let rank = *rng.weighted(&[(1, 0), (4, 1), (6, 2), (4, 3), (2, 4)]);
            let dims =
                (0..rank).map(|_| if rng.chance(12) { Dim::Static(1) } else { rng.pick(&self.dims).clone() });
            let shape: Shape = dims.collect();
            let sizes = shape.evaluate(&self.bindings);
            if sizes.is_ok_and(|sizes| sizes.iter().product::<usize>() <= ORDINARY / 2) {
                return shape;
            }
        }
    }
}

/// A graph under construction.
pub struct Maker {
    pub rng: Rng,
    pub palette: Palette,
    pub nodes: Vec<Node>,
    /// Values that no execution can compute.
    doomed: Vec<Node>,
    limit: usize,
    symbols: usize,
}

impl Maker {
    fn add(&mut self, value: TensorValue, bound: f64, error: f64) {
        // Integers wrap, so their bound is at most that of the dtype.
        let bound = if value.dtype().is_float() { bound } else { bound.min(greatest(value.dtype())) };
        match value.shape().evaluate(&self.palette.bindings) {
            Ok(sizes) => self.nodes.push(Node { value, sizes, bound, error }),
            Err(_) => self.doomed.push(Node { value, sizes: vec![], bound, error }),
        }
    }

    /// Adds the result of an op function; refused arguments are not a failure, they just add nothing.
    pub fn push(&mut self, value: Result<TensorValue>, bound: f64, error: f64) -> Option<()> {
        match value {
            Ok(value) => self.add(value, bound, error),
            Err(e) => assert!(e.kind() != ErrorKind::Internal, "{e}"),
        }
        Some(())
    }

    /// Whether results within a bound and an error can be judged in a dtype.
    pub fn tame(&self, dtype: DType, bound: f64, error: f64) -> Option<()> {
        let (greatest, relative) = match dtype {
            DType::Float64 => (1e4, 1e-9),
            DType::Float32 => (1e4, 2e-3),
            DType::Float16 => (2e3, 0.03),
            DType::BFloat16 => (2e3, 0.1),
            _ => return Some(()),
        };
        (bound <= greatest && error <= relative * bound.max(1.0)).then_some(())
    }

    /// Whether a value of these sizes is small enough.
    pub fn fits(&self, sizes: &[usize]) -> Option<()> {
        (sizes.iter().product::<usize>() <= self.limit).then_some(())
    }

    /// Whether a value of this shape is small enough.
    pub fn shape_fits(&self, shape: &Shape) -> Option<()> {
        self.fits(&shape.evaluate(&self.palette.bindings).ok()?)
    }

    /// A value that fulfils a condition, preferably a late one.
    pub fn node(&mut self, wanted: impl Fn(&Node) -> bool) -> Option<Node> {
        let found: Vec<&Node> = self.nodes.iter().filter(|node| wanted(node)).collect();
        if found.is_empty() {
            return None;
        }
        let at = self.rng.below(found.len()).max(self.rng.below(found.len()));
        Some(found[at].clone())
    }

    /// A new symbol with a size.
    pub fn symbol(&mut self, size: usize) -> Dim {
        self.symbols += 1;
        let name = format!("s{}", self.symbols);
        self.palette.bindings.insert(name.as_str().into(), size as i64);
        Dim::from(name.as_str())
    }

    /// One to four outputs: late values, any values, repeated ones, and inputs unchanged.
    fn outputs(&mut self, rng: &mut Rng, inputs: usize) -> Vec<Node> {
        let mut outputs = Vec::new();
        for _ in 0..rng.between(1, 4) {
            let late = self.nodes.len() - 1 - rng.below(self.nodes.len().min(3));
            let (any, input) = (rng.below(self.nodes.len()), rng.below(inputs));
            let at = *rng.weighted(&[(70, late), (20, any), (5, input)]);
            match outputs.last().cloned() {
                Some(again) if rng.chance(8) => outputs.push(again),
                _ => outputs.push(self.nodes[at].clone()),
            }
        }
        if let Some(doomed) = self.doomed.pop()
            && rng.chance(50)
        {
            outputs.push(doomed);
        }
        outputs
    }
}

/// The largest magnitude of an integer dtype.
fn greatest(dtype: DType) -> f64 {
    match dtype {
        DType::Bool => 1.0,
        dtype => 2f64.powi(dtype.size_in_bytes() as i32 * 8 - i32::from(dtype.is_signed_integral())),
    }
}

/// The rounding error of a dtype, relative to the value.
pub fn unit(dtype: DType) -> f64 {
    match dtype {
        DType::Float64 => f64::EPSILON / 2.0,
        DType::Float32 => f64::from(f32::EPSILON) / 2.0,
        DType::Float16 => 2f64.powi(-11),
        DType::BFloat16 => 2f64.powi(-8),
        _ => 0.0,
    }
}

/// How much a sum of `n` terms, or a real function, may be off, relative to the bound of the result: many roundings of
/// the type that it is computed in, and one or two of the dtype itself.
pub fn slack(dtype: DType, n: usize) -> f64 {
    let wide = if dtype == DType::Float64 { DType::Float64 } else { DType::Float32 };
    if dtype.is_float() { unit(wide) * (16.0 + (n as f64).sqrt()) + 2.0 * unit(dtype) } else { 0.0 }
}
