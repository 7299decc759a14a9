//! Rotary position embeddings.

use max_core::{DeviceRef, Dim, Error, Result, Shape, bail};
use max_graph::ops::{self, Positions, RopeScaling};
use max_graph::{Operand, TensorValue};

/// Turns pairs of elements by angles that depend on their position. It has no weights.
///
/// ```
/// use max_core::{DType, DeviceRef, Result, TensorType};
/// use max_graph::Graph;
/// use max_nn::{RopeScaling, RotaryEmbedding};
///
/// let mut rope = RotaryEmbedding::new(4096, 32, 500000.0, 8192, DeviceRef::CPU)?;
/// rope.scaling = RopeScaling::Linear { factor: 2.0 };
/// assert_eq!(rope.head_dim, 128);
/// let input = TensorType::new(DType::Float32, ("batch", "sequence", 32, 128), DeviceRef::CPU);
/// let graph = Graph::build("rope", [input], |x| rope.forward(&x[0], 0))?;
/// assert_eq!(graph.output_types()?[0].to_string(), "float32[batch, sequence, 32, 128]");
/// # Ok::<(), max_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct RotaryEmbedding {
    /// The size of the hidden state.
    pub dim: i64,
    /// The number of heads.
    pub n_heads: i64,
    /// The base of the frequencies.
    pub theta: f64,
    /// The length of the longest sequence.
    pub max_seq_len: i64,
    /// How many elements of a head are turned: `dim / n_heads`, if nothing else is set.
    pub head_dim: i64,
    /// Whether pairs are neighbours, rather than an element of the first half and one of the second.
    pub interleaved: bool,
    /// How the frequencies are scaled.
    pub scaling: RopeScaling,
    /// Where the angles are computed.
    pub device: DeviceRef,
}

crate::module!(RotaryEmbedding {});

impl RotaryEmbedding {
    /// An embedding of neighbours whose frequencies are not scaled.
    pub fn new(
        dim: i64,
        n_heads: i64,
        theta: f64,
        max_seq_len: i64,
        device: DeviceRef,
    ) -> Result<RotaryEmbedding> {
        let head_dim = match dim.checked_div(n_heads) {
            Some(head_dim) if n_heads > 0 => head_dim,
            _ => bail!(value, "the number of heads of a rotary embedding must be positive; got {n_heads}"),
        };
        let (interleaved, scaling) = (true, RopeScaling::None);
        scaling.validate(head_dim, theta)?;
        Ok(RotaryEmbedding { dim, n_heads, theta, max_seq_len, head_dim, interleaved, scaling, device })
    }

    /// The cosines and sines of all angles, `[2 * max_seq_len, head_dim]`, each cosine before its sine.
    pub fn freqs_cis(&self) -> Result<TensorValue> {
        let table = self.table()?;
        ops::reshape(&table, Shape::from([table.shape()[0].clone(), Dim::Static(self.head_dim)]))
    }

    /// The factor of attention scores: the inverse root of the size of a head, unless another is given, times what the
    /// scaling needs.
    pub fn compute_scale(&self, scale: Option<f64>) -> f64 {
        scale.unwrap_or_else(|| (self.head_dim as f64).powf(-0.5)) * self.scaling.scale_factor()
    }

    /// Turns `[.., sequence, heads, head_dim]`; the sequence starts at a position, or has a position for each element.
    pub fn forward(&self, x: impl Into<Operand>, start: impl Into<Positions>) -> Result<TensorValue> {
        ops::rope(x, self.table()?, start, self.interleaved)
    }

    fn table(&self) -> Result<TensorValue> {
        let long =
            || Error::value(format!("2 * max_seq_len exceeds 64 bits; max_seq_len is {}", self.max_seq_len));
        let rows = self.max_seq_len.checked_mul(2).ok_or_else(long)?;
        ops::rope_table(self.scaling.clone(), self.head_dim, self.theta, Dim::Static(rows), self.device, None)
    }
}
