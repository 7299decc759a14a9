//! Scalings as arguments whose types are known only at run time.

use max_core::{Error, Result, bail};

use super::RopeScaling;
use crate::registry::{Arg, FromArg};

/// A scaling as a list of its name and its fields in order.
impl FromArg for RopeScaling {
    fn from_arg(arg: Arg) -> Result<RopeScaling> {
        let Arg::List(items) = arg else {
            bail!(type_, "expected a list of the name and the fields of a rope scaling");
        };
        let mut items = items.into_iter();
        let name = String::from_arg(items.next().unwrap_or(Arg::None))?;
        let mut fields = Fields { name: &name, items };
        let scaling = match name.as_str() {
            "none" => RopeScaling::None,
            "linear" => RopeScaling::Linear { factor: fields.next()? },
            "llama3" => RopeScaling::Llama3 {
                factor: fields.next()?,
                low_freq_factor: fields.next()?,
                high_freq_factor: fields.next()?,
                orig_max_position: fields.next()?,
            },
            "yarn" => RopeScaling::Yarn {
                factor: fields.next()?,
                beta_fast: fields.next()?,
                beta_slow: fields.next()?,
                original_max_position_embeddings: fields.next()?,
                truncate: fields.next()?,
            },
            "longrope" => RopeScaling::LongRope {
                short_factor: fields.next()?,
                long_factor: fields.next()?,
                original_max_position: fields.next()?,
                max_position_embeddings: fields.next()?,
            },
            "deepseek_yarn" => RopeScaling::DeepseekYarn {
                scaling_factor: fields.next()?,
                original_max_position_embeddings: fields.next()?,
                beta_fast: fields.next()?,
                beta_slow: fields.next()?,
                mscale: fields.next()?,
                mscale_all_dim: fields.next()?,
            },
            "dynamic" => RopeScaling::Dynamic { factor: fields.next()?, original: fields.next()? },
            other => bail!(value, "there is no rope scaling '{other}'"),
        };
        match fields.items.len() {
            0 => Ok(scaling),
            extra => bail!(type_, "{extra} fields too many for the rope scaling '{name}'"),
        }
    }
}

/// The fields of a scaling that are still to be read.
struct Fields<'a> {
    name: &'a str,
    items: std::vec::IntoIter<Arg>,
}

impl Fields<'_> {
    fn next<T: FromArg>(&mut self) -> Result<T> {
        let few = || Error::type_(format!("too few fields for the rope scaling '{}'", self.name));
        T::from_arg(self.items.next().ok_or_else(few)?)
            .map_err(|e| e.context(format!("in the rope scaling '{}'", self.name)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scalings_are_read_from_lists() {
        let read = |items: Vec<Arg>| RopeScaling::from_arg(Arg::List(items));
        assert_eq!(read(vec!["linear".into(), 2i64.into()]).unwrap(), RopeScaling::Linear { factor: 2.0 });
        assert_eq!(read(vec!["none".into()]).unwrap(), RopeScaling::None);
        for (items, says) in [
            (vec![], "expected a string"),
            (vec!["linear".into()], "too few fields"),
            (vec!["none".into(), 1i64.into()], "1 fields too many"),
            (vec!["wild".into()], "there is no rope scaling 'wild'"),
            (vec!["linear".into(), "two".into()], "expected a float"),
        ] {
            let error = read(items).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }
}
