//! What commands on models that generate text begin with.

use std::io::{self, Read};
use std::path::Path;

use max_core::{Error, Result, bail};
use max_pipelines::{BOX, DecoderOptions, ModelFiles, Stored, TextGenerator};
use max_weights::Target;

use crate::arguments::Loading;
use crate::progress::{Bar, downloads};

/// A model, or without one the toy in the program.
pub fn load(model: Option<&str>, loading: &Loading, dummy: bool) -> Result<TextGenerator> {
    let options = DecoderOptions {
        device: loading.machine.device()?,
        threads: loading.machine.threads.map(usize::from),
        max_length: loading.max_length,
        cache_dtype: loading.cache_dtype,
        quantize: loading.quantize.map(|target| match target {
            Target::DType(dtype) => Stored::Floats(dtype),
            Target::Encoding(encoding) => Stored::Blocks(encoding),
        }),
        dummy,
        ..DecoderOptions::default()
    };
    let files = match model {
        Some(model) => ModelFiles::find(model, &downloads())?,
        None => ModelFiles::Embedded(&BOX),
    };
    let mut bar = None;
    let generator = TextGenerator::from_files(&files, &options, &mut |done, all| {
        bar.get_or_insert_with(|| Bar::of_items(all)).set(done as u64);
    })?;
    if let Some(bar) = bar {
        bar.clear();
    }
    Ok(generator)
}

/// The contents of a file, or of standard input.
pub fn text_of(file: &Path) -> Result<String> {
    let mut bytes = Vec::new();
    let (name, read) = match file == Path::new("-") {
        true => ("standard input".to_string(), io::stdin().lock().read_to_end(&mut bytes).map(|_| ())),
        false => (file.display().to_string(), std::fs::read(file).map(|read| bytes = read)),
    };
    read.map_err(|error| Error::runtime(format!("cannot read {name}: {error}")))?;
    match String::from_utf8(bytes) {
        Ok(text) => Ok(text),
        Err(error) => {
            bail!(value, "{name} is no UTF-8 text from byte {} on", error.utf8_error().valid_up_to())
        }
    }
}
