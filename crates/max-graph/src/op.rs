//! What an op is: a name, attributes, a type rule, properties and a reference implementation. Everything else is derived.

use std::hash::{DefaultHasher, Hash, Hasher};

use max_core::{Bindings, Result, ScalarOp, Shape, Type, bail};

use crate::attr::{Attr, Attrs};
use crate::host::HostTensor;
use crate::interpret::Environment;
use crate::ops;
use crate::properties::{Properties, Signature};
use crate::region::Region;

/// The name of an op in the IR and its attributes; implemented by `op_struct!`.
pub trait Attributes: Sized {
    /// The name in the IR.
    const NAME: &'static str;

    /// The attributes, in the order they print.
    fn attrs(&self) -> Attrs;

    /// Calls a function with the name of each attribute, its value and whether it holds sizes, in the order they print.
    fn visit(&self, see: &mut dyn FnMut(&'static str, Attr, bool));

    /// Reads the op back from attributes, taking those it knows.
    fn from_attrs(attrs: &mut Attrs) -> Result<Self>;
}

/// The type rule, the properties and the reference implementation of an op.
pub trait Operation {
    /// Infers the types of the results from those of the operands, or says why it cannot.
    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>>;

    /// What it may do, given its types.
    fn properties(&self, signature: Signature) -> Properties;

    /// The bodies of its own that it runs.
    fn regions(&self) -> &[Region] {
        &[]
    }

    /// Its regions, to be replaced by others that take and return the same types.
    fn regions_mut(&mut self) -> &mut [Region] {
        &mut []
    }

    /// Computes the results in the simplest way. Types have been checked; sizes may be anything. An op that writes returns,
    /// after its results, the new contents of each buffer among its operands.
    fn eval(&self, operands: &[HostTensor], run: &Run) -> Result<Vec<HostTensor>>;
}

/// What an op can find out about the execution it is part of.
pub struct Run<'a> {
    /// The sizes of symbols known so far.
    pub bindings: &'a Bindings,
    /// Where weights come from.
    pub environment: &'a dyn Environment,
}

impl Run<'_> {
    /// The sizes of a shape in this execution.
    pub fn sizes(&self, shape: &Shape) -> Result<Vec<usize>> {
        shape.evaluate(self.bindings)
    }
}

/// Builds [`OpKind`] from the list of op structs.
macro_rules! operations {
    ($($module:ident::$name:ident),* $(,)?) => {
        /// An op with its attributes: a row of the scalar table, or one of the structured ops.
        #[derive(Clone, Debug, PartialEq)]
        #[allow(missing_docs, reason = "each op is documented at its struct")]
        pub enum OpKind {
            Scalar(ScalarOp),
            $($name(ops::$module::$name),)*
        }

        impl OpKind {
            /// The name in the IR.
            pub fn name(&self) -> &'static str {
                match self {
                    OpKind::Scalar(op) => op.name(),
                    $(OpKind::$name(_) => <ops::$module::$name as Attributes>::NAME,)*
                }
            }

            /// The attributes, in the order they print.
            pub fn attrs(&self) -> Attrs {
                match self {
                    OpKind::Scalar(_) => Attrs::new(),
                    $(OpKind::$name(op) => op.attrs(),)*
                }
            }

            /// Calls a function with the name of each attribute, its value and whether it holds sizes, in the order they
            /// print.
            pub fn visit(&self, see: &mut dyn FnMut(&'static str, Attr, bool)) {
                match self {
                    OpKind::Scalar(_) => {}
                    $(OpKind::$name(op) => op.visit(see),)*
                }
            }

            /// The op with a name and attributes; an attribute it does not have is an error.
            pub fn from_attrs(name: &str, mut attrs: Attrs) -> Result<OpKind> {
                let kind = match name {
                    $(<ops::$module::$name as Attributes>::NAME => {
                        OpKind::$name(<ops::$module::$name as Attributes>::from_attrs(&mut attrs)?)
                    })*
                    _ => match ScalarOp::all().find(|op| op.name() == name) {
                        Some(op) => OpKind::Scalar(op),
                        None => bail!(value, "there is no op '{name}'"),
                    },
                };
                match attrs.first() {
                    Some((unknown, _)) => bail!(value, "op '{name}' has no attribute '{unknown}'"),
                    None => Ok(kind),
                }
            }

            /// The names of the structured ops.
            #[cfg(test)]
            pub(crate) const NAMES: &[&str] = &[$(<ops::$module::$name as Attributes>::NAME),*];

            fn operation(&self) -> &dyn Operation {
                match self {
                    OpKind::Scalar(op) => op,
                    $(OpKind::$name(op) => op,)*
                }
            }

            fn operation_mut(&mut self) -> &mut dyn Operation {
                match self {
                    OpKind::Scalar(op) => op,
                    $(OpKind::$name(op) => op,)*
                }
            }
        }

        $(impl From<ops::$module::$name> for OpKind {
            fn from(op: ops::$module::$name) -> OpKind {
                OpKind::$name(op)
            }
        })*
    };
}

operations! {
    attention::Attention,
    broadcast::BroadcastTo,
    buffer::BufferCreate,
    buffer::BufferLoad,
    buffer::BufferStore,
    buffer::BufferStoreSlice,
    cast::Cast,
    collective::Collect,
    concat::Concat,
    control::Call,
    control::Cond,
    control::While,
    constant::Constant,
    constant::ConstantExternal,
    constant::ShapeToTensor,
    conv::Conv2d,
    cumsum::Cumsum,
    custom::Custom,
    dequantize::Dequantize,
    fence::Fence,
    gather::Gather,
    gather::GatherNd,
    index::Index,
    irfft::Irfft,
    layer_norm::LayerNorm,
    matmul::Matmul,
    paged::PagedAttention,
    paged::PagedStore,
    permute::Permute,
    pool::Pool,
    print::Print,
    qmatmul::QMatmul,
    random::Random,
    rebind::Rebind,
    reduce::Reduce,
    resample::Resample,
    reshape::Reshape,
    rms_norm::RmsNorm,
    scatter::Scatter,
    scatter::ScatterNd,
    roi_align::RoiAlign,
    select::Where,
    slice::DynamicSlice,
    slice::Slice,
    softmax::Softmax,
    sort::Sort,
    split::Split,
    suppress::Suppress,
    transfer::TransferTo,
}

impl OpKind {
    /// Its name for people: that of a custom op is its own.
    pub fn title(&self) -> &str {
        match self {
            OpKind::Custom(custom) => custom.op.name(),
            other => other.name(),
        }
    }

    /// See [`Operation::infer`]; the result types are validated.
    pub fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>> {
        let types = self.operation().infer(operands)?;
        types.iter().try_for_each(Type::validate)?;
        Ok(types)
    }

    /// A hash of the op: equal ops have equal fingerprints, except that equal constants with large data do so only if
    /// they share the data.
    pub fn fingerprint(&self) -> u64 {
        let mut state = DefaultHasher::new();
        self.name().hash(&mut state);
        self.visit(&mut |_, attr, _| attr.feed(&mut state));
        state.finish()
    }

    /// See [`Operation::properties`].
    pub(crate) fn properties(&self, signature: Signature) -> Properties {
        self.operation().properties(signature)
    }

    /// See [`Operation::regions`].
    pub fn regions(&self) -> &[Region] {
        self.operation().regions()
    }

    /// See [`Operation::regions_mut`].
    pub fn regions_mut(&mut self) -> &mut [Region] {
        self.operation_mut().regions_mut()
    }

    /// See [`Operation::eval`].
    pub fn eval(&self, operands: &[HostTensor], run: &Run) -> Result<Vec<HostTensor>> {
        self.operation().eval(operands, run)
    }
}

impl From<ScalarOp> for OpKind {
    fn from(op: ScalarOp) -> OpKind {
        OpKind::Scalar(op)
    }
}
