//! Sentences a second of an encoder, for `benches/encode.py`: the model alone on tokens, and tokenization beside it.
//!
//!     cargo run --release -p max-pipelines --example sentences -- MODEL THREADS SECONDS 1x16 32x128
//!
//! Prints a line of JSON for each size: sentences a second of the model, and of the tokenizer on texts that long.

use std::time::{Duration, Instant};

use max_core::{Error, Result};
use max_pipelines::{EncoderOptions, SentenceEncoder};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, threads, seconds, sizes @ ..] = &arguments[..] else {
        return Err(Error::value("expected a model, threads, seconds, and sizes like 32x128"));
    };
    let number =
        |text: &str| text.parse::<usize>().map_err(|_| Error::value(format!("'{text}' is no number")));
    let time = Duration::from_secs_f64(seconds.parse().unwrap_or(1.0));
    let options = EncoderOptions { threads: Some(number(threads)?), ..EncoderOptions::default() };
    let encoder = SentenceEncoder::load(model, &options)?;
    for size in sizes {
        let (batch, length) = size.split_once('x').ok_or_else(|| Error::value("a size is like 32x128"))?;
        let (batch, length) = (number(batch)?, number(length)?);
        let tokens: Vec<Vec<u32>> = (0..batch)
            .map(|row| (0..length).map(|at| 1000 + ((row * 7919 + at * 104_729) % 20_000) as u32).collect())
            .collect();
        let sum = encoder.encode_tokens(&tokens, &mut |_| Ok(()))?.values().iter().sum::<f32>();
        let model = rate(batch, time, || encoder.encode_tokens(&tokens, &mut |_| Ok(())).map(drop))?;
        let texts = texts_of(&encoder, batch, length)?;
        let tokenizer = rate(batch, time / 4, || encoder.tokenize(&texts).map(drop))?;
        println!("{{\"size\": \"{size}\", \"model\": {model}, \"tokenizer\": {tokenizer}, \"sum\": {sum}}}");
    }
    Ok(())
}

/// Texts of so many tokens, of plain words.
fn texts_of(encoder: &SentenceEncoder, batch: usize, length: usize) -> Result<Vec<String>> {
    let words =
        "the old bridge over the wide river was built by people who lived in small towns near the water";
    let words: Vec<&str> = words.split(' ').collect();
    let around = encoder.tokenize(&[""])?[0].len();
    let mut text = String::new();
    for at in 0.. {
        if encoder.tokenize(&[&text])?[0].len() >= length.max(around + 1) {
            break;
        }
        text += words[at % words.len()];
        text += " ";
    }
    Ok(vec![text; batch])
}

/// How many items a second, by the median of runs.
fn rate(items: usize, time: Duration, mut run: impl FnMut() -> Result<()>) -> Result<f64> {
    run()?;
    run()?;
    let mut times = Vec::new();
    let start = Instant::now();
    while start.elapsed() < time || times.len() < 5 {
        let before = Instant::now();
        run()?;
        times.push(before.elapsed());
    }
    times.sort();
    Ok(items as f64 / times[times.len() / 2].as_secs_f64())
}
