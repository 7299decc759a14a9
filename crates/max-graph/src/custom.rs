//! Custom ops: ops that a user's program brings along, in libraries that graphs search by name.
//!
//! What a custom op computes is not known here: a graph records which op is meant and checks its types, and whoever runs
//! the graph knows what to make of the implementation. An op that is a function over other ops needs no implementation: it
//! is replaced by these ops where it is recorded.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use max_core::{DeviceRef, Error, OpSignature, Parameters, Result, Type, bail};

use crate::graph::unique_identity;
use crate::value::TensorValue;

/// The library of ops that no file defines.
pub const IN_PROCESS: &str = "this process";

/// A custom op. Two of them are equal only if they are the same object.
pub struct CustomOp {
    name: String,
    library: String,
    signature: Option<OpSignature>,
    rule: Option<Rule>,
    meaning: Meaning,
    identity: u64,
}

/// A rule for the types of operands and results, in addition to the signature.
type Rule = Box<dyn Fn(&[&Type], &[&Type], &Parameters) -> Result<()> + Send + Sync>;

/// A function over other ops.
pub type BodyFn = dyn Fn(&[TensorValue], &Parameters) -> Result<Vec<TensorValue>> + Send + Sync;

/// What a custom op computes.
pub enum Meaning {
    /// What a function over other ops records.
    Body(Box<BodyFn>),
    /// What an implementation computes, on devices of this kind. The engine knows its type.
    Kernel(Arc<dyn Any + Send + Sync>, Place),
}

/// The devices on which an implementation runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The host.
    Host,
    /// GPUs.
    Gpu,
    /// All.
    Anywhere,
}

impl CustomOp {
    /// An op of a library, which is named by its path or by what made it.
    pub fn new(name: impl Into<String>, library: impl Into<String>, meaning: Meaning) -> CustomOp {
        let (name, library) = (name.into(), library.into());
        CustomOp { name, library, signature: None, rule: None, meaning, identity: unique_identity() }
    }

    /// An op that stands for the ops that a function over them records: it fuses like those.
    pub fn body(
        name: impl Into<String>,
        body: impl Fn(&[TensorValue], &Parameters) -> Result<Vec<TensorValue>> + Send + Sync + 'static,
    ) -> CustomOp {
        CustomOp::new(name, IN_PROCESS, Meaning::Body(Box::new(body)))
    }

    /// The same op with a signature that calls must match.
    pub fn with_signature(self, signature: Option<OpSignature>) -> CustomOp {
        CustomOp { signature, ..self }
    }

    /// The same op with a rule that calls must meet.
    pub fn with_rule(
        self,
        rule: impl Fn(&[&Type], &[&Type], &Parameters) -> Result<()> + Send + Sync + 'static,
    ) -> CustomOp {
        CustomOp { rule: Some(Box::new(rule)), ..self }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The library that it comes from.
    pub fn library(&self) -> &str {
        &self.library
    }

    /// What it takes and returns, if it says so.
    pub fn signature(&self) -> Option<&OpSignature> {
        self.signature.as_ref()
    }

    /// What it computes.
    pub fn meaning(&self) -> &Meaning {
        &self.meaning
    }

    /// A number that no other op of this process has.
    pub fn identity(&self) -> u64 {
        self.identity
    }

    /// What it runs; `None` if it is a function over other ops.
    pub fn implementation(&self) -> Option<&Arc<dyn Any + Send + Sync>> {
        match &self.meaning {
            Meaning::Kernel(implementation, _) => Some(implementation),
            Meaning::Body(_) => None,
        }
    }

    /// Checks the types of a call on a device.
    pub fn check(
        &self,
        operands: &[&Type],
        results: &[&Type],
        parameters: &Parameters,
        device: DeviceRef,
    ) -> Result<()> {
        for (what, types) in [("operand", operands), ("result", results)] {
            for (number, ty) in types.iter().enumerate() {
                match ty.device() {
                    Some(own) if own == device => {}
                    Some(own) => bail!(
                        value,
                        "{what} {number} of custom op '{}' is on {own}, but the op runs on {device}: transfer it",
                        self.name
                    ),
                    None => bail!(
                        not_implemented,
                        "{what} {number} of custom op '{}' has the type {ty}, but custom ops compute with tensors and buffers",
                        self.name
                    ),
                }
            }
        }
        if let Some(at) = results.iter().position(|ty| !matches!(ty, Type::Tensor(_))) {
            bail!(value, "result {at} of custom op '{}' must be a tensor, got {}", self.name, results[at]);
        }
        if let Meaning::Kernel(_, place) = &self.meaning {
            let fits = match place {
                Place::Host => device.is_cpu(),
                Place::Gpu => !device.is_cpu(),
                Place::Anywhere => true,
            };
            if !fits {
                let place = if *place == Place::Host { "the host" } else { "GPUs" };
                bail!(value, "custom op '{}' runs on {place} only, got the device {device}", self.name);
            }
        }
        let in_op = |e: Error| e.context(format!("in custom op '{}' of {}", self.name, self.library));
        if let Some(signature) = &self.signature {
            signature.matches(operands, results).map_err(in_op)?;
        }
        match &self.rule {
            Some(rule) => rule(operands, results, parameters).map_err(in_op),
            None => Ok(()),
        }
    }
}

impl PartialEq for CustomOp {
    fn eq(&self, other: &CustomOp) -> bool {
        self.identity == other.identity
    }
}

impl fmt::Debug for CustomOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CustomOp('{}' of {})", self.name, self.library)
    }
}

/// A custom op of a call: by its name in the libraries of the graph, or itself.
#[derive(Clone, Debug)]
pub enum CustomRef {
    /// Its name.
    Name(String),
    /// Itself.
    Op(Arc<CustomOp>),
}

impl From<&str> for CustomRef {
    fn from(name: &str) -> CustomRef {
        CustomRef::Name(name.into())
    }
}

impl From<&Arc<CustomOp>> for CustomRef {
    fn from(op: &Arc<CustomOp>) -> CustomRef {
        CustomRef::Op(op.clone())
    }
}

/// Custom ops by name, from any number of libraries. Cloning makes another handle on the same ops.
#[derive(Clone, Debug, Default)]
pub struct KernelLibrary(Arc<RwLock<Vec<Arc<CustomOp>>>>);

impl KernelLibrary {
    /// A library without ops.
    pub fn new() -> KernelLibrary {
        KernelLibrary::default()
    }

    /// Adds an op. Its name must be new, unless it is the same op.
    pub fn add(&self, op: impl Into<Arc<CustomOp>>) -> Result<Arc<CustomOp>> {
        let op = op.into();
        let mut ops = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if op.name.is_empty() {
            bail!(value, "a custom op of {} has no name", op.library);
        }
        match ops.iter().find(|own| own.name == op.name) {
            None => ops.push(op.clone()),
            Some(own) if *own == op => {}
            Some(own) => bail!(
                value,
                "there is a custom op '{}' already, from {}: that of {} needs another name",
                op.name,
                own.library,
                op.library
            ),
        }
        Ok(op)
    }

    /// Adds all ops of another library.
    pub fn extend(&self, other: &KernelLibrary) -> Result<()> {
        if Arc::ptr_eq(&self.0, &other.0) {
            return Ok(());
        }
        other.ops().into_iter().try_for_each(|op| self.add(op).map(|_| ()))
    }

    /// Its ops, in the order they were added.
    pub fn ops(&self) -> Vec<Arc<CustomOp>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// An op by name; if there is none, the error says where it was looked for and what is there.
    pub fn find(&self, name: &str) -> Result<Arc<CustomOp>> {
        let ops = self.ops();
        if let Some(op) = ops.iter().find(|op| op.name == name) {
            return Ok(op.clone());
        }
        let mut libraries: Vec<(&str, Vec<&str>)> = Vec::new();
        for op in &ops {
            match libraries.iter_mut().find(|(library, _)| *library == op.library) {
                Some((_, names)) => names.push(&op.name),
                None => libraries.push((&op.library, vec![&op.name])),
            }
        }
        let searched = libraries.iter().map(|(library, names)| {
            let names: Vec<_> = names.iter().map(|name| format!("'{name}'")).collect();
            format!("{library} has {}", names.join(", "))
        });
        match searched.collect::<Vec<_>>().join("; ") {
            none if none.is_empty() => bail!(
                value,
                "there is no custom op '{name}': no library of custom ops was given (custom_extensions or kernel_library)"
            ),
            searched => bail!(value, "there is no custom op '{name}' in the libraries searched: {searched}"),
        }
    }
}
