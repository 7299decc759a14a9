//! How fast a model of some shape reads a prompt and generates tokens, with weights that mean nothing.
//!
//! ```sh
//! cargo run --release -p max-pipelines --example decoder_speed -- FOLDER ENCODING [PROMPT [GENERATED [BATCH [WANTED]]]]
//! ```
//!
//! It runs on the first GPU if there is one and `MAX_DEVICE=gpu` is set. The folder needs only a `config.json`. The encoding is
//! `float32`, `bfloat16`, `float16`, `q8_0`, `q4_0`, `q4_k` or `q6_k`. So many of the largest logits are wanted after each token
//! as a request says: 1, if it is greedy, or 255; 0 stands for all.

use std::time::Instant;

use max_core::{DType, QuantizationEncoding, Result, bail};
use max_driver::{CPU, Device};
use max_pipelines::text::sampling::Wanted;
use max_pipelines::{Cache, DecoderOptions, Folder, ModelFiles, Pages, Step, Stored};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, encoding, counts @ ..] = &arguments[..] else {
        bail!(value, "expected a folder and an encoding")
    };
    let number =
        |at: usize, default: usize| counts.get(at).and_then(|text| text.parse().ok()).unwrap_or(default);
    let (prompt, generated, batch) = (number(0, 512), number(1, 64), number(2, 1));
    let wanted = match number(3, 1) {
        0 => Wanted::All,
        count => Wanted::Largest(count),
    };
    let on_gpu = std::env::var("MAX_DEVICE").is_ok_and(|device| device == "gpu");
    let device = if on_gpu { Device::accelerator(None)? } else { CPU() };
    let stored = match encoding.as_str() {
        "float32" => Stored::Floats(DType::Float32),
        "bfloat16" => Stored::Floats(DType::BFloat16),
        "float16" => Stored::Floats(DType::Float16),
        name => match QuantizationEncoding::ALL.iter().find(|own| own.name() == name) {
            Some(encoding) => Stored::Blocks(*encoding),
            None => bail!(value, "there is no encoding '{name}'"),
        },
    };
    let length = (prompt + generated).next_multiple_of(1024).max(2048);
    let options = DecoderOptions {
        quantize: Some(stored),
        max_length: Some(length),
        cache_tokens: Some(length * batch),
        device: device.clone(),
        ..DecoderOptions::default()
    };
    let start = Instant::now();
    let model = ModelFiles::Folder(Folder::Path(folder.into())).dummy(&options)?;
    let (loaded, bytes) = (start.elapsed(), model.weight_bytes());
    let mut cache = Cache::new(model.config(), model.cache_config(), &device)?;
    let mut best = (f64::INFINITY, f64::INFINITY, f64::INFINITY);
    let chunk = if on_gpu { 4096 } else { 512 };
    for _ in 0..3 {
        let mut sequences: Vec<Pages> = (0..batch).map(|_| Pages::default()).collect();
        let tokens: Vec<u32> = (0..prompt as u32).map(|at| at % 1000).collect();
        let mut start = Instant::now();
        for pages in &mut sequences {
            cache.reserve(pages, prompt + generated)?;
            start = Instant::now();
            for tokens in tokens.chunks(chunk) {
                model.next(&cache, &mut [Step { tokens, pages }], &[wanted])?;
            }
        }
        best.0 = best.0.min(start.elapsed().as_secs_f64());
        let mut start = Instant::now();
        for at in 0..generated {
            let mut steps: Vec<Step> =
                sequences.iter_mut().map(|pages| Step { tokens: &[7], pages }).collect();
            model.next(&cache, &mut steps, &vec![wanted; batch])?;
            if at == 0 {
                best.2 = best.2.min(start.elapsed().as_secs_f64());
                start = Instant::now();
            }
        }
        best.1 = best.1.min(start.elapsed().as_secs_f64() / (generated.max(2) - 1) as f64);
        sequences.into_iter().for_each(|pages| cache.release(pages));
    }
    let (read, step) = (prompt as f64 / best.0, batch as f64 / best.1);
    let rate = bytes as f64 / best.1 / 1e9;
    println!(
        "{encoding}, {batch} sequences: {:.0} MB loaded in {:.0} ms; prompt {read:.1} tokens/s; {step:.2} tokens/s ({rate:.1} GB/s), first {:.1} ms",
        bytes as f64 / 1e6,
        loaded.as_secs_f64() * 1e3,
        best.2 * 1e3,
    );
    Ok(())
}
