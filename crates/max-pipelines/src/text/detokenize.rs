//! From tokens to text, one token at a time and never half a character.

use std::borrow::Cow;

use max_core::{Result, bail};
use serde_json::Value;

use super::tokenizer::TextTokenizer;

/// How tokens spell text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Spelling {
    /// Each character of a token stands for a byte.
    Bytes,
    /// A token is text, but some characters stand for others, and tokens such as `<0x0A>` may stand for a byte.
    Pieces {
        /// What stands for what.
        replaced: Vec<(String, String)>,
        /// Whether there are tokens for bytes.
        byte_fallback: bool,
        /// How many spaces at the start of a text were put there by the tokenizer.
        leading_spaces: usize,
    },
}

/// What a token adds to a text.
enum Piece<'a> {
    Byte(u8),
    Bytes(Vec<u8>),
    Text(Cow<'a, str>),
}

impl Spelling {
    /// The spelling of SentencePiece, with a mark for spaces and tokens for bytes.
    pub(super) fn sentencepiece(leading_spaces: usize) -> Spelling {
        Spelling::Pieces { replaced: vec![("▁".into(), " ".into())], byte_fallback: true, leading_spaces }
    }

    /// What the `decoder` of a `tokenizer.json` does.
    pub(super) fn from_decoder(decoder: &Value) -> Result<Spelling> {
        let steps = match &decoder["decoders"] {
            Value::Array(steps) => &steps[..],
            _ => std::slice::from_ref(decoder),
        };
        if let [step] = steps
            && step["type"] == "ByteLevel"
        {
            return Ok(Spelling::Bytes);
        }
        let (mut replaced, mut byte_fallback, mut fused, mut leading_spaces) = (vec![], false, false, 0);
        for step in steps {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let alike = match step["type"].as_str() {
                Some("Replace") if !byte_fallback && !fused && step["pattern"]["String"].is_string() => {
                    replaced.push((text(&step["pattern"]["String"]), text(&step["content"])));
                    true
                }
                Some("Metaspace") if steps.len() == 1 => {
                    replaced.push((text(&step["replacement"]), " ".into()));
                    leading_spaces = usize::from(step["prepend_scheme"] != "never");
                    true
                }
                Some("ByteFallback") if !fused => {
                    byte_fallback = true;
                    true
                }
                Some("Fuse") => {
                    fused = true;
                    true
                }
                Some("Strip") if fused && step["content"] == " " && step["stop"] == 0 => {
                    leading_spaces = step["start"].as_u64().unwrap_or_default() as usize;
                    true
                }
                _ => false,
            };
            if !alike || replaced.iter().any(|(from, _)| from.is_empty()) {
                bail!(
                    value,
                    "the decoder of tokenizer.json has a step {step}; expected ByteLevel, Metaspace, or Replace, \
                     ByteFallback, Fuse and Strip in this order"
                );
            }
        }
        Ok(Spelling::Pieces { replaced, byte_fallback, leading_spaces })
    }

    fn piece<'a>(&self, token: &'a str) -> Piece<'a> {
        match self {
            // Added tokens may have other characters: they stand for themselves.
            Spelling::Bytes => match token.chars().map(byte_of).collect() {
                Some(bytes) => Piece::Bytes(bytes),
                None => Piece::Bytes(token.as_bytes().to_vec()),
            },
            Spelling::Pieces { replaced, byte_fallback, .. } => {
                if *byte_fallback && let Some(byte) = byte_token(token) {
                    return Piece::Byte(byte);
                }
                let mut text = Cow::Borrowed(token);
                for (from, to) in replaced {
                    if text.contains(from) {
                        text = text.replace(from, to).into();
                    }
                }
                Piece::Text(text)
            }
        }
    }
}

/// The byte that a token such as `<0x0A>` stands for.
pub(super) fn byte_token(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2).then(|| u8::from_str_radix(digits, 16).ok())?
}

/// The byte that a character stands for in byte-level vocabularies: printable characters of Latin-1 are themselves, and the
/// other bytes are the characters from U+0100 on, in order.
fn byte_of(character: char) -> Option<u8> {
    Some(match u32::from(character) {
        code @ (0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF) => code as u8,
        code @ 0x100..=0x120 => (code - 0x100) as u8,
        code @ 0x121..=0x142 => (code - 0x121) as u8 + 0x7F,
        0x143 => 0xAD,
        _ => return None,
    })
}

/// Turns tokens into text as they come; special tokens add nothing. A character is given out when it is whole; bytes that are
/// no character become U+FFFD.
///
/// What comes out is what decoding all tokens at once gives, with one exception: tokens for single bytes that follow each other and
/// are not UTF-8 all together become U+FFFD one by one when they are decoded at once, but characters among them that were
/// whole before the mistake have been given out by then.
#[derive(Clone, Debug)]
pub struct Detokenizer {
    tokenizer: TextTokenizer,
    skip_special: bool,
    /// Whether tokens for single bytes wait until the last of them is there.
    at_once: bool,
    /// Bytes that are no whole character yet.
    pending: Vec<u8>,
    /// Whether the tokens for single bytes that are being read are not UTF-8.
    broken: bool,
    /// How many spaces are still to be left out.
    leading_spaces: usize,
}

impl Detokenizer {
    pub(super) fn new(tokenizer: &TextTokenizer, skip_special: bool, at_once: bool) -> Detokenizer {
        let leading_spaces = match tokenizer.spelling() {
            Spelling::Bytes => 0,
            Spelling::Pieces { leading_spaces, .. } => *leading_spaces,
        };
        let tokenizer = tokenizer.clone();
        Detokenizer { tokenizer, skip_special, at_once, pending: Vec::new(), broken: false, leading_spaces }
    }

    /// Takes the next token and gives the text that is certain now. A token that the vocabulary does not have adds nothing.
    pub fn push(&mut self, token: u32) -> String {
        if self.skip_special && self.tokenizer.is_special(token) {
            return String::new();
        }
        let Some(token) = self.tokenizer.token_text(token) else { return String::new() };
        let text = match self.tokenizer.spelling().piece(&token) {
            Piece::Bytes(bytes) => {
                self.pending.extend(bytes);
                self.whole_characters()
            }
            Piece::Byte(byte) => self.push_byte(byte),
            Piece::Text(text) => self.end_of_bytes() + &text,
        };
        self.without_leading_spaces(text)
    }

    /// What is left when there are no more tokens; then a new text can begin.
    pub fn finish(&mut self) -> String {
        let text = match self.tokenizer.spelling() {
            Spelling::Bytes => String::from_utf8_lossy(&self.pending).into_owned(),
            Spelling::Pieces { .. } => self.end_of_bytes(),
        };
        let text = self.without_leading_spaces(text);
        *self = Detokenizer::new(&self.tokenizer, self.skip_special, self.at_once);
        text
    }

    /// The start of the pending bytes up to a character that may still become whole.
    fn whole_characters(&mut self) -> String {
        let mut text = String::new();
        let mut rest = &self.pending[..];
        loop {
            match std::str::from_utf8(rest) {
                Ok(valid) => {
                    text += valid;
                    rest = &[];
                    break;
                }
                Err(error) => {
                    let (valid, wrong) = rest.split_at(error.valid_up_to());
                    text.extend(valid.utf8_chunks().map(|chunk| chunk.valid()));
                    let Some(length) = error.error_len() else {
                        rest = wrong;
                        break;
                    };
                    text.push(char::REPLACEMENT_CHARACTER);
                    rest = &wrong[length..];
                }
            }
        }
        self.pending = rest.to_vec();
        text
    }

    fn push_byte(&mut self, byte: u8) -> String {
        self.pending.push(byte);
        if self.at_once {
            return String::new();
        }
        match std::str::from_utf8(&self.pending) {
            _ if self.broken => self.replaced(),
            Ok(text) => {
                let text = text.to_owned();
                self.pending.clear();
                text
            }
            Err(error) if error.error_len().is_none() => String::new(),
            Err(_) => {
                self.broken = true;
                self.replaced()
            }
        }
    }

    /// What the tokens for single bytes leave when another token follows.
    fn end_of_bytes(&mut self) -> String {
        self.broken = false;
        match std::str::from_utf8(&self.pending) {
            Ok(text) => {
                let text = text.to_owned();
                self.pending.clear();
                text
            }
            Err(_) => self.replaced(),
        }
    }

    /// A replacement character for each pending byte.
    fn replaced(&mut self) -> String {
        self.pending.drain(..).map(|_| char::REPLACEMENT_CHARACTER).collect()
    }

    fn without_leading_spaces(&mut self, mut text: String) -> String {
        while self.leading_spaces > 0 && !text.is_empty() {
            if text.starts_with(' ') {
                text.remove(0);
                self.leading_spaces -= 1;
            } else {
                self.leading_spaces = 0;
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_byte_has_a_character() {
        let alphabet = tokenizers::pre_tokenizers::byte_level::ByteLevel::alphabet();
        let mut bytes: Vec<u8> = alphabet.into_iter().map(|character| byte_of(character).unwrap()).collect();
        bytes.sort();
        assert_eq!(bytes, (0..=255).collect::<Vec<u8>>());
        let known =
            [('Ġ', b' '), ('Ċ', b'\n'), ('ł', 0xA0), ('Ń', 0xAD), ('a', b'a'), ('ÿ', 0xFF), ('ġ', 0x7F)];
        for (character, byte) in known {
            assert_eq!(byte_of(character), Some(byte), "{character}");
        }
        assert_eq!((byte_of(' '), byte_of('\u{144}'), byte_of('\u{AD}')), (None, None, None));
    }

    #[test]
    fn tokens_for_bytes() {
        assert_eq!((byte_token("<0x0A>"), byte_token("<0xff>")), (Some(10), Some(255)));
        for other in ["<0x0A", "0x0A>", "<0x>", "<0x0AB>", "<0xé>", "<0x+1>", "a"] {
            // A sign is accepted by the library, too, but no vocabulary has such a token.
            assert!(byte_token(other).is_none_or(|byte| other == "<0x+1>" && byte == 1), "{other}");
        }
    }

    #[test]
    fn decoders_are_understood_or_refused() {
        let read = |decoder: Value| Spelling::from_decoder(&decoder);
        assert_eq!(read(json!({"type": "ByteLevel"})), Ok(Spelling::Bytes));
        let steps = json!([
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ]);
        let sequence = |steps: &[Value]| json!({"type": "Sequence", "decoders": steps});
        let steps = steps.as_array().unwrap();
        assert_eq!(read(sequence(steps)), Ok(Spelling::sentencepiece(1)));
        assert_eq!(read(sequence(&steps[..3])), Ok(Spelling::sentencepiece(0)));
        let metaspace = json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"});
        assert!(matches!(
            read(metaspace),
            Ok(Spelling::Pieces { byte_fallback: false, leading_spaces: 1, .. })
        ));
        for wrong in [
            Value::Null,
            json!({"type": "WordPiece", "prefix": "##", "cleanup": true}),
            sequence(&[steps[1].clone(), steps[0].clone()]),
            sequence(&steps[3..]),
            sequence(&[json!({"type": "Replace", "pattern": {"String": ""}, "content": "x"})]),
            sequence(&[json!({"type": "Replace", "pattern": {"Regex": "a+"}, "content": "x"})]),
        ] {
            assert!(
                read(wrong.clone()).unwrap_err().message().contains("the decoder of tokenizer.json"),
                "{wrong}"
            );
        }
    }
}
