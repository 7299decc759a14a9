//! The parser. Its input is untrusted: it checks everything, names the line of an error, and never trusts a count.

use std::collections::HashMap;
use std::str::FromStr;

use max_core::memory::require_memory;
use max_core::{
    BufferType, DType, DeviceRef, Dim, Error, HostBytes, Number, Result, Shape, TensorType, Type, bail,
    dispatch,
};

use crate::attr::{Attr, Attrs};
use crate::custom::KernelLibrary;
use crate::host::{HostTensor, byte_count};
use crate::ir::{Body, ValueId};
use crate::op::OpKind;
use crate::region::Region;

/// More memory than parsing a byte of text takes.
const BYTES_PER_BYTE: usize = 32;

/// Parses a body from its text form and verifies it.
pub fn parse(text: &str) -> Result<Body> {
    parse_in(text, &KernelLibrary::new())
}

/// Parses a body whose custom ops are those of a library.
pub fn parse_in(text: &str, library: &KernelLibrary) -> Result<Body> {
    let no_blob = |number| Err(Error::value(format!("blob {number} is not part of this text")));
    parse_with(text, &no_blob, library)
}

/// Parses a body whose long constants are numbered blobs, and whose custom ops are those of a library.
pub fn parse_with(
    text: &str,
    blob: &dyn Fn(usize) -> Result<HostBytes>,
    library: &KernelLibrary,
) -> Result<Body> {
    require_memory(text.len().saturating_mul(BYTES_PER_BYTE), "the ops of a graph's text")?;
    let mut parser = Parser { rest: text, blob, library, regions: Vec::new() };
    let body = parser.bodies().map_err(|e| {
        let line = text[..text.len() - parser.rest.len()].trim_end().lines().count().max(1);
        e.context(format!("in line {line} of the graph's text"))
    })?;
    crate::verify(&body)?;
    Ok(body)
}

struct Parser<'a> {
    rest: &'a str,
    blob: &'a dyn Fn(usize) -> Result<HostBytes>,
    library: &'a KernelLibrary,
    /// Those parsed so far, by number.
    regions: Vec<Region>,
}

impl<'a> Parser<'a> {
    fn peek(&mut self) -> &'a str {
        self.rest = self.rest.trim_start();
        self.rest
    }

    fn eat(&mut self, token: &str) -> bool {
        match self.peek().strip_prefix(token) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn require(&mut self, token: &str) -> Result<()> {
        if self.eat(token) {
            return Ok(());
        }
        let found: String = self.peek().chars().take(20).collect();
        bail!(value, "expected '{token}', found '{found}'")
    }

    /// The text up to a closing token, which is consumed.
    fn until(&mut self, close: char) -> Result<&'a str> {
        match self.rest.split_once(close) {
            Some((inside, rest)) => {
                self.rest = rest;
                Ok(inside)
            }
            None => bail!(value, "missing '{close}'"),
        }
    }

    fn word(&mut self) -> &'a str {
        let rest = self.peek();
        let end =
            rest.find(|c: char| !(c.is_ascii_alphanumeric() || "_.+-".contains(c))).unwrap_or(rest.len());
        self.rest = &rest[end..];
        &rest[..end]
    }

    fn number<T: FromStr>(&mut self) -> Result<T> {
        let word = self.word();
        word.parse().map_err(|_| Error::value(format!("'{word}' is not a valid number here")))
    }

    /// Items separated by commas, up to a closing token.
    fn list<T>(&mut self, close: &str, mut item: impl FnMut(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let mut items = Vec::new();
        if self.eat(close) {
            return Ok(items);
        }
        loop {
            items.push(item(self)?);
            if self.eat(close) {
                return Ok(items);
            }
            self.require(",")?;
        }
    }

    fn string(&mut self) -> Result<String> {
        self.require("\"")?;
        let mut string = String::new();
        let mut chars = self.rest.chars();
        loop {
            match chars.next() {
                Some('"') => break,
                Some('\\') => string.push(escape(&mut chars)?),
                Some(c) => string.push(c),
                None => bail!(value, "a string is not terminated"),
            }
        }
        self.rest = chars.as_str();
        Ok(string)
    }

    /// Regions, each before its first use, and then the graph.
    fn bodies(&mut self) -> Result<Body> {
        while self.eat("region") {
            self.require("@")?;
            let number: usize = self.number()?;
            if number != self.regions.len() {
                bail!(value, "expected region @{}, found @{number}", self.regions.len());
            }
            let body = self.body()?;
            self.regions.push(Region::new(body));
        }
        self.require("graph")?;
        let body = self.body()?;
        match self.peek() {
            "" => Ok(body),
            _ => bail!(value, "unexpected text after the graph"),
        }
    }

    fn body(&mut self) -> Result<Body> {
        let name = self.string()?;
        self.require("(")?;
        let arguments = self.list(")", |p| {
            let name = p.value_name()?;
            p.require(":")?;
            Ok((name, p.ty()?))
        })?;
        for (_, ty) in &arguments {
            ty.validate()?;
        }
        let (names, types): (Vec<_>, Vec<_>) = arguments.into_iter().unzip();
        let mut body = Body::new(name, types);
        let mut values = HashMap::new();
        for (name, &id) in names.into_iter().zip(&body.block.arguments) {
            define(&mut values, name, id)?;
        }
        self.require("{")?;
        loop {
            if self.eat("return") {
                let results = if self.peek().starts_with('%') { self.operands(&values)? } else { Vec::new() };
                body.block.results = Some(results);
                self.require("}")?;
                return Ok(body);
            }
            if self.eat("}") {
                return Ok(body);
            }
            self.op(&mut body, &mut values)?;
        }
    }

    fn value_name(&mut self) -> Result<u64> {
        self.require("%")?;
        self.number()
    }

    /// `%1, %2` as values that exist.
    fn operands(&mut self, values: &HashMap<u64, ValueId>) -> Result<Vec<ValueId>> {
        let mut operands = Vec::new();
        loop {
            let name = self.value_name()?;
            match values.get(&name) {
                Some(&id) => operands.push(id),
                None => bail!(value, "%{name} is not defined"),
            }
            if !self.eat(",") {
                return Ok(operands);
            }
        }
    }

    fn op(&mut self, body: &mut Body, values: &mut HashMap<u64, ValueId>) -> Result<()> {
        let mut results = Vec::new();
        if self.peek().starts_with('%') {
            results.push(self.value_name()?);
            while self.eat(",") {
                results.push(self.value_name()?);
            }
            self.require("=")?;
        }
        let name = self.word();
        self.require("(")?;
        let operands = if self.eat(")") {
            Vec::new()
        } else {
            let operands = self.operands(values)?;
            self.require(")")?;
            operands
        };
        let attrs: Attrs = if self.eat("{") {
            self.list("}", |p| {
                let name = p.word().to_string();
                p.require("=")?;
                Ok((name, p.attr()?))
            })?
        } else {
            Attrs::new()
        };
        let types = if results.is_empty() {
            Vec::new()
        } else {
            self.require(":")?;
            let mut types = vec![self.ty()?];
            while self.eat(",") {
                types.push(self.ty()?);
            }
            types
        };
        let op = body.push(OpKind::from_attrs(name, attrs)?, operands, None)?;
        let ids = body.op(op).results.clone();
        if ids.len() != results.len() || !body.types_of(&ids).eq(&types) {
            let inferred: Vec<_> = body.types_of(&ids).take(8).map(|t| t.to_string()).collect();
            bail!(
                value,
                "{name} has {} results of types {}, which are not the ones written",
                ids.len(),
                inferred.join(", ")
            );
        }
        for (name, id) in results.into_iter().zip(ids) {
            define(values, name, id)?;
        }
        Ok(())
    }

    fn ty(&mut self) -> Result<Type> {
        if self.eat("opaque<") {
            let name = self.string()?;
            self.require(">")?;
            return Ok(Type::Opaque(name.into()));
        }
        let mutable = self.eat("&");
        let (dtype, shape) = self.array_type()?;
        let device = if self.eat("@") {
            let kind = self.word();
            self.require(":")?;
            format!("{kind}:{}", self.word()).parse()?
        } else {
            DeviceRef::CPU
        };
        let layout = if self.eat("#") { Some(self.word().parse()?) } else { None };
        match (mutable, layout) {
            (true, None) => Ok(BufferType::new(dtype, shape, device).into()),
            (true, Some(_)) => bail!(value, "a buffer has no filter layout"),
            (false, layout) => Ok(TensorType { dtype, shape, device, layout }.into()),
        }
    }

    fn array_type(&mut self) -> Result<(DType, Shape)> {
        let dtype = self.word().parse()?;
        self.require("[")?;
        Ok((dtype, self.dims()?))
    }

    /// The dims after an opening bracket, up to the closing one.
    fn dims(&mut self) -> Result<Shape> {
        let inside = self.until(']')?;
        if inside.trim().is_empty() {
            return Ok(Shape::default());
        }
        inside.split(',').map(str::parse::<Dim>).collect()
    }

    fn attr(&mut self) -> Result<Attr> {
        if self.eat("`") {
            return self.until('`')?.parse().map(Attr::Dim);
        }
        if self.eat("[") {
            if self.peek().starts_with('@') {
                return self.list("]", Self::region).map(Attr::Regions);
            }
            return self.dims().map(Attr::Dims);
        }
        if self.eat("{") {
            // Values by name hold no further ones.
            let attrs = self.list("}", |p| {
                let name = p.string()?;
                p.require("=")?;
                Ok((name, p.simple_attr()?))
            });
            return attrs.map(Attr::Named);
        }
        self.simple_attr()
    }

    fn simple_attr(&mut self) -> Result<Attr> {
        if self.peek().starts_with('"') {
            return self.string().map(Attr::Str);
        }
        match self.word() {
            "true" => Ok(Attr::Bool(true)),
            "false" => Ok(Attr::Bool(false)),
            "dense" => self.data(|p, dtype, shape| p.dense(dtype, shape)).map(Attr::Tensor),
            "hex" => self.data(|p, dtype, shape| p.hex(dtype, shape)).map(Attr::Tensor),
            "blob" => self
                .data(|p, dtype, shape| {
                    let number = p.number()?;
                    HostTensor::new(dtype, shape, (p.blob)(number)?)
                })
                .map(Attr::Tensor),
            "types" => {
                self.require("(")?;
                self.list(")", Self::ty).map(Attr::Types)
            }
            // The number only tells ops apart while they exist: what counts is the name.
            "op" => {
                self.require("(")?;
                let name = self.string()?;
                self.require(",")?;
                self.number::<u64>()?;
                self.require(")")?;
                self.library.find(&name).map(Attr::Custom)
            }
            "elided" => bail!(value, "the data of a constant was elided when this text was printed"),
            word => match word.parse::<i64>() {
                Ok(i) => Ok(Attr::Dim(Dim::Static(i))),
                Err(_) => (word.parse().map(Attr::Float))
                    .or_else(|_| word.parse().map(Attr::DType))
                    .map_err(|_| Error::value(format!("'{word}' is not the value of an attribute"))),
            },
        }
    }

    fn region(&mut self) -> Result<Region> {
        self.require("@")?;
        let number: usize = self.number()?;
        match self.regions.get(number) {
            Some(region) => Ok(region.clone()),
            None => bail!(value, "region @{number} is not defined"),
        }
    }

    /// `(dtype[sizes], data)`.
    fn data(
        &mut self,
        read: impl FnOnce(&mut Self, DType, Vec<usize>) -> Result<HostTensor>,
    ) -> Result<HostTensor> {
        self.require("(")?;
        let (dtype, shape) = self.array_type()?;
        self.require(",")?;
        let tensor = read(self, dtype, shape.evaluate(&Default::default())?)?;
        self.require(")")?;
        Ok(tensor)
    }

    fn dense(&mut self, dtype: DType, shape: Vec<usize>) -> Result<HostTensor> {
        self.require("[")?;
        dispatch!(dtype, T => {
            let elements = self.list("]", |p| {
                let word = p.word();
                let number = if dtype.is_float() {
                    word.parse().ok().map(Number::Float)
                } else {
                    word.parse().ok().map(Number::Int)
                };
                let number = number.ok_or_else(|| Error::value(format!("'{word}' is not an element of {dtype}")))?;
                number.to_element::<T>()
            })?;
            HostTensor::from_vec(shape, elements)
        })
    }

    fn hex(&mut self, dtype: DType, shape: Vec<usize>) -> Result<HostTensor> {
        self.require("\"")?;
        let digits = self.until('"')?;
        if Some(digits.len()) != byte_count(dtype, &shape)?.checked_mul(2) {
            bail!(value, "the hexadecimal data of a constant has the wrong length");
        }
        let digit = |c: u8| {
            (c as char).to_digit(16).ok_or_else(|| Error::value("a constant has a bad hexadecimal digit"))
        };
        let bytes =
            digits.as_bytes().chunks_exact(2).map(|pair| Ok((digit(pair[0])? * 16 + digit(pair[1])?) as u8));
        HostTensor::new(dtype, shape, HostBytes::from_vec(bytes.collect::<Result<Vec<u8>>>()?))
    }
}

fn define(values: &mut HashMap<u64, ValueId>, name: u64, id: ValueId) -> Result<()> {
    match values.insert(name, id) {
        None => Ok(()),
        Some(_) => bail!(value, "%{name} is defined twice"),
    }
}

/// The character that an escape stands for, after its backslash, as in Rust strings.
fn escape(chars: &mut std::str::Chars) -> Result<char> {
    match chars.next() {
        Some('n') => Ok('\n'),
        Some('t') => Ok('\t'),
        Some('r') => Ok('\r'),
        Some('0') => Ok('\0'),
        Some(c @ ('\\' | '"' | '\'')) => Ok(c),
        Some('u') => {
            let code: String =
                chars.by_ref().skip_while(|c| *c == '{').take_while(|c| *c != '}').take(8).collect();
            let code = u32::from_str_radix(&code, 16).ok().and_then(char::from_u32);
            code.ok_or_else(|| Error::value("a string has a bad \\u escape"))
        }
        _ => bail!(value, "a string has an unknown escape"),
    }
}
