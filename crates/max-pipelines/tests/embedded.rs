//! The encoder in the program understands its language.

use max_pipelines::{ENCODER, EncoderOptions, SentenceEncoder};

#[test]
fn paraphrases_are_nearer_than_what_only_looks_alike() {
    let encoder = SentenceEncoder::load_default().unwrap();
    let triples = include_str!("../../../models/encoder/triples.tsv");
    let texts: Vec<&str> = triples.lines().flat_map(|line| line.split('\t')).collect();
    assert_eq!(texts.len(), 3 * 200);
    let vectors = encoder.encode(&texts).unwrap();
    let is_right =
        |at: &usize| vectors.similarity(3 * at, 3 * at + 1) > vectors.similarity(3 * at, 3 * at + 2);
    let right = (0..200).filter(is_right).count();
    println!("{right} of 200 triples are right");
    assert!(right >= 170, "{right} of 200");
}

#[test]
fn it_is_small_and_normalized() {
    assert!(ENCODER.num_bytes() < 6_300_000, "{} bytes", ENCODER.num_bytes());
    let encoder = SentenceEncoder::from_folder(&ENCODER.folder(), &EncoderOptions::default()).unwrap();
    let vectors = encoder.encode(&["A dog runs.", ""]).unwrap();
    for vector in vectors.iter() {
        let length = vector.iter().map(|x| x * x).sum::<f32>().sqrt();
        assert!((length - 1.0).abs() < 1e-5, "{length}");
    }
}
