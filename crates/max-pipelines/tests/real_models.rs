//! Published models, whose files are not part of the repository. `cargo xtask test --real-models` installs the Python packages
//! that have them, and names the folder of the packages in `MAX_REAL_MODELS`.

mod records;

use std::path::Path;

use max_pipelines::{EncoderOptions, SentenceEncoder};
use records::{Record, goldens};
use serde_json::Value;

#[test]
#[ignore = "needs a published model: cargo xtask test --real-models"]
fn all_minilm_l6_v2() {
    let packages =
        std::env::var("MAX_REAL_MODELS").expect("MAX_REAL_MODELS names the folder of the packages");
    let record = Record::read(&goldens().join("minilm"));
    let described = std::fs::read(goldens().join("minilm/goldens.json")).unwrap();
    let described: Value = serde_json::from_slice(&described).unwrap();
    let folder = Path::new(&packages).join(described["model"].as_str().unwrap());
    let encoder = SentenceEncoder::load(folder.to_str().unwrap(), &EncoderOptions::default()).unwrap();
    assert_eq!(encoder.max_length(), record.max_length);
    assert_eq!(encoder.tokenize(&record.texts).unwrap(), record.tokens);
    let embeddings = encoder.encode(&record.texts).unwrap();
    let (cosine, furthest) = (record.least_cosine(&embeddings), record.furthest(&embeddings));
    println!("{} texts: least cosine {cosine:.9}, furthest {furthest:e}", record.texts.len());
    assert!(record.texts.len() >= 100 && cosine >= 0.99999);
}
