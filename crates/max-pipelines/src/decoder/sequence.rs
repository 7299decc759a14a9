//! Sequences that grow: a decoder with its cache, and the tokens that are in it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use max_core::{Result, bail};
use max_driver::Device;

use super::{Cache, DecoderModel, Pages, Step};
use crate::text::sampling::{Logits, TokenLogProbability, Wanted};

/// The most tokens of a prompt that are computed at once, on a CPU and on a GPU.
const CHUNK: usize = 512;
const GPU_CHUNK: usize = 4096;

/// The most logits that are there at once, where every token needs those of all.
const MOST_LOGITS: usize = 1 << 24;

/// A decoder and its cache, which sequences share.
pub struct Sequences {
    model: DecoderModel,
    cache: Mutex<Cache>,
    chunk: usize,
}

/// A sequence of tokens, whose keys and values are in the cache as far as they were computed. Its pages go back when it is
/// dropped.
pub struct Sequence<'a> {
    of: &'a Sequences,
    tokens: Vec<u32>,
    pages: Pages,
}

impl Sequences {
    /// The sequences of a model on a device.
    pub fn new(model: DecoderModel, device: &Device) -> Result<Sequences> {
        let cache = Mutex::new(Cache::new(model.config(), model.cache_config(), device)?);
        let chunk = if device.runs_on_host() { CHUNK } else { GPU_CHUNK };
        Ok(Sequences { model, cache, chunk })
    }

    /// The model.
    pub fn model(&self) -> &DecoderModel {
        &self.model
    }

    /// The bytes of the cache.
    pub fn cache_bytes(&self) -> usize {
        self.cache().buffer().num_bytes()
    }

    /// A new sequence without tokens.
    pub fn sequence(&self) -> Sequence<'_> {
        Sequence { of: self, tokens: Vec::new(), pages: Pages::default() }
    }

    fn cache(&self) -> MutexGuard<'_, Cache> {
        // What a panic leaves behind is at most lost pages.
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends tokens to several sequences at once, each of which has the rest of its tokens in the cache: what is wanted of the
    /// logits after each of them, or more.
    pub fn advance(
        &self,
        sequences: &mut [&mut Sequence],
        tokens: &[u32],
        wanted: &[Wanted],
    ) -> Result<Vec<Logits>> {
        if sequences.len() != tokens.len() {
            bail!(internal, "{} sequences and {} tokens", sequences.len(), tokens.len());
        }
        let mut cache = self.cache();
        for sequence in sequences.iter_mut() {
            cache.reserve(&mut sequence.pages, 1)?;
        }
        let steps = sequences.iter_mut().zip(tokens);
        let steps = steps.map(|(sequence, token)| Step {
            tokens: std::slice::from_ref(token),
            pages: &mut sequence.pages,
        });
        let logits = self.model.next(&cache, &mut steps.collect::<Vec<_>>(), wanted)?;
        for (sequence, token) in sequences.iter_mut().zip(tokens) {
            sequence.tokens.push(*token);
        }
        Ok(logits)
    }
}

impl Sequence<'_> {
    /// Its tokens, of which all are in the cache.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Makes it a sequence of these tokens, and gives what is wanted of the logits after the last one, or more. What it begins
    /// with already is not computed again. A function is told how many tokens are done, and may end the work with an error.
    pub fn read(
        &mut self,
        tokens: &[u32],
        wanted: Wanted,
        each: &mut dyn FnMut(usize) -> Result<()>,
    ) -> Result<Logits> {
        let Some(last) = tokens.len().checked_sub(1) else { bail!(value, "a sequence without tokens") };
        let longest = self.of.model.config().max_length;
        if tokens.len() > longest {
            bail!(
                value,
                "a sequence of {} tokens is longer than the context, which has {longest}",
                tokens.len()
            );
        }
        let same = self.tokens.iter().zip(tokens).take_while(|(a, b)| a == b).count();
        let crosses = (same + 1..=tokens.len()).any(|length| self.of.model.config().reread_at(length));
        // The last token is computed anyway, for its logits.
        let kept = if crosses { 0 } else { same.min(last) };
        self.shorten(kept);
        let mut logits = Logits::Largest(Vec::new());
        while self.tokens.len() < tokens.len() {
            let done = self.tokens.len();
            // What is turned by the length of the sequence needs the length of the whole.
            let most =
                if crosses || self.of.model.config().is_open_ended() { tokens.len() } else { self.of.chunk };
            let chunk = &tokens[done..tokens.len().min(done + most)];
            let mut cache = self.of.cache();
            cache.reserve(&mut self.pages, chunk.len())?;
            let wanted = if done + chunk.len() == tokens.len() { wanted } else { Wanted::Nothing };
            let step = Step { tokens: chunk, pages: &mut self.pages };
            let found = self.of.model.next(&cache, &mut [step], &[wanted]);
            drop(cache);
            // A GPU may say only now that a chunk before failed.
            let mut found = found.inspect_err(|_| self.shorten(kept))?;
            self.tokens.extend_from_slice(chunk);
            if let Some(found) = found.pop() {
                logits = found;
            }
            each(self.tokens.len())?;
        }
        Ok(logits)
    }

    /// Makes it a sequence of these tokens, and gives the log probabilities of those from a place on, each after all before
    /// it. A function is told how many of them are done, and may end the work with an error.
    pub fn log_probabilities(
        &mut self,
        tokens: &[u32],
        from: usize,
        each: &mut dyn FnMut(usize) -> Result<()>,
    ) -> Result<Vec<f64>> {
        let config = self.of.model.config();
        let longest = config.max_length;
        if from == 0 || from >= tokens.len() || tokens.len() > longest {
            bail!(value, "tokens {from} to {} of a context of {longest} tokens", tokens.len());
        }
        // What is turned by the length of the sequence needs the length of the whole.
        let whole = config.is_open_ended() || (1..=tokens.len()).any(|length| config.reread_at(length));
        let most = if whole { tokens.len() } else { (MOST_LOGITS / config.vocab_size).clamp(1, CHUNK) };
        match from - 1 {
            before if before > 0 && !whole => {
                drop(self.read(&tokens[..before], Wanted::Nothing, &mut |_| Ok(()))?)
            }
            _ => self.shorten(0),
        }
        // Nothing follows the last token.
        let read = &tokens[..tokens.len() - 1];
        let mut found = Vec::with_capacity(tokens.len() - from);
        while self.tokens.len() < read.len() {
            let done = self.tokens.len();
            let chunk = &read[done..read.len().min(done + most)];
            let mut cache = self.of.cache();
            cache.reserve(&mut self.pages, chunk.len())?;
            let logits =
                self.of.model.run_all(&cache, &mut [Step { tokens: chunk, pages: &mut self.pages }])?;
            drop(cache);
            self.tokens.extend_from_slice(chunk);
            let logits = logits.to_vec::<f32>()?;
            let rows = logits.chunks_exact(config.vocab_size).zip(&tokens[done + 1..]);
            for (row, &token) in rows.skip(from.saturating_sub(done + 1)) {
                found.push(TokenLogProbability::new(row, token, 0)?.log_probability.into());
            }
            each(found.len())?;
        }
        Ok(found)
    }

    /// Appends a token: what is wanted of the logits after it, or more.
    pub fn push(&mut self, token: u32, wanted: Wanted) -> Result<Logits> {
        let config = self.of.model.config();
        let length = self.tokens.len() + 1;
        if length > config.max_length {
            bail!(value, "the context of {} tokens is full", config.max_length);
        }
        if config.reread_at(length) {
            let all = [&self.tokens[..], &[token]].concat();
            return self.read(&all, wanted, &mut |_| Ok(()));
        }
        let Some(logits) = self.of.advance(&mut [self], &[token], &[wanted])?.pop() else {
            bail!(internal, "a sequence without logits")
        };
        Ok(logits)
    }

    /// Forgets all but some of its first tokens.
    fn shorten(&mut self, length: usize) {
        self.tokens.truncate(length);
        self.pages.shorten(length);
    }
}

impl Drop for Sequence<'_> {
    fn drop(&mut self) {
        self.of.cache().release(std::mem::take(&mut self.pages));
    }
}
