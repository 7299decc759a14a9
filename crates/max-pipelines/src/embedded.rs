//! Models that are part of the program, so that it works without any other file.

use std::fmt;

use max_core::{HostBytes, Result, bail};
use max_weights::{Weights, WeightsFormat};

use crate::folder::Folder;

/// A model in the program.
pub struct Embedded {
    /// Its name.
    pub name: &'static str,
    /// What it is.
    pub about: &'static str,
    /// The names and contents of its files.
    files: &'static [(&'static str, &'static [u8])],
}

/// Bytes that begin where elements of any dtype may, so that weights are used where they are.
#[repr(C, align(64))]
struct Aligned<T: ?Sized>(T);

/// The files of a folder in `models`.
macro_rules! files {
    ($folder:literal: $($name:literal),*) => {
        &[$(($name, &Aligned(*include_bytes!(concat!("../../../models/", $folder, "/", $name))).0)),*]
    };
}

/// The encoder that is used if no other is asked for.
// A constant would be in the program once for each place that mentions it.
pub static ENCODER: Embedded = Embedded {
    name: "encoder",
    about: "a small sentence encoder for everyday English, 2.7 million parameters, vectors of 192 numbers",
    files: files!("encoder": "config.json", "tokenizer.json", "tokenizer_config.json", "modules.json",
        "1_Pooling/config.json", "sentence_bert_config.json", "model.safetensors"),
};

/// The text generator that is used if no other is asked for.
pub static BOX: Embedded = Embedded {
    name: "box",
    about: "a toy of 7.3 million parameters that tells small stories, adds numbers and answers questions about max-rs",
    files: files!("box": "box.gguf"),
};

/// All of them.
pub static EMBEDDED: &[&Embedded] = &[&ENCODER, &BOX];

impl Embedded {
    /// Its files.
    pub fn folder(&self) -> Folder {
        Folder::Embedded(self.name, self.files)
    }

    /// The weights in its GGUF file.
    pub(crate) fn gguf(&self) -> Result<Weights> {
        match self.files.iter().find(|(name, _)| name.ends_with(".gguf")) {
            Some((_, contents)) => Weights::from_bytes(HostBytes::new(*contents), WeightsFormat::Gguf),
            None => bail!(value, "{self} is no GGUF file"),
        }
    }

    /// The bytes of its files.
    pub fn num_bytes(&self) -> usize {
        self.files.iter().map(|(_, contents)| contents.len()).sum()
    }
}

impl fmt::Display for Embedded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the built-in model {}", self.name)
    }
}

impl fmt::Debug for Embedded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Embedded({:?}, {} bytes)", self.name, self.num_bytes())
    }
}
