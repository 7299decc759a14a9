//! The tokenizer of a text generator: from text to tokens and back, the tokens that begin and end a text, and the chat templates
//! that are published with it.

use std::collections::BTreeMap;
use std::sync::Arc;

use max_core::{Error, Result, bail};
use max_weights::Metadata;
use serde_json::Value;
use tokenizers::Tokenizer as Inner;

use super::detokenize::{Detokenizer, Spelling};
use super::gguf_tokenizer;
use crate::config::Config;
use crate::folder::Folder;
use crate::tokenizer::guarded;

/// The name of the chat template that is used when none is named.
const DEFAULT: &str = "default";

/// Tokens that chat templates know by name, besides those that begin and end a text.
pub(super) const OTHERS: [&str; 5] = ["unk_token", "pad_token", "sep_token", "cls_token", "mask_token"];

/// Turns text into tokens and tokens into text. Copies share everything.
#[derive(Clone)]
pub struct TextTokenizer {
    parts: Arc<Parts>,
}

/// What a tokenizer is made of.
pub(super) struct Parts {
    pub(super) inner: Inner,
    pub(super) spelling: Spelling,
    /// One more than the largest token.
    pub(super) vocab_size: usize,
    /// The tokens around every text.
    pub(super) before: Vec<u32>,
    pub(super) after: Vec<u32>,
    pub(super) bos: Option<(u32, String)>,
    pub(super) eos: Option<(u32, String)>,
    pub(super) ends: Vec<u32>,
    /// How [`OTHERS`] are written, by their names.
    pub(super) others: BTreeMap<&'static str, String>,
    pub(super) templates: BTreeMap<String, String>,
}

impl TextTokenizer {
    /// The tokenizer of a folder: `tokenizer.json`, with what `tokenizer_config.json`, `special_tokens_map.json`, `generation_config.json`,
    /// `config.json` and `chat_template.jinja` say beside it.
    pub fn from_folder(folder: &Folder) -> Result<TextTokenizer> {
        let Some(text) = folder.read("tokenizer.json")? else {
            bail!(value, "{folder} has no tokenizer.json");
        };
        from_files(folder, &text).map_err(|error| error.context(format!("in the tokenizer of {folder}")))
    }

    /// The tokenizer of a GGUF file, from its metadata.
    pub fn from_gguf(metadata: &Metadata) -> Result<TextTokenizer> {
        let parts = gguf_tokenizer::parts(metadata);
        parts.and_then(TextTokenizer::new).map_err(|error| error.context("in the tokenizer of the GGUF file"))
    }

    fn new(mut parts: Parts) -> Result<TextTokenizer> {
        let size = parts.vocab_size;
        let own = |token: u32| (token as usize) < size;
        let special = [("begins", &parts.bos), ("ends", &parts.eos)];
        for (does, token) in special.into_iter().filter_map(|(does, token)| Some((does, token.as_ref()?.0))) {
            if !own(token) {
                bail!(value, "token {token} {does} a text, but there are only {size} tokens");
            }
        }
        parts.ends.extend(parts.eos.as_ref().map(|(token, _)| *token));
        parts.ends.sort();
        parts.ends.dedup();
        if let Some(token) = parts.ends.iter().find(|token| !own(**token)) {
            bail!(value, "token {token} ends a text, but there are only {size} tokens");
        }
        Ok(TextTokenizer { parts: Arc::new(parts) })
    }

    /// The tokens of a text. Special tokens that are written out in it are recognized; with `add_special`, the tokens that
    /// the model wants around every text are there too.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>> {
        let parts = &self.parts;
        let encoding = guarded(|| parts.inner.encode_fast(text, false))?;
        let tokens = encoding.get_ids();
        Ok(match add_special {
            true => [&parts.before, tokens, &parts.after].concat(),
            false => tokens.to_vec(),
        })
    }

    /// The text of tokens, as Transformers decodes them; see [`Detokenizer`] for how that differs from a stream.
    pub fn decode(&self, tokens: &[u32], skip_special: bool) -> String {
        let mut detokenizer = Detokenizer::new(self, skip_special, true);
        let text: String = tokens.iter().map(|&token| detokenizer.push(token)).collect();
        text + &detokenizer.finish()
    }

    /// What turns the tokens of a new text into text as they come, without special tokens.
    pub fn stream(&self) -> Detokenizer {
        Detokenizer::new(self, true, false)
    }

    /// One more than the largest token; a model may know more, for the sake of a round number.
    pub fn vocab_size(&self) -> usize {
        self.parts.vocab_size
    }

    /// The tokens that the model wants before every text.
    pub fn before(&self) -> &[u32] {
        &self.parts.before
    }

    /// The token that begins a text, and how it is written.
    pub fn bos(&self) -> Option<(u32, &str)> {
        self.parts.bos.as_ref().map(|(token, text)| (*token, text.as_str()))
    }

    /// How the token that ends a text is written.
    pub fn eos_text(&self) -> Option<&str> {
        self.parts.eos.as_ref().map(|(_, text)| text.as_str())
    }

    /// How the tokens are written that chat templates know by name, such as `bos_token`.
    pub fn named_tokens(&self) -> impl Iterator<Item = (&str, &str)> {
        let parts = &*self.parts;
        let ends = [("bos_token", &parts.bos), ("eos_token", &parts.eos)];
        let ends = ends.into_iter().filter_map(|(name, token)| Some((name, token.as_ref()?.1.as_str())));
        ends.chain(parts.others.iter().map(|(name, text)| (*name, text.as_str())))
    }

    /// All tokens that end a text, in order.
    pub fn ends(&self) -> &[u32] {
        &self.parts.ends
    }

    /// The chat template that is used when none is named.
    pub fn chat_template(&self) -> Option<&str> {
        self.named_chat_template(DEFAULT)
    }

    /// The chat template with a name, such as `tool_use`.
    pub fn named_chat_template(&self, name: &str) -> Option<&str> {
        self.parts.templates.get(name).map(String::as_str)
    }

    /// The names of all chat templates.
    pub fn chat_template_names(&self) -> impl Iterator<Item = &str> {
        self.parts.templates.keys().map(String::as_str)
    }

    /// Whether a token is one that marks something and is no text.
    pub fn is_special(&self, token: u32) -> bool {
        let added = self.parts.inner.get_added_vocabulary().get_added_tokens_decoder();
        added.get(&token).is_some_and(|token| token.special)
    }

    /// A token as the vocabulary writes it, if there is one.
    pub fn token_text(&self, token: u32) -> Option<String> {
        self.parts.inner.id_to_token(token)
    }

    pub(super) fn spelling(&self) -> &Spelling {
        &self.parts.spelling
    }
}

impl std::fmt::Debug for TextTokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TextTokenizer({} tokens)", self.vocab_size())
    }
}

fn from_files(folder: &Folder, text: &[u8]) -> Result<TextTokenizer> {
    let inner = guarded(|| {
        let mut inner = Inner::from_bytes(text)?;
        inner.with_padding(None).with_truncation(None)?;
        Ok(inner)
    })?;
    let decoder = serde_json::to_value(inner.get_decoder());
    let spelling = Spelling::from_decoder(&decoder.unwrap_or_default())?;
    let largest = inner.get_vocab(true).into_values().max();
    let (before, after) = around(&inner)?;
    let mut parts = Parts {
        inner,
        spelling,
        vocab_size: largest.map_or(0, |token| token as usize + 1),
        before,
        after,
        bos: None,
        eos: None,
        ends: Vec::new(),
        others: BTreeMap::new(),
        templates: BTreeMap::new(),
    };
    for name in ["generation_config.json", "config.json"] {
        if let Some(config) = folder.config(name)? {
            // Models of more than text have a part for text.
            let text = config.get("text_config").is_some().then(|| config.part("text_config"));
            for config in [Some(config), text.transpose()?.flatten()].into_iter().flatten() {
                parts.ends.extend(token_ids(&config, name, "eos_token_id")?);
                if parts.bos.is_none() {
                    let token = token_ids(&config, name, "bos_token_id")?.first().copied();
                    parts.bos = token.and_then(|token| Some((token, parts.inner.id_to_token(token)?)));
                }
            }
        }
    }
    parts.eos = parts.ends.first().and_then(|&token| Some((token, parts.inner.id_to_token(token)?)));
    for name in ["special_tokens_map.json", "tokenizer_config.json"] {
        if let Some(config) = folder.config(name)? {
            parts.bos = named_token(&parts.inner, &config, name, "bos_token")?.or(parts.bos);
            parts.eos = named_token(&parts.inner, &config, name, "eos_token")?.or(parts.eos);
            for other in OTHERS {
                parts.others.extend(written(&config, name, other)?.map(|text| (other, text.to_owned())));
            }
        }
    }
    if let Some(config) = folder.config("tokenizer_config.json")? {
        let says = |name: &str| config.get(name).map(|_| config.flag(name)).transpose();
        if let (Some(wanted), Some((bos, _))) = (says("add_bos_token")?, &parts.bos) {
            parts.before.retain(|token| token != bos);
            parts.before.splice(..0, wanted.then_some(*bos));
        }
        if let (Some(wanted), Some((eos, _))) = (says("add_eos_token")?, &parts.eos) {
            parts.after.retain(|token| token != eos);
            parts.after.extend(wanted.then_some(*eos));
        }
        parts.templates = templates(&config)?;
    }
    if let Some(template) = folder.read("chat_template.jinja")? {
        let Ok(template) = String::from_utf8(template) else {
            bail!(value, "chat_template.jinja is not UTF-8");
        };
        parts.templates.insert(DEFAULT.into(), template);
    }
    TextTokenizer::new(parts)
}

/// The special tokens that are put before and after a text.
fn around(inner: &Inner) -> Result<(Vec<u32>, Vec<u32>)> {
    let encode = |special| guarded(|| Ok(inner.encode_fast("a", special)?.get_ids().to_vec()));
    let (with, without) = (encode(true)?, encode(false)?);
    let special = |tokens: &[u32]| {
        let added = inner.get_added_vocabulary().get_added_tokens_decoder();
        tokens.iter().all(|token| added.get(token).is_some_and(|token| token.special))
    };
    let splits =
        (0..=with.len().saturating_sub(without.len())).filter(|&at| with[at..].starts_with(&without));
    let mut parts = splits.map(|at| (&with[..at], &with[at + without.len()..]));
    match parts.rfind(|(before, after)| special(before) && special(after)) {
        Some((before, after)) => Ok((before.to_vec(), after.to_vec())),
        None => bail!(value, "tokenizer.json puts more than special tokens around a text"),
    }
}

/// The tokens of a field: a number, or several in a list.
fn token_ids(config: &Config, file: &str, name: &str) -> Result<Vec<u32>> {
    let list = match config.get(name) {
        None => return Ok(Vec::new()),
        Some(Value::Array(list)) => &list[..],
        Some(value) => std::slice::from_ref(value),
    };
    let tokens = list.iter().map(|value| value.as_u64().and_then(|token| u32::try_from(token).ok()));
    tokens.collect::<Option<Vec<u32>>>().ok_or_else(|| {
        Error::value(format!(
            "'{name}' in {file} must be a token or a list of tokens, each a number of 32 bits"
        ))
    })
}

/// How the token is written that a field names, as a text or as an object with the text.
fn written<'a>(config: &'a Config, file: &str, name: &str) -> Result<Option<&'a str>> {
    match config.get(name) {
        None => Ok(None),
        Some(value) => match value.as_str().or_else(|| value["content"].as_str()) {
            Some(text) => Ok(Some(text)),
            None => bail!(value, "'{name}' in {file} must be a text, or an object with the text 'content'"),
        },
    }
}

/// The token that a field names.
fn named_token(inner: &Inner, config: &Config, file: &str, name: &str) -> Result<Option<(u32, String)>> {
    let Some(text) = written(config, file, name)? else { return Ok(None) };
    match inner.token_to_id(text) {
        Some(token) => Ok(Some((token, text.to_owned()))),
        None => bail!(value, "'{name}' in {file} is {text:?}, which is no token of the vocabulary"),
    }
}

/// The chat templates of `tokenizer_config.json`: one, or several with their names.
fn templates(config: &Config) -> Result<BTreeMap<String, String>> {
    let named = |template: &Value| {
        Some((template["name"].as_str()?.to_owned(), template["template"].as_str()?.to_owned()))
    };
    let templates = match config.get("chat_template") {
        None => Some(BTreeMap::new()),
        Some(Value::String(template)) => Some(BTreeMap::from([(DEFAULT.into(), template.clone())])),
        Some(Value::Array(templates)) => templates.iter().map(named).collect(),
        Some(_) => None,
    };
    templates.ok_or_else(|| {
        Error::value(
            "'chat_template' in tokenizer_config.json must be a text, or a list of objects with the texts 'name' and 'template'",
        )
    })
}
