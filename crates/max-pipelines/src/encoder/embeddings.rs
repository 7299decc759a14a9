//! The vectors of texts.

use max_core::{Result, memory::try_reserve};

/// A vector for each of some texts.
#[derive(Clone, Debug, PartialEq)]
pub struct Embeddings {
    dimension: usize,
    values: Vec<f32>,
}

impl Embeddings {
    /// Vectors of zeros.
    pub(super) fn zeros(count: usize, dimension: usize) -> Result<Embeddings> {
        let size = count.saturating_mul(dimension);
        let mut values = Vec::new();
        try_reserve(&mut values, size, "embeddings")?;
        values.resize(size, 0.0);
        Ok(Embeddings { dimension, values })
    }

    pub(super) fn row_mut(&mut self, text: usize) -> &mut [f32] {
        &mut self.values[text * self.dimension..][..self.dimension]
    }

    /// The number of texts.
    pub fn len(&self) -> usize {
        self.values.len() / self.dimension
    }

    /// Whether there are no texts.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// The number of elements of a vector.
    pub fn dimension(&self) -> usize {
        self.dimension
    }

    /// The vectors in the order of the texts.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[f32]> {
        self.values.chunks_exact(self.dimension)
    }

    /// All elements, one vector after the other.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// The cosine of the angle between the vectors of two texts: 1 if they point in the same direction.
    pub fn similarity(&self, one: usize, other: usize) -> f32 {
        let dot =
            |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
        let (a, b) = (&self[one], &self[other]);
        let lengths = (dot(a, a) * dot(b, b)).sqrt();
        if lengths > 0.0 { (dot(a, b) / lengths) as f32 } else { 0.0 }
    }
}

/// The vector of a text by its number.
impl std::ops::Index<usize> for Embeddings {
    type Output = [f32];

    fn index(&self, text: usize) -> &[f32] {
        &self.values[text * self.dimension..][..self.dimension]
    }
}
