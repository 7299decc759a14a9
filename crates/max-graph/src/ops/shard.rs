//! Parts of weights for several devices.

use max_core::{Dim, Result, Shape, bail};

use crate::operand::Operand;
use crate::ops;
use crate::ops::slice::part;
use crate::registry::{Arg, FromArg, op_fns};
use crate::value::TensorValue;

op_fns! {
    /// The part of a weight that one of the devices has, by its number.
    pub fn shard(x: Operand, strategy: ShardingStrategy, index: i64) -> TensorValue {
        let x = x.tensor()?;
        let Ok(index) = usize::try_from(index) else { bail!(value, "there is no shard {index}") };
        strategy.cut(&x, index)
    }
}

/// How a weight is divided among devices. Where sizes do not divide evenly, the first devices have one more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardingStrategy {
    /// The number of devices.
    pub num_devices: usize,
    /// What each device has.
    pub sharding: Sharding,
}

/// What a device has of a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharding {
    /// Some of the rows, along axis 0.
    Rowwise,
    /// Some of the columns, along axis 1.
    Columnwise,
    /// All of it.
    Replicate,
    /// The rows of some heads, in each of three stacked parts: queries, keys and values.
    StackedQkv {
        /// The heads of each part.
        num_heads: usize,
        /// The rows of a head.
        head_dim: usize,
    },
    /// The columns of some heads.
    HeadAwareColumnwise {
        /// The number of heads.
        num_heads: usize,
        /// The columns of a head.
        head_dim: usize,
    },
}

/// The positions along an axis that a device has, in order.
struct Cut {
    axis: usize,
    ranges: Vec<[i64; 2]>,
}

impl ShardingStrategy {
    /// A strategy for some devices, at least one.
    pub fn new(num_devices: usize, sharding: Sharding) -> Result<ShardingStrategy> {
        if num_devices == 0 {
            bail!(value, "a weight is sharded over at least one device");
        }
        if let Sharding::StackedQkv { num_heads, head_dim }
        | Sharding::HeadAwareColumnwise { num_heads, head_dim } = sharding
            && (num_heads == 0 || head_dim == 0)
        {
            bail!(
                value,
                "attention has at least one head of at least one element; got {num_heads} of {head_dim}"
            );
        }
        Ok(ShardingStrategy { num_devices, sharding })
    }

    /// The shape of a shard.
    pub fn shape(&self, whole: &Shape, index: usize) -> Result<Shape> {
        let mut dims = whole.to_vec();
        if let Some(Cut { axis, ranges }) = self.ranges(whole, index)? {
            dims[axis] = Dim::Static(ranges.iter().map(|[start, end]| end - start).sum());
        }
        Ok(dims.into())
    }

    /// A shard of a tensor.
    pub fn cut(&self, whole: &TensorValue, index: usize) -> Result<TensorValue> {
        let Some(Cut { axis, ranges }) = self.ranges(whole.shape(), index)? else { return Ok(whole.clone()) };
        let parts = ranges.iter().map(|&[start, end]| {
            part(whole, axis, Some(Dim::Static(start)), Some(Dim::Static(end))).map(Operand::from)
        });
        let parts = parts.collect::<Result<Vec<_>>>()?;
        match <[Operand; 1]>::try_from(parts) {
            Ok([only]) => only.tensor(),
            Err(parts) => ops::concat(parts, axis as i64),
        }
    }

    /// Where a shard is in the whole; `None` if it is the whole.
    fn ranges(&self, whole: &Shape, index: usize) -> Result<Option<Cut>> {
        if index >= self.num_devices {
            bail!(value, "shard {index} of a weight that is sharded over {} devices", self.num_devices);
        }
        let axis = match self.sharding {
            Sharding::Replicate => return Ok(None),
            Sharding::Rowwise | Sharding::StackedQkv { .. } => 0,
            Sharding::Columnwise | Sharding::HeadAwareColumnwise { .. } => 1,
        };
        let Some(size) = whole.get(axis).and_then(Dim::as_static) else {
            bail!(value, "a weight of shape {whole} has no static axis {axis} that can be sharded");
        };
        let (parts, unit) = match self.sharding {
            Sharding::StackedQkv { num_heads, head_dim } => (3, Some([num_heads, head_dim])),
            Sharding::HeadAwareColumnwise { num_heads, head_dim } => (1, Some([num_heads, head_dim])),
            _ => (1, None),
        };
        let Some([heads, head_dim]) = unit else {
            let [start, end] = self.share(size, index);
            return Ok(Some(Cut { axis, ranges: vec![[start, end]] }));
        };
        let whole_part = i64::try_from(heads).ok().zip(i64::try_from(head_dim).ok());
        let whole_part = whole_part.and_then(|(heads, dim)| Some((heads, dim, heads.checked_mul(dim)?)));
        match whole_part {
            Some((heads, dim, rows)) if rows.checked_mul(parts) == Some(size) => {
                let [first, last] = self.share(heads, index);
                let ranges = (0..parts).map(|part| [part * rows + first * dim, part * rows + last * dim]);
                Ok(Some(Cut { axis, ranges: ranges.collect() }))
            }
            _ => bail!(
                value,
                "axis {axis} of a weight of shape {whole} does not hold {parts} times {heads} heads of {head_dim}"
            ),
        }
    }

    /// What a device has of so many.
    fn share(&self, count: i64, index: usize) -> [i64; 2] {
        let (devices, index) = (self.num_devices as i64, index as i64);
        let (each, rest) = (count / devices, count % devices);
        let start = |index: i64| index * each + index.min(rest);
        [start(index), start(index + 1)]
    }
}

impl FromArg for ShardingStrategy {
    fn from_arg(arg: Arg) -> Result<ShardingStrategy> {
        let Arg::List(fields) = arg else { bail!(type_, "expected the fields of a ShardingStrategy") };
        let mut fields = fields.into_iter();
        let name = String::from_arg(fields.next().unwrap_or(Arg::None))?;
        let numbers = fields.map(|field| {
            let number = i64::from_arg(field)?;
            usize::try_from(number)
                .map_err(|_| max_core::Error::value(format!("a negative number: {number}")))
        });
        let (devices, sharding) = match (name.as_str(), &numbers.collect::<Result<Vec<_>>>()?[..]) {
            ("rowwise", &[n]) => (n, Sharding::Rowwise),
            ("columnwise", &[n]) => (n, Sharding::Columnwise),
            ("replicate", &[n]) => (n, Sharding::Replicate),
            ("stacked_qkv", &[n, num_heads, head_dim]) => (n, Sharding::StackedQkv { num_heads, head_dim }),
            ("head_aware_columnwise", &[n, num_heads, head_dim]) => {
                (n, Sharding::HeadAwareColumnwise { num_heads, head_dim })
            }
            ("tensor_parallel" | "expert_parallel", _) => {
                bail!(
                    value,
                    "the strategy '{name}' is for layers, which give their weights strategies of their own"
                )
            }
            (_, numbers) => bail!(value, "unknown sharding strategy '{name}' with the numbers {numbers:?}"),
        };
        ShardingStrategy::new(devices, sharding)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shapes(strategy: &ShardingStrategy, whole: [i64; 2]) -> Result<Vec<String>> {
        let whole = Shape::from(whole.map(Dim::Static).to_vec());
        (0..strategy.num_devices).map(|at| Ok(strategy.shape(&whole, at)?.to_string())).collect()
    }

    #[test]
    fn shards_have_nearly_equal_sizes() {
        let strategy = |n, sharding| ShardingStrategy::new(n, sharding).unwrap();
        let rows = strategy(3, Sharding::Rowwise);
        assert_eq!(shapes(&rows, [8, 5]).unwrap(), ["[3, 5]", "[3, 5]", "[2, 5]"]);
        assert_eq!(shapes(&rows, [1, 5]).unwrap(), ["[1, 5]", "[0, 5]", "[0, 5]"]);
        assert_eq!(shapes(&strategy(2, Sharding::Columnwise), [8, 5]).unwrap(), ["[8, 3]", "[8, 2]"]);
        assert_eq!(shapes(&strategy(2, Sharding::Replicate), [8, 5]).unwrap(), ["[8, 5]", "[8, 5]"]);
        let qkv = strategy(2, Sharding::StackedQkv { num_heads: 3, head_dim: 4 });
        assert_eq!(shapes(&qkv, [36, 5]).unwrap(), ["[24, 5]", "[12, 5]"]);
        let heads = strategy(2, Sharding::HeadAwareColumnwise { num_heads: 3, head_dim: 4 });
        assert_eq!(shapes(&heads, [5, 12]).unwrap(), ["[5, 8]", "[5, 4]"]);
    }

    #[test]
    fn strategies_that_do_not_fit_are_refused() {
        let qkv = ShardingStrategy::new(2, Sharding::StackedQkv { num_heads: 3, head_dim: 4 }).unwrap();
        assert!(shapes(&qkv, [35, 5]).unwrap_err().to_string().contains("3 times 3 heads of 4"));
        assert!(qkv.shape(&Shape::default(), 0).is_err() && qkv.shape(&Shape::default(), 2).is_err());
        assert!(ShardingStrategy::new(0, Sharding::Rowwise).is_err());
        let huge = Sharding::HeadAwareColumnwise { num_heads: usize::MAX, head_dim: usize::MAX };
        assert!(shapes(&ShardingStrategy::new(1, huge).unwrap(), [1, 1]).is_err());
    }
}
