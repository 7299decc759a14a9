//! The printer.

use std::collections::HashMap;
use std::fmt::Write;

use max_core::{Dim, Element, Type, dispatch};

use crate::attr::{Attr, Attrs};
use crate::host::HostTensor;
use crate::ir::{Body, Op, ValueId};
use crate::region::{Region, regions};

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
    let mut printer =
        Printer { text: String::new(), names: HashMap::new(), regions: HashMap::new(), constants };
    for (number, region) in regions(body).iter().enumerate() {
        printer.body(&format!("region @{number}"), region.body());
        printer.regions.insert(region.address(), number);
    }
    printer.body("graph", body);
    printer.text
}

struct Printer<'a> {
    text: String,
    names: HashMap<ValueId, usize>,
    /// The number of each region by its address.
    regions: HashMap<usize, usize>,
    constants: Constants<'a>,
}

impl Printer<'_> {
    fn define(&mut self, value: ValueId) -> String {
        let next = self.names.len();
        format!("%{}", self.names.entry(value).or_insert(next))
    }

    fn uses(&self, values: &[ValueId]) -> String {
        let names: Vec<_> =
            values.iter().map(|v| self.names.get(v).map_or("%?".into(), |name| format!("%{name}"))).collect();
        names.join(", ")
    }

    fn body(&mut self, what: &str, body: &Body) {
        self.names.clear();
        let arguments =
            body.block.arguments.iter().map(|&v| format!("{}: {}", self.define(v), body.type_of(v)));
        let arguments = arguments.collect::<Vec<_>>().join(", ");
        let _ = writeln!(self.text, "{what} {:?}({arguments}) {{", body.name);
        for op in body.ops() {
            let line = self.op(body, op);
            let _ = writeln!(self.text, "  {line}");
        }
        if let Some(results) = &body.block.results {
            let results = self.uses(results);
            let _ = writeln!(self.text, "  return {results}");
        }
        self.text.push_str("}\n");
    }

    fn op(&mut self, body: &Body, op: &Op) -> String {
        let mut line = format!("{}({})", op.kind.name(), self.uses(&op.operands));
        let attrs = op.kind.attrs();
        if !attrs.is_empty() {
            let _ = write!(line, " {{{}}}", self.attrs(&attrs, str::to_owned));
        }
        if op.results.is_empty() {
            return line;
        }
        let names: Vec<_> = op.results.iter().map(|&v| self.define(v)).collect();
        let types: Vec<_> = body.types_of(&op.results).map(|t| t.to_string()).collect();
        format!("{} = {line} : {}", names.join(", "), types.join(", "))
    }

    fn attrs(&mut self, attrs: &Attrs, name: impl Fn(&str) -> String) -> String {
        let attrs = attrs.iter().map(|(own, attr)| format!("{} = {}", name(own), self.attr(attr)));
        attrs.collect::<Vec<_>>().join(", ")
    }

    fn attr(&mut self, attr: &Attr) -> String {
        match attr {
            Attr::Dim(Dim::Static(i)) => i.to_string(),
            Attr::Dim(dim) => format!("`{dim}`"),
            Attr::Dims(dims) => dims.to_string(),
            Attr::Float(f) => format!("{f:?}"),
            Attr::Bool(b) => b.to_string(),
            Attr::Str(s) => format!("{s:?}"),
            Attr::Tensor(tensor) => self.tensor(tensor),
            Attr::DType(dtype) => dtype.to_string(),
            Attr::Types(types) => {
                let types: Vec<_> = types.iter().map(Type::to_string).collect();
                format!("types({})", types.join(", "))
            }
            Attr::Named(attrs) => format!("{{{}}}", self.attrs(attrs, |name| format!("{name:?}"))),
            Attr::Custom(op) => format!("op({:?}, {})", op.name(), op.identity()),
            Attr::Regions(regions) => {
                let number = |region: &Region| self.regions.get(&region.address()).copied().unwrap_or(0);
                let names: Vec<_> = regions.iter().map(|region| format!("@{}", number(region))).collect();
                format!("[{}]", names.join(", "))
            }
        }
    }

    fn tensor(&mut self, tensor: &HostTensor) -> String {
        let ty = format!("{}{:?}", tensor.dtype(), tensor.shape());
        match numbers(tensor) {
            Some(numbers) => format!("dense({ty}, [{}])", numbers.join(", ")),
            None => match &mut self.constants {
                Constants::Full => {
                    let hex = tensor.bytes().iter().fold(String::new(), |mut hex, byte| {
                        let _ = write!(hex, "{byte:02x}");
                        hex
                    });
                    format!("hex({ty}, \"{hex}\")")
                }
                Constants::Elided => format!("elided({ty})"),
                Constants::Blobs(number) => format!("blob({ty}, {})", number(tensor)),
            },
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
        Ok(back) if bytemuck::bytes_of(&T::from_f64(back)) == bytemuck::bytes_of(&element) => short,
        _ => format!("{value:?}"),
    }
}
