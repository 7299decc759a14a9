//! `max perplexity`: how well a model predicts a text.

use std::io::Write;
use std::time::Instant;

use max_core::Error;
use serde_json::json;

use crate::arguments::{Perplexity, ScoreFormat};
use crate::progress::Bar;
use crate::{Outcome, loading};

pub fn run(arguments: &Perplexity, output: &mut dyn Write) -> Outcome {
    let text = loading::text_of(&arguments.file)?;
    if text.is_empty() {
        return Err(Error::value(format!("{} is empty", arguments.file.display())).into());
    }
    let generator = loading::load(arguments.model.as_deref(), &arguments.loading, false)?;
    let start = Instant::now();
    let mut bar = None;
    let found = generator.likelihood(&text, arguments.stride, &mut |done, all| {
        bar.get_or_insert_with(|| Bar::of_items(all)).set(done as u64);
        Ok(())
    });
    if let Some(bar) = bar {
        bar.clear();
    }
    let found = found?;
    let (perplexity, tokens) = (found.perplexity(), found.log_probabilities.len());
    let bits_per_byte = -found.sum() / std::f64::consts::LN_2 / text.len() as f64;
    let seconds = start.elapsed().as_secs_f64();
    match arguments.output {
        ScoreFormat::Text => writeln!(
            output,
            "perplexity {perplexity:.4} of {tokens} tokens, {bits_per_byte:.4} bits per byte; windows of {}, every {}; {:.0} tokens/s",
            found.window,
            found.stride,
            tokens as f64 / seconds.max(1e-9),
        )?,
        ScoreFormat::Json => writeln!(
            output,
            "{}",
            json!({
                "perplexity": perplexity,
                "bits_per_byte": bits_per_byte,
                "log_likelihood": found.sum(),
                "tokens": tokens,
                "window": found.window,
                "stride": found.stride,
                "seconds": seconds,
            })
        )?,
    }
    Ok(())
}
