//! What the JSON files of a model say, with errors that name the file and the field.

use max_core::{Error, Result, bail};
use serde_json::{Map, Value};

/// The fields of a JSON file.
#[derive(Clone, Debug)]
pub struct Config {
    file: String,
    fields: Map<String, Value>,
}

impl Config {
    /// The fields of a file.
    pub fn parse(file: &str, text: &[u8]) -> Result<Config> {
        match serde_json::from_slice(text) {
            Ok(Value::Object(fields)) => Ok(Config { file: file.into(), fields }),
            Ok(_) => bail!(value, "{file} is not a JSON object"),
            Err(error) => bail!(value, "{file} is not valid JSON: {error}"),
        }
    }

    /// A field; one that is null counts as missing.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.fields.get(name).filter(|value| !value.is_null())
    }

    /// A size: a positive number of at most 31 bits, so that products of two fit.
    pub fn size(&self, name: &str) -> Result<usize> {
        self.typed(name, "a number from 1 to 2147483647", as_size)?.ok_or_else(|| self.missing(name))
    }

    /// A size that has a default.
    pub fn size_or(&self, name: &str, default: usize) -> Result<usize> {
        Ok(self.typed(name, "a number from 1 to 2147483647", as_size)?.unwrap_or(default))
    }

    /// A number that has a default.
    pub fn number_or(&self, name: &str, default: f64) -> Result<f64> {
        let finite = |value: &Value| value.as_f64().filter(|number| number.is_finite());
        Ok(self.typed(name, "a number", finite)?.unwrap_or(default))
    }

    /// Whether something holds; false if nothing is said about it.
    pub fn flag(&self, name: &str) -> Result<bool> {
        Ok(self.typed(name, "true or false", Value::as_bool)?.unwrap_or(false))
    }

    /// A text, if there is one.
    pub fn text(&self, name: &str) -> Result<Option<&str>> {
        self.typed(name, "a text", Value::as_str)
    }

    /// Texts in a list; none if there is no list.
    pub fn texts(&self, name: &str) -> Result<Vec<&str>> {
        let texts = |value| Value::as_array(value)?.iter().map(Value::as_str).collect();
        Ok(self.typed(name, "a list of texts", texts)?.unwrap_or_default())
    }

    /// Numbers in a list, if there is one.
    pub fn numbers(&self, name: &str) -> Result<Option<Vec<f64>>> {
        let finite = |value: &Value| value.as_f64().filter(|number| number.is_finite());
        self.typed(name, "a list of numbers", |value| Value::as_array(value)?.iter().map(finite).collect())
    }

    /// The fields of a field, if there is one.
    pub fn part(&self, name: &str) -> Result<Option<Config>> {
        let fields = self.typed(name, "an object", Value::as_object)?;
        Ok(fields.map(|fields| Config { file: format!("'{name}' in {}", self.file), fields: fields.clone() }))
    }

    fn typed<'a, T>(
        &'a self,
        name: &str,
        expected: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>> {
        let wrong = |value| {
            Error::value(format!("'{name}' in {} must be {expected}, but it is {}", self.file, brief(value)))
        };
        self.get(name).map(|value| read(value).ok_or_else(|| wrong(value))).transpose()
    }

    fn missing(&self, name: &str) -> Error {
        Error::value(format!("{} has no '{name}'", self.file))
    }
}

fn as_size(value: &Value) -> Option<usize> {
    value.as_u64().filter(|&size| (1..=i32::MAX as u64).contains(&size)).map(|size| size as usize)
}

/// The start of a value as text.
fn brief(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(40) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Result<Config> {
        Config::parse("config.json", text.as_bytes())
    }

    #[test]
    fn fields_have_types() {
        let config =
            config(r#"{"a": 3, "b": null, "c": "x", "d": 1e-5, "e": true, "f": ["p", "q"]}"#).unwrap();
        assert_eq!(config.size("a"), Ok(3));
        assert_eq!(config.size_or("b", 7), Ok(7));
        assert_eq!(config.number_or("d", 0.0), Ok(1e-5));
        assert_eq!(config.text("c"), Ok(Some("x")));
        assert_eq!(config.flag("e"), Ok(true));
        assert_eq!(config.texts("f"), Ok(vec!["p", "q"]));
        assert_eq!(config.size("b").unwrap_err().message(), "config.json has no 'b'");
        let wrong = config.size("c").unwrap_err();
        assert_eq!(
            wrong.message(),
            "'c' in config.json must be a number from 1 to 2147483647, but it is \"x\""
        );
    }

    #[test]
    fn sizes_are_bounded() {
        for text in ["0", "-1", "1.5", "2147483648", "1e400", "[]"] {
            let config = config(&format!("{{\"n\": {text}}}"));
            assert!(config.and_then(|config| config.size("n")).is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_no_object_is_refused() {
        for text in ["", "[", "[1]", "\"x\"", "{\"a\": }"] {
            assert!(config(text).unwrap_err().message().starts_with("config.json is not"), "{text}");
        }
        let deep = "[".repeat(100_000);
        assert!(config(&deep).is_err());
    }
}
