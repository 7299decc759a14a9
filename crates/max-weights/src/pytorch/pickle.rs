//! A pickle as values that refer to each other.
//!
//! Values are in one vector and refer to others by their numbers, so values that contain themselves or are nested without
//! end take no more than their bytes in the file do, and need no recursion here.

use std::collections::HashMap;
use std::ops::Range;

use max_core::{Error, Result, bail};

use super::globals::{self, Global};

/// The most values, and the most references to them of each kind: state dicts have about ten for each tensor.
pub(super) const MOST_VALUES: usize = 1 << 22;

/// The number of a value.
pub(super) type Id = u32;

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    /// A number that is not an integer of 64 bits, raw bytes, an empty set: nothing that tensors need.
    Other,
    None,
    Bool(bool),
    Int(i64),
    /// Where a text is in the pickle.
    Text(Range<u32>),
    /// A tuple or a list.
    List(Vec<Id>),
    Dict(Vec<(Id, Id)>),
    Global(Global),
    /// A reference to something outside the pickle, by a value that describes it.
    Persistent(Id),
    /// What a function makes of its arguments.
    Call(Global, Id),
}

/// All values of a pickle, and the bytes that texts are in.
pub(super) struct Values<'a> {
    bytes: &'a [u8],
    values: Vec<Value>,
    /// What the pickle is of.
    pub(super) root: Id,
}

impl Values<'_> {
    /// A value.
    pub(super) fn get(&self, id: Id) -> &Value {
        &self.values[id as usize]
    }

    /// The text of a value, if it is one.
    pub(super) fn text(&self, id: Id) -> Option<&str> {
        match self.get(id) {
            Value::Text(range) => {
                std::str::from_utf8(&self.bytes[range.start as usize..range.end as usize]).ok()
            }
            _ => None,
        }
    }
}

/// Reads a pickle of protocols 2 to 5.
pub(super) fn read(bytes: &[u8]) -> Result<Values<'_>> {
    let mut machine = Machine {
        bytes,
        at: 0,
        values: Vec::new(),
        stack: Vec::new(),
        marks: Vec::new(),
        memo: HashMap::new(),
    };
    for shared in [Value::None, Value::Bool(false), Value::Bool(true), Value::Other] {
        machine.values.push(shared);
    }
    loop {
        let at = machine.at;
        let step = machine.step().and_then(|step| machine.check().map(|()| step));
        let step = step.map_err(|error| error.context(format!("at byte {at} of its pickle")))?;
        if let Some(root) = step {
            return Ok(Values { bytes, values: machine.values, root });
        }
    }
}

/// The values that everybody shares.
const NONE: Id = 0;
const FALSE: Id = 1;
const TRUE: Id = 2;
const OTHER: Id = 3;

/// The state of reading: what was made, and what was not used yet.
struct Machine<'a> {
    bytes: &'a [u8],
    at: usize,
    values: Vec<Value>,
    stack: Vec<Id>,
    /// Heights of the stack.
    marks: Vec<usize>,
    memo: HashMap<u32, Id>,
}

impl Machine<'_> {
    /// Follows one instruction; the last one tells what the pickle is of.
    fn step(&mut self) -> Result<Option<Id>> {
        let code = self.byte()?;
        match code {
            // What is not data: the protocol, and the size of a part.
            0x80 => drop(self.byte()?),
            0x95 => drop(self.take(8)?),
            b'.' => return self.pop().map(Some),

            b'N' => self.stack.push(NONE),
            0x89 => self.stack.push(FALSE),
            0x88 => self.stack.push(TRUE),
            b'K' => {
                let number = self.byte()?;
                self.push(Value::Int(number.into()));
            }
            b'M' => {
                let number = u16::from_le_bytes(self.array()?);
                self.push(Value::Int(number.into()));
            }
            b'J' => {
                let number = i32::from_le_bytes(self.array()?);
                self.push(Value::Int(number.into()));
            }
            0x8a => {
                let length = self.byte()?.into();
                let number = signed(self.take(length)?);
                self.push(number);
            }
            0x8b => {
                let length = self.length()?;
                let number = signed(self.take(length)?);
                self.push(number);
            }
            b'G' => {
                self.take(8)?;
                self.stack.push(OTHER);
            }
            // Texts, by the size of their length; bytes likewise.
            0x8c => {
                let length = self.byte()?.into();
                self.text(length)?;
            }
            b'X' => {
                let length = self.length()?;
                self.text(length)?;
            }
            0x8d => {
                let length = self.long_length()?;
                self.text(length)?;
            }
            b'C' | b'U' => {
                let length = self.byte()?.into();
                self.bytes(length)?;
            }
            b'B' | b'T' => {
                let length = self.length()?;
                self.bytes(length)?;
            }
            0x8e | 0x96 => {
                let length = self.long_length()?;
                self.bytes(length)?;
            }

            b')' | b']' | 0x8f => self.push(Value::List(Vec::new())),
            b'}' => self.push(Value::Dict(Vec::new())),
            b'(' => self.marks.push(self.stack.len()),
            b't' | b'l' | 0x91 => {
                let items = self.since_mark()?;
                self.push(Value::List(items));
            }
            0x85..=0x87 => {
                let count = usize::from(code - 0x84);
                let from = self.height(count)?;
                let items = self.stack.split_off(from);
                self.push(Value::List(items));
            }
            b'a' => {
                let item = self.pop()?;
                self.append(vec![item])?;
            }
            b'e' | 0x90 => {
                let items = self.since_mark()?;
                self.append(items)?;
            }
            b's' => {
                let (value, key) = (self.pop()?, self.pop()?);
                self.insert(vec![key, value])?;
            }
            b'u' => {
                let items = self.since_mark()?;
                self.insert(items)?;
            }
            b'd' => {
                let items = self.since_mark()?;
                self.push(Value::Dict(Vec::new()));
                self.insert(items)?;
            }
            b'0' => drop(self.pop()?),
            b'1' => drop(self.since_mark()?),

            b'q' => {
                let name = self.byte()?.into();
                self.remember(name)?;
            }
            b'r' => {
                let name = u32::from_le_bytes(self.array()?);
                self.remember(name)?;
            }
            0x94 => {
                let name = self.memo.len() as u32;
                self.remember(name)?;
            }
            b'h' => {
                let name = self.byte()?.into();
                self.recall(name)?;
            }
            b'j' => {
                let name = u32::from_le_bytes(self.array()?);
                self.recall(name)?;
            }

            b'c' => {
                let (module, name) = (self.line()?, self.line()?);
                self.global(module, name)?;
            }
            0x93 => {
                let (name, module) = (self.pop()?, self.pop()?);
                let [module, name] = [module, name].map(|id| match &self.values[id as usize] {
                    Value::Text(range) => Some(range.start as usize..range.end as usize),
                    _ => None,
                });
                let (Some(module), Some(name)) = (module, name) else {
                    bail!(value, "a name in a module is not text");
                };
                self.global(module, name)?;
            }
            b'Q' => {
                let description = self.pop()?;
                self.push(Value::Persistent(description));
            }
            b'R' | 0x81 => {
                let (arguments, function) = (self.pop()?, self.pop()?);
                self.call(function, arguments)?;
            }
            // Attributes of what was made: nothing here has any.
            b'b' => drop(self.pop()?),
            _ => bail!(value, "its pickle has the instruction {code:#04x}, which no state dict needs"),
        }
        Ok(None)
    }

    fn take(&mut self, count: usize) -> Result<&[u8]> {
        let start = self.at;
        let Some(bytes) = start.checked_add(count).and_then(|end| self.bytes.get(start..end)) else {
            bail!(value, "its pickle is truncated");
        };
        self.at += count;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        self.take(N)?.try_into().map_err(|_| Error::internal("as many bytes as were taken"))
    }

    fn byte(&mut self) -> Result<u8> {
        self.array().map(|[byte]| byte)
    }

    fn length(&mut self) -> Result<usize> {
        self.array().map(|bytes| u32::from_le_bytes(bytes) as usize)
    }

    fn long_length(&mut self) -> Result<usize> {
        let length = u64::from_le_bytes(self.array()?);
        usize::try_from(length).map_err(|_| Error::value("its pickle is truncated"))
    }

    /// Where the rest of a line is, without its end.
    fn line(&mut self) -> Result<Range<usize>> {
        let start = self.at;
        let Some(length) = self.bytes[start..].iter().position(|&byte| byte == b'\n') else {
            bail!(value, "its pickle is truncated");
        };
        self.at += length + 1;
        Ok(start..start + length)
    }

    /// An error if there is more of anything than a state dict has.
    fn check(&self) -> Result<()> {
        let counts = [self.values.len(), self.stack.len(), self.marks.len(), self.memo.len()];
        if counts.iter().any(|&count| count > MOST_VALUES) {
            bail!(value, "its pickle has more than {MOST_VALUES} values, which no state dict has");
        }
        Ok(())
    }

    fn push(&mut self, value: Value) {
        self.stack.push(self.values.len() as Id);
        self.values.push(value);
    }

    fn text(&mut self, length: usize) -> Result<()> {
        let start = self.at as u32;
        self.take(length)?;
        self.push(Value::Text(start..self.at as u32));
        Ok(())
    }

    fn bytes(&mut self, length: usize) -> Result<()> {
        self.take(length)?;
        self.stack.push(OTHER);
        Ok(())
    }

    /// The height of the stack without its last values, which must be above the last mark.
    fn height(&self, count: usize) -> Result<usize> {
        let floor = self.marks.last().copied().unwrap_or(0);
        match self.stack.len().checked_sub(count).filter(|&height| height >= floor) {
            Some(height) => Ok(height),
            None => bail!(value, "its pickle takes more values than it made"),
        }
    }

    fn pop(&mut self) -> Result<Id> {
        self.height(1)?;
        self.stack.pop().ok_or_else(|| Error::internal("a value on the stack"))
    }

    /// All values since the last mark.
    fn since_mark(&mut self) -> Result<Vec<Id>> {
        match self.marks.pop() {
            Some(mark) => Ok(self.stack.split_off(mark)),
            None => bail!(value, "its pickle has no mark where one is needed"),
        }
    }

    /// The value that is changed: the last one.
    fn target(&mut self) -> Result<&mut Value> {
        let at = self.height(1)?;
        Ok(&mut self.values[self.stack[at] as usize])
    }

    fn append(&mut self, items: Vec<Id>) -> Result<()> {
        match self.target()? {
            Value::List(list) => list.extend(items),
            _ => bail!(value, "its pickle appends to what is no list"),
        }
        Ok(())
    }

    fn insert(&mut self, items: Vec<Id>) -> Result<()> {
        let (pairs, rest) = items.as_chunks();
        match self.target()? {
            Value::Dict(entries) if rest.is_empty() => {
                entries.extend(pairs.iter().map(|&[key, value]| (key, value)))
            }
            _ => bail!(value, "its pickle inserts into what is no dict, or not pairs"),
        }
        Ok(())
    }

    fn remember(&mut self, name: u32) -> Result<()> {
        let at = self.height(1)?;
        self.memo.insert(name, self.stack[at]);
        Ok(())
    }

    fn recall(&mut self, name: u32) -> Result<()> {
        match self.memo.get(&name) {
            Some(&id) => self.stack.push(id),
            None => bail!(value, "its pickle has no value with the number {name}"),
        }
        Ok(())
    }

    fn global(&mut self, module: Range<usize>, name: Range<usize>) -> Result<()> {
        let (module, name) = (&self.bytes[module], &self.bytes[name]);
        match globals::find(module, name) {
            Some(global) => {
                self.push(Value::Global(global));
                Ok(())
            }
            None => {
                let text =
                    |bytes: &[u8]| String::from_utf8_lossy(&bytes[..bytes.len().min(100)]).into_owned();
                bail!(
                    value,
                    "it needs '{}.{}', which is not among the few things that a state dict needs; nothing else is looked up, \
                     let alone executed: save the state dict alone, or as safetensors",
                    text(module),
                    text(name)
                )
            }
        }
    }

    fn call(&mut self, function: Id, arguments: Id) -> Result<()> {
        let Value::Global(function) = self.values[function as usize] else {
            bail!(value, "its pickle calls what is no function");
        };
        let value = match function {
            Global::Dict => match &self.values[arguments as usize] {
                Value::List(none) if none.is_empty() => Value::Dict(Vec::new()),
                _ => bail!(value, "its pickle makes an OrderedDict of arguments"),
            },
            _ => Value::Call(function, arguments),
        };
        self.push(value);
        Ok(())
    }
}

/// A number of any size, the lowest byte first.
fn signed(bytes: &[u8]) -> Value {
    let negative = bytes.last().is_some_and(|&byte| byte >= 0x80);
    let mut wide = [if negative { 0xff } else { 0 }; 8];
    match wide.get_mut(..bytes.len()) {
        Some(low) => {
            low.copy_from_slice(bytes);
            Value::Int(i64::from_le_bytes(wide))
        }
        None => Value::Other,
    }
}
