//! The registry of op functions: it calls them by name, with arguments whose types are known only at run time. The
//! Python package and the shared case table use it; Rust code calls the typed functions.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use max_core::kernel::Normalization;
use max_core::quantization::Storage;
use max_core::{
    BufferType, ConvInputLayout, DType, DeviceRef, Dim, Error, FilterLayout, Number, Parameter, Parameters,
    QuantizationConfig, QuantizationEncoding, Result, Shape, TensorType, Type, bail, dispatch,
};

use crate::custom::{CustomOp, CustomRef};
use crate::graph::Graph;
use crate::host::HostTensor;
use crate::operand::{HasTensorValue, Operand, Operands};
use crate::ops;
use crate::ops::slice::{Bound, Index, Indices};
use crate::value::{BufferValue, TensorValue, Value};

/// An argument of a type known only at run time.
#[derive(Clone)]
#[allow(missing_docs, reason = "the names say what they hold")]
pub enum Arg {
    None,
    Number(Number),
    Str(String),
    Value(Value),
    Object(Arc<dyn HasTensorValue>),
    Array(HostTensor),
    Dim(Dim),
    Shape(Shape),
    DType(DType),
    Device(DeviceRef),
    Type(Type),
    Custom(Arc<CustomOp>),
    Graph(Graph),
    List(Vec<Arg>),
    Slice(Box<[Arg; 3]>),
    Ellipsis,
}

impl From<i64> for Arg {
    fn from(i: i64) -> Arg {
        Arg::Number(Number::Int(i.into()))
    }
}

impl From<f64> for Arg {
    fn from(f: f64) -> Arg {
        Arg::Number(Number::Float(f))
    }
}

impl From<bool> for Arg {
    fn from(b: bool) -> Arg {
        Arg::Number(Number::Bool(b))
    }
}

impl From<()> for Arg {
    fn from((): ()) -> Arg {
        Arg::None
    }
}

impl From<&str> for Arg {
    fn from(text: &str) -> Arg {
        Arg::Str(text.into())
    }
}

impl Arg {
    fn describe(&self) -> &'static str {
        match self {
            Arg::None => "None",
            Arg::Number(Number::Bool(_)) => "a bool",
            Arg::Number(Number::Int(_)) => "an int",
            Arg::Number(Number::Float(_)) => "a float",
            Arg::Str(_) => "a string",
            Arg::Value(_) => "a graph value",
            Arg::Object(_) => "a tensor",
            Arg::Array(_) => "an array",
            Arg::Dim(_) => "a Dim",
            Arg::Shape(_) => "a Shape",
            Arg::DType(_) => "a DType",
            Arg::Device(_) => "a device",
            Arg::Type(_) => "a type",
            Arg::Custom(_) => "a custom op",
            Arg::Graph(_) => "a graph",
            Arg::List(_) => "a list",
            Arg::Slice(_) => "a slice",
            Arg::Ellipsis => "an ellipsis",
        }
    }

    fn wrong<T>(&self, expected: &str) -> Result<T> {
        bail!(type_, "expected {expected}, got {}", self.describe())
    }
}

/// A parameter type of op functions.
pub trait FromArg: Sized {
    /// Converts an argument, or says what was expected.
    fn from_arg(arg: Arg) -> Result<Self>;
}

macro_rules! from_arg {
    ($($type:ty, $expected:literal { $($pattern:pat => $value:expr),* $(,)? })*) => {$(
        impl FromArg for $type {
            fn from_arg(arg: Arg) -> Result<Self> {
                match arg {
                    $($pattern => $value,)*
                    other => other.wrong($expected),
                }
            }
        }
    )*};
}

from_arg! {
    Operand, "a tensor, a number, an array or a list of numbers" {
        Arg::Value(v) => Ok(v.into()),
        Arg::Object(o) => Ok(o.into()),
        Arg::Array(a) => Ok(a.into()),
        Arg::Number(n) => Ok(n.into()),
        Arg::Dim(d) => Ok(d.into()),
        Arg::Shape(s) => Ok(s.into()),
        Arg::List(list) => numbers(&list).map(Operand::from),
    }
    Operands, "a list of tensors" {
        Arg::List(list) => Ok(list.into_iter().map(Operand::from_arg).collect::<Result<Vec<_>>>()?.into()),
    }
    Vec<BufferValue>, "a list of buffers" {
        Arg::List(list) => list.into_iter().map(BufferValue::from_arg).collect(),
    }
    i64, "an int" { Arg::Number(Number::Int(i)) => integer(i), Arg::Dim(Dim::Static(i)) => Ok(i) }
    f64, "a float" { Arg::Number(Number::Int(i)) => Ok(i as f64), Arg::Number(Number::Float(f)) => Ok(f) }
    bool, "a bool" { Arg::Number(Number::Bool(b)) => Ok(b) }
    String, "a string" { Arg::Str(s) => Ok(s) }
    Storage, "how quantized rows are stored" { Arg::Str(s) => s.parse() }
    DType, "a DType or the name of one" { Arg::DType(d) => Ok(d), Arg::Str(name) => name.parse() }
    DeviceRef, "a device or the name of one" { Arg::Device(d) => Ok(d), Arg::Str(name) => name.parse() }
    TensorType, "a TensorType" { Arg::Type(Type::Tensor(t)) => Ok(t) }
    BufferType, "a BufferType" { Arg::Type(Type::Buffer(t)) => Ok(t) }
    Type, "a Type" { Arg::Type(t) => Ok(t) }
    Vec<Type>, "a list of types" { Arg::List(list) => list.into_iter().map(Type::from_arg).collect() }
    Vec<String>, "a list of strings" { Arg::List(list) => list.into_iter().map(String::from_arg).collect() }
    Graph, "a graph" { Arg::Graph(g) => Ok(g) }
    BufferValue, "a buffer" { Arg::Value(v) => v.buffer() }
    Dim, "an int, a name or a Dim" {
        Arg::Number(Number::Int(i)) => integer(i).map(Dim::Static),
        Arg::Str(name) => Dim::symbolic(&name),
        Arg::Dim(d) => Ok(d),
    }
    Shape, "a list of dims" {
        Arg::List(list) => list.into_iter().map(Dim::from_arg).collect(),
        Arg::Shape(s) => Ok(s),
    }
    CustomRef, "the name of a custom op" {
        Arg::Str(name) => Ok(CustomRef::Name(name)),
        Arg::Custom(op) => Ok(CustomRef::Op(op)),
    }
    Parameter, "a bool, an int, a str or a DType" {
        Arg::Number(Number::Bool(b)) => Ok(b.into()),
        Arg::Number(Number::Int(i)) => integer(i).map(Parameter::Int),
        Arg::Str(text) => Ok(Parameter::Str(text)),
        Arg::DType(dtype) => Ok(dtype.into()),
    }
    Parameters, "parameters by name" {
        Arg::None => Ok(Parameters::default()),
        Arg::List(list) => {
            let named = list.into_iter().map(|pair| match pair {
                Arg::List(pair) => match <[Arg; 2]>::try_from(pair) {
                    Ok([name, value]) => Ok((String::from_arg(name)?, Parameter::from_arg(value)?)),
                    Err(_) => bail!(type_, "expected pairs of names and values"),
                },
                other => other.wrong("a pair of a name and a value"),
            });
            Parameters::new(named.collect::<Result<_>>()?)
        }
    }
    Vec<f64>, "a list of floats" { Arg::List(list) => list.into_iter().map(f64::from_arg).collect() }
    Vec<i64>, "a list of ints" { Arg::List(list) => list.into_iter().map(i64::from_arg).collect() }
    ConvInputLayout, "the name of a layout" { Arg::Str(s) => s.parse() }
    FilterLayout, "the name of a layout" { Arg::Str(s) => s.parse() }
    Normalization, "the name of a normalization" { Arg::Str(s) => s.parse() }
    QuantizationEncoding, "a QuantizationEncoding or the name of one" { Arg::Str(s) => s.parse() }
    Bound, "an int, a Dim or a scalar tensor" {
        Arg::None => Ok(Bound::Natural),
        Arg::Number(Number::Int(i)) => integer(i).map(|i| Bound::Dim(Dim::Static(i))),
        Arg::Dim(d) => Ok(Bound::Dim(d)),
        Arg::Str(name) => Dim::symbolic(&name).map(Bound::Dim),
        Arg::Value(v) => v.tensor().map(Bound::Tensor),
        Arg::Object(o) => o.tensor_value().map(Bound::Tensor),
    }
    Index, "an int, a slice, None, an ellipsis, a scalar tensor or a (slice, dim) pair" {
        Arg::Number(Number::Int(i)) => integer(i).map(|i| Index::At(Dim::Static(i))),
        Arg::Dim(d) => Ok(Index::At(d)),
        Arg::Value(v) => v.tensor().map(Index::Tensor),
        Arg::Object(o) => o.tensor_value().map(Index::Tensor),
        Arg::None => Ok(Index::NewAxis),
        Arg::Ellipsis => Ok(Index::Ellipsis),
        Arg::Slice(slice) => slice_index(*slice, None),
        Arg::List(pair) => match <[Arg; 2]>::try_from(pair) {
            Ok([Arg::Slice(slice), dim]) => slice_index(*slice, Some(Dim::from_arg(dim)?)),
            _ => bail!(
                type_,
                "a list is no index of a graph value, except for a pair of a slice and the dim of its result; gather takes lists of indices"
            ),
        },
    }
    Indices, "a list of indices" {
        Arg::List(list) => list.into_iter().map(Index::from_arg).collect::<Result<Vec<_>>>().map(Indices::from),
    }
}

/// Numbers in nested lists as an array: of floats if any is one, else of integers if any is one, else of bools.
fn numbers(list: &[Arg]) -> Result<HostTensor> {
    let mut shape = Vec::new();
    let mut first = Some(list);
    while let Some(list) = first {
        shape.push(list.len());
        first = match list.first() {
            Some(Arg::List(inner)) => Some(inner),
            _ => None,
        };
    }
    let mut found = Vec::new();
    collect(list, &shape, &mut found)?;
    let any = |kind: fn(&Number) -> bool| found.iter().any(kind);
    let dtype = match () {
        () if found.is_empty() || any(|n| matches!(n, Number::Float(_))) => DType::Float64,
        () if any(|n| matches!(n, Number::Int(i) if *i > i64::MAX.into())) => DType::UInt64,
        () if any(|n| matches!(n, Number::Int(_))) => DType::Int64,
        () => DType::Bool,
    };
    dispatch!(dtype, T => {
        let elements = found.iter().map(|number| number.to_element::<T>()).collect::<Result<Vec<T>>>()?;
        HostTensor::from_vec(shape, elements)
    })
}

/// Adds the numbers in nested lists of the given lengths.
fn collect(list: &[Arg], shape: &[usize], found: &mut Vec<Number>) -> Result<()> {
    let ragged = || Error::value("the lists of an operand must have the same length and depth");
    let (_, inner) = shape.split_first().filter(|&(&len, _)| len == list.len()).ok_or_else(ragged)?;
    for item in list {
        match item {
            Arg::List(list) => collect(list, inner, found)?,
            Arg::Number(number) if inner.is_empty() => found.push(*number),
            Arg::Number(_) => return Err(ragged()),
            other => bail!(type_, "an operand that is a list has only numbers, not {}", other.describe()),
        }
    }
    Ok(())
}

fn integer(i: i128) -> Result<i64> {
    i.try_into().map_err(|_| Error::value(format!("{i} exceeds 64 bits")))
}

fn slice_index([start, stop, step]: [Arg; 3], out_dim: Option<Dim>) -> Result<Index> {
    let step = Option::<i64>::from_arg(step)?.unwrap_or(1);
    Ok(Index::Slice { start: Bound::from_arg(start)?, stop: Bound::from_arg(stop)?, step, out_dim })
}

impl FromArg for QuantizationConfig {
    fn from_arg(arg: Arg) -> Result<QuantizationConfig> {
        let Arg::List(fields) = arg else { return arg.wrong("a QuantizationConfig") };
        let Ok([method, bits, group_size, desc_act, sym]) = <[Arg; 5]>::try_from(fields) else {
            bail!(type_, "expected the five fields of a QuantizationConfig");
        };
        let bits = i64::from_arg(bits)?;
        Ok(QuantizationConfig {
            quant_method: String::from_arg(method)?,
            bits: u32::try_from(bits).map_err(|_| Error::value(format!("{bits} is not a number of bits")))?,
            group_size: i64::from_arg(group_size)?,
            desc_act: bool::from_arg(desc_act)?,
            sym: bool::from_arg(sym)?,
        })
    }
}

impl<T: FromArg> FromArg for Option<T> {
    fn from_arg(arg: Arg) -> Result<Self> {
        match arg {
            Arg::None => Ok(None),
            arg => T::from_arg(arg).map(Some),
        }
    }
}

/// What an op function returns: values of a graph, or what they stand for.
pub enum Output<T = Value> {
    /// Nothing.
    None,
    /// One value.
    One(T),
    /// Several values.
    Many(Vec<T>),
}

/// A return type of op functions.
pub trait IntoOutput {
    /// Converts it to an output.
    fn into_output(self) -> Output;
}

impl IntoOutput for () {
    fn into_output(self) -> Output {
        Output::None
    }
}

impl IntoOutput for TensorValue {
    fn into_output(self) -> Output {
        Output::One(self.into())
    }
}

impl IntoOutput for BufferValue {
    fn into_output(self) -> Output {
        Output::One(self.value().clone())
    }
}

impl IntoOutput for Vec<Value> {
    fn into_output(self) -> Output {
        Output::Many(self)
    }
}

impl IntoOutput for Vec<TensorValue> {
    fn into_output(self) -> Output {
        Output::Many(self.into_iter().map(Value::from).collect())
    }
}

/// A parameter of an op function.
pub struct Param {
    /// Its name.
    pub name: &'static str,
    /// Its default value, if it may be left out.
    pub default: Option<fn() -> Arg>,
}

/// An op function as the registry knows it.
pub struct OpFunction {
    /// The documented name.
    pub name: &'static str,
    /// What it does, in lines that start with a space.
    pub doc: &'static str,
    /// Its parameters, in order.
    pub params: &'static [Param],
    /// Calls it with one argument per parameter.
    pub call: fn(Vec<Arg>) -> Result<Output>,
}

/// All op functions.
pub fn functions() -> impl Iterator<Item = &'static OpFunction> {
    ops::functions()
}

/// Finds an op function by its documented name.
pub fn find(name: &str) -> Result<&'static OpFunction> {
    static BY_NAME: LazyLock<HashMap<&'static str, &'static OpFunction>> =
        LazyLock::new(|| ops::functions().map(|function| (function.name, function)).collect());
    BY_NAME.get(name).copied().ok_or_else(|| Error::key(format!("there is no op function '{name}'")))
}

/// Calls an op function by name, with positional and named arguments.
pub fn call(name: &str, args: Vec<Arg>, mut named: Vec<(String, Arg)>) -> Result<Output> {
    let function = find(name)?;
    if args.len() > function.params.len() {
        bail!(type_, "{name}() takes {} arguments, got {}", function.params.len(), args.len());
    }
    let mut given = args.into_iter();
    let args = function.params.iter().map(|param| {
        let by_name = named.iter().position(|(n, _)| n == param.name).map(|at| named.swap_remove(at).1);
        match (given.next(), by_name, param.default) {
            (Some(arg), None, _) | (None, Some(arg), _) => Ok(arg),
            (None, None, Some(default)) => Ok(default()),
            (Some(_), Some(_), _) => bail!(type_, "{name}() got the argument '{}' twice", param.name),
            (None, None, None) => bail!(type_, "{name}() is missing the argument '{}'", param.name),
        }
    });
    let args = args.collect::<Result<Vec<_>>>()?;
    match named.first() {
        Some((unknown, _)) => bail!(type_, "{name}() has no argument '{unknown}'"),
        None => (function.call)(args),
    }
}

/// Defines op functions, typed for Rust, with conversions and the caller's location, and their registry entries.
macro_rules! op_fns {
    ($($(#[doc = $doc:literal])* $(#[expect($($lint:tt)*)])? pub fn $name:ident($($arg:ident: $type:ty $(= $default:expr)?),* $(,)?)
        -> $out:ty $(as $public:literal)? $body:block)*
    ) => {
        $($(#[doc = $doc])*
        $(#[expect($($lint)*)])?
        #[track_caller]
        pub fn $name($($arg: impl Into<$type>),*) -> max_core::Result<$out> {
            let location = max_core::Location::caller();
            $(let $arg: $type = $arg.into();)*
            $crate::graph::located($crate::registry::public_name!($name $($public)?), location, || $body)
        })*

        pub(crate) const OP_FUNCTIONS: &[$crate::registry::OpFunction] = &[$($crate::registry::OpFunction {
            name: $crate::registry::public_name!($name $($public)?),
            doc: concat!($($doc, "\n"),*),
            params: &[$($crate::registry::Param {
                name: stringify!($arg),
                default: $crate::registry::default_arg!($($default)?),
            }),*],
            call: |args| {
                let function = $crate::registry::public_name!($name $($public)?);
                let mut args = args.into_iter();
                $(let $arg = <$type as $crate::registry::FromArg>::from_arg(
                    args.next().unwrap_or($crate::registry::Arg::None),
                ).map_err(|e| e.context(format!(
                    "for the argument '{}' of {function}", stringify!($arg),
                )))?;)*
                $name($($arg),*).map($crate::registry::IntoOutput::into_output)
            },
        }),*];
    };
}

macro_rules! public_name {
    ($name:ident) => {
        stringify!($name)
    };
    ($name:ident $public:literal) => {
        $public
    };
}

macro_rules! default_arg {
    () => {
        None
    };
    ($default:expr) => {
        Some(|| $crate::registry::Arg::from($default))
    };
}

pub(crate) use {default_arg, op_fns, public_name};
