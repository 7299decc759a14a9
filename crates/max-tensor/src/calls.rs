//! Calls of ops by name on tensors.
//!
//! What a call records depends on the op, on the types of its tensors and on its other arguments, but not on which tensors
//! they are. So the fragments of calls are kept by all of that, per thread, and a call like an earlier one only puts its own
//! tensors into the same fragment. A call is kept when it is made the second time in a row at its place in the table, so
//! that numbers which never repeat displace nothing.

use std::any::Any;
use std::cell::RefCell;
use std::hash::Hash;
use std::rc::Rc;
use std::sync::Arc;

use max_core::{Number, Result};
use max_graph::HasTensorValue;
use max_graph::custom::Meaning;
use max_graph::registry::{self, Arg, OpFunction, Output};

use crate::fragment::Fragment;
use crate::node::Cell;
use crate::realize::Checkpoint;
use crate::scope::Region;
use crate::structure::Words;
use crate::tensor::Tensor;

/// How many calls a thread remembers; a power of two.
const PLACES: usize = 512;

/// Longer descriptions of calls are not kept, in words.
const MOST_WORDS: usize = 256;

thread_local! {
    static TABLE: RefCell<Table> = const { RefCell::new(Table { places: Vec::new(), words: Vec::new() }) };
}

/// The calls of a thread, each at the place that its hash gives.
struct Table {
    places: Vec<Place>,
    /// An allocation for the description of the next call.
    words: Vec<u64>,
}

#[derive(Clone, Default)]
struct Place {
    /// The hash of the last call here that was not found.
    missed: u64,
    call: Option<Rc<Kept>>,
}

/// A call, and what it records.
struct Kept {
    words: Box<[u64]>,
    fragment: Fragment,
    /// Which of the tensors of the call each input of the fragment is.
    inputs: Vec<usize>,
    returns: Returns,
}

#[derive(Clone, Copy)]
enum Returns {
    Nothing,
    One,
    Many,
}

impl Region {
    /// Calls an op function by name, in this region, and calls `checkpoint` before each kernel that must run now.
    pub fn call_until(&self, name: &str, args: Vec<Arg>, checkpoint: Checkpoint) -> Result<Output<Tensor>> {
        let function = registry::find(name)?;
        let mut call = Call::of(function);
        let describable = args.iter().all(|arg| call.describe(arg));
        if !describable || call.words.len() > MOST_WORDS {
            let (fragment, operands, returns) = build(name, args)?;
            return Ok(returns.output(self.settle(&fragment, operands, checkpoint)?));
        }
        let place = call.place();
        match call.find(place) {
            Found::Known(kept) => {
                let operands = kept.inputs.iter().map(|&input| call.tensors[input].clone()).collect();
                Ok(kept.returns.output(self.settle(&kept.fragment, operands, checkpoint)?))
            }
            Found::Missing { again } => {
                let (fragment, operands, returns) = build(name, args)?;
                let tensor = |cell| call.tensors.iter().position(|tensor| Arc::ptr_eq(tensor, cell));
                let inputs: Option<Vec<usize>> = operands.iter().map(tensor).collect();
                let results = self.settle(&fragment, operands, checkpoint)?;
                if let (true, false, Some(inputs)) = (again, fragment.is_large(), inputs) {
                    let words = call.words.as_slice().into();
                    call.keep(place, Kept { words, fragment, inputs, returns });
                }
                Ok(returns.output(results))
            }
        }
    }
}

/// Calls an op function for the first time.
fn build(name: &str, args: Vec<Arg>) -> Result<(Fragment, Vec<Arc<Cell>>, Returns)> {
    let mut returns = Returns::Nothing;
    let (fragment, operands) = Fragment::build(|| {
        Ok(match registry::call(name, args, Vec::new())? {
            Output::None => Vec::new(),
            Output::One(value) => {
                returns = Returns::One;
                vec![value]
            }
            Output::Many(values) => {
                returns = Returns::Many;
                values
            }
        })
    })?;
    Ok((fragment, operands, returns))
}

impl Returns {
    fn output(self, mut results: Vec<Tensor>) -> Output<Tensor> {
        match (self, results.pop()) {
            (Returns::One, Some(result)) => Output::One(result),
            (Returns::Many, last) => {
                results.extend(last);
                Output::Many(results)
            }
            _ => Output::None,
        }
    }
}

/// A call that is being made.
struct Call {
    /// Everything that decides what it records, as words: equal only for equal calls.
    words: Vec<u64>,
    /// Its tensors, each once.
    tensors: Vec<Arc<Cell>>,
}

enum Found {
    Known(Rc<Kept>),
    /// It is not kept; if it was made before, it should be.
    Missing {
        again: bool,
    },
}

impl Call {
    /// A call without arguments.
    fn of(function: &'static OpFunction) -> Call {
        let mut words = TABLE.with_borrow_mut(|table| std::mem::take(&mut table.words));
        words.clear();
        words.push(std::ptr::from_ref(function).addr() as u64);
        Call { words, tensors: Vec::new() }
    }

    /// Adds an argument; false if its contents decide what is recorded and are too much to compare.
    fn describe(&mut self, arg: &Arg) -> bool {
        fn tagged(words: &mut Vec<u64>, tag: u64, value: &(impl Hash + ?Sized)) {
            words.push(tag);
            value.hash(&mut Words(words));
        }
        let words = &mut self.words;
        match arg {
            Arg::Object(object) => return self.describe_tensor(object),
            Arg::List(args) => {
                words.extend([1, args.len() as u64]);
                return args.iter().all(|arg| self.describe(arg));
            }
            Arg::Slice(parts) => {
                words.push(2);
                return parts.iter().all(|part| self.describe(part));
            }
            Arg::Value(_) | Arg::Array(_) | Arg::Graph(_) => return false,
            // What a body records may depend on more than its operands.
            Arg::Custom(op) if matches!(op.meaning(), Meaning::Body(_)) => return false,
            Arg::Custom(op) => words.extend([16, op.identity()]),
            Arg::None => words.push(3),
            Arg::Ellipsis => words.push(4),
            Arg::Number(Number::Bool(value)) => words.extend([5, u64::from(*value)]),
            Arg::Number(Number::Int(value)) => words.extend([6, *value as u64, (*value >> 64) as u64]),
            Arg::Number(Number::Float(value)) => words.extend([7, value.to_bits()]),
            Arg::Str(text) => tagged(words, 8, text.as_str()),
            Arg::Dim(dim) => tagged(words, 9, dim),
            Arg::Shape(shape) => tagged(words, 10, shape),
            Arg::DType(dtype) => tagged(words, 11, dtype),
            Arg::Device(device) => tagged(words, 12, device),
            Arg::Type(ty) => tagged(words, 13, ty),
        }
        true
    }

    /// Adds a tensor: its type, or its number if the call has it already.
    fn describe_tensor(&mut self, object: &Arc<dyn HasTensorValue>) -> bool {
        let object: Arc<dyn Any + Send + Sync> = object.clone();
        // Graph values are not operands of fragments: the op function says so.
        let Some(cell) = object.downcast::<Cell>().ok().filter(|cell| !cell.is_value()) else { return false };
        match self.tensors.iter().position(|tensor| Arc::ptr_eq(tensor, &cell)) {
            Some(number) => self.words.extend([14, number as u64]),
            None => {
                self.words.push(15);
                cell.ty.hash(&mut Words(&mut self.words));
                self.tensors.push(cell);
            }
        }
        true
    }

    /// Its place in the table, and its hash.
    fn place(&self) -> (usize, u64) {
        let mix = |hash: u64, word: &u64| (hash.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let hash = self.words.iter().fold(0, mix);
        ((hash >> 32) as usize % PLACES, hash)
    }

    fn find(&self, (place, hash): (usize, u64)) -> Found {
        TABLE.with_borrow_mut(|table| {
            if table.places.is_empty() {
                table.places.resize(PLACES, Place::default());
            }
            let place = &mut table.places[place];
            match &place.call {
                Some(kept) if *kept.words == *self.words => Found::Known(kept.clone()),
                _ => Found::Missing { again: std::mem::replace(&mut place.missed, hash) == hash },
            }
        })
    }

    fn keep(&self, (place, _): (usize, u64), kept: Kept) {
        let before = TABLE.with_borrow_mut(|table| table.places[place].call.replace(Rc::new(kept)));
        drop(before);
    }
}

/// Its allocation is reused for the next call, unless it is large.
impl Drop for Call {
    fn drop(&mut self) {
        let words = std::mem::take(&mut self.words);
        if words.capacity() <= 2 * MOST_WORDS {
            TABLE.with_borrow_mut(|table| table.words = words);
        }
    }
}
