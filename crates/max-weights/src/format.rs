//! The formats of files, told by their names.

use std::fmt;
use std::path::Path;

use max_core::{Error, Result, bail};
use serde::Serialize;

/// A format of files of weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum WeightsFormat {
    /// `.gguf`: quantized models with all that is known about them.
    Gguf,
    /// `.safetensors`: tensors by name.
    Safetensors,
    /// `.bin`, `.pt` or `.pth`: state dicts that `torch.save` wrote.
    Pytorch,
}

/// How names of files end, and the formats this tells. An index names the files that the weights are spread over.
const ENDINGS: &[(&str, WeightsFormat)] = &[
    (".safetensors", WeightsFormat::Safetensors),
    (".gguf", WeightsFormat::Gguf),
    (".bin", WeightsFormat::Pytorch),
    (".pt", WeightsFormat::Pytorch),
    (".pth", WeightsFormat::Pytorch),
];

/// What the name of an index has after the ending that tells the format.
const INDEX: &str = ".index.json";

impl WeightsFormat {
    /// Every format.
    pub const ALL: &'static [WeightsFormat] =
        &[WeightsFormat::Gguf, WeightsFormat::Safetensors, WeightsFormat::Pytorch];

    /// The documented name, such as `safetensors`.
    pub const fn name(self) -> &'static str {
        match self {
            WeightsFormat::Gguf => "gguf",
            WeightsFormat::Safetensors => "safetensors",
            WeightsFormat::Pytorch => "pytorch",
        }
    }

    /// The format of a file, or of the files of an index.
    pub fn of_path(path: &Path) -> Result<WeightsFormat> {
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
        let name = name.strip_suffix(INDEX).unwrap_or(&name);
        let found = ENDINGS.iter().find(|(ending, _)| name.ends_with(ending));
        found.map(|&(_, format)| format).ok_or_else(|| {
            let endings: Vec<_> = ENDINGS.iter().map(|(ending, _)| *ending).collect();
            Error::value(format!(
                "weights type cannot be inferred from '{}': its name should end in one of {}",
                path.display(),
                endings.join(", ")
            ))
        })
    }
}

impl fmt::Display for WeightsFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Whether a file is an index of others.
pub(crate) fn is_index(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().to_ascii_lowercase().ends_with(INDEX))
}

/// The format of files, which must all have the same.
pub fn weights_format(paths: &[impl AsRef<Path>]) -> Result<WeightsFormat> {
    let [first, others @ ..] = paths else {
        bail!(value, "no paths of weights were provided, so their format cannot be inferred")
    };
    let format = WeightsFormat::of_path(first.as_ref())?;
    for other in others {
        let other = other.as_ref();
        let another = WeightsFormat::of_path(other)?;
        if another != format {
            let first = first.as_ref().display();
            bail!(
                value,
                "weights type cannot be inferred from files of two formats: '{first}' is {format} and '{}' is {another}",
                other.display()
            );
        }
    }
    Ok(format)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_formats() {
        let format = |paths: &[&str]| weights_format(paths).map_err(|error| error.to_string());
        assert_eq!(format(&["a/model.safetensors"]), Ok(WeightsFormat::Safetensors));
        assert_eq!(format(&["model.safetensors.index.json"]), Ok(WeightsFormat::Safetensors));
        assert_eq!(format(&["pytorch_model.bin.index.json"]), Ok(WeightsFormat::Pytorch));
        assert_eq!(format(&["a.bin", "b.pt", "c.pth"]), Ok(WeightsFormat::Pytorch));
        assert_eq!(format(&["Model.Q4_K_M.GGUF"]), Ok(WeightsFormat::Gguf));
        assert!(format(&[]).unwrap_err().contains("no paths"));
        assert!(format(&["a.gguf", "b.safetensors"]).unwrap_err().contains("two formats"));
        for unknown in ["model.txt", "safetensors", "", "index.json", "/"] {
            assert!(format(&[unknown]).unwrap_err().contains("cannot be inferred"), "{unknown}");
        }
    }
}
