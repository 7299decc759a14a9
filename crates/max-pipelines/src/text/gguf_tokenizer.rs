//! The tokenizer in the metadata of a GGUF file: `tokenizer.ggml.*`.

mod words;

use std::collections::{BTreeMap, HashSet};

use max_core::{Error, Result, bail};
use max_weights::{Metadata, MetadataArray, MetadataValue};
use tokenizers::models::bpe::{BPE, BpeBuilder, Merges, Vocab};
use tokenizers::normalizers::{NFC, Prepend, Replace, Sequence};
use tokenizers::{AddedToken, NormalizerWrapper, Tokenizer as Inner};

use super::detokenize::{Spelling, byte_token};
use super::tokenizer::{OTHERS, Parts};
use crate::tokenizer::guarded;
use words::Words;

/// How tokens are written that end a turn or a text, in files that do not say so.
const ENDS: [&str; 10] = [
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<EOT>",
    "<|return|>",
    "<|call|>",
];

/// The longest token in bytes: it is looked up in all ways of cutting it in two.
const LONGEST: usize = 1024;

/// What `tokenizer.ggml.token_type` says of a token.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Normal,
    /// Marks something and is no text, or stands for what is no token.
    Special,
    /// Text that is always a token of its own.
    UserDefined,
    Byte,
    Unused,
}

impl Kind {
    fn from_code(code: i64) -> Result<Kind> {
        Ok(match code {
            1 => Kind::Normal,
            2 | 3 => Kind::Special,
            4 => Kind::UserDefined,
            5 => Kind::Unused,
            6 => Kind::Byte,
            _ => bail!(value, "tokenizer.ggml.token_type has {code}; expected 1 to 6"),
        })
    }
}

/// The tokenizer of a file.
pub(super) fn parts(metadata: &Metadata) -> Result<Parts> {
    let fields = Fields(metadata);
    let tokens = fields.strings("tokens")?;
    if tokens.is_empty() || u32::try_from(tokens.len()).is_err() {
        bail!(value, "tokenizer.ggml.tokens has {} tokens", tokens.len());
    }
    let kinds = kinds(&fields, tokens)?;
    let model = match fields.text("model")? {
        Some("gpt2") => byte_level(&fields, tokens)?,
        Some("llama") => sentencepiece(&fields, tokens, &kinds)?,
        Some(other) => bail!(value, "the tokenizer is of the kind {other:?}; expected gpt2 or llama"),
        None => bail!(value, "there is no tokenizer.ggml.model"),
    };
    let Model { mut inner, spelling, add_bos, defaults } = model;
    let added = tokens.iter().zip(&kinds).filter_map(|(token, kind)| {
        let special = match kind {
            Kind::Special => true,
            Kind::UserDefined => false,
            _ => return None,
        };
        Some(AddedToken::from(token.as_str(), special).normalized(false))
    });
    guarded(|| inner.add_tokens(added))?;

    let [bos, eos, _] = defaults;
    let named = |token: Option<u32>| token.map(|token| (token, tokens[token as usize].clone()));
    let bos = named(fields.token("bos_token_id", tokens.len())?.or(bos));
    let eos = named(fields.token("eos_token_id", tokens.len())?.or(eos));
    let around = |name: &str, default: bool, token: &Option<(u32, String)>| {
        Ok(match (fields.flag(name)?.unwrap_or(default), token) {
            (true, Some((token, _))) => vec![*token],
            (true, None) => bail!(value, "tokenizer.ggml.{name} asks for a token that is not named"),
            (false, _) => Vec::new(),
        })
    };
    let mut others = BTreeMap::new();
    // The format writes one of these words so.
    let ids = ["unknown_token_id", "padding_token_id", "seperator_token_id", "cls_token_id", "mask_token_id"];
    for (name, id) in OTHERS.into_iter().zip(ids) {
        others.extend(fields.token(id, tokens.len())?.map(|token| (name, tokens[token as usize].clone())));
    }
    Ok(Parts {
        before: around("add_bos_token", add_bos && bos.is_some(), &bos)?,
        after: around("add_eos_token", false, &eos)?,
        inner,
        spelling,
        vocab_size: tokens.len(),
        bos,
        eos,
        ends: ends(&fields, tokens)?,
        others,
        templates: templates(metadata)?,
    })
}

/// The kinds of the tokens.
fn kinds(fields: &Fields, tokens: &[String]) -> Result<Vec<Kind>> {
    let mut kinds = match fields.array("token_type")? {
        Some(codes) => {
            let code =
                |code: MetadataValue| code.as_i64().ok_or_else(|| fields.wrong("token_type", "integers"));
            codes.iter().map(|value| Kind::from_code(code(value)?)).collect::<Result<Vec<Kind>>>()?
        }
        None => {
            let mut kinds = vec![Kind::Normal; tokens.len()];
            for name in ["bos_token_id", "eos_token_id", "unknown_token_id"] {
                if let Some(token) = fields.token(name, tokens.len())? {
                    kinds[token as usize] = Kind::Special;
                }
            }
            kinds
        }
    };
    fields.same_length("token_type", kinds.len(), tokens.len())?;
    // Files may call them text.
    for token in ends(fields, tokens)? {
        kinds[token as usize] = Kind::Special;
    }
    Ok(kinds)
}

/// The tokens that end a text or a turn.
fn ends(fields: &Fields, tokens: &[String]) -> Result<Vec<u32>> {
    let written = tokens.iter().zip(0..).filter(|(token, _)| ENDS.contains(&token.as_str()));
    let mut ends: Vec<u32> = written.map(|(_, id)| id).collect();
    for name in ["eos_token_id", "eot_token_id", "eom_token_id"] {
        ends.extend(fields.token(name, tokens.len())?);
    }
    Ok(ends)
}

/// What the two kinds of tokenizers differ in.
struct Model {
    inner: Inner,
    spelling: Spelling,
    /// Whether the first token begins the text if nothing is said about it.
    add_bos: bool,
    /// The tokens that begin and end a text and stand for what is no token, if nothing is said about them.
    defaults: [Option<u32>; 3],
}

/// A vocabulary of bytes, with merges in order.
fn byte_level(fields: &Fields, tokens: &[String]) -> Result<Model> {
    let words = Words::named(fields.text("pre")?.unwrap_or("default"))?;
    let longest = tokens.iter().map(String::len).max().unwrap_or(0);
    let merge = |merge: &String| {
        // A token may be a space, but none begins with one and goes on.
        let space = merge.char_indices().skip(1).find(|(_, character)| *character == ' ').map(|(at, _)| at);
        match space.map(|at| (merge[..at].to_owned(), merge[at + 1..].to_owned())) {
            Some((left, right)) if left.len() + right.len() <= longest => Ok((left, right)),
            _ => bail!(value, "the merge {merge:?} of tokenizer.ggml.merges is not of two tokens to one"),
        }
    };
    let merges = fields.strings("merges")?.iter().map(merge).collect::<Result<Merges>>()?;
    let builder = BPE::builder().ignore_merges(words.whole);
    let mut inner = build(builder, tokens, merges)?;
    guarded(|| {
        if words.composed {
            inner.with_normalizer(Some(NFC))?;
        }
        inner.with_pre_tokenizer(Some(words.pre_tokenizer()?));
        Ok(())
    })?;
    Ok(Model { inner, spelling: Spelling::Bytes, add_bos: words.add_bos, defaults: [None; 3] })
}

/// A vocabulary of pieces with scores: of all neighbours that make up a token together, those with the best score are merged
/// first. That is what merges in the order of scores do, if each token is there in all ways of cutting it in two; of tokens with
/// the same score the one with the lower number comes first.
fn sentencepiece(fields: &Fields, tokens: &[String], kinds: &[Kind]) -> Result<Model> {
    let scores = match fields.array("scores")? {
        Some(MetadataArray::Float32(scores)) if !scores.iter().any(|score| score.is_nan()) => scores,
        Some(_) => return Err(fields.wrong("scores", "numbers of single precision")),
        None => bail!(value, "there is no tokenizer.ggml.scores"),
    };
    fields.same_length("scores", scores.len(), tokens.len())?;
    let default = |token: u32| Some(token).filter(|&token| (token as usize) < tokens.len());
    let defaults = [default(1), default(2), default(0)];
    let Some(unknown) = fields.token("unknown_token_id", tokens.len())?.or(defaults[2]) else {
        bail!(value, "no token stands for what is none");
    };
    let is_piece = |kind: Kind, token: &str| match kind {
        Kind::Normal => byte_token(token).is_none(),
        kind => kind == Kind::UserDefined,
    };
    let pieces = tokens.iter().zip(kinds).zip(scores);
    let pieces = pieces.filter(|((token, kind), _)| is_piece(**kind, token));
    let pieces: Vec<(&str, f32)> = pieces.map(|((token, _), score)| (token.as_str(), *score)).collect();
    let known: HashSet<&str> = pieces.iter().map(|(token, _)| *token).collect();
    let mut merges = Vec::new();
    for (token, score) in pieces {
        if token.len() > LONGEST {
            bail!(
                value,
                "tokenizer.ggml.tokens has a token of {} bytes; expected at most {LONGEST}",
                token.len()
            );
        }
        // The longest first part comes first, as when a text is read from its start.
        for (at, _) in token.char_indices().skip(1).collect::<Vec<_>>().into_iter().rev() {
            let (left, right) = token.split_at(at);
            if known.contains(left) && known.contains(right) {
                merges.push((score, left, right));
            }
        }
    }
    merges.sort_by(|(a, ..), (b, ..)| b.total_cmp(a));
    let merges = merges.into_iter().map(|(_, left, right)| (left.to_owned(), right.to_owned())).collect();
    let builder =
        BPE::builder().unk_token(tokens[unknown as usize].clone()).fuse_unk(true).byte_fallback(true);
    let mut inner = build(builder, tokens, merges)?;
    let prefix = fields.flag("add_space_prefix")?.unwrap_or(true);
    guarded(|| {
        let mark: NormalizerWrapper = Replace::new(" ", "▁")?.into();
        let prepend = prefix.then(|| Prepend::new("▁".into()).into());
        inner.with_normalizer(Some(Sequence::new(prepend.into_iter().chain([mark]).collect())))?;
        Ok(())
    })?;
    Ok(Model { inner, spelling: Spelling::sentencepiece(prefix.into()), add_bos: true, defaults })
}

fn build(builder: BpeBuilder, tokens: &[String], merges: Merges) -> Result<Inner> {
    // A token without text cannot be read or written, but keeps its number.
    let named = tokens.iter().zip(0..).filter(|(token, _)| !token.is_empty());
    let mut vocab = Vocab::with_capacity(tokens.len());
    for (token, id) in named {
        if let Some(other) = vocab.insert(token.clone(), id) {
            bail!(value, "tokens {other} and {id} of tokenizer.ggml.tokens are both {token:?}");
        }
    }
    guarded(|| Ok(Inner::new(builder.vocab_and_merges(vocab, merges).build()?)))
}

/// `tokenizer.chat_template`, and those with a name behind it.
fn templates(metadata: &Metadata) -> Result<BTreeMap<String, String>> {
    let mut templates = BTreeMap::new();
    for (key, value) in metadata {
        let name = match key.strip_prefix("tokenizer.chat_template") {
            Some("") => "default",
            Some(rest) if rest.starts_with('.') => &rest[1..],
            _ => continue,
        };
        let Some(template) = value.as_str() else { bail!(value, "{key} must be a text") };
        templates.insert(name.to_owned(), template.to_owned());
    }
    Ok(templates)
}

/// The fields whose names begin with `tokenizer.ggml.`.
struct Fields<'a>(&'a Metadata);

impl<'a> Fields<'a> {
    fn typed<T>(
        &self,
        name: &str,
        expected: &str,
        read: impl FnOnce(&'a MetadataValue) -> Option<T>,
    ) -> Result<Option<T>> {
        let value = self.0.get(&format!("tokenizer.ggml.{name}"));
        value.map(|value| read(value).ok_or_else(|| self.wrong(name, expected))).transpose()
    }

    fn wrong(&self, name: &str, expected: &str) -> Error {
        Error::value(format!("tokenizer.ggml.{name} must be {expected}"))
    }

    fn text(&self, name: &str) -> Result<Option<&'a str>> {
        self.typed(name, "a text", MetadataValue::as_str)
    }

    fn flag(&self, name: &str) -> Result<Option<bool>> {
        self.typed(name, "true or false", MetadataValue::as_bool)
    }

    fn array(&self, name: &str) -> Result<Option<&'a MetadataArray>> {
        self.typed(name, "an array", MetadataValue::as_array)
    }

    /// Texts, which must be there.
    fn strings(&self, name: &str) -> Result<&'a [String]> {
        let strings = self.typed(name, "an array of texts", |value| value.as_array()?.as_strings())?;
        strings.ok_or_else(|| Error::value(format!("there is no tokenizer.ggml.{name}")))
    }

    /// One of the tokens.
    fn token(&self, name: &str, count: usize) -> Result<Option<u32>> {
        let own = |token: &u64| *token < count as u64;
        let read = |value: &MetadataValue| value.as_u64().filter(own).map(|token| token as u32);
        self.typed(name, &format!("one of the {count} tokens"), read)
    }

    fn same_length(&self, name: &str, length: usize, tokens: usize) -> Result<()> {
        if length != tokens {
            bail!(value, "tokenizer.ggml.{name} has {length} entries, but there are {tokens} tokens");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::tokenizer::TextTokenizer;
    use proptest::prelude::*;

    /// Merges the neighbours with the best score, and of several the first, until there are none.
    fn merged(text: &str, scores: &BTreeMap<String, f32>) -> Vec<String> {
        let mut parts: Vec<String> = text.chars().map(String::from).collect();
        loop {
            let pairs = parts.windows(2).enumerate().map(|(at, pair)| (at, pair.concat()));
            let known = pairs.filter_map(|(at, pair)| Some((scores.get(&pair)?, at)));
            let best = known.max_by(|(a, first), (b, second)| a.total_cmp(b).then(second.cmp(first)));
            let Some((_, at)) = best else { return parts };
            let right = parts.remove(at + 1);
            parts[at] += &right;
        }
    }

    /// Different pieces in any order, which is that of their scores.
    fn pieces() -> impl Strategy<Value = Vec<String>> {
        let pieces = prop::collection::btree_set("[ab]{2,4}", 0..20);
        pieces.prop_map(|pieces| pieces.into_iter().collect::<Vec<_>>()).prop_shuffle()
    }

    proptest! {
        #[test]
        fn pieces_are_merged_by_their_scores(
            pieces in pieces(),
            text in "[ab]{1,30}",
        ) {
            let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>", "a", "b", "c"].map(String::from).into();
            tokens.extend(pieces);
            let scores: Vec<f32> = (0..tokens.len()).map(|id| -(id as f32)).collect();
            let by_name = tokens.iter().cloned().zip(scores.iter().copied()).skip(6).collect();
            let expected = merged(&text, &by_name);
            let metadata = Metadata::from([
                ("tokenizer.ggml.model".into(), "llama".into()),
                ("tokenizer.ggml.tokens".into(), tokens.into()),
                ("tokenizer.ggml.scores".into(), scores.into()),
                ("tokenizer.ggml.add_space_prefix".into(), false.into()),
            ]);
            let tokenizer = TextTokenizer::from_gguf(&metadata).unwrap();
            let found = tokenizer.encode(&text, false).unwrap();
            let found: Vec<String> = found.into_iter().map(|token| tokenizer.token_text(token).unwrap()).collect();
            prop_assert_eq!(found, expected);
        }
    }
}
