//! Encoders give what Sentence Transformers gives, alone and in any company.

mod records;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use max_core::DType;
use max_driver::Buffer;
use max_pipelines::{EncoderOptions, SentenceEncoder};
use max_weights::{WeightData, load_weights, save_weights};
use records::{Record, goldens};

const MODELS: [&str; 3] = ["bert", "mpnet", "bert-plain"];

fn folder(model: &str) -> PathBuf {
    goldens().join("encoders").join(model)
}

fn load(folder: &Path, options: &EncoderOptions) -> SentenceEncoder {
    SentenceEncoder::load(folder.to_str().unwrap(), options).unwrap()
}

#[test]
fn texts_become_the_same_tokens_and_vectors() {
    for model in MODELS {
        let record = Record::read(&folder(model));
        let encoder = load(&folder(model), &EncoderOptions::default());
        assert_eq!(encoder.max_length(), record.max_length, "{model}");
        assert_eq!(encoder.tokenize(&record.texts).unwrap(), record.tokens, "{model}");
        let embeddings = encoder.encode(&record.texts).unwrap();
        assert_eq!(embeddings.dimension(), encoder.dimension());
        let furthest = record.furthest(&embeddings);
        assert!(furthest < 1e-5, "{model}: {furthest}");
    }
}

#[test]
fn half_precision_is_close() {
    for dtype in [DType::BFloat16, DType::Float16] {
        for model in MODELS {
            let record = Record::read(&folder(model));
            let options = EncoderOptions { dtype: Some(dtype), ..EncoderOptions::default() };
            let embeddings = load(&folder(model), &options).encode(&record.texts).unwrap();
            let cosine = record.least_cosine(&embeddings);
            assert!(cosine > 0.99, "{model} in {dtype}: {cosine}");
        }
    }
}

#[test]
fn few_texts_and_none() {
    let encoder = load(&folder("bert"), &EncoderOptions::default());
    let none = encoder.encode::<&str>(&[]).unwrap();
    assert!(none.is_empty() && none.dimension() == 48);
    let one = encoder.encode(&["one"]).unwrap();
    assert_eq!((one.len(), one[0].len()), (1, 48));
    assert_eq!(one.similarity(0, 0), 1.0);
    // Tokens without a text have no vector, and tokens that do not exist are an error.
    let empty = encoder.encode_tokens(&[vec![], vec![2, 3]], &mut |_| Ok(())).unwrap();
    assert!(empty[0].iter().all(|&x| x == 0.0) && empty[1].iter().any(|&x| x != 0.0));
    assert!(encoder.encode_tokens(&[[2, 1_000_000]], &mut |_| Ok(())).is_err());
    assert!(encoder.encode_tokens(&[vec![2; 65]], &mut |_| Ok(())).is_err());
    let mut told = Vec::new();
    let texts = vec![[2, 3]; 70];
    encoder
        .encode_tokens(&texts, &mut |count| {
            told.push(count);
            Ok(())
        })
        .unwrap();
    told.sort();
    assert_eq!(told, [6, 32, 32]);
    let stopped = encoder.encode_tokens(&texts, &mut |_| max_core::bail!(runtime, "enough"));
    assert_eq!(stopped.unwrap_err().message(), "enough");
}

#[test]
fn a_model_of_real_size() {
    let expected = load_weights(&[folder("minilm-shape").join("goldens.safetensors")]).unwrap();
    let lengths = [1, 2, 16, 61, 128, 256, 512];
    let tokens = lengths.map(|length| {
        let ids = expected.get(&format!("ids.{length}")).unwrap().data.to_vec::<i32>().unwrap();
        ids.into_iter().map(|id| id as u32).collect::<Vec<_>>()
    });
    let embeddings = large().encode_tokens(&tokens, &mut |_| Ok(())).unwrap();
    for (vector, length) in embeddings.iter().zip(lengths) {
        let mean = expected.get(&format!("mean.{length}")).unwrap().data.to_vec::<f32>().unwrap();
        let largest = mean.iter().fold(0f32, |most, x| most.max(x.abs()));
        let furthest = vector.iter().zip(&mean).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(furthest < 1e-5 * largest.max(1.0), "{length} tokens: {furthest} of {largest}");
    }
}

#[test]
fn company_changes_no_bit() {
    let encoder = large();
    let text = |length: u32| (0..length).map(|at| 1000 + at * length).collect::<Vec<u32>>();
    let texts: Vec<Vec<u32>> = [1, 2, 3, 5, 8, 13, 14, 15, 16, 17, 31, 70].map(text).to_vec();
    let bits = |vector: &[f32]| vector.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    let together = encoder.encode_tokens(&texts, &mut |_| Ok(())).unwrap();
    for (text, vector) in texts.iter().zip(together.iter()) {
        let alone = encoder.encode_tokens(&[text], &mut |_| Ok(())).unwrap();
        assert_eq!(bits(&alone[0]), bits(vector), "{} tokens", text.len());
        let equals = encoder.encode_tokens(&[text; 5], &mut |_| Ok(())).unwrap();
        assert!(equals.iter().all(|equal| bits(equal) == bits(vector)), "{} tokens", text.len());
    }
}

/// An encoder as large as all-MiniLM-L6-v2, with weights that are functions of their names.
fn large() -> &'static SentenceEncoder {
    static ENCODER: OnceLock<SentenceEncoder> = OnceLock::new();
    ENCODER.get_or_init(|| {
        let scratch = std::env::temp_dir().join(format!("max-minilm-shape-{}", std::process::id()));
        std::fs::create_dir_all(&scratch).unwrap();
        let config = folder("minilm-shape").join("config.json");
        std::fs::copy(config, scratch.join("config.json")).unwrap();
        std::fs::copy(folder("bert").join("tokenizer.json"), scratch.join("tokenizer.json")).unwrap();
        save_weights(scratch.join("model.safetensors"), &made_up_weights(), &BTreeMap::new()).unwrap();
        let encoder = load(&scratch, &EncoderOptions::default());
        std::fs::remove_dir_all(&scratch).unwrap();
        encoder
    })
}

fn made_up_weights() -> BTreeMap<String, WeightData> {
    let (width, inner) = (384, 1536);
    let mut weights = BTreeMap::new();
    let mut add = |name: String, shape: &[usize]| {
        let scale = match shape {
            [_] => 1.0 / 8.0,
            _ if name.starts_with("embeddings.") => 1.0,
            _ if name.contains("query") || name.contains("key") => 1.0 / 8.0,
            [_, 1536] => 1.0 / 32.0,
            _ => 1.0 / 16.0,
        };
        let base = if name.ends_with("LayerNorm.weight") { 1.0 } else { 0.0 };
        let hash = name.bytes().fold(0xCBF2_9CE4_8422_2325u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
        });
        let element = |i: usize| {
            let mut state = hash.wrapping_add((i as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
            state = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            state = (state ^ (state >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            state ^= state >> 31;
            let u = (state >> 40) as f32 / (1 << 23) as f32 - 1.0;
            u * scale + base
        };
        let values: Vec<f32> = (0..shape.iter().product()).map(element).collect();
        if name == "embeddings.word_embeddings.weight" {
            assert_eq!(values[..2], [-0.670_437_34, 0.411_615_97]);
        }
        weights.insert(name, WeightData::from(Buffer::from_slice(&values, shape).unwrap()));
    };
    add("embeddings.word_embeddings.weight".into(), &[30522, width]);
    add("embeddings.position_embeddings.weight".into(), &[512, width]);
    add("embeddings.token_type_embeddings.weight".into(), &[2, width]);
    let mut norm = |name: &str| {
        add(format!("{name}.weight"), &[width]);
        add(format!("{name}.bias"), &[width]);
    };
    norm("embeddings.LayerNorm");
    for layer in 0..6 {
        norm(&format!("encoder.layer.{layer}.attention.output.LayerNorm"));
        norm(&format!("encoder.layer.{layer}.output.LayerNorm"));
    }
    for layer in 0..6 {
        let matrices = [
            ("attention.self.query", width, width),
            ("attention.self.key", width, width),
            ("attention.self.value", width, width),
            ("attention.output.dense", width, width),
            ("intermediate.dense", inner, width),
            ("output.dense", width, inner),
        ];
        for (name, rows, columns) in matrices {
            add(format!("encoder.layer.{layer}.{name}.weight"), &[rows, columns]);
            add(format!("encoder.layer.{layer}.{name}.bias"), &[rows]);
        }
    }
    weights
}
