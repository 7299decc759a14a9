//! How a model wants its texts.

use std::borrow::Cow;

use max_core::Result;
use serde_json::Value;

use crate::folder::Folder;

/// What is done to texts before they are cut into tokens.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Habits {
    /// Whether they are in lower case.
    pub lowercase: bool,
    /// What precedes each.
    pub prompt: String,
    /// The most tokens of a text, if there is a limit.
    pub max_length: Option<usize>,
}

impl Habits {
    /// What the files of a model say.
    pub fn read(folder: &Folder) -> Result<Habits> {
        let mut habits = Habits::default();
        if let Some(config) = folder.config("tokenizer_config.json")? {
            // Where there is no limit, files have a number that is far too large for a size.
            let length = config.number_or("model_max_length", f64::INFINITY)?;
            habits.max_length = (1.0..=f64::from(i32::MAX)).contains(&length).then_some(length as usize);
        }
        if let Some(config) = folder.config("sentence_bert_config.json")? {
            habits.lowercase = config.flag("do_lower_case")?;
            if config.get("max_seq_length").is_some() {
                habits.max_length = Some(config.size("max_seq_length")?);
            }
        }
        if let Some(config) = folder.config("config_sentence_transformers.json")?
            && let Some(name) = config.text("default_prompt_name")?
        {
            let prompt = config.get("prompts").and_then(|prompts| prompts.get(name)).and_then(Value::as_str);
            habits.prompt = prompt.unwrap_or_default().into();
        }
        Ok(habits)
    }

    /// A text as the model wants it.
    pub fn apply<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let prompted = match self.prompt.is_empty() {
            true => Cow::Borrowed(text),
            false => Cow::Owned(format!("{}{text}", self.prompt)),
        };
        if self.lowercase { Cow::Owned(prompted.to_lowercase()) } else { prompted }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Files = &'static [(&'static str, &'static [u8])];

    fn habits(files: Files) -> Result<Habits> {
        Habits::read(&Folder::Embedded("test", files))
    }

    #[test]
    fn files_are_read_in_their_order() {
        assert_eq!(habits(&[]), Ok(Habits::default()));
        let unlimited: Files =
            &[("tokenizer_config.json", br#"{"model_max_length": 1000000000000000019884624838656}"#)];
        assert_eq!(habits(unlimited).unwrap().max_length, None);
        let files: Files = &[
            ("tokenizer_config.json", br#"{"model_max_length": 512}"#),
            ("sentence_bert_config.json", br#"{"max_seq_length": 256, "do_lower_case": true}"#),
            (
                "config_sentence_transformers.json",
                br#"{"prompts": {"query": "query: "}, "default_prompt_name": "query"}"#,
            ),
        ];
        let habits = habits(files).unwrap();
        assert_eq!(habits.max_length, Some(256));
        assert_eq!(habits.apply("Some Text"), "query: some text");
    }

    #[test]
    fn wrong_values_are_errors() {
        let files: Files = &[("sentence_bert_config.json", br#"{"max_seq_length": 0}"#)];
        assert!(habits(files).unwrap_err().message().contains("max_seq_length"));
    }
}
