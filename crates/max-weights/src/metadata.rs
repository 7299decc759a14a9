//! What a file of weights says about itself: values by name.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

/// Values by name.
pub type Metadata = BTreeMap<String, MetadataValue>;

macro_rules! values {
    ($($(#[$doc:meta])* $variant:ident($type:ty),)*) => {
        /// A value of metadata. GGUF has all of these; in safetensors every value is a string.
        #[derive(Clone, Debug, PartialEq, Serialize)]
        #[serde(untagged)]
        pub enum MetadataValue {
            $($(#[$doc])* $variant($type),)*
            /// Values of one type.
            Array(MetadataArray),
        }

        /// Values of one type.
        #[derive(Clone, Debug, PartialEq, Serialize)]
        #[serde(untagged)]
        pub enum MetadataArray {
            $($(#[$doc])* $variant(Vec<$type>),)*
            /// Arrays, whose types may differ.
            Array(Vec<MetadataArray>),
        }

        impl MetadataArray {
            /// The number of values.
            pub fn len(&self) -> usize {
                match self {
                    $(MetadataArray::$variant(values) => values.len(),)*
                    MetadataArray::Array(values) => values.len(),
                }
            }

            /// Whether there are none.
            pub fn is_empty(&self) -> bool {
                self.len() == 0
            }

            /// One of the values.
            pub fn get(&self, index: usize) -> Option<MetadataValue> {
                match self {
                    $(MetadataArray::$variant(values) => {
                        values.get(index).cloned().map(MetadataValue::$variant)
                    })*
                    MetadataArray::Array(values) => values.get(index).cloned().map(MetadataValue::Array),
                }
            }

            /// The values, one after the other.
            pub fn iter(&self) -> impl Iterator<Item = MetadataValue> + '_ {
                (0..self.len()).map_while(|index| self.get(index))
            }
        }

        $(
            impl From<$type> for MetadataValue {
                fn from(value: $type) -> MetadataValue {
                    MetadataValue::$variant(value)
                }
            }

            impl From<Vec<$type>> for MetadataValue {
                fn from(values: Vec<$type>) -> MetadataValue {
                    MetadataValue::Array(MetadataArray::$variant(values))
                }
            }
        )*
    };
}

values! {
    /// An unsigned 8-bit integer.
    UInt8(u8),
    /// A signed 8-bit integer.
    Int8(i8),
    /// An unsigned 16-bit integer.
    UInt16(u16),
    /// A signed 16-bit integer.
    Int16(i16),
    /// An unsigned 32-bit integer.
    UInt32(u32),
    /// A signed 32-bit integer.
    Int32(i32),
    /// A single-precision float.
    Float32(f32),
    /// True or false.
    Bool(bool),
    /// Text.
    String(String),
    /// An unsigned 64-bit integer.
    UInt64(u64),
    /// A signed 64-bit integer.
    Int64(i64),
    /// A double-precision float.
    Float64(f64),
}

impl MetadataValue {
    /// The text, if it is text.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            MetadataValue::String(text) => Some(text),
            _ => None,
        }
    }

    /// The truth value, if it is one.
    pub fn as_bool(&self) -> Option<bool> {
        match self {
            MetadataValue::Bool(value) => Some(*value),
            _ => None,
        }
    }

    /// The integer, if it is one that fits 64 bits, signed; files differ in the width of the same value.
    pub fn as_i64(&self) -> Option<i64> {
        match *self {
            MetadataValue::UInt8(value) => Some(value.into()),
            MetadataValue::Int8(value) => Some(value.into()),
            MetadataValue::UInt16(value) => Some(value.into()),
            MetadataValue::Int16(value) => Some(value.into()),
            MetadataValue::UInt32(value) => Some(value.into()),
            MetadataValue::Int32(value) => Some(value.into()),
            MetadataValue::UInt64(value) => value.try_into().ok(),
            MetadataValue::Int64(value) => Some(value),
            _ => None,
        }
    }

    /// The integer, if it is one that is not negative.
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            MetadataValue::UInt64(value) => Some(value),
            _ => self.as_i64()?.try_into().ok(),
        }
    }

    /// The number, if it is a float or an integer; integers beyond 53 bits are rounded.
    pub fn as_f64(&self) -> Option<f64> {
        match *self {
            MetadataValue::Float32(value) => Some(value.into()),
            MetadataValue::Float64(value) => Some(value),
            MetadataValue::UInt64(value) => Some(value as f64),
            _ => self.as_i64().map(|value| value as f64),
        }
    }

    /// The values, if there are several.
    pub fn as_array(&self) -> Option<&MetadataArray> {
        match self {
            MetadataValue::Array(values) => Some(values),
            _ => None,
        }
    }
}

impl MetadataArray {
    /// The texts, if these are texts.
    pub fn as_strings(&self) -> Option<&[String]> {
        match self {
            MetadataArray::String(values) => Some(values),
            _ => None,
        }
    }
}

impl From<&str> for MetadataValue {
    fn from(text: &str) -> MetadataValue {
        MetadataValue::String(text.into())
    }
}

/// Text as it is, everything else as JSON has it.
impl fmt::Display for MetadataValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MetadataValue::String(text) => f.pad(text),
            // JSON has no infinities and no NaN.
            MetadataValue::Float32(value) => write!(f, "{value}"),
            MetadataValue::Float64(value) => write!(f, "{value}"),
            other => f.write_str(&serde_json::to_string(other).map_err(|_| fmt::Error)?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_by_what_they_mean() {
        fn value(value: impl Into<MetadataValue>) -> MetadataValue {
            value.into()
        }
        assert_eq!(
            (value(7u8).as_u64(), value(7u8).as_i64(), value(7u8).as_f64()),
            (Some(7), Some(7), Some(7.0))
        );
        assert_eq!((value(-7i32).as_u64(), value(-7i32).as_i64()), (None, Some(-7)));
        assert_eq!((value(u64::MAX).as_i64(), value(u64::MAX).as_u64()), (None, Some(u64::MAX)));
        assert_eq!((value(0.5f32).as_f64(), value(0.5f32).as_i64()), (Some(0.5), None));
        assert_eq!(
            (value("x").as_str(), value(true).as_bool(), value(1u8).as_bool()),
            (Some("x"), Some(true), None)
        );
        let tokens = value(vec!["a".to_string(), "b".to_string()]);
        let array = tokens.as_array().unwrap();
        assert_eq!((array.len(), array.get(1), array.get(2)), (2, Some(value("b")), None));
        assert_eq!(array.as_strings().unwrap(), ["a", "b"]);
        assert_eq!(array.iter().count(), 2);
    }

    #[test]
    fn text_shows_itself_and_others_are_json() {
        let shown = |value: MetadataValue| value.to_string();
        assert_eq!(shown("plain text".into()), "plain text");
        assert_eq!(shown(f32::NAN.into()), "NaN");
        assert_eq!(shown(vec![1u8, 2].into()), "[1,2]");
        assert_eq!(shown(vec!["a".to_string()].into()), "[\"a\"]");
        let nested = MetadataArray::Array(vec![MetadataArray::Bool(vec![true]), MetadataArray::Int8(vec![])]);
        assert_eq!(shown(MetadataValue::Array(nested)), "[[true],[]]");
    }
}
