//! From text to tokens.

use std::panic::{AssertUnwindSafe, catch_unwind};

use max_core::{Result, bail};
use tokenizers::{Tokenizer as Inner, TruncationParams};

use crate::folder::Folder;

/// What cuts texts into tokens: the `tokenizer.json` of a model.
pub struct Tokenizer {
    inner: Inner,
}

impl Tokenizer {
    /// The tokenizer of a model. It neither truncates nor pads, whatever its file says.
    pub fn load(folder: &Folder) -> Result<Tokenizer> {
        match folder.read("tokenizer.json")? {
            Some(text) => {
                Tokenizer::parse(&text).map_err(|e| e.context(format!("in tokenizer.json of {folder}")))
            }
            None => bail!(value, "{folder} has no tokenizer.json"),
        }
    }

    fn parse(text: &[u8]) -> Result<Tokenizer> {
        let inner = guarded(|| {
            let mut inner = Inner::from_bytes(text)?;
            inner.with_padding(None).with_truncation(None)?;
            Ok(inner)
        });
        inner.map(|inner| Tokenizer { inner })
    }

    /// The same tokenizer, which drops what a text has beyond this many tokens.
    pub fn truncated(mut self, length: usize) -> Result<Tokenizer> {
        let around = self.encode("")?.len();
        if length <= around {
            bail!(
                value,
                "{length} tokens of a text are too few for the {around} that the model puts around them"
            );
        }
        let truncation = TruncationParams { max_length: length, ..TruncationParams::default() };
        guarded(|| self.inner.with_truncation(Some(truncation)).map(|_| ()))?;
        Ok(self)
    }

    /// The tokens of a text, with those that the model wants around them.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        guarded(|| Ok(self.inner.encode_fast(text, true)?.get_ids().to_vec()))
    }

    /// The tokens of each text; several texts at once use all cores.
    pub fn encode_batch(&self, texts: Vec<&str>) -> Result<Vec<Vec<u32>>> {
        match &texts[..] {
            [text] => Ok(vec![self.encode(text)?]),
            _ => guarded(|| {
                let encodings = self.inner.encode_batch_fast(texts, true)?;
                Ok(encodings.iter().map(|encoding| encoding.get_ids().to_vec()).collect())
            }),
        }
    }
}

/// The result of the library. A file can make it panic, which is an error like others.
pub(crate) fn guarded<T>(work: impl FnOnce() -> tokenizers::Result<T>) -> Result<T> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(result)) => Ok(result),
        Ok(Err(error)) => bail!(value, "the tokenizer cannot be used: {error}"),
        Err(_) => bail!(value, "the tokenizer cannot be used: it contradicts itself"),
    }
}
