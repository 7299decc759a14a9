//! The tensors of a state dict.

use std::ops::Range;

use max_core::{DType, Result, Strided, bail};

use super::globals::Global;
use super::pickle::{Id, MOST_VALUES, Value, Values};
use crate::contents::{MOST_AXES, Tensor};

/// How deep dicts may be in dicts.
const MOST_DEPTH: usize = 32;

/// How many bytes all names together may have.
const MOST_NAMES: usize = 100_000_000;

/// How many bytes the key of a storage may have; it is a number.
const MOST_KEY: usize = 64;

/// Finds the bytes of a storage by its key.
type Storages<'a> = dyn FnMut(&str) -> Result<Range<usize>> + 'a;

/// All tensors in the dicts and lists of a pickle, in a file of some bytes. The name of a tensor is made of the keys that
/// lead to it.
pub(super) fn tensors(
    values: &Values<'_>,
    len: usize,
    storages: &mut Storages<'_>,
) -> Result<Vec<(String, Tensor)>> {
    if !matches!(values.get(values.root), Value::Dict(_) | Value::List(_)) {
        bail!(value, "it is not a state dict: a dict of tensors was expected");
    }
    let mut walk =
        Walk { values, len, storages, found: Vec::new(), visits: MOST_VALUES, letters: MOST_NAMES };
    walk.visit(values.root, &mut String::new(), 0)?;
    Ok(walk.found)
}

/// The way through the values. Shared values are visited each time, so the work is limited.
struct Walk<'a> {
    values: &'a Values<'a>,
    len: usize,
    storages: &'a mut Storages<'a>,
    found: Vec<(String, Tensor)>,
    visits: usize,
    letters: usize,
}

impl<'a> Walk<'a> {
    fn visit(&mut self, id: Id, name: &mut String, depth: usize) -> Result<()> {
        let values = self.values;
        match values.get(id) {
            Value::Dict(entries) => {
                for &(key, value) in entries {
                    match (values.text(key), values.get(key)) {
                        (Some(key), _) => self.enter(value, key, name, depth)?,
                        (_, Value::Int(key)) => self.enter(value, &key.to_string(), name, depth)?,
                        _ => {}
                    }
                }
            }
            Value::List(items) => {
                for (index, &item) in items.iter().enumerate() {
                    self.enter(item, &index.to_string(), name, depth)?;
                }
            }
            Value::Call(Global::Parameter, arguments) => match values.get(*arguments) {
                Value::List(arguments) if !arguments.is_empty() => {
                    self.charge(0, depth)?;
                    self.visit(arguments[0], name, depth + 1)?;
                }
                _ => bail!(value, "'{name}' is a parameter without a tensor"),
            },
            Value::Call(function @ (Global::Tensor | Global::TypedTensor), arguments) => {
                let tensor = self.tensor(*function, *arguments);
                let tensor = tensor.map_err(|error| error.prefixed(&format!("tensor '{name}': ")))?;
                self.found.push((name.clone(), tensor));
            }
            _ => {}
        }
        Ok(())
    }

    fn enter(&mut self, id: Id, key: &str, name: &mut String, depth: usize) -> Result<()> {
        self.charge(key.len() + name.len(), depth)?;
        let before = name.len();
        if depth > 0 {
            name.push('.');
        }
        name.push_str(key);
        self.visit(id, name, depth + 1)?;
        name.truncate(before);
        Ok(())
    }

    /// Counts a visit, at a depth, with some letters to be copied.
    fn charge(&mut self, letters: usize, depth: usize) -> Result<()> {
        if depth >= MOST_DEPTH {
            bail!(value, "its values are nested deeper than {MOST_DEPTH}");
        }
        match (self.visits.checked_sub(1), self.letters.checked_sub(letters)) {
            (Some(visits), Some(letters)) => (self.visits, self.letters) = (visits, letters),
            _ => bail!(value, "its values have more or longer names than any state dict"),
        }
        Ok(())
    }

    fn tensor(&mut self, function: Global, arguments: Id) -> Result<Tensor> {
        let arguments = self.list(arguments);
        let &[storage, offset, shape, strides, ref rest @ ..] = arguments else {
            bail!(value, "it has {} arguments, and needs at least 4", arguments.len());
        };
        let (declared, place) = self.storage(storage)?;
        let dtype = match (function, rest) {
            (Global::TypedTensor, [_, _, dtype, ..]) => match self.values.get(*dtype) {
                Value::Global(Global::DType(dtype)) => Some(*dtype),
                _ => None,
            },
            (Global::Tensor, _) => declared,
            _ => None,
        };
        let Some(dtype) = dtype else { bail!(value, "it has no dtype") };
        let Some(offset) = self.number(offset) else { bail!(value, "its offset is no number") };
        let (shape, strides) = (self.numbers(shape)?, self.numbers(strides)?);
        let tensor = Tensor::new(dtype, shape, place.start)?;
        let size = dtype.size_in_bytes();
        let elements = place.len() / size;
        if strides.len() != tensor.shape.len() {
            bail!(value, "it has {} sizes and {} strides", tensor.shape.len(), strides.len());
        }
        if tensor.bytes == 0 {
            return Ok(tensor);
        }
        let reach = tensor
            .shape
            .iter()
            .zip(&strides)
            .try_fold(usize::try_from(offset).ok(), |last, (&size, &stride)| {
                Some(last?.checked_add((size - 1).checked_mul(stride)?))
            });
        let Some(last) = reach.flatten().filter(|&last| last < elements) else {
            bail!(
                value,
                "its shape {:?} with the strides {strides:?} at {offset} reaches beyond the {elements} elements of its storage",
                tensor.shape
            );
        };
        let offset = offset as usize;
        let strides = strides
            .into_iter()
            .zip(&tensor.shape)
            .map(|(stride, &size)| if size > 1 { stride as isize } else { 0 });
        let layout = Strided { shape: tensor.shape.clone(), strides: strides.collect(), offset };
        if layout.is_contiguous() {
            return Ok(Tensor { start: place.start + offset * size, ..tensor });
        }
        // A storage that is repeated again and again must not become more than anybody has.
        if tensor.bytes > self.len {
            bail!(
                value,
                "its {} bytes are more than the file has: the same elements are repeated",
                tensor.bytes
            );
        }
        Ok(Tensor { view: Some(((last + 1) * size, layout)), ..tensor })
    }

    /// The dtype of a storage, if it has one, and where it is: `("storage", type, key, device, elements)`.
    fn storage(&mut self, id: Id) -> Result<(Option<DType>, Range<usize>)> {
        let Value::Persistent(description) = self.values.get(id) else { bail!(value, "it has no storage") };
        let &[word, kind, key, _, count, ..] = self.list(*description) else {
            bail!(value, "its storage is not described by five values");
        };
        let dtype = match self.values.get(kind) {
            Value::Global(Global::Storage(dtype)) => Some(*dtype),
            Value::Global(Global::Bytes) => None,
            _ => bail!(value, "its storage is of no known type"),
        };
        let (Some("storage"), Some(key), Some(count)) =
            (self.values.text(word), self.values.text(key), self.number(count))
        else {
            bail!(value, "its storage has no key, or no size");
        };
        if key.len() > MOST_KEY {
            bail!(value, "the key of its storage has {} bytes", key.len());
        }
        let place = (self.storages)(key)?;
        let size = dtype.map_or(1, DType::size_in_bytes);
        match usize::try_from(count).ok().and_then(|count| count.checked_mul(size)) {
            Some(bytes) if bytes <= place.len() => Ok((dtype, place.start..place.start + bytes)),
            _ => bail!(
                value,
                "its storage has {count} elements of {size} bytes, but {} bytes in the file",
                place.len()
            ),
        }
    }

    fn list(&self, id: Id) -> &'a [Id] {
        let values = self.values;
        match values.get(id) {
            Value::List(items) => items,
            Value::Call(Global::Size, arguments) => match values.get(*arguments) {
                Value::List(sizes) if sizes.len() == 1 => match values.get(sizes[0]) {
                    Value::List(sizes) => sizes,
                    _ => &[],
                },
                _ => &[],
            },
            _ => &[],
        }
    }

    fn number(&self, id: Id) -> Option<u64> {
        match self.values.get(id) {
            Value::Int(number) => (*number).try_into().ok(),
            _ => None,
        }
    }

    fn numbers(&self, id: Id) -> Result<Vec<usize>> {
        let list = self.list(id);
        if list.len() > MOST_AXES {
            bail!(value, "it has {} axes, more than {MOST_AXES}", list.len());
        }
        let numbers =
            list.iter().map(|&id| self.number(id).and_then(|number| number.try_into().ok())).collect();
        let Some(numbers) = numbers else { bail!(value, "its sizes or strides are no numbers") };
        Ok(numbers)
    }
}
