//! The printer.

use std::collections::HashMap;
use std::fmt::{self, Write};

use max_core::{Dim, Element, dispatch};

use crate::attr::Attr;
use crate::host::HostTensor;
use crate::ir::{Body, Op, ValueId};
use crate::region::regions;

/// How the data of large constants is printed.
pub enum Constants<'a> {
    /// Completely, in hexadecimal.
    Full,
    /// Not at all: the text is for reading only.
    Elided,
    /// As the number that a function assigns to it.
    Blobs(&'a mut dyn FnMut(&HostTensor) -> usize),
}

/// Up to this many elements are printed as numbers.
const SHORT: usize = 16;

/// The text form of a body, after those of its regions. Values are numbered in order of definition.
pub fn print(body: &Body, constants: Constants) -> String {
    let mut printer = Printer {
        text: String::with_capacity(BYTES_PER_OP * body.block.ops.len()),
        names: Vec::new(),
        defined: 0,
        regions: HashMap::new(),
        constants,
    };
    for (number, region) in regions(body).iter().enumerate() {
        printer.body(format_args!("region @{number}"), region.body());
        printer.regions.insert(region.address(), number);
    }
    printer.body(format_args!("graph"), body);
    printer.text
}

/// Roughly what the text of an op takes.
const BYTES_PER_OP: usize = 64;

/// Everything is written directly to the text: graphs are printed whenever they are loaded, to find their programs.
struct Printer<'a> {
    text: String,
    /// The number of each value of the current body, by its id.
    names: Vec<Option<usize>>,
    defined: usize,
    /// The number of each region by its address.
    regions: HashMap<usize, usize>,
    constants: Constants<'a>,
}

impl Printer<'_> {
    fn write(&mut self, text: fmt::Arguments) {
        // Writing to a string cannot fail.
        let _ = self.text.write_fmt(text);
    }

    /// Items with commas between them.
    fn list<T>(&mut self, items: impl IntoIterator<Item = T>, mut item: impl FnMut(&mut Self, T)) {
        for (at, each) in items.into_iter().enumerate() {
            if at > 0 {
                self.text.push_str(", ");
            }
            item(self, each);
        }
    }

    fn define(&mut self, value: ValueId) {
        let name = *self.names[value.0 as usize].get_or_insert(self.defined);
        self.defined = self.defined.max(name + 1);
        self.write(format_args!("%{name}"));
    }

    fn uses(&mut self, values: &[ValueId]) {
        self.list(values, |p, value| match p.names[value.0 as usize] {
            Some(name) => p.write(format_args!("%{name}")),
            None => p.text.push_str("%?"),
        });
    }

    fn body(&mut self, what: fmt::Arguments, body: &Body) {
        self.names.clear();
        self.names.resize(body.num_values(), None);
        self.defined = 0;
        self.write(format_args!("{what} {:?}(", body.name));
        self.list(&body.block.arguments, |p, &argument| {
            p.define(argument);
            p.write(format_args!(": {}", body.type_of(argument)));
        });
        self.text.push_str(") {\n");
        for op in body.ops() {
            self.op(body, op);
        }
        if let Some(results) = &body.block.results {
            self.text.push_str("  return ");
            self.uses(results);
            self.text.push('\n');
        }
        self.text.push_str("}\n");
    }

    fn op(&mut self, body: &Body, op: &Op) {
        self.text.push_str("  ");
        if !op.results.is_empty() {
            self.list(&op.results, |p, &result| p.define(result));
            self.text.push_str(" = ");
        }
        self.text.push_str(op.kind.name());
        self.text.push('(');
        self.uses(&op.operands);
        self.text.push(')');
        let mut first = true;
        op.kind.visit(&mut |name, attr, _| {
            self.text.push_str(if std::mem::take(&mut first) { " {" } else { ", " });
            self.write(format_args!("{name} = "));
            self.attr(&attr);
        });
        if !first {
            self.text.push('}');
        }
        if !op.results.is_empty() {
            self.text.push_str(" : ");
            self.list(body.types_of(&op.results), |p, ty| p.write(format_args!("{ty}")));
        }
        self.text.push('\n');
    }

    fn attr(&mut self, attr: &Attr) {
        match attr {
            Attr::Dim(Dim::Static(i)) => self.write(format_args!("{i}")),
            Attr::Dim(dim) => self.write(format_args!("`{dim}`")),
            Attr::Dims(dims) => self.write(format_args!("{dims}")),
            Attr::Float(f) => self.write(format_args!("{f:?}")),
            Attr::Bool(b) => self.write(format_args!("{b}")),
            Attr::Str(s) => self.write(format_args!("{s:?}")),
            Attr::Tensor(tensor) => self.tensor(tensor),
            Attr::DType(dtype) => self.write(format_args!("{dtype}")),
            Attr::Types(types) => {
                self.text.push_str("types(");
                self.list(types, |p, ty| p.write(format_args!("{ty}")));
                self.text.push(')');
            }
            Attr::Named(attrs) => {
                self.text.push('{');
                self.list(attrs, |p, (name, attr)| {
                    p.write(format_args!("{name:?} = "));
                    p.attr(attr);
                });
                self.text.push('}');
            }
            Attr::Custom(op) => self.write(format_args!("op({:?}, {})", op.name(), op.identity())),
            Attr::Regions(regions) => {
                self.text.push('[');
                self.list(regions, |p, region| {
                    let number = p.regions.get(&region.address()).copied().unwrap_or(0);
                    p.write(format_args!("@{number}"));
                });
                self.text.push(']');
            }
        }
    }

    fn tensor(&mut self, tensor: &HostTensor) {
        let ty = format!("{}{:?}", tensor.dtype(), tensor.shape());
        match (numbers(tensor), &mut self.constants) {
            (Some(numbers), _) => {
                self.write(format_args!("dense({ty}, ["));
                self.list(&numbers, |p, number| p.text.push_str(number));
                self.text.push_str("])");
            }
            (None, Constants::Full) => {
                self.write(format_args!("hex({ty}, \""));
                tensor.bytes().iter().for_each(|byte| self.write(format_args!("{byte:02x}")));
                self.text.push_str("\")");
            }
            (None, Constants::Elided) => self.write(format_args!("elided({ty})")),
            (None, Constants::Blobs(number)) => {
                let number = number(tensor);
                self.write(format_args!("blob({ty}, {number})"));
            }
        }
    }
}

/// The elements of a short tensor as numbers; `None` if it is long or holds a NaN, whose bits would be lost.
pub fn numbers(tensor: &HostTensor) -> Option<Vec<String>> {
    if tensor.num_elements() > SHORT {
        return None;
    }
    dispatch!(tensor.dtype(), T => {
        let elements = tensor.elements::<T>().ok()?;
        if elements.iter().any(|e| e.to_f64().is_nan()) {
            return None;
        }
        let text = |e: &T| if T::DTYPE.is_float() { shortest(e.to_f64(), *e) } else { e.to_i128().to_string() };
        Some(elements.iter().map(text).collect())
    })
}

/// The shortest decimal that parses back to the element.
fn shortest<T: Element>(value: f64, element: T) -> String {
    let short = format!("{:?}", value as f32);
    match short.parse::<f64>() {
        Ok(back) if bytemuck::bytes_of(&T::from_double(back)) == bytemuck::bytes_of(&element) => short,
        _ => format!("{value:?}"),
    }
}
