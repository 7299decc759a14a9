//! `max encode`: the vectors of texts.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, IsTerminal, Write};
use std::path::Path;

use max_core::{Error, Result, bail};
use max_pipelines::{ENCODER, EncoderOptions, Folder, SentenceEncoder};

use crate::arguments::{Encode, Format};
use crate::progress::{Bar, downloads};
use crate::{Outcome, vectors};

pub fn run(arguments: &Encode, standard: &mut dyn Write) -> Outcome {
    let watched = arguments.output_file.is_none() && io::stdout().is_terminal();
    let format = format(arguments, watched)?;
    let texts = texts(arguments)?;
    let folder = match &arguments.model {
        Some(model) => Folder::find(model, &downloads())?,
        None => ENCODER.folder(),
    };
    let options = EncoderOptions {
        device: arguments.machine.device()?,
        threads: arguments.machine.threads.map(usize::from),
        dtype: arguments.dtype,
        batch_size: arguments.batch_size.into(),
    };
    let encoder = SentenceEncoder::from_folder(&folder, &options)?;
    let bar = Bar::of_items(texts.len());
    let vectors = encoder.encode_tokens(&encoder.tokenize(&texts)?, &mut |count| {
        bar.advance(count);
        Ok(())
    })?;
    bar.clear();
    match &arguments.output_file {
        None => Ok(vectors::write(&vectors, &texts, format, watched, standard)?),
        Some(path) => {
            let cannot = |error| Error::runtime(format!("cannot write {}: {error}", path.display()));
            let mut file = BufWriter::new(File::create(path).map_err(cannot)?);
            let written =
                vectors::write(&vectors, &texts, format, false, &mut file).and_then(|()| file.flush());
            Ok(written.map_err(cannot)?)
        }
    }
}

/// The format of the result, which a terminal can show if it goes there.
fn format(arguments: &Encode, watched: bool) -> Result<Format> {
    let ending = arguments.output_file.as_ref().and_then(|path| path.extension()?.to_str());
    let implied = match ending {
        Some("npy") => Format::Npy,
        Some("json") => Format::Json,
        _ => Format::Text,
    };
    match arguments.output.unwrap_or(implied) {
        Format::Npy if watched => {
            bail!(value, "a terminal cannot show npy; redirect the output to a file, or use --output-file")
        }
        format => Ok(format),
    }
}

/// The texts, in the order of the command line.
fn texts(arguments: &Encode) -> Result<Vec<String>> {
    let mut texts = arguments.prompt.clone();
    match arguments.file.as_deref() {
        None => {}
        Some(path) if path == Path::new("-") => texts.extend(lines(io::stdin().lock(), "standard input")?),
        Some(path) => {
            let name = path.display().to_string();
            let file =
                File::open(path).map_err(|error| Error::runtime(format!("cannot open {name}: {error}")))?;
            texts.extend(lines(BufReader::new(file), &name)?);
        }
    }
    Ok(texts)
}

/// The lines of a file.
fn lines(reader: impl BufRead, name: &str) -> Result<Vec<String>> {
    let numbered = reader.lines().enumerate();
    let line = |(number, line): (usize, io::Result<String>)| {
        line.map_err(|error| Error::runtime(format!("cannot read line {} of {name}: {error}", number + 1)))
    };
    numbered.map(line).collect()
}
