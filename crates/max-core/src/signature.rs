//! What a custom op takes and returns: its signature, and the parameters of a call.
//!
//! A signature is written like the types it stands for: `"T[n, k], float32[k] -> T[n]"`. Names stand for dtypes and sizes,
//! and every use of a name stands for the same. `_` is any size, `*shape` any number of sizes, `&T[n]` a buffer that the op
//! may write, and an expression such as `n // 2` a size that follows from others.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;
use std::sync::Arc;

use crate::{Bindings, DType, Dim, Error, Result, Shape, Type, bail};

/// The value of a named parameter of a custom op.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Parameter {
    /// A bool.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// Text.
    Str(String),
    /// A dtype.
    DType(DType),
}

impl From<bool> for Parameter {
    fn from(value: bool) -> Parameter {
        Parameter::Bool(value)
    }
}

impl From<i64> for Parameter {
    fn from(value: i64) -> Parameter {
        Parameter::Int(value)
    }
}

impl From<&str> for Parameter {
    fn from(value: &str) -> Parameter {
        Parameter::Str(value.into())
    }
}

impl From<DType> for Parameter {
    fn from(value: DType) -> Parameter {
        Parameter::DType(value)
    }
}

/// The parameters of a call of a custom op, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Parameters(Vec<(String, Parameter)>);

impl Parameters {
    /// Parameters from names and values; an error if a name is empty or given twice.
    pub fn new(parameters: Vec<(String, Parameter)>) -> Result<Parameters> {
        for (at, (name, _)) in parameters.iter().enumerate() {
            if name.is_empty() || parameters[..at].iter().any(|(other, _)| other == name) {
                bail!(value, "the name {name:?} of a parameter is empty or given twice");
            }
        }
        Ok(Parameters(parameters))
    }

    /// The value of a parameter.
    pub fn get(&self, name: &str) -> Option<&Parameter> {
        self.0.iter().find(|(own, _)| own == name).map(|(_, value)| value)
    }

    /// The value of an integer parameter.
    pub fn int(&self, name: &str) -> Result<i64> {
        match self.get(name) {
            Some(Parameter::Int(value)) => Ok(*value),
            other => bail!(value, "the parameter '{name}' must be an int, got {other:?}"),
        }
    }

    /// The names and values.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Parameter)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value))
    }
}

impl<V: Into<Parameter>, const N: usize> From<[(&str, V); N]> for Parameters {
    fn from(parameters: [(&str, V); N]) -> Parameters {
        Parameters(parameters.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

impl From<()> for Parameters {
    fn from((): ()) -> Parameters {
        Parameters::default()
    }
}

/// What a custom op takes and returns; see the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpSignature {
    operands: Vec<Pattern>,
    results: Vec<Pattern>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Pattern {
    mutable: bool,
    dtype: DTypePattern,
    dims: Vec<DimPattern>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum DTypePattern {
    Is(DType),
    Named(Arc<str>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum DimPattern {
    Any,
    Is(Dim),
    Many(Arc<str>),
}

/// What the names of a signature stand for in a call, in order of their first use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Matched {
    /// The dtypes.
    pub dtypes: Vec<(Arc<str>, DType)>,
    /// The sizes; several for a name after a `*`.
    pub dims: Vec<(Arc<str>, Shape)>,
}

impl OpSignature {
    /// How many operands it takes.
    pub fn num_operands(&self) -> usize {
        self.operands.len()
    }

    /// How many results it has.
    pub fn num_results(&self) -> usize {
        self.results.len()
    }

    /// Finds what its names stand for, or says which operand or result does not fit.
    pub fn matches(&self, operands: &[&Type], results: &[&Type]) -> Result<Matched> {
        let mut matched = Matched::default();
        for (what, patterns, types) in
            [("operand", &self.operands, operands), ("result", &self.results, results)]
        {
            if patterns.len() != types.len() {
                bail!(value, "expected {} {what}s ({self}), got {}", patterns.len(), types.len());
            }
            for (number, (pattern, ty)) in patterns.iter().zip(types).enumerate() {
                if !pattern.binds(ty, &mut matched)? {
                    bail!(value, "{what} {number} must be {pattern}{matched}, got {ty}");
                }
            }
        }
        for (what, patterns, types) in
            [("operand", &self.operands, operands), ("result", &self.results, results)]
        {
            for (number, (pattern, ty)) in patterns.iter().zip(types).enumerate() {
                if !pattern.follows(ty, &matched)? {
                    bail!(value, "{what} {number} must be {pattern}{matched}, got {ty}");
                }
            }
        }
        Ok(matched)
    }

    /// Its names for dtypes.
    pub fn dtype_names(&self) -> impl Iterator<Item = &Arc<str>> {
        self.operands.iter().chain(&self.results).filter_map(|pattern| match &pattern.dtype {
            DTypePattern::Named(name) => Some(name),
            DTypePattern::Is(_) => None,
        })
    }

    /// Whether it has a name for sizes.
    pub fn names_size(&self, name: &str) -> bool {
        let dims = self.operands.iter().chain(&self.results).flat_map(|pattern| &pattern.dims);
        let mut names = dims.filter_map(DimPattern::name);
        names.any(|own| &**own == name)
    }
}

impl DimPattern {
    /// The name that it gives to sizes.
    fn name(&self) -> Option<&Arc<str>> {
        match self {
            DimPattern::Is(Dim::Symbolic(name)) | DimPattern::Many(name) => Some(name),
            _ => None,
        }
    }
}

impl Pattern {
    /// Whether a type fits, as far as its names go, which are then known.
    fn binds(&self, ty: &Type, matched: &mut Matched) -> Result<bool> {
        let Some((dtype, shape)) = ty.array() else { return Ok(false) };
        if self.mutable != matches!(ty, Type::Buffer(_)) {
            return Ok(false);
        }
        let dtype_fits = match &self.dtype {
            DTypePattern::Is(own) => *own == dtype,
            DTypePattern::Named(name) => *find(&mut matched.dtypes, name, || dtype) == dtype,
        };
        let Some(parts) = self.align(shape) else { return Ok(false) };
        Ok(dtype_fits
            && parts.iter().all(|(pattern, part)| match pattern.name() {
                Some(name) => **find(&mut matched.dims, name, || Shape::from(*part)) == **part,
                None => true,
            }))
    }

    /// Whether the sizes that are numbers, or that follow from others, are right.
    fn follows(&self, ty: &Type, matched: &Matched) -> Result<bool> {
        let Some(parts) = ty.array().and_then(|(_, shape)| self.align(shape)) else { return Ok(false) };
        for (pattern, part) in parts {
            let (DimPattern::Is(dim), [size]) = (pattern, part) else { continue };
            if pattern.name().is_none() && matched.dim(dim)? != *size {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The dims of a shape that each part of the pattern stands for; `None` if the rank does not fit.
    fn align<'a>(&'a self, shape: &'a [Dim]) -> Option<Vec<(&'a DimPattern, &'a [Dim])>> {
        let is_many = |pattern: &DimPattern| matches!(pattern, DimPattern::Many(_));
        let many = self.dims.iter().any(is_many);
        let rest = shape.len().checked_sub(self.dims.len() - usize::from(many))?;
        if !many && rest != 0 {
            return None;
        }
        let mut left = shape;
        let part = |pattern: &'a DimPattern| {
            let (own, others) = left.split_at(if is_many(pattern) { rest } else { 1 });
            left = others;
            (pattern, own)
        };
        Some(self.dims.iter().map(part).collect())
    }
}

/// What a name stands for; if that is not known yet, a new value.
fn find<'a, T>(known: &'a mut Vec<(Arc<str>, T)>, name: &Arc<str>, new: impl FnOnce() -> T) -> &'a T {
    let at = known.iter().position(|(own, _)| own == name).unwrap_or(known.len());
    if at == known.len() {
        known.push((name.clone(), new()));
    }
    &known[at].1
}

impl Matched {
    /// An expression of names with what they stand for. A name after a `*` is the number of elements of its sizes.
    fn dim(&self, expression: &Dim) -> Result<Dim> {
        let known: Vec<(Arc<str>, Dim)> = self.elements()?;
        expression
            .substitute(&|name| known.iter().find(|(own, _)| **own == *name).map(|(_, dim)| dim.clone()))
    }

    fn elements(&self) -> Result<Vec<(Arc<str>, Dim)>> {
        self.dims.iter().map(|(name, dims)| Ok((name.clone(), dims.num_elements()?))).collect()
    }

    /// The named sizes of a call in order, which must be known; a name after a `*` is a number of elements.
    pub fn sizes(&self) -> Result<Vec<(Arc<str>, i64)>> {
        let sizes = self.elements()?.into_iter();
        sizes.map(|(name, dim)| Ok((name, dim.evaluate(&Bindings::new())?))).collect()
    }
}

/// `, where n = 3, T = float32`, for messages.
impl Display for Matched {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let dims = self.dims.iter().map(|(name, dims)| match &dims[..] {
            [dim] => format!("{name} = {dim}"),
            _ => format!("{name} = {dims}"),
        });
        let dtypes = self.dtypes.iter().map(|(name, dtype)| format!("{name} = {dtype}"));
        let known: Vec<_> = dims.chain(dtypes).collect();
        if known.is_empty() { Ok(()) } else { write!(f, " with {}", known.join(", ")) }
    }
}

impl Display for OpSignature {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let list =
            |patterns: &[Pattern]| patterns.iter().map(Pattern::to_string).collect::<Vec<_>>().join(", ");
        let (operands, results) = (list(&self.operands), list(&self.results));
        let space = |side: &str| if side.is_empty() { "" } else { " " };
        write!(f, "{operands}{}->{}{results}", space(&operands), space(&results))
    }
}

impl Display for Pattern {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let dims = self.dims.iter().map(|dim| match dim {
            DimPattern::Any => "_".into(),
            DimPattern::Is(dim) => dim.to_string(),
            DimPattern::Many(name) => format!("*{name}"),
        });
        let dtype = match &self.dtype {
            DTypePattern::Is(dtype) => dtype.to_string(),
            DTypePattern::Named(name) => name.to_string(),
        };
        write!(f, "{}{dtype}[{}]", if self.mutable { "&" } else { "" }, dims.collect::<Vec<_>>().join(", "))
    }
}

impl FromStr for OpSignature {
    type Err = Error;

    fn from_str(text: &str) -> Result<OpSignature> {
        let parse = || {
            let Some((operands, results)) = text.split_once("->") else {
                bail!(value, "'->' is missing between the operands and the results");
            };
            let signature = OpSignature { operands: patterns(operands)?, results: patterns(results)? };
            if signature.results.iter().any(|result| result.mutable) {
                bail!(value, "a result cannot be a buffer");
            }
            signature.check_expressions()?;
            Ok(signature)
        };
        let shown: String = text.chars().take(200).collect();
        parse().map_err(|e: Error| {
            e.context(format!(
                "in the signature {shown:?}, which should read like \"T[n, k], float32[k] -> T[n]\""
            ))
        })
    }
}

impl OpSignature {
    /// Checks that every name in an expression also stands alone somewhere.
    fn check_expressions(&self) -> Result<()> {
        for dim in self.operands.iter().chain(&self.results).flat_map(|pattern| &pattern.dims) {
            let DimPattern::Is(dim) = dim else { continue };
            if let Some(name) = dim.parameters().iter().find(|name| !self.names_size(name)) {
                bail!(value, "nothing says what '{name}' in '{dim}' is");
            }
        }
        Ok(())
    }
}

fn patterns(list: &str) -> Result<Vec<Pattern>> {
    let mut rest = list.trim();
    let mut patterns = Vec::new();
    while !rest.is_empty() {
        let Some((before, after)) = rest.split_once('[') else {
            bail!(value, "'[' is missing after '{rest}'")
        };
        let Some((dims, after)) = after.split_once(']') else {
            bail!(value, "']' is missing after '{after}'")
        };
        let before = before.trim();
        let (mutable, dtype) = match before.strip_prefix('&') {
            Some(dtype) => (true, dtype.trim()),
            None => (false, before),
        };
        patterns.push(Pattern { mutable, dtype: dtype_pattern(dtype)?, dims: dim_patterns(dims)? });
        rest = after.trim_start();
        rest = match rest.strip_prefix(',') {
            Some(more) if !more.trim().is_empty() => more.trim_start(),
            None if rest.is_empty() => rest,
            _ => bail!(value, "unexpected '{rest}'"),
        };
    }
    Ok(patterns)
}

fn dtype_pattern(text: &str) -> Result<DTypePattern> {
    if let Ok(dtype) = text.parse() {
        return Ok(DTypePattern::Is(dtype));
    }
    let names = text.starts_with(|c: char| c.is_ascii_uppercase())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if !names {
        bail!(value, "'{text}' is neither a dtype nor a name for one, which starts with a capital letter");
    }
    Ok(DTypePattern::Named(text.into()))
}

fn dim_patterns(text: &str) -> Result<Vec<DimPattern>> {
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    let dims = text.split(',').map(|dim| match dim.trim() {
        "_" => Ok(DimPattern::Any),
        dim => match dim.strip_prefix('*') {
            Some(name) => match Dim::symbolic(name.trim())? {
                Dim::Symbolic(name) => Ok(DimPattern::Many(name)),
                _ => bail!(value, "'{dim}' needs a name after the '*'"),
            },
            None => dim.parse().map(DimPattern::Is),
        },
    });
    let dims = dims.collect::<Result<Vec<_>>>()?;
    if dims.iter().filter(|dim| matches!(dim, DimPattern::Many(_))).count() > 1 {
        bail!(value, "a type has at most one '*', got [{text}]");
    }
    Ok(dims)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BufferType, DeviceRef, TensorType};

    fn tensor(dtype: DType, dims: &[&str]) -> Type {
        let shape: Shape = dims.iter().map(|dim| dim.parse::<Dim>().unwrap()).collect();
        TensorType::new(dtype, shape, DeviceRef::CPU).into()
    }

    fn check(signature: &str, operands: &[Type], results: &[Type]) -> Result<Matched> {
        let signature: OpSignature = signature.parse()?;
        assert_eq!(signature.to_string().parse::<OpSignature>()?, signature);
        signature.matches(&operands.iter().collect::<Vec<_>>(), &results.iter().collect::<Vec<_>>())
    }

    fn refusal(signature: &str, operands: &[Type], results: &[Type]) -> String {
        check(signature, operands, results).unwrap_err().message().to_owned()
    }

    #[test]
    fn names_stand_for_the_same_everywhere() {
        let (f32, i32) = (DType::Float32, DType::Int32);
        let rule = "T[n, k], float32[k] -> T[n]";
        let x = || [tensor(i32, &["a", "4"]), tensor(f32, &["4"])];
        let matched = check(rule, &x(), &[tensor(i32, &["a"])]).unwrap();
        assert_eq!(matched.to_string(), " with n = a, k = 4, T = int32");
        assert_eq!(
            refusal(rule, &x(), &[tensor(f32, &["a"])]),
            "result 0 must be T[n] with n = a, k = 4, T = int32, got float32[a]"
        );
        assert!(refusal(rule, &x(), &[tensor(i32, &["b"])]).contains("got int32[b]"));
        assert!(refusal(rule, &x()[..1], &[]).contains("expected 2 operands"));
        assert!(refusal(rule, &x(), &[]).contains("expected 1 results"));
        assert!(refusal(rule, &[tensor(i32, &["4"]), tensor(f32, &["4"])], &[]).starts_with("operand 0"));
    }

    #[test]
    fn sizes_may_be_any_many_or_follow() {
        let f32 = DType::Float32;
        let any = check("float32[_, _] -> float32[]", &[tensor(f32, &["2", "3"])], &[tensor(f32, &[])]);
        assert_eq!(any.unwrap(), Matched::default());
        let rows = "T[*rows, k] -> T[*rows, k // 2], int64[rows]";
        let results = [tensor(f32, &["2", "3", "4"]), tensor(DType::Int64, &["6"])];
        let matched = check(rows, &[tensor(f32, &["2", "3", "8"])], &results);
        // A name after a star stands for all its sizes, so it is not also one size.
        assert!(matched.is_err());
        let results = [tensor(f32, &["2", "3", "4"])];
        let matched = check("T[*rows, k] -> T[*rows, k // 2]", &[tensor(f32, &["2", "3", "8"])], &results);
        let sizes = matched.unwrap().sizes().unwrap();
        assert_eq!(sizes, [("rows".into(), 6), ("k".into(), 8)]);
        let wrong = refusal("T[n] -> T[n // 2]", &[tensor(f32, &["8"])], &[tensor(f32, &["5"])]);
        assert!(
            wrong.contains("must be T[n // 2] with n = 8") && wrong.contains("got float32[5]"),
            "{wrong}"
        );
        check("T[*all] -> T[*all]", &[tensor(f32, &[])], &[tensor(f32, &[])]).unwrap();
        check("-> T[n]", &[], &[tensor(f32, &["m"])]).unwrap();
    }

    #[test]
    fn buffers_are_marked() {
        let buffer: Type = BufferType::new(DType::Float32, [3], DeviceRef::CPU).into();
        check("&T[n] ->", std::slice::from_ref(&buffer), &[]).unwrap();
        assert!(refusal("T[n] ->", &[buffer], &[]).contains("operand 0 must be T[n]"));
        assert!(
            refusal("&T[n] ->", &[tensor(DType::Float32, &["3"])], &[]).contains("operand 0 must be &T[n]")
        );
    }

    #[test]
    fn what_is_no_signature_says_why() {
        for (text, why) in [
            ("float32[n]", "'->' is missing"),
            ("float33[n] ->", "'float33' is neither a dtype"),
            ("T[n ->", "']' is missing"),
            ("T ->", "'[' is missing"),
            ("T[n] T[n] ->", "unexpected"),
            ("T[n], ->", "unexpected"),
            ("T[*a, *b] ->", "at most one '*'"),
            ("T[n] -> T[m + 1]", "nothing says what 'm'"),
            ("-> &T[n]", "a result cannot be a buffer"),
            ("T[n +] ->", "dimension"),
        ] {
            let error = text.parse::<OpSignature>().unwrap_err();
            assert!(error.message().contains(why), "{text}: {error}");
        }
    }
}
