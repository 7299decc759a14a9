//! How models suggest to choose their tokens.

use max_core::{Error, Result};
use max_weights::{Metadata, MetadataValue};

use super::SamplingParams;
use crate::folder::Folder;

impl SamplingParams {
    /// What `generation_config.json` suggests, which is greedy unless it says `do_sample`.
    pub fn of_folder(folder: &Folder) -> Result<SamplingParams> {
        const FILE: &str = "generation_config.json";
        let Some(config) = folder.config(FILE)? else { return Ok(SamplingParams::greedy()) };
        let draws = config.flag("do_sample")?;
        suggested(FILE, |name, default| match name {
            "temperature" if !draws => Ok(0.0),
            "temperature" => config.number_or(name, 1.0),
            _ => config.number_or(name, default),
        })
    }

    /// What the metadata of a GGUF file suggests: `general.sampling.*`.
    pub fn of_gguf(metadata: &Metadata) -> Result<SamplingParams> {
        suggested("general.sampling", |name, default| {
            let key = match name {
                "temperature" => "temp",
                "repetition_penalty" => "penalty_repeat",
                name => name,
            };
            let value = metadata.get(&format!("general.sampling.{key}"));
            value.map_or(Some(default), MetadataValue::as_f64).ok_or_else(|| {
                Error::value(format!("'general.sampling.{key}' in the metadata must be a number"))
            })
        })
    }
}

/// Parameters that a function looks up by their names, with what they are if nothing is said.
fn suggested(file: &str, number: impl Fn(&str, f64) -> Result<f64>) -> Result<SamplingParams> {
    let usual = SamplingParams::greedy();
    let float = |name: &str, default: f32| Ok::<_, Error>(number(name, default.into())? as f32);
    let params = SamplingParams {
        temperature: float("temperature", usual.temperature)?,
        top_k: number("top_k", usual.top_k as f64)? as i64,
        top_p: float("top_p", usual.top_p)?,
        min_p: float("min_p", usual.min_p)?,
        repetition_penalty: float("repetition_penalty", usual.repetition_penalty)?,
        ..usual
    };
    params.validate().map_err(|error| error.context(format!("in {file}")))?;
    Ok(params)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_json(text: &'static str) -> Result<SamplingParams> {
        let files = Box::leak(Box::new([("generation_config.json", text.as_bytes())]));
        SamplingParams::of_folder(&Folder::Embedded("test", files))
    }

    #[test]
    fn generation_configs_are_greedy_unless_they_draw() {
        assert_eq!(SamplingParams::of_folder(&Folder::Embedded("test", &[])), Ok(SamplingParams::greedy()));
        assert!(of_json("{}").unwrap().is_greedy());
        let greedy = of_json(r#"{"temperature": 0.6, "top_p": 0.9, "repetition_penalty": 1.1}"#).unwrap();
        assert_eq!((greedy.temperature, greedy.repetition_penalty), (0.0, 1.1));
        let draws = of_json(r#"{"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.9}"#).unwrap();
        assert_eq!((draws.temperature, draws.top_k, draws.top_p, draws.min_p), (0.6, 20, 0.9, 0.0));
        assert_eq!(of_json(r#"{"do_sample": true}"#).unwrap().temperature, 1.0);
    }

    #[test]
    fn metadata_is_greedy_unless_it_has_a_temperature() {
        let of = |pairs: &[(&str, MetadataValue)]| {
            let pairs = pairs.iter().map(|(key, value)| (format!("general.sampling.{key}"), value.clone()));
            SamplingParams::of_gguf(&pairs.collect())
        };
        assert_eq!(of(&[]), Ok(SamplingParams::greedy()));
        let number = MetadataValue::Float32;
        let params =
            of(&[("temp", number(0.5)), ("top_k", MetadataValue::Int32(7)), ("top_p", number(0.25))]);
        let params = params.unwrap();
        assert_eq!((params.temperature, params.top_k, params.top_p), (0.5, 7, 0.25));
        assert!(of(&[("penalty_repeat", number(1.5))]).unwrap().repetition_penalty == 1.5);
        let wrong = of(&[("temp", MetadataValue::String("hot".into()))]).unwrap_err();
        assert!(wrong.message().contains("general.sampling.temp"), "{wrong}");
    }

    #[test]
    fn nonsense_is_an_error() {
        for text in [
            r#"{"do_sample": true, "temperature": -1}"#,
            r#"{"top_p": 3}"#,
            r#"{"top_k": -1e300}"#,
            r#"{"repetition_penalty": 0}"#,
            r#"{"repetition_penalty": 1e300}"#,
        ] {
            assert!(of_json(text).unwrap_err().to_string().contains("generation_config.json"), "{text}");
        }
    }
}
