//! The values of metadata as bytes.

use std::io::{BufReader, Read};

use max_core::{Error, Result, bail};

use crate::source::Source;
use crate::{MetadataArray, MetadataValue};

/// The longest description of tensors, metadata included. What is larger is not a model.
const MOST_BYTES: usize = 100_000_000;

/// How deep arrays may be in arrays.
const MOST_DEPTH: usize = 4;

/// Reads a file from its start, and never beyond its end.
pub(super) struct Reader<'a> {
    input: BufReader<Box<dyn Read + 'a>>,
    at: usize,
    end: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(source: &'a Source) -> Result<Reader<'a>> {
        let input = BufReader::with_capacity(1 << 16, source.reader(0)?);
        Ok(Reader { input, at: 0, end: source.len().min(MOST_BYTES) })
    }

    /// How many bytes were read.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// The next bytes.
    pub(super) fn bytes<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<()> {
        if bytes.len() > self.end - self.at {
            bail!(value, "it is truncated, or its description is longer than {MOST_BYTES} bytes");
        }
        self.input
            .read_exact(bytes)
            .map_err(|error| Error::runtime(format!("the file cannot be read: {error}")))?;
        self.at += bytes.len();
        Ok(())
    }

    /// A number of things of at least some bytes each, which must fit into the rest of the file.
    pub(super) fn count(&mut self, what: &str, each: usize) -> Result<usize> {
        let count = u64::from_le_bytes(self.bytes()?);
        let most = (self.end - self.at) / each;
        match usize::try_from(count) {
            Ok(count) if count <= most => Ok(count),
            _ => bail!(value, "it cannot have {count} {what}: there is room for {most}"),
        }
    }

    /// A value by its number in files.
    pub(super) fn value(&mut self) -> Result<MetadataValue> {
        let kind = u32::from_le_bytes(self.bytes()?);
        if kind == ARRAY { self.array(MOST_DEPTH).map(MetadataValue::Array) } else { self.scalar(kind) }
    }

    fn items<T: Item>(&mut self) -> Result<Vec<T>> {
        let count = self.count("values in an array", T::LEAST)?;
        (0..count).map(|_| T::read(self)).collect()
    }

    fn arrays(&mut self, depth: usize) -> Result<MetadataArray> {
        let count = self.count("arrays in an array", 12)?;
        (0..count).map(|_| self.array(depth)).collect::<Result<_>>().map(MetadataArray::Array)
    }
}

/// A value that files have.
trait Item: Sized {
    /// The fewest bytes it has.
    const LEAST: usize;
    fn read(reader: &mut Reader<'_>) -> Result<Self>;
    fn write(&self, out: &mut Vec<u8>);
}

macro_rules! numbers {
    ($($type:ty)*) => {$(
        impl Item for $type {
            const LEAST: usize = size_of::<$type>();
            fn read(reader: &mut Reader<'_>) -> Result<$type> {
                reader.bytes().map(<$type>::from_le_bytes)
            }
            fn write(&self, out: &mut Vec<u8>) {
                out.extend(self.to_le_bytes());
            }
        }
    )*};
}

numbers!(u8 i8 u16 i16 u32 i32 u64 i64 f32 f64);

impl Item for bool {
    const LEAST: usize = 1;

    fn read(reader: &mut Reader<'_>) -> Result<bool> {
        match reader.bytes()? {
            [0] => Ok(false),
            [1] => Ok(true),
            [other] => bail!(value, "{other} is neither true nor false"),
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.push((*self).into());
    }
}

impl Item for String {
    const LEAST: usize = 8;

    fn read(reader: &mut Reader<'_>) -> Result<String> {
        let mut bytes = vec![0; reader.count("bytes of text", 1)?];
        reader.fill(&mut bytes)?;
        String::from_utf8(bytes).map_err(|_| Error::value("it has text that is not UTF-8"))
    }

    fn write(&self, out: &mut Vec<u8>) {
        write_text(self, out);
    }
}

/// A text, which starts with its length.
pub(super) fn text(reader: &mut Reader<'_>) -> Result<String> {
    String::read(reader)
}

/// Writes a text.
pub(super) fn write_text(text: &str, out: &mut Vec<u8>) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

/// The number of arrays; the others are in the table below.
const ARRAY: u32 = 9;

macro_rules! kinds {
    ($($variant:ident = $kind:literal,)*) => {
        impl Reader<'_> {
            fn scalar(&mut self, kind: u32) -> Result<MetadataValue> {
                Ok(match kind {
                    $($kind => MetadataValue::$variant(Item::read(self)?),)*
                    _ => bail!(value, "its metadata has a value of the unknown type {kind}"),
                })
            }

            fn array(&mut self, depth: usize) -> Result<MetadataArray> {
                let kind = u32::from_le_bytes(self.bytes()?);
                Ok(match kind {
                    $($kind => MetadataArray::$variant(self.items()?),)*
                    ARRAY if depth > 1 => self.arrays(depth - 1)?,
                    ARRAY => bail!(value, "its metadata has arrays in arrays, deeper than {MOST_DEPTH}"),
                    _ => bail!(value, "its metadata has an array of the unknown type {kind}"),
                })
            }
        }

        /// Writes the number of a value's type, and the value.
        pub(super) fn write(value: &MetadataValue, out: &mut Vec<u8>) {
            match value {
                $(MetadataValue::$variant(value) => {
                    u32::write(&$kind, out);
                    value.write(out);
                })*
                MetadataValue::Array(values) => {
                    ARRAY.write(out);
                    write_array(values, out);
                }
            }
        }

        fn write_array(values: &MetadataArray, out: &mut Vec<u8>) {
            let kind: u32 = match values {
                $(MetadataArray::$variant(_) => $kind,)*
                MetadataArray::Array(_) => ARRAY,
            };
            kind.write(out);
            (values.len() as u64).write(out);
            match values {
                $(MetadataArray::$variant(values) => values.iter().for_each(|value| value.write(out)),)*
                MetadataArray::Array(values) => values.iter().for_each(|values| write_array(values, out)),
            }
        }
    };
}

kinds! {
    UInt8 = 0,
    Int8 = 1,
    UInt16 = 2,
    Int16 = 3,
    UInt32 = 4,
    Int32 = 5,
    Float32 = 6,
    Bool = 7,
    String = 8,
    UInt64 = 10,
    Int64 = 11,
    Float64 = 12,
}
