//! How fast a model of some shape reads a prompt and generates tokens, with weights that mean nothing.
//!
//! ```sh
//! cargo run --release -p max-pipelines --example decoder_speed -- FOLDER ENCODING [PROMPT [GENERATED]]
//! ```
//!
//! The folder needs only a `config.json`. The encoding is `float32`, `bfloat16`, `float16`, `q8_0`, `q4_0`, `q4_k` or `q6_k`.

use std::time::Instant;

use max_core::{DType, QuantizationEncoding, Result, bail};
use max_driver::CPU;
use max_pipelines::{Cache, DecoderOptions, Folder, ModelFiles, Pages, Step, Stored};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, encoding, counts @ ..] = &arguments[..] else {
        bail!(value, "expected a folder and an encoding")
    };
    let number =
        |at: usize, default: usize| counts.get(at).and_then(|text| text.parse().ok()).unwrap_or(default);
    let (prompt, generated) = (number(0, 512), number(1, 64));
    let stored = match encoding.as_str() {
        "float32" => Stored::Floats(DType::Float32),
        "bfloat16" => Stored::Floats(DType::BFloat16),
        "float16" => Stored::Floats(DType::Float16),
        name => match QuantizationEncoding::ALL.iter().find(|own| own.name() == name) {
            Some(encoding) => Stored::Blocks(*encoding),
            None => bail!(value, "there is no encoding '{name}'"),
        },
    };
    let options =
        DecoderOptions { quantize: Some(stored), max_length: Some(2048), ..DecoderOptions::default() };
    let start = Instant::now();
    let model = ModelFiles::Folder(Folder::Path(folder.into())).dummy(&options)?;
    let (loaded, bytes) = (start.elapsed(), model.weight_bytes());
    let mut cache = Cache::new(model.config(), model.cache_config(), &CPU())?;
    let mut best = (f64::INFINITY, f64::INFINITY, f64::INFINITY);
    for _ in 0..3 {
        let mut pages = Pages::default();
        cache.reserve(&mut pages, prompt + generated)?;
        let tokens: Vec<u32> = (0..prompt as u32).map(|at| at % 1000).collect();
        let start = Instant::now();
        for tokens in tokens.chunks(512) {
            model.run(&cache, &mut [Step { tokens, pages: &mut pages }])?;
        }
        best.0 = best.0.min(start.elapsed().as_secs_f64());
        let mut start = Instant::now();
        for at in 0..generated {
            model.run(&cache, &mut [Step { tokens: &[7], pages: &mut pages }])?;
            if at == 0 {
                best.2 = best.2.min(start.elapsed().as_secs_f64());
                start = Instant::now();
            }
        }
        best.1 = best.1.min(start.elapsed().as_secs_f64() / (generated.max(2) - 1) as f64);
        cache.release(pages);
    }
    let (read, step) = (prompt as f64 / best.0, 1.0 / best.1);
    let rate = bytes as f64 / best.1 / 1e9;
    println!(
        "{encoding}: {:.0} MB loaded in {:.0} ms; prompt {read:.1} tokens/s; {step:.2} tokens/s ({rate:.1} GB/s), first {:.1} ms",
        bytes as f64 / 1e6,
        loaded.as_secs_f64() * 1e3,
        best.2 * 1e3,
    );
    Ok(())
}
