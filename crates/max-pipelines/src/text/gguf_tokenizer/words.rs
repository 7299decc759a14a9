//! How byte-level tokenizers split text into words, by the names that GGUF files have for it.

use max_core::{Result, bail};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::tokenizer::SplitDelimiterBehavior;

/// How text is split.
#[derive(Debug)]
pub(super) struct Words {
    names: &'static [&'static str],
    /// Patterns; each splits what the one before it left, and what matches and what does not are words.
    patterns: &'static [&'static str],
    /// Whether a word that is a token is that token, whatever the merges say.
    pub(super) whole: bool,
    /// Whether the first token begins the text if nothing is said about it.
    pub(super) add_bos: bool,
    /// Whether letters and their accents become one character first.
    pub(super) composed: bool,
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const PLAIN: Words = Words { names: &[], patterns: &[], whole: false, add_bos: false, composed: false };

const WORDS: &[Words] = &[
    Words {
        names: &["default"],
        patterns: &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
        ..PLAIN
    },
    Words {
        names: &["gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling", "exaone4"],
        patterns: &[GPT2],
        ..PLAIN
    },
    Words {
        names: &["smollm", "refact", "starcoder", "command-r", "codeshell", "exaone", "minerva-7b"],
        patterns: &[r"\p{N}", GPT2],
        ..PLAIN
    },
    Words {
        names: &["llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "lfm2"],
        patterns: &[LLAMA3],
        whole: true,
        add_bos: true,
        ..PLAIN
    },
    Words { names: &["dbrx", "smaug-bpe"], patterns: &[LLAMA3], ..PLAIN },
    Words { names: &["qwen2"], patterns: &[QWEN2], composed: true, ..PLAIN },
    Words { names: &["deepseek-r1-qwen", "stablelm2", "megrez", "hunyuan"], patterns: &[QWEN2], ..PLAIN },
    Words { names: &["qwen35"], patterns: &[QWEN35], composed: true, ..PLAIN },
    Words { names: &["tekken"], patterns: &[TEKKEN], whole: true, add_bos: true, ..PLAIN },
    Words { names: &["gpt-4o", "llama4"], patterns: &[GPT4O], ..PLAIN },
    Words { names: &["falcon"], patterns: &[r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"], ..PLAIN },
];

impl Words {
    /// What `tokenizer.ggml.pre` names.
    pub(super) fn named(name: &str) -> Result<&'static Words> {
        match WORDS.iter().find(|words| words.names.contains(&name)) {
            Some(words) => Ok(words),
            None => {
                let known: Vec<&str> = WORDS.iter().flat_map(|words| words.names).copied().collect();
                bail!(value, "tokenizer.ggml.pre is {name:?}; known are {}", known.join(", "))
            }
        }
    }

    /// Splits, then spells each word in bytes.
    pub(super) fn pre_tokenizer(&self) -> tokenizers::Result<Sequence> {
        let mut steps = Vec::new();
        for pattern in self.patterns {
            let pattern = SplitPattern::Regex(pattern.to_string());
            steps.push(Split::new(pattern, SplitDelimiterBehavior::Isolated, false)?.into());
        }
        steps.push(ByteLevel::new(false, true, false).into());
        Ok(Sequence::new(steps))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer};

    fn split(name: &str, text: &str) -> Vec<String> {
        let mut pieces = PreTokenizedString::from(text);
        Words::named(name).unwrap().pre_tokenizer().unwrap().pre_tokenize(&mut pieces).unwrap();
        let pieces = pieces.get_splits(OffsetReferential::Original, OffsetType::Byte);
        pieces.into_iter().map(|(_, (start, end), _)| text[start..end].to_owned()).collect()
    }

    #[test]
    fn every_name_splits_and_loses_nothing() {
        let text = "I'LL say: naïve  words, 12345 (x+y)\r\n\n\t河很宽 🐈 e\u{301}  ";
        for words in WORDS {
            for name in words.names {
                assert_eq!(split(name, text).concat(), text, "{name}");
            }
        }
    }

    #[test]
    fn names_split_differently() {
        let text = "It's 12345 HelloWorld";
        assert_eq!(split("gpt-2", text), ["It", "'s", " 12345", " HelloWorld"]);
        assert_eq!(split("smollm", text), ["It", "'s", " ", "1", "2", "3", "4", "5", " HelloWorld"]);
        assert_eq!(split("llama-bpe", text), ["It", "'s", " ", "123", "45", " HelloWorld"]);
        assert_eq!(split("qwen2", text), ["It", "'s", " ", "1", "2", "3", "4", "5", " HelloWorld"]);
        assert_eq!(split("tekken", text), ["It", "'s", " ", "1", "2", "3", "4", "5", " Hello", "World"]);
        assert_eq!(split("gpt-4o", text), ["It's", " ", "123", "45", " Hello", "World"]);
        assert_eq!(split("default", text), ["It", "'", "s", " ", "123", "45", " HelloWorld"]);
    }

    #[test]
    fn an_unknown_name_is_an_error_with_the_known_ones() {
        let error = Words::named("other").unwrap_err().to_string();
        assert!(
            error.contains("\"other\"") && error.contains("llama-bpe") && error.contains("qwen2"),
            "{error}"
        );
    }
}
