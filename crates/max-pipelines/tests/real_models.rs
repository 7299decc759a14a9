//! Published models, whose files are not part of the repository. `MAX_REAL_MODELS` names a folder with them: all-MiniLM-L6-v2 is the
//! folder `model` of the Python package that `tests/goldens/minilm/goldens.json` names.

mod records;

use std::path::PathBuf;

use max_pipelines::{EncoderOptions, SentenceEncoder};
use records::{Record, goldens};

#[test]
#[ignore = "needs a folder with models, MAX_REAL_MODELS"]
fn all_minilm_l6_v2() {
    let models = std::env::var("MAX_REAL_MODELS").expect("MAX_REAL_MODELS names the folder of the models");
    let folder = PathBuf::from(models).join("all-MiniLM-L6-v2");
    let record = Record::read(&goldens().join("minilm"));
    let encoder = SentenceEncoder::load(folder.to_str().unwrap(), &EncoderOptions::default()).unwrap();
    assert_eq!(encoder.max_length(), record.max_length);
    assert_eq!(encoder.tokenize(&record.texts).unwrap(), record.tokens);
    let embeddings = encoder.encode(&record.texts).unwrap();
    let (cosine, furthest) = (record.least_cosine(&embeddings), record.furthest(&embeddings));
    println!("{} texts: least cosine {cosine:.9}, furthest {furthest:e}", record.texts.len());
    assert!(record.texts.len() >= 100 && cosine >= 0.99999);
}
