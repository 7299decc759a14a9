//! Attributes: the constants that an op carries, in one form that prints, parses and compares.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use max_core::kernel::{Normalization, Pooling};
use max_core::quantization::Storage;
use max_core::{
    ConvInputLayout, Coordinates, DType, DeviceRef, Dim, Error, FilterLayout, Interpolation, Parameter,
    Parameters, QuantizationEncoding, Result, Shape, Type, bail,
};

use crate::custom::CustomOp;
use crate::host::HostTensor;
use crate::region::Region;

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq)]
pub enum Attr {
    /// An integer or a symbolic size.
    Dim(Dim),
    /// A list of integers or sizes.
    Dims(Shape),
    /// A float.
    Float(f64),
    /// A bool.
    Bool(bool),
    /// Text; also dtypes, devices and layouts by name.
    Str(String),
    /// The data of a constant.
    Tensor(HostTensor),
    /// A dtype among named values; elsewhere they are text.
    DType(DType),
    /// A list of types.
    Types(Vec<Type>),
    /// Values by name.
    Named(Attrs),
    /// A custom op.
    Custom(Arc<CustomOp>),
    /// Bodies of their own that the op runs.
    Regions(Vec<Region>),
}

/// Constants of up to this many bytes are compared by content, larger ones by address.
const SHORT: usize = 4096;

impl Attr {
    /// Feeds it into a fingerprint; see [`crate::OpKind::fingerprint`].
    pub fn feed(&self, state: &mut impl Hasher) {
        match self {
            Attr::Dim(dim) => dim.hash(state),
            Attr::Dims(dims) => dims.hash(state),
            Attr::Float(f) => f.to_bits().hash(state),
            Attr::Bool(b) => b.hash(state),
            Attr::Str(s) => s.hash(state),
            Attr::Tensor(tensor) => {
                (tensor.dtype(), tensor.shape()).hash(state);
                let bytes = tensor.bytes();
                if bytes.len() <= SHORT { bytes.hash(state) } else { bytes.as_ptr().hash(state) }
            }
            Attr::DType(dtype) => dtype.hash(state),
            Attr::Types(types) => types.hash(state),
            Attr::Named(attrs) => {
                attrs.len().hash(state);
                for (name, attr) in attrs {
                    name.hash(state);
                    std::mem::discriminant(attr).hash(state);
                    attr.feed(state);
                }
            }
            Attr::Custom(op) => op.identity().hash(state),
            Attr::Regions(regions) => regions.iter().for_each(|region| region.address().hash(state)),
        }
    }
}

/// A Rust type that attributes can have.
pub trait AttrType: Sized {
    /// Whether it holds sizes, which may be symbolic; other integers are axes, counts and the like.
    const SIZES: bool = false;

    /// Converts it to an attribute.
    fn to_attr(&self) -> Attr;
    /// Converts it back; `None` if the attribute has another type.
    fn from_attr(attr: Attr) -> Option<Self>;
}

/// The attributes of an op in text order.
pub type Attrs = Vec<(String, Attr)>;

/// Removes a named attribute from a list and converts it.
pub fn take<T: AttrType>(attrs: &mut Attrs, name: &str) -> Result<T> {
    let Some(at) = attrs.iter().position(|(n, _)| n == name) else {
        bail!(value, "missing attribute '{name}'");
    };
    let (_, attr) = attrs.remove(at);
    T::from_attr(attr).ok_or_else(|| Error::value(format!("attribute '{name}' has the wrong type")))
}

macro_rules! attr_types {
    ($($type:ty: $self:ident => $to:expr, $pattern:pat => $from:expr $(, $sizes:ident)?;)*) => {$(
        impl AttrType for $type {
            $(const $sizes: bool = true;)?
            fn to_attr(&$self) -> Attr {
                $to
            }
            fn from_attr(attr: Attr) -> Option<Self> {
                #[allow(unreachable_patterns, reason = "a pattern may cover all attributes")]
                match attr {
                    $pattern => $from,
                    _ => None,
                }
            }
        }
    )*};
}

attr_types! {
    Dim: self => Attr::Dim(self.clone()), Attr::Dim(d) => Some(d), SIZES;
    i64: self => Attr::Dim(Dim::Static(*self)), Attr::Dim(d) => d.as_static();
    usize: self => Attr::Dim(Dim::Static(*self as i64)), Attr::Dim(d) => d.as_static()?.try_into().ok();
    Shape: self => Attr::Dims(self.clone()), Attr::Dims(d) => Some(d), SIZES;
    Vec<i64>: self => Attr::Dims(self.iter().copied().collect()), Attr::Dims(d) => d.as_static();
    Vec<usize>: self => Attr::Dims(self.iter().map(|&i| i as i64).collect()),
        Attr::Dims(d) => d.as_static()?.into_iter().map(|i| i.try_into().ok()).collect();
    f64: self => Attr::Float(*self), Attr::Float(f) => Some(f);
    bool: self => Attr::Bool(*self), Attr::Bool(b) => Some(b);
    String: self => Attr::Str(self.clone()), Attr::Str(s) => Some(s);
    DType: self => Attr::Str(self.to_string()), Attr::Str(s) => s.parse().ok();
    DeviceRef: self => Attr::Str(self.to_string()), Attr::Str(s) => s.parse().ok();
    Vec<DeviceRef>: self => Attr::Str(self.iter().map(DeviceRef::to_string).collect::<Vec<_>>().join(",")),
        Attr::Str(s) => s.split(',').map(|device| device.parse().ok()).collect();
    ConvInputLayout: self => Attr::Str(self.to_string()), Attr::Str(s) => s.parse().ok();
    FilterLayout: self => Attr::Str(self.to_string()), Attr::Str(s) => s.parse().ok();
    Coordinates: self => Attr::Str(self.to_string()), Attr::Str(s) => s.parse().ok();
    Interpolation: self => Attr::Str(self.to_string()), Attr::Str(s) => s.parse().ok();
    QuantizationEncoding: self => Attr::Str(self.to_string()), Attr::Str(s) => s.parse().ok();
    Pooling: self => Attr::Str(self.to_string()), Attr::Str(s) => s.parse().ok();
    Option<FilterLayout>: self => Attr::Str(self.map_or("", FilterLayout::name).into()),
        Attr::Str(s) => if s.is_empty() { Some(None) } else { s.parse().ok().map(Some) };
    Normalization: self => Attr::Str(self.name().into()), Attr::Str(s) => s.parse().ok();
    Storage: self => Attr::Str(self.to_string()), Attr::Str(s) => s.parse().ok();
    HostTensor: self => Attr::Tensor(self.clone()), Attr::Tensor(t) => Some(t);
    Vec<Type>: self => Attr::Types(self.clone()), Attr::Types(t) => Some(t);
    Arc<CustomOp>: self => Attr::Custom(self.clone()), Attr::Custom(op) => Some(op);
    Parameter: self => match self {
        Parameter::Bool(value) => Attr::Bool(*value),
        Parameter::Int(value) => Attr::Dim(Dim::Static(*value)),
        Parameter::Str(value) => Attr::Str(value.clone()),
        Parameter::DType(value) => Attr::DType(*value),
    }, attr => match attr {
        Attr::Bool(value) => Some(Parameter::Bool(value)),
        Attr::Dim(Dim::Static(value)) => Some(Parameter::Int(value)),
        Attr::Str(value) => Some(Parameter::Str(value)),
        Attr::DType(value) => Some(Parameter::DType(value)),
        _ => None,
    };
    Parameters: self => Attr::Named(self.iter().map(|(name, value)| (name.into(), value.to_attr())).collect()),
        Attr::Named(attrs) => {
            let named = attrs.into_iter().map(|(name, attr)| Some((name, Parameter::from_attr(attr)?)));
            Parameters::new(named.collect::<Option<_>>()?).ok()
        };
    Vec<Region>: self => Attr::Regions(self.clone()), Attr::Regions(r) => Some(r);
}

/// Declares the struct of an op with its IR name and attributes, and how they print and parse.
macro_rules! op_struct {
    ($(#[$doc:meta])* $name:ident = $ir:literal { $($(#[$field_doc:meta])* $field:ident: $type:ty),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq)]
        #[allow(missing_docs, reason = "the documentation of the op names its attributes")]
        pub struct $name { $($(#[$field_doc])* pub $field: $type),* }

        impl $crate::op::Attributes for $name {
            const NAME: &'static str = $ir;

            fn attrs(&self) -> $crate::attr::Attrs {
                vec![$((stringify!($field).to_string(), $crate::attr::AttrType::to_attr(&self.$field))),*]
            }

            #[allow(unused_variables, reason = "ops without attributes")]
            fn visit(&self, see: &mut dyn FnMut(&'static str, $crate::attr::Attr, bool)) {
                $(see(
                    stringify!($field),
                    $crate::attr::AttrType::to_attr(&self.$field),
                    <$type as $crate::attr::AttrType>::SIZES,
                );)*
            }

            #[allow(unused_variables, reason = "ops without attributes")]
            fn from_attrs(attrs: &mut $crate::attr::Attrs) -> max_core::Result<Self> {
                Ok($name { $($field: $crate::attr::take(attrs, stringify!($field))?),* })
            }
        }
    };
}

pub(crate) use op_struct;
