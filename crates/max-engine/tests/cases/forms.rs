//! Graphs that reach every kind of kernel, with a symbol for every size, so that each runs with a size of 0 or 1 in
//! every position.

use max_core::kernel::Normalization;
use max_core::quantization::Storage;
use max_core::{
    Bindings, DType, DeviceRef, Dim, Element, QuantizationConfig, QuantizationEncoding, Result, Shape,
    TensorType, dispatch,
};
use max_graph::ops::InterpolationMode;
use max_graph::ops::conv::ConvOptions;
use max_graph::ops::conv_transpose::ConvTransposeOptions;
use max_graph::ops::conv3d::Conv3dOptions;
use max_graph::ops::slice::Index;
use max_graph::{Graph, HostTensor, Operand, TensorValue, Value, ops};

use crate::gpu::Tolerance;

/// A graph and the sizes for which it is made.
pub struct KernelForm {
    pub name: &'static str,
    pub dtype: DType,
    /// The shapes of the inputs: symbols, or numbers.
    inputs: &'static [&'static [&'static str]],
    /// Each symbol with its size.
    sizes: &'static [(&'static str, i64)],
    build: fn(&[TensorValue]) -> Result<TensorValue>,
}

const FLOATS: &[DType] = &[DType::Float32, DType::BFloat16, DType::Float64];
const ALL: &[DType] = &[DType::Float32, DType::BFloat16, DType::Float64, DType::Int32, DType::UInt8];

/// Bytes of blocks are numbers of these.
const BYTES: &[DType] = &[DType::UInt8, DType::Int32];

/// Numbers as bytes whose float16 are finite.
fn as_bytes(x: &TensorValue) -> Result<TensorValue> {
    match x.dtype() {
        DType::UInt8 => Ok(x.clone()),
        _ => ops::cast(ops::mul(x, 40), DType::UInt8),
    }
}

/// Every form in every dtype.
pub fn forms() -> Vec<KernelForm> {
    let mut forms = Vec::new();
    macro_rules! form {
        ($name:literal, $dtypes:expr, [$($input:expr),*], [$($symbol:ident = $size:literal),*], $build:expr) => {
            for &dtype in $dtypes {
                let (inputs, sizes): (&[&[&str]], &[(&str, i64)]) =
                    (&[$(&$input),*], &[$((stringify!($symbol), $size)),*]);
                forms.push(KernelForm { name: $name, dtype, inputs, sizes, build: $build });
            }
        };
    }

    form!("flat", ALL, [["a", "b"], ["a", "b"]], [a = 5, b = 1031], |x| ops::add(&x[0], &x[1]));
    form!("broadcast", ALL, [["a", "1", "c"], ["b", "1"]], [a = 5, b = 7, c = 131], |x| ops::mul(
        &x[0], &x[1]
    ));
    form!("turned", ALL, [["a", "b", "c"]], [a = 3, b = 67, c = 35], |x| {
        ops::add(ops::permute(&x[0], vec![2, 0, 1]), ops::permute(&x[0], vec![2, 0, 1]))
    });
    form!("backwards", ALL, [["a", "b"]], [a = 9, b = 70], |x| ops::concat([&x[0], &x[0]], 1));

    form!("rows, sum", ALL, [["a", "b", "c"]], [a = 3, b = 33, c = 257], |x| ops::sum(&x[0], 2));
    form!("rows, mean", FLOATS, [["a", "b", "c"]], [a = 3, b = 33, c = 257], |x| ops::mean(&x[0], 2));
    form!("rows, prod", ALL, [["a", "b", "c"]], [a = 3, b = 33, c = 257], |x| ops::prod(&x[0], 2));
    form!("rows, max", ALL, [["a", "b", "c"]], [a = 3, b = 33, c = 257], |x| ops::reduce_max(&x[0], 2));
    form!("rows, argmin", ALL, [["a", "b", "c"]], [a = 3, b = 33, c = 257], |x| ops::argmin(&x[0], 2));
    form!("rows and more", FLOATS, [["a", "b", "c"], ["a", "b", "1"]], [a = 3, b = 33, c = 257], |x| {
        ops::add(ops::exp(ops::sum(&x[0], 2)), &x[1])
    });
    form!("columns", ALL, [["a", "b", "c"]], [a = 17, b = 65, c = 70], |x| ops::sum(&x[0], 1));
    form!("first axis", ALL, [["a", "b", "c"]], [a = 130, b = 9, c = 17], |x| ops::reduce_max(&x[0], 0));
    form!("short rows", ALL, [["a", "b", "c"]], [a = 5, b = 70, c = 9], |x| ops::sum(&x[0], 2));
    form!("a long row", ALL, [["a", "b"]], [a = 2, b = 70_003], |x| ops::sum(&x[0], 1));
    form!("parts of a row", FLOATS, [["a", "b"]], [a = 2, b = 70_003], |x| ops::softmax(&x[0], 1));
    form!("softmax", FLOATS, [["a", "b", "c"]], [a = 3, b = 21, c = 200], |x| ops::softmax(&x[0], 2));
    form!("softmax down", FLOATS, [["a", "b", "c"]], [a = 3, b = 40, c = 65], |x| ops::softmax(&x[0], 1));
    form!("layer norm", FLOATS, [["a", "b", "c"], ["c"], ["c"]], [a = 3, b = 21, c = 200], |x| {
        ops::layer_norm(&x[0], &x[1], &x[2], 1e-5)
    });
    form!("rms norm", FLOATS, [["a", "b", "c"], ["c"]], [a = 3, b = 21, c = 200], |x| {
        ops::rms_norm(&x[0], &x[1], 1e-5, 0.0, false)
    });
    form!(
        "concat, then rows",
        ALL,
        [["a", "b", "c"], ["a", "b", "d"]],
        [a = 3, b = 33, c = 64, d = 70],
        |x| { ops::sum(ops::concat([&x[0], &x[1]], 2), 2) }
    );
    form!(
        "concat, then columns",
        ALL,
        [["a", "b", "c"], ["a", "d", "c"]],
        [a = 3, b = 33, c = 64, d = 5],
        |x| { ops::sum(ops::concat([&x[0], &x[1]], 1), 2) }
    );
    form!("concat of turned", ALL, [["a", "b"], ["c", "b"]], [a = 33, b = 64, c = 40], |x| {
        ops::concat([ops::transpose(&x[0], 0, 1)?, ops::transpose(&x[1], 0, 1)?], 1)
    });

    form!("matmul", ALL, [["b", "m", "k"], ["b", "k", "n"]], [b = 2, m = 13, k = 300, n = 37], |x| {
        ops::matmul(&x[0], &x[1])
    });
    form!("matmul, turned", ALL, [["m", "k"], ["n", "k"]], [m = 70, k = 130, n = 65], |x| {
        ops::matmul(&x[0], ops::transpose(&x[1], 0, 1))
    });
    form!("matmul, both turned", FLOATS, [["k", "m"], ["n", "k"]], [m = 7, k = 130, n = 65], |x| {
        ops::matmul(ops::transpose(&x[0], 0, 1), ops::transpose(&x[1], 0, 1))
    });
    form!(
        "float8 weights",
        &[DType::Float32, DType::BFloat16],
        [["m", "k"], ["n", "k"]],
        [m = 5, k = 130, n = 65],
        |x| {
            let weight = ops::cast(ops::cast(&x[1], DType::Float8E4M3FN), x[1].dtype())?;
            ops::matmul(&x[0], ops::transpose(weight, 0, 1))
        }
    );
    form!(
        "scaled float8",
        &[DType::Float32],
        [["m", "k"], ["n", "k"], ["m", "1"], ["n", "1"]],
        [m = 33, k = 130, n = 65],
        |x| {
            let [a, b] = [0, 1].map(|at| ops::cast(&x[at], DType::Float8E5M2));
            ops::scaled_matmul(a, b, &x[2], &x[3], vec![], DType::Float32)
        }
    );
    form!("thin matmul", ALL, [["m", "k"], ["k", "n"]], [m = 2, k = 1030, n = 200], |x| ops::matmul(
        &x[0], &x[1]
    ));
    form!(
        "matmuls of one left operand",
        ALL,
        [["m", "k"], ["k", "n"], ["k", "p"], ["q", "k"]],
        [m = 13, k = 300, n = 37, p = 70, q = 5],
        |x| {
            let last = ops::matmul(&x[0], ops::transpose(&x[3], 0, 1))?;
            ops::concat([ops::matmul(&x[0], &x[1])?, ops::matmul(&x[0], &x[2])?, last], 1)
        }
    );
    form!(
        "matmul and more",
        FLOATS,
        [["b", "m", "k"], ["k", "n"], ["n"], ["b", "m", "n"]],
        [b = 2, m = 13, k = 50, n = 37],
        |x| { ops::add(ops::gelu(ops::add(ops::matmul(&x[0], &x[1]), &x[2])), &x[3]) }
    );
    form!(
        "attention",
        FLOATS,
        [["b", "q", "d"], ["b", "k", "d"], ["b", "k", "w"]],
        [b = 2, q = 35, k = 70, d = 16, w = 24],
        |x| {
            let scores = ops::mul(ops::matmul(&x[0], ops::transpose(&x[1], 1, 2)), 0.25);
            ops::matmul(ops::softmax(scores, -1), &x[2])
        }
    );
    form!(
        "masked attention",
        FLOATS,
        [["b", "q", "d"], ["b", "k", "d"], ["b", "k", "w"], ["q", "k"]],
        [b = 2, q = 1, k = 270, d = 16, w = 24],
        |x| {
            let scores = ops::add(ops::matmul(&x[0], ops::transpose(&x[1], 1, 2)), &x[3]);
            ops::matmul(ops::softmax(scores, -1), &x[2])
        }
    );
    form!(
        "conv2d",
        FLOATS,
        [["n", "h", "w", "6"], ["3", "2", "6", "f"]],
        [n = 2, h = 9, w = 14, f = 20],
        |x| {
            let padding = [1, 1, 1, 0];
            ops::conv2d(&x[0], &x[1], None, ConvOptions { padding, ..ConvOptions::default() })
        }
    );
    form!(
        "grouped conv2d",
        FLOATS,
        [["n", "h", "w", "6"], ["3", "2", "2", "9"]],
        [n = 2, h = 9, w = 14],
        |x| { ops::conv2d(&x[0], &x[1], None, ConvOptions { groups: 3, ..ConvOptions::default() }) }
    );
    form!(
        "depthwise conv2d",
        FLOATS,
        [["n", "h", "w", "33"], ["3", "3", "1", "33"]],
        [n = 2, h = 9, w = 14],
        |x| {
            let padding = [1, 1, 1, 1];
            ops::conv2d(&x[0], &x[1], None, ConvOptions { padding, groups: 33, ..ConvOptions::default() })
        }
    );
    form!("max pool", ALL, [["n", "h", "w", "c"]], [n = 2, h = 9, w = 14, c = 40], |x| {
        ops::max_pool2d(&x[0], [3, 2], 2, 1, [1, 1, 1, 0], true)
    });
    form!("mean pool of large windows", ALL, [["n", "h", "w", "c"]], [n = 2, h = 9, w = 14, c = 3], |x| {
        ops::avg_pool2d(&x[0], [7, 5], 1, 1, [3, 2], false, false)
    });
    form!(
        "mean pool of planes and more",
        FLOATS,
        [["n", "c", "h", "w"]],
        [n = 2, c = 20, h = 9, w = 14],
        |x| {
            let rows = ops::permute(&x[0], vec![0, 2, 3, 1])?;
            ops::permute(ops::exp(ops::avg_pool2d(rows, [3, 3], 1, 2, 2, false, true)), vec![0, 3, 1, 2])
        }
    );
    form!("resize", ALL, [["n", "c", "h", "w"]], [n = 2, c = 3, h = 9, w = 40], |x| {
        let [n, c, h, w] = &x[0].shape()[..] else { panic!("an image has four axes") };
        ops::resize(
            &x[0],
            [n.clone(), c.clone(), h.mul(&2.into())?, w.add(&9.into())?],
            InterpolationMode::Bicubic,
        )
    });
    form!("resize to less", ALL, [["n", "h", "w", "c"]], [n = 2, h = 9, w = 40, c = 35], |x| {
        let [n, _, _, c] = &x[0].shape()[..] else { panic!("an image has four axes") };
        ops::resize_linear(&x[0], [n.clone(), 4.into(), 7.into(), c.clone()], 0, true)
    });
    form!("nearest", ALL, [["a", "b", "c"]], [a = 3, b = 9, c = 40], |x| {
        let [a, b, c] = &x[0].shape()[..] else { panic!("it has three axes") };
        ops::resize_nearest(&x[0], [a.add(&1.into())?, b.clone(), c.mul(&2.into())?], 2, 2)
    });
    form!(
        "conv2d_transpose",
        FLOATS,
        [["n", "h", "w", "6"], ["4", "3", "f", "6"]],
        [n = 2, h = 5, w = 7, f = 9],
        |x| {
            let options = ConvTransposeOptions { stride: [2, 3], ..ConvTransposeOptions::default() };
            ops::conv2d_transpose(&x[0], &x[1], None, options)
        }
    );
    form!(
        "conv3d",
        FLOATS,
        [["n", "d", "h", "w", "4"], ["2", "3", "3", "4", "f"]],
        [n = 2, d = 3, h = 6, w = 7, f = 9],
        |x| {
            let options = Conv3dOptions { padding: [1, 1, 1, 1, 1, 1], ..Conv3dOptions::default() };
            ops::conv3d(&x[0], &x[1], None, options)
        }
    );
    form!("pad", ALL, [["a", "b", "c"]], [a = 3, b = 17, c = 40], |x| {
        ops::pad(&x[0], vec![1i64, 0, 2, 1, 0, 3], "constant", 1)
    });
    form!("irfft", FLOATS, [["a", "b", "c"]], [a = 3, b = 9, c = 5], |x| {
        ops::irfft(&x[0], Some(17i64), 1, Normalization::Backward, false, 0)
    });
    form!("regions", FLOATS, [["n", "h", "w", "c"], ["m"]], [n = 2, h = 9, w = 8, c = 70, m = 3], |x| {
        let zero = ops::mul(ops::unsqueeze(&x[1], 1), 0);
        let zero = zero?;
        let far = ops::add(&zero, 6)?;
        let rois = ops::concat([&zero, &zero, &zero, &far, &far], 1);
        ops::roi_align(&x[0], rois, 2, 3, 1.0, 0.0, false, "AVG")
    });
    form!("suppression", FLOATS, [["b", "n", "4"], ["b", "c", "n"]], [b = 2, n = 17, c = 3], |x| {
        ops::non_maximum_suppression(&x[0], &x[1], 5, 0.25, 0.0, "k")
    });
    form!("gather", ALL, [["a", "b", "c"], ["p"]], [a = 5, b = 9, c = 40, p = 7], |x| {
        ops::gather(&x[0], ops::cast(ops::mul(&x[1], 0), DType::Int64), 1)
    });
    form!("scan", ALL, [["a", "b", "c"]], [a = 5, b = 9, c = 40], |x| ops::cumsum(&x[0], 1, false, false));
    form!("stored at a place", ALL, [["a", "b", "c"], ["a", "c"]], [a = 5, b = 7, c = 67], |x| {
        let buffer = ops::buffer_create(x[0].tensor_type().as_buffer(), Some((&x[0]).into()))?;
        let place = ops::constant(HostTensor::from_vec([], vec![-1i64])?, None, None)?;
        let all = || Index::from(..);
        ops::buffer_store_slice(buffer.clone(), &x[1], vec![all(), Index::Tensor(place), all()])?;
        ops::buffer_load(buffer)
    });
    form!("blocks", BYTES, [["a", "b", "36"]], [a = 5, b = 9], |x| {
        ops::dequantize(QuantizationEncoding::Q4_0, as_bytes(&x[0])?)
    });
    form!("many blocks", BYTES, [["a", "b"]], [a = 3, b = 21_000], |x| {
        ops::dequantize(QuantizationEncoding::Q6_K, as_bytes(&x[0])?)
    });
    form!("blocks in a part of rows", BYTES, [["a", "b", "90"]], [a = 7, b = 5], |x| {
        let part = ops::slice_tensor(&x[0], (Index::from(..), .., 20..80i64));
        ops::dequantize(QuantizationEncoding::Q4_1, as_bytes(&part?)?)
    });
    form!("turned blocks", BYTES, [["34", "a"]], [a = 70], |x| {
        ops::dequantize(QuantizationEncoding::Q8_0, ops::permute(as_bytes(&x[0])?, vec![1, 0]))
    });
    form!("product with blocks", BYTES, [["a", "b", "64"], ["m", "36"]], [a = 5, b = 9, m = 40], |x| {
        let lhs = ops::cast(&x[0], DType::Float32);
        let product = ops::qmatmul(QuantizationEncoding::Q4_0, None, lhs, vec![as_bytes(&x[1])?]);
        ops::add(ops::mul(product, 0.5), 1)
    });
    form!("product with turned codes", BYTES, [["a", "32"], ["18", "m"]], [a = 70, m = 40], |x| {
        let config = QuantizationConfig {
            quant_method: "gptq".into(),
            bits: 4,
            group_size: 32,
            desc_act: false,
            sym: true,
        };
        let lhs = ops::cast(&x[0], DType::Float32);
        ops::qmatmul(QuantizationEncoding::GPTQ, Some(config), lhs, vec![as_bytes(&x[1])?])
    });
    form!(
        "products of experts",
        BYTES,
        [["a", "64"], ["e", "m", "68"], ["g"]],
        [a = 20, e = 3, m = 17, g = 2],
        |x| {
            let lhs = ops::cast(&x[0], DType::Float32)?;
            let storage = Storage::Blocks(QuantizationEncoding::Q8_0);
            // Groups without rows: where there is no row or no matrix, none can have any.
            let none = ops::cast(ops::mul(&x[2], 0), DType::Int32)?;
            let starts = ops::pad(&none, vec![1i64, 0], "constant", 0)?;
            let ids = ops::sub(&none, 1)?;
            let (starts, ids) = (Operand::from(starts), Operand::from(ids));
            ops::quantized_matmul(lhs, as_bytes(&x[1])?, storage, None, Some(starts), Some(ids))
        }
    );
    form!("products of floats", BYTES, [["a", "40"], ["m", "40"]], [a = 9, m = 33], |x| {
        let lhs = ops::cast(&x[0], DType::Float32);
        let rhs = ops::cast(&x[1], DType::BFloat16);
        ops::quantized_matmul(
            lhs,
            rhs,
            Storage::Floats { dtype: DType::BFloat16, group: 0 },
            None,
            None,
            None,
        )
    });
    form!("scan of rows", ALL, [["a", "b"]], [a = 70, b = 9], |x| ops::cumsum(&x[0], 1, true, true));
    form!("gather along rows", ALL, [["a", "b"], ["p"]], [a = 5, b = 9, p = 70], |x| {
        ops::gather(&x[0], ops::cast(ops::mul(&x[1], 0), DType::Int32), 1)
    });
    form!("sort", ALL, [["a", "b", "c"]], [a = 5, b = 90, c = 3], |x| {
        ops::argsort(ops::flatten(&x[0], 0, -1), true)
    });
    form!("a long sort", ALL, [["a", "b"]], [a = 2, b = 70_001], |x| {
        ops::argsort(ops::flatten(ops::permute(&x[0], vec![1, 0]), 0, -1), false)
    });
    form!("selected", ALL, [["a", "7", "c"]], [a = 5, c = 40], |x| {
        let best = ops::top_k(&x[0], 3, 1)?;
        ops::add(&best[0], ops::cast(&best[1], best[0].dtype()))
    });
    form!("selected from a view", ALL, [["a", "500"]], [a = 9], |x| {
        ops::bottom_k(ops::slice_tensor(&x[0], (.., 7..307i64)), 20, 1).map(|mut best| best.remove(0))
    });
    form!("where it is not zero", ALL, [["a", "b", "c"]], [a = 5, b = 9, c = 11], |x| ops::nonzero(
        &x[0], "found"
    ));
    form!(
        "gather by vectors",
        ALL,
        [["a", "b", "c", "d"], ["a", "p", "2"]],
        [a = 3, b = 5, c = 4, d = 40, p = 7],
        |x| { ops::gather_nd(&x[0], ops::cast(ops::mul(&x[1], 0), DType::Int64), 1) }
    );
    form!("scatter of lines", ALL, [["a", "b"], ["a", "p"]], [a = 70, b = 9, p = 300], |x| {
        let places = ops::mod_(ops::cast(&x[1], DType::Int32), 1);
        ops::scatter_add(&x[0], &x[1], places, 1)
    });
    form!("scatter of strips", ALL, [["a", "b", "c"], ["a", "p", "c"]], [a = 3, b = 9, c = 70, p = 7], |x| {
        ops::scatter_max(&x[0], &x[1], ops::cast(ops::mul(&x[1], 0), DType::Int64), 1)
    });
    form!("scatter of one line", ALL, [["a"], ["p"]], [a = 500, p = 3000], |x| {
        ops::scatter(&x[0], &x[1], ops::cast(ops::mul(&x[1], 0), DType::Int64), 0)
    });
    form!("scatter of rows", ALL, [["a", "b"], ["p", "b"]], [a = 9, b = 130, p = 500], |x| {
        let places = ops::cast(ops::slice_tensor(&x[1], (Index::from(..), 0i64)), DType::Int64)?;
        let places = ops::unsqueeze(ops::mul(places, 0), 1)?;
        ops::scatter_nd_add(&x[0], &x[1], places)
    });
    form!(
        "scatter with the same places",
        ALL,
        [["a", "b"], ["a", "p"], ["p"]],
        [a = 40, b = 9, p = 30],
        |x| {
            let places = ops::cast(ops::mul(&x[2], 0), DType::Int64)?;
            let places = ops::broadcast_to(&places, x[1].shape())?;
            ops::scatter_min(&x[0], &x[1], places, 1)
        }
    );
    form!("fold", ALL, [["n", "c", "12"]], [n = 3, c = 8], |x| { ops::fold(&x[0], [4, 5], [2, 2], 1, 1, 0) });
    forms
}

impl KernelForm {
    /// How far results may be from the interpreter's.
    pub fn tolerance(&self, graph: &Graph) -> Tolerance {
        match self.dtype {
            DType::BFloat16 => Tolerance::NARROW,
            dtype => Tolerance::of(&graph.body(), dtype),
        }
    }

    /// All combinations of the sizes it is made for and other sizes.
    pub fn bindings(&self, others: &[i64]) -> Vec<Bindings> {
        let mut all = vec![Bindings::new()];
        for &(symbol, size) in self.sizes {
            let with = |known: &Bindings, size: i64| {
                let mut known = known.clone();
                known.insert(symbol.into(), size);
                known
            };
            let sizes = [others, &[size]].concat();
            all = all
                .iter()
                .flat_map(|known| sizes.iter().map(|&size| with(known, size)).collect::<Vec<_>>())
                .collect();
        }
        all
    }

    fn shapes(&self) -> Vec<Shape> {
        let dim = |dim: &&str| dim.parse::<i64>().map_or_else(|_| Dim::from(*dim), Dim::Static);
        self.inputs.iter().map(|shape| shape.iter().map(dim).collect()).collect()
    }

    pub fn graph(&self) -> Result<Graph> {
        let ty = |shape| TensorType::new(self.dtype, shape, DeviceRef::CPU);
        let graph = Graph::new(self.name, self.shapes().into_iter().map(ty).collect::<Vec<_>>())?;
        let scope = graph.enter();
        let inputs = graph.inputs().iter().map(Value::tensor).collect::<Result<Vec<_>>>()?;
        graph.output((self.build)(&inputs)?)?;
        drop(scope);
        Ok(graph)
    }

    /// Inputs of small numbers.
    pub fn inputs(&self, bindings: &Bindings) -> Result<Vec<HostTensor>> {
        let number = |i: usize| ((i * 7919 + 13) % 31) as f64 / 16.0;
        let inputs = self.shapes().into_iter().map(|shape| {
            let sizes = shape.evaluate(bindings)?;
            let count = sizes.iter().product();
            dispatch!(self.dtype, T => {
                HostTensor::from_vec(sizes, (0..count).map(|i| T::from_double(number(i))).collect::<Vec<T>>())
            })
        });
        inputs.collect()
    }
}
