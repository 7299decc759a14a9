//! Models that are part of the program, so that it works without any other file.

use crate::folder::Folder;

/// A model in the program.
#[derive(Debug)]
pub struct Embedded {
    /// Its name.
    pub name: &'static str,
    /// What it is.
    pub about: &'static str,
    /// The names and contents of its files.
    files: &'static [(&'static str, &'static [u8])],
}

/// The files of a folder in `models`.
macro_rules! files {
    ($folder:literal: $($name:literal),*) => {
        &[$(($name, include_bytes!(concat!("../../../models/", $folder, "/", $name)))),*]
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

/// All of them.
pub static EMBEDDED: &[&Embedded] = &[&ENCODER];

impl Embedded {
    /// Its files.
    pub fn folder(&self) -> Folder {
        Folder::Embedded(self.name, self.files)
    }

    /// The bytes of its files.
    pub fn num_bytes(&self) -> usize {
        self.files.iter().map(|(_, contents)| contents.len()).sum()
    }
}
