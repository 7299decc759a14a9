//! Modules: what weights can be found in.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

use max_core::{Bindings, Result};
use max_driver::{Buffer, CPU};
use max_engine::WeightsRegistry;
use max_graph::Weight;

use crate::WeightData;
use crate::state::{Expected, Given, Rules, match_weights};

/// Something with weights: a weight, a layer, or any collection of these.
///
/// The macro [`module!`](crate::module!) implements it for a struct, from the names of the fields that have weights.
pub trait Module {
    /// Calls a function with each weight and the path that leads to it.
    fn visit(&self, path: &Path, each: &mut dyn FnMut(&Path, &Weight));

    /// All weights by their paths, which become their names. A weight with several paths has the first.
    fn raw_state_dict(&self) -> BTreeMap<String, Weight> {
        let mut named = BTreeMap::new();
        let mut seen = HashSet::new();
        self.visit(&Path::Root, &mut |path, weight| {
            let weight = weight.whole().unwrap_or(weight);
            if seen.insert(weight.identity()) {
                weight.rename(path.to_string());
                named.insert(path.to_string(), weight.clone());
            }
        });
        named
    }

    /// Finds the value of each weight by its path; an error names everything that is missing, unexpected or does not fit.
    /// The result is what [`InferenceSession::load_with`](max_engine::InferenceSession::load_with) takes.
    fn load_state_dict(&self, state: &HashMap<String, WeightData>, rules: Rules) -> Result<WeightsRegistry> {
        let weights = self.raw_state_dict();
        let expected: Vec<_> = weights
            .iter()
            .map(|(name, weight)| Expected {
                name,
                ty: weight.tensor_type(),
                encoding: weight.quantization_encoding,
                align: weight.align,
            })
            .collect();
        let given: Vec<_> = state
            .iter()
            .map(|(name, value)| Given {
                name,
                dtype: value.dtype(),
                shape: value.shape(),
                encoding: value.quantization_encoding,
                address: value.data.data_ptr().addr(),
            })
            .collect();
        let found = match_weights(&expected, &given, rules)?;
        let named =
            expected.iter().zip(found).filter_map(|(weight, at)| Some((weight.name, given[at?].name)));
        Ok(named.map(|(name, given)| (name.to_string(), state[given].data.clone())).collect())
    }

    /// Zeros for every weight, by its path; an error if one has a symbolic size.
    fn zeros(&self) -> Result<WeightsRegistry> {
        let weights = self.raw_state_dict().into_iter().map(|(name, weight)| {
            let ty = weight.tensor_type();
            let sizes = ty.shape.evaluate(&Bindings::default());
            let sizes = sizes.map_err(|e| e.context(format!("for weight '{name}'")))?;
            Ok((name, Buffer::zeros(ty.dtype, &sizes, &CPU())?))
        });
        weights.collect()
    }
}

/// The fields that lead to a part of a module.
#[derive(Clone, Copy, Debug)]
pub enum Path<'a> {
    /// The module itself.
    Root,
    /// A field of what a path leads to.
    Field(&'a Path<'a>, &'a str),
    /// A number in a list that a path leads to.
    Index(&'a Path<'a>, usize),
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (parent, own): (_, &dyn fmt::Display) = match self {
            Path::Root => return Ok(()),
            Path::Field(parent, name) => (parent, name),
            Path::Index(parent, number) => (parent, number),
        };
        match parent {
            Path::Root => write!(f, "{own}"),
            _ => write!(f, "{parent}.{own}"),
        }
    }
}

impl Module for Weight {
    fn visit(&self, path: &Path, each: &mut dyn FnMut(&Path, &Weight)) {
        each(path, self);
    }
}

impl<M: Module> Module for Option<M> {
    fn visit(&self, path: &Path, each: &mut dyn FnMut(&Path, &Weight)) {
        if let Some(module) = self {
            module.visit(path, each);
        }
    }
}

impl<M: Module + ?Sized> Module for Box<M> {
    fn visit(&self, path: &Path, each: &mut dyn FnMut(&Path, &Weight)) {
        (**self).visit(path, each);
    }
}

impl<M: Module> Module for Vec<M> {
    fn visit(&self, path: &Path, each: &mut dyn FnMut(&Path, &Weight)) {
        for (number, module) in self.iter().enumerate() {
            module.visit(&Path::Index(path, number), each);
        }
    }
}

/// Implements [`Module`] for a struct whose named fields are modules.
#[macro_export]
macro_rules! module {
    ($type:ident $(<$($parameter:ident),*>)? { $($field:ident),* $(,)? }) => {
        impl$(<$($parameter: $crate::Module),*>)? $crate::Module for $type$(<$($parameter),*>)? {
            fn visit(&self, path: &$crate::Path, each: &mut dyn FnMut(&$crate::Path, &$crate::Weight)) {
                let _ = (path, &each);
                $($crate::Module::visit(&self.$field, &$crate::Path::Field(path, stringify!($field)), each);)*
            }
        }
    };
}
