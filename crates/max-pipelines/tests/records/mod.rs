//! What other implementations computed: see `goldens/README.md`.

use std::path::{Path, PathBuf};

use max_pipelines::Embeddings;
use max_weights::load_weights;
use serde_json::Value;

/// Texts with their tokens and vectors.
pub struct Record {
    pub max_length: usize,
    pub texts: Vec<String>,
    pub tokens: Vec<Vec<u32>>,
    pub vectors: Vec<Vec<f32>>,
}

pub fn goldens() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens")
}

impl Record {
    pub fn read(folder: &Path) -> Record {
        let json: Value =
            serde_json::from_slice(&std::fs::read(folder.join("goldens.json")).unwrap()).unwrap();
        let sentences = json["sentences"].as_array().unwrap();
        let ids = |sentence: &Value| -> Vec<u32> {
            sentence["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
        };
        let weights = load_weights(&[folder.join("goldens.safetensors")]).unwrap();
        let vectors = weights.get("embeddings").unwrap().data;
        let width = vectors.shape()[1];
        Record {
            max_length: json["max_length"].as_u64().unwrap() as usize,
            texts: sentences.iter().map(|sentence| sentence["text"].as_str().unwrap().into()).collect(),
            tokens: sentences.iter().map(ids).collect(),
            vectors: vectors.to_vec::<f32>().unwrap().chunks(width).map(<[f32]>::to_vec).collect(),
        }
    }

    /// The cosine between what was computed here and there, of the text where they are furthest apart.
    pub fn least_cosine(&self, embeddings: &Embeddings) -> f64 {
        let dot =
            |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>();
        let cosine = |a: &[f32], b: &[f32]| dot(a, b) / (dot(a, a) * dot(b, b)).sqrt();
        self.vectors.iter().zip(embeddings.iter()).map(|(a, b)| cosine(a, b)).fold(1.0, f64::min)
    }

    /// The largest difference of two elements.
    pub fn furthest(&self, embeddings: &Embeddings) -> f32 {
        assert_eq!(embeddings.len(), self.vectors.len());
        let pairs = self.vectors.iter().flatten().zip(embeddings.values());
        pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
    }
}
