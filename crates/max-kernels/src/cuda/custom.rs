//! Custom ops in CUDA C++.
//!
//! A function gets the addresses of its operands, then of its results, then the sizes that its signature names, in order
//! of their first use, then its parameters; sizes and parameters are `long long`. Names of dtypes are types in the source.

use std::fmt::Write;

use max_core::kernel::Slot;
use max_core::{Bindings, DType, Dim, Error, OpSignature, Parameter, Parameters, Result, Type, bail};
use max_driver::Device;
use max_driver::cuda::Source;

use super::text::{CONVERSIONS, element_type};
use super::{Address, Call, Launch, Param, Prepared};
use crate::memory::Extents;

/// A custom op in CUDA C++, as its file declares it.
#[derive(Clone, Debug)]
pub struct CustomSource {
    /// The name of the op.
    pub name: String,
    /// The name of the function, which is `extern "C" __global__`.
    pub function: String,
    /// The source, without includes.
    pub code: String,
    /// What it takes and returns.
    pub signature: OpSignature,
    /// How many threads or blocks it needs, given the sizes that the signature names.
    pub grid: GridSize,
    /// How many threads a block has.
    pub block: u32,
    /// The parameters that the function takes, by name.
    pub parameters: Vec<String>,
}

/// The size of a grid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GridSize {
    /// As many blocks as give this many threads.
    Threads(Dim),
    /// This many blocks.
    Blocks(Dim),
}

/// The threads of a block, unless a file says otherwise.
const BLOCK: u32 = 256;

/// The most threads that a block can have.
const MOST_THREADS: u32 = 1024;

/// The most blocks along the first axis of a grid.
const MOST_BLOCKS: i64 = i32::MAX as i64;

impl CustomSource {
    /// The ops of a source, which lines of the form `// max.key: value` declare. `max.op` starts the declaration of an op
    /// by its name; `max.signature` and `max.threads` or `max.blocks` follow, and if needed `max.function` (the name of the
    /// op by default), `max.block` (256 threads by default) and `max.parameters`.
    pub fn parse(code: &str) -> Result<Vec<CustomSource>> {
        let mut declared: Vec<Vec<(&str, &str)>> = Vec::new();
        for (number, line) in code.lines().enumerate() {
            let line = line.trim().strip_prefix("//").map(str::trim_start);
            let Some(line) = line.and_then(|line| line.strip_prefix("max.")) else { continue };
            let Some((key, value)) = line.split_once(':') else {
                bail!(value, "line {}: expected 'max.key: value', found 'max.{line}'", number + 1);
            };
            let (key, value) = (key.trim(), value.trim());
            if key == "op" {
                declared.push(Vec::new());
            }
            match declared.last_mut() {
                Some(op) if op.iter().any(|(own, _)| *own == key) => {
                    bail!(value, "line {}: 'max.{key}' is given twice", number + 1)
                }
                Some(op) => op.push((key, value)),
                None => bail!(value, "line {}: 'max.{key}' comes before 'max.op'", number + 1),
            }
        }
        if declared.is_empty() {
            bail!(value, "no line declares an op: a declaration starts with '// max.op: name'");
        }
        declared.iter().map(|op| CustomSource::of(op, code)).collect()
    }

    fn of(keys: &[(&str, &str)], code: &str) -> Result<CustomSource> {
        const KNOWN: [&str; 7] = ["op", "signature", "threads", "blocks", "function", "block", "parameters"];
        let get = |key: &str| keys.iter().find(|(own, _)| *own == key).map(|(_, value)| *value);
        let name = get("op").unwrap_or_default();
        let of_op = |e: Error| e.context(format!("in the declaration of op '{name}'"));
        let parse = || {
            if let Some((unknown, _)) = keys.iter().find(|(key, _)| !KNOWN.contains(key)) {
                bail!(value, "there is no key 'max.{unknown}'; the keys are {}", KNOWN.join(", "));
            }
            let Some(signature) = get("signature") else { bail!(value, "'max.signature' is missing") };
            let grid = match (get("threads"), get("blocks")) {
                (Some(threads), None) => GridSize::Threads(threads.parse()?),
                (None, Some(blocks)) => GridSize::Blocks(blocks.parse()?),
                _ => bail!(value, "one of 'max.threads' and 'max.blocks' says how large the grid is"),
            };
            let block = match get("block") {
                None => BLOCK,
                Some(block) => match block.parse() {
                    Ok(block) => block,
                    Err(_) => bail!(value, "'max.block' is a number of threads, got '{block}'"),
                },
            };
            let names = get("parameters").unwrap_or_default().split(',').map(str::trim);
            let source = CustomSource {
                name: name.into(),
                function: get("function").unwrap_or(name).into(),
                code: code.into(),
                signature: signature.parse()?,
                grid,
                block,
                parameters: names.filter(|name| !name.is_empty()).map(str::to_owned).collect(),
            };
            source.check()?;
            Ok(source)
        };
        parse().map_err(of_op)
    }

    /// Checks what does not depend on a call.
    pub fn check(&self) -> Result<()> {
        let is_name = |text: &str| {
            let mut chars = text.chars();
            chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
                && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
        };
        if !is_name(&self.function) {
            bail!(value, "{:?} is not the name of a function in C++", self.function);
        }
        if !(1..=MOST_THREADS).contains(&self.block) {
            bail!(value, "a block has 1 to {MOST_THREADS} threads, got {}", self.block);
        }
        let (GridSize::Threads(size) | GridSize::Blocks(size)) = &self.grid;
        match size.parameters().iter().find(|name| !self.signature.names_size(name)) {
            Some(name) => bail!(value, "nothing in '{}' says what '{name}' in '{size}' is", self.signature),
            None => Ok(()),
        }
    }

    /// Checks the parameters of a call.
    pub fn check_parameters(&self, parameters: &Parameters) -> Result<()> {
        self.numbers(parameters).map(|_| ())
    }

    fn numbers(&self, parameters: &Parameters) -> Result<Vec<i64>> {
        if let Some((name, _)) =
            parameters.iter().find(|(name, _)| !self.parameters.iter().any(|own| own == name))
        {
            bail!(value, "it has no parameter '{name}'; it has {:?}", self.parameters);
        }
        let numbers = self.parameters.iter().map(|name| match parameters.get(name) {
            Some(Parameter::Int(value)) => Ok(*value),
            Some(Parameter::Bool(value)) => Ok(i64::from(*value)),
            other => {
                bail!(value, "the parameter '{name}' of an op in CUDA C++ is an int or a bool, got {other:?}")
            }
        });
        numbers.collect()
    }

    /// The source for the dtypes of a call.
    fn source(&self, dtypes: &[(impl AsRef<str>, DType)]) -> Source {
        let mut code = String::from(CONVERSIONS);
        for (name, dtype) in dtypes {
            // Writing to a string cannot fail.
            let _ = writeln!(code, "typedef {} {};", element_type(*dtype), name.as_ref());
        }
        // Other ops of the same file are compiled too, but not called: any dtype will do for theirs.
        let mut known: Vec<String> = dtypes.iter().map(|(name, _)| name.as_ref().to_owned()).collect();
        let declared = self.code.lines().filter_map(|line| {
            let line = line.trim().strip_prefix("//")?.trim_start();
            line.strip_prefix("max.signature:")?.trim().parse::<OpSignature>().ok()
        });
        for name in declared.flat_map(|signature| signature.dtype_names().cloned().collect::<Vec<_>>()) {
            if !known.iter().any(|own| **own == *name) {
                let _ = writeln!(code, "typedef float {name};");
                known.push(name.to_string());
            }
        }
        code.push_str("#line 1\n");
        code.push_str(&self.code);
        Source { name: self.function.clone(), prelude: "".into(), code }
    }

    /// Prepares a call with known sizes; its memory is that of the operands, then of the results.
    pub fn prepare(
        &self,
        operands: &[Type],
        results: &[Type],
        parameters: &Parameters,
        device: &Device,
    ) -> Result<Prepared> {
        let Some(gpu) = device.gpu() else { bail!(internal, "{device} is not a GPU") };
        let planned = self.plan(operands, results, parameters)?;
        let function = gpu.functions(std::slice::from_ref(&planned.source))?.pop();
        let function = function.ok_or_else(|| Error::internal("a function is missing"))?;
        let write = |at: usize, ty: &Type| at >= operands.len() || matches!(ty, Type::Buffer(_));
        let mut slots = Vec::new();
        for (at, ty) in operands.iter().chain(results).enumerate() {
            let Some((dtype, shape)) = ty.array() else { bail!(internal, "{ty} has no memory") };
            let elements = shape.evaluate(&Bindings::new())?.iter().product::<usize>();
            slots.push((elements * dtype.size_in_bytes(), write(at, ty)));
        }
        Ok(Prepared {
            device: device.device_ref(),
            report: gpu.report_address(),
            launches: vec![Launch::Function { function, call: planned, early: None }],
            extents: Extents::of_whole(device.device_ref(), &slots),
            scratch_bytes: 0,
        })
    }

    /// How a call with known sizes is launched.
    fn plan(&self, operands: &[Type], results: &[Type], parameters: &Parameters) -> Result<Call> {
        let [operand_refs, result_refs] = [operands, results].map(|types| types.iter().collect::<Vec<_>>());
        let matched = self.signature.matches(&operand_refs, &result_refs)?;
        let sizes = matched.sizes()?;
        let (GridSize::Threads(size) | GridSize::Blocks(size)) = &self.grid;
        let size = size.evaluate(&sizes.iter().cloned().collect())?;
        let block = i64::from(self.block);
        let blocks = match &self.grid {
            GridSize::Threads(_) => (size / block).saturating_add(i64::from(size % block > 0)),
            GridSize::Blocks(_) => size,
        };
        if !(0..=MOST_BLOCKS).contains(&blocks) {
            bail!(value, "custom op '{}' would need a grid of {blocks} blocks", self.name);
        }
        let address = |slot: usize| Param::Address(Address { slot: Slot(slot as u32), bytes: 0 });
        let mut params: Vec<Param> = (0..operands.len() + results.len()).map(address).collect();
        params.extend(sizes.iter().map(|(_, size)| Param::Number(*size)));
        params.extend(self.numbers(parameters)?.into_iter().map(Param::Number));
        Ok(Call {
            source: self.source(&matched.dtypes),
            grid: [blocks as u32, 1, 1],
            block: [self.block, 1, 1],
            shared: 0,
            params,
        })
    }
}

#[cfg(test)]
mod tests {
    use max_core::{DeviceRef, TensorType};

    use super::*;
    use crate::cuda::nvrtc;

    const SCALE: &str = r#"
// Multiplies rows by numbers.
// max.op: scale_rows
// max.signature: T[n, k], float32[n] -> T[n, k]
// max.threads: n * k
// max.parameters: times
extern "C" __global__ void scale_rows(const T* x, const float* by, T* y, long long n, long long k, long long times) {
    const long long at = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (at < n * k) y[at] = (T)(x[at] * by[at / k] * times);
}
"#;

    fn types(dtype: DType, n: i64, k: i64) -> (Vec<Type>, Vec<Type>) {
        let gpu = DeviceRef::gpu(0);
        let x: Type = TensorType::new(dtype, [n, k], gpu).into();
        (vec![x.clone(), TensorType::new(DType::Float32, [n], gpu).into()], vec![x])
    }

    #[test]
    fn declarations_are_read_and_planned() {
        let ops = CustomSource::parse(SCALE).unwrap();
        let [op] = &ops[..] else { panic!("{ops:?}") };
        assert_eq!((op.function.as_str(), op.block), ("scale_rows", 256));
        let (operands, results) = types(DType::Int32, 3, 100);
        let call = op.plan(&operands, &results, &[("times", 2)].into()).unwrap();
        assert_eq!(call.grid, [2, 1, 1]);
        let numbers = call.params.iter().filter_map(|param| match param {
            Param::Number(number) => Some(*number),
            _ => None,
        });
        assert_eq!((call.params.len(), numbers.collect::<Vec<_>>()), (6, vec![3, 100, 2]));
        assert!(call.source.code.contains("typedef int T;"));
        let (operands, results) = types(DType::Float32, 0, 100);
        assert_eq!(op.plan(&operands, &results, &[("times", 2)].into()).unwrap().grid, [0, 1, 1]);
        let dtypes = [DType::Float32, DType::Int32, DType::Float64];
        let sources = dtypes.map(|dtype| op.source(&[("T", dtype)]));
        nvrtc::check(&sources);
    }

    #[test]
    fn calls_that_do_not_fit_are_errors() {
        let op = &CustomSource::parse(SCALE).unwrap()[0];
        let (operands, results) = types(DType::Float32, 3, 4);
        for parameters in [().into(), [("times", "three")].into()] {
            let error = op.plan(&operands, &results, &parameters).unwrap_err();
            assert!(error.message().contains("'times' of an op in CUDA C++ is an int or a bool"), "{error}");
        }
        let error = op.plan(&operands, &results, &[("times", 1), ("other", 1)].into()).unwrap_err();
        assert!(error.message().contains("no parameter 'other'"), "{error}");
        assert!(op.plan(&operands[..1], &results, &[("times", 1)].into()).is_err());
        let (operands, results) = types(DType::Float32, 1 << 31, 1 << 31);
        let error = op.plan(&operands, &results, &[("times", 1)].into()).unwrap_err();
        assert!(error.message().contains("blocks"), "{error}");
    }

    #[test]
    fn wrong_declarations_say_why() {
        for (code, why) in [
            ("void f();", "no line declares an op"),
            ("// max.signature: ->", "'max.signature' comes before 'max.op'"),
            ("// max.op: f\n// max.threads: 1", "'max.signature' is missing"),
            ("// max.op: f\n// max.signature: T[n] -> T[n]", "one of 'max.threads' and 'max.blocks'"),
            ("// max.op: f\n// max.signature: T[n] -> T[n]\n// max.threads: m", "says what 'm' in 'm' is"),
            (
                "// max.op: f\n// max.signature: T[n] ->\n// max.threads: n\n// max.block: 2048",
                "1 to 1024 threads",
            ),
            ("// max.op: f\n// max.signature: T[n] ->\n// max.threads: n\n// max.block: all", "got 'all'"),
            ("// max.op: f g\n// max.signature: T[n] ->\n// max.threads: n", "is not the name of a function"),
            ("// max.op: f\n// max.grid: 3", "there is no key 'max.grid'"),
            ("// max.op: f\n// max.block: 1\n// max.block: 2", "line 3: 'max.block' is given twice"),
            ("// max.op f", "expected 'max.key: value'"),
        ] {
            let error = CustomSource::parse(code).unwrap_err();
            assert!(error.message().contains(why), "{code}: {error}");
        }
    }
}
