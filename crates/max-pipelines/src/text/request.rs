//! One answer, from the logits of its first token to the reason for its end.

use max_core::{Result, bail};

use super::detokenize::Detokenizer;
use super::sampling::{
    LogProbabilities, Logits, Sampled, Sampler, SamplingParams, TokenLogProbability, Wanted,
};
use super::stop::{FinishReason, StopStrings};
use super::tokenizer::TextTokenizer;

/// The state of one answer. It has no model: logits come in, tokens and text go out.
#[derive(Clone, Debug)]
pub struct Generation {
    sampler: Sampler,
    detokenizer: Option<Detokenizer>,
    stops: StopStrings,
    /// The same without any text, for stop strings that come too early.
    fresh_stops: StopStrings,
    /// Text that the stop strings hold back.
    held: String,
    ends: Vec<u32>,
    stop_tokens: Vec<u32>,
    min_new_tokens: usize,
    max_new_tokens: usize,
    tokens: Vec<u32>,
    text: String,
    log_probabilities: Option<LogProbabilities>,
    finish_reason: Option<FinishReason>,
}

/// What one step added to an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress {
    /// The token that was chosen.
    pub token: u32,
    /// The text that is certain now; it may be empty, and it may have waited for some tokens.
    pub text: String,
    /// The log probability of the token and of the most probable ones, where asked for.
    pub log_probability: Option<TokenLogProbability>,
    /// Why the answer ended, if it did.
    pub finish_reason: Option<FinishReason>,
}

impl Generation {
    /// An answer to a prompt, for which the context has `room` for that many tokens.
    pub fn new(
        tokenizer: &TextTokenizer,
        params: &SamplingParams,
        prompt: &[u32],
        room: usize,
    ) -> Result<Generation> {
        params.validate()?;
        if prompt.is_empty() {
            bail!(value, "the prompt is empty: there is no token to go on from");
        }
        if room == 0 {
            bail!(value, "the prompt has {} tokens, which leaves no room for an answer", prompt.len());
        }
        if !params.detokenize && !params.stop.is_empty() {
            bail!(value, "stop needs detokenize: texts are looked for in text");
        }
        let ends = if params.ignore_eos { Vec::new() } else { tokenizer.ends().to_vec() };
        let max_new_tokens = params.max_new_tokens.unwrap_or(room).min(room);
        let stops = StopStrings::new(params.stop.iter().map(String::as_str));
        Ok(Generation {
            sampler: Sampler::new(params, prompt, &[&ends[..], &params.stop_token_ids].concat())?,
            detokenizer: params.detokenize.then(|| tokenizer.stream()),
            fresh_stops: stops.clone(),
            stops,
            held: String::new(),
            ends,
            stop_tokens: params.stop_token_ids.clone(),
            min_new_tokens: params.min_new_tokens,
            max_new_tokens,
            tokens: Vec::new(),
            text: String::new(),
            log_probabilities: params.logprobs.map(|_| LogProbabilities::default()),
            finish_reason: (max_new_tokens == 0).then_some(FinishReason::Length),
        })
    }

    /// What the next token depends on, of a vocabulary of some size.
    pub fn wanted(&self, vocab_size: usize) -> Wanted {
        self.sampler.wanted(vocab_size)
    }

    /// Chooses the next token by logits, at least those that are wanted.
    pub fn push(&mut self, logits: Logits) -> Result<Progress> {
        if let Some(reason) = &self.finish_reason {
            bail!(runtime, "the answer has ended ({}): no token can follow", reason.as_str());
        }
        let Sampled { token, log_probability } = match logits {
            Logits::All(mut logits) => self.sampler.sample(&mut logits)?,
            Logits::Largest(largest) => self.sampler.sample_largest(&largest)?,
        };
        self.finish_reason = self.ended_by(token);
        self.tokens.push(token);
        if let (Some(all), Some(next)) = (&mut self.log_probabilities, &log_probability) {
            all.push(next.clone());
        }
        let mut text = String::new();
        if self.finish_reason.is_none() {
            let piece = self.detokenizer.as_mut().map(|detokenizer| detokenizer.push(token));
            text = self.scan(&piece.unwrap_or_default());
        }
        if self.finish_reason.is_none() && self.tokens.len() >= self.max_new_tokens {
            self.finish_reason = Some(FinishReason::Length);
        }
        if self.finish_reason.is_some() {
            text += &self.flush();
        }
        self.text += &text;
        Ok(Progress { token, text, log_probability, finish_reason: self.finish_reason.clone() })
    }

    /// Ends the answer, if it has not ended, and gives the text that was held back.
    pub fn cancel(&mut self) -> String {
        if self.finish_reason.is_some() {
            return String::new();
        }
        self.finish_reason = Some(FinishReason::Cancelled);
        let text = self.flush();
        self.text += &text;
        text
    }

    /// The tokens so far, with the one that ended the answer.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The text that is certain so far.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Why the answer ended, if it did.
    pub fn finish_reason(&self) -> Option<&FinishReason> {
        self.finish_reason.as_ref()
    }

    /// The log probabilities of the tokens so far, where asked for.
    pub fn log_probabilities(&self) -> Option<&LogProbabilities> {
        self.log_probabilities.as_ref()
    }

    /// The most tokens that the answer can have.
    pub fn max_new_tokens(&self) -> usize {
        self.max_new_tokens
    }

    /// The seed of the random numbers.
    pub fn seed(&self) -> u64 {
        self.sampler.seed()
    }

    /// What the next token means for the answer, whatever its text.
    fn ended_by(&self, token: u32) -> Option<FinishReason> {
        if self.tokens.len() < self.min_new_tokens {
            None
        } else if self.stop_tokens.contains(&token) {
            Some(FinishReason::StopToken(token))
        } else if self.ends.contains(&token) {
            Some(FinishReason::EndOfSequence(token))
        } else {
            None
        }
    }

    /// Looks for stop strings in the next piece of text, and gives what can be shown. Those that end before there are enough
    /// tokens are text like other text.
    fn scan(&mut self, piece: &str) -> String {
        self.held += piece;
        let mut shown = String::new();
        let mut piece = piece.to_owned();
        loop {
            let (certain, found) = self.stops.push(&piece);
            let Some(stop) = found.map(str::to_owned) else {
                self.held.drain(..certain.len());
                return shown + &certain;
            };
            if self.tokens.len() >= self.min_new_tokens {
                self.held.clear();
                self.finish_reason = Some(FinishReason::StopString(stop));
                return shown + &certain;
            }
            piece = self.held.split_off(certain.len() + stop.len());
            shown += &std::mem::replace(&mut self.held, piece.clone());
            self.stops = self.fresh_stops.clone();
        }
    }

    /// The text that was held back, at the end of the answer.
    fn flush(&mut self) -> String {
        if matches!(self.finish_reason, Some(FinishReason::StopString(_))) {
            return String::new();
        }
        let rest = self.detokenizer.as_mut().map(Detokenizer::finish).unwrap_or_default();
        std::mem::take(&mut self.held) + &rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::Folder;
    use std::path::Path;
    use std::sync::OnceLock;

    fn tokenizer() -> &'static TextTokenizer {
        static TOKENIZER: OnceLock<TextTokenizer> = OnceLock::new();
        TOKENIZER.get_or_init(|| {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/decoders/llama3");
            TextTokenizer::from_folder(&Folder::Path(folder)).unwrap()
        })
    }

    /// The token that ends a turn.
    const END: u32 = 4;

    fn start(params: &SamplingParams, room: usize) -> Generation {
        Generation::new(tokenizer(), params, &[0], room).unwrap()
    }

    /// Logits under which a token is chosen, and a second one if the first is masked.
    fn logits(token: u32, second: u32) -> Logits {
        let mut logits = vec![0.0; 384];
        logits[second as usize] = 5.0;
        logits[token as usize] = 10.0;
        Logits::All(logits)
    }

    /// Feeds the tokens until the answer ends; the texts of the steps.
    fn feed(generation: &mut Generation, tokens: &[u32]) -> Vec<String> {
        let mut texts = Vec::new();
        for &token in tokens {
            if generation.finish_reason().is_some() {
                break;
            }
            let progress = generation.push(logits(token, 69)).unwrap();
            assert_eq!(progress.finish_reason.as_ref(), generation.finish_reason());
            texts.push(progress.text);
        }
        assert_eq!(texts.concat(), generation.text());
        texts
    }

    fn encode(text: &str) -> Vec<u32> {
        tokenizer().encode(text, false).unwrap()
    }

    #[test]
    fn an_end_token_ends_the_answer_and_is_no_text() {
        let mut generation = start(&SamplingParams::greedy(), 100);
        feed(&mut generation, &[encode("The river"), vec![END]].concat());
        assert_eq!(generation.text(), "The river");
        assert_eq!(generation.tokens().last(), Some(&END));
        assert_eq!(generation.finish_reason(), Some(&FinishReason::EndOfSequence(END)));
        let error = generation.push(logits(5, 6)).unwrap_err();
        assert!(error.message().contains("has ended"), "{error}");
        assert_eq!(generation.cancel(), "");
        assert_eq!(generation.finish_reason(), Some(&FinishReason::EndOfSequence(END)));
    }

    #[test]
    fn end_tokens_can_be_ignored_and_stop_tokens_cannot() {
        let params =
            SamplingParams { ignore_eos: true, stop_token_ids: vec![69], ..SamplingParams::greedy() };
        let mut generation = start(&params, 100);
        feed(&mut generation, &[END, 70, END, 69, 70]);
        assert_eq!((generation.text(), generation.tokens()), ("b", &[END, 70, END, 69][..]));
        assert_eq!(generation.finish_reason(), Some(&FinishReason::StopToken(69)));
    }

    #[test]
    fn the_length_is_bounded_by_the_request_and_the_room() {
        for (max_new_tokens, room, expected) in
            [(Some(3), 10, 3), (Some(10), 4, 4), (None, 2, 2), (Some(1), 1, 1)]
        {
            let mut generation = start(&SamplingParams { max_new_tokens, ..SamplingParams::greedy() }, room);
            feed(&mut generation, &[70; 20]);
            assert_eq!(generation.tokens().len(), expected);
            assert_eq!(generation.finish_reason(), Some(&FinishReason::Length));
        }
        let mut none = start(&SamplingParams { max_new_tokens: Some(0), ..SamplingParams::greedy() }, 5);
        assert_eq!(none.finish_reason(), Some(&FinishReason::Length));
        assert!(none.push(logits(5, 6)).is_err());
    }

    #[test]
    fn nothing_ends_an_answer_too_early() {
        let params = SamplingParams {
            min_new_tokens: 3,
            stop: vec!["bb".into()],
            stop_token_ids: vec![70],
            ..SamplingParams::greedy()
        };
        // "a" takes the place of what is masked.
        let mut generation = start(&params, 100);
        feed(&mut generation, &[END, 70, END, END]);
        assert_eq!((generation.text(), generation.tokens().len()), ("aaa", 4));

        let params = SamplingParams { stop_token_ids: vec![], ..params };
        let mut generation = start(&params, 100);
        feed(&mut generation, &[70, 70, 71, 70, 70]);
        assert_eq!(generation.text(), "bbc");
        assert_eq!(generation.finish_reason(), Some(&FinishReason::StopString("bb".into())));

        // A stop string may begin before there are enough tokens, and end after.
        let mut generation = start(&params, 100);
        feed(&mut generation, &[71, 70, 70]);
        assert_eq!((generation.text(), generation.tokens().len()), ("c", 3));
        let mut generation = start(&params, 100);
        feed(&mut generation, &[70, 70, 70, 70]);
        assert_eq!((generation.text(), generation.tokens().len()), ("bb", 4));
    }

    #[test]
    fn stop_strings_span_tokens_and_what_is_held_back_comes_out() {
        let params = SamplingParams { stop: vec!["river is wide".into()], ..SamplingParams::greedy() };
        let tokens = encode("The river is wide. And");
        let mut generation = start(&params, 100);
        feed(&mut generation, &tokens);
        assert_eq!(generation.text(), "The ");
        assert_eq!(generation.finish_reason(), Some(&FinishReason::StopString("river is wide".into())));
        assert!(generation.tokens().len() < tokens.len());

        let mut generation = start(&params, 100);
        let texts = feed(&mut generation, &[encode("The river is"), vec![END]].concat());
        assert_eq!((generation.text(), texts.last().map(String::as_str)), ("The river is", Some("river is")));

        let mut generation = start(&SamplingParams { max_new_tokens: Some(3), ..params.clone() }, 100);
        feed(&mut generation, &tokens);
        assert_eq!(generation.text(), tokenizer().decode(&tokens[..3], true));

        let mut generation = start(&params, 100);
        feed(&mut generation, &encode("The river"));
        assert_eq!(generation.text(), "The ");
        assert_eq!(generation.cancel(), "river");
        assert_eq!(generation.text(), "The river");
        assert_eq!(generation.finish_reason(), Some(&FinishReason::Cancelled));
    }

    #[test]
    fn characters_stay_whole_and_unfinished_ones_are_replaced() {
        let tokens = encode("😀");
        assert!(tokens.len() > 1);
        let mut generation = start(&SamplingParams::greedy(), 100);
        let texts = feed(&mut generation, &tokens);
        assert!(texts[..texts.len() - 1].iter().all(String::is_empty));
        assert_eq!(generation.text(), "😀");
        let mut generation = start(&SamplingParams::greedy(), tokens.len() - 1);
        feed(&mut generation, &tokens);
        assert_eq!(generation.text(), "\u{FFFD}");
    }

    #[test]
    fn log_probabilities_are_kept() {
        let params = SamplingParams { logprobs: Some(2), ..SamplingParams::greedy() };
        let mut generation = start(&params, 2);
        let progress = generation.push(logits(70, 71)).unwrap();
        assert_eq!(progress.log_probability.unwrap().top[1].0, 71);
        generation.push(logits(70, 71)).unwrap();
        assert_eq!(generation.log_probabilities().unwrap().len(), 2);
        assert!(start(&SamplingParams::greedy(), 2).log_probabilities().is_none());
    }

    #[test]
    fn tokens_alone() {
        let params = SamplingParams { detokenize: false, ..SamplingParams::greedy() };
        let mut generation = start(&params, 3);
        feed(&mut generation, &[70, 71, 72]);
        assert_eq!((generation.text(), generation.tokens()), ("", &[70, 71, 72][..]));
        let params = SamplingParams { stop: vec!["x".into()], ..params };
        let error = Generation::new(tokenizer(), &params, &[0], 5).unwrap_err();
        assert!(error.message().contains("detokenize"), "{error}");
    }

    #[test]
    fn requests_that_cannot_be_answered() {
        let params = SamplingParams::greedy();
        let error = |params: &SamplingParams, prompt: &[u32], room| {
            Generation::new(tokenizer(), params, prompt, room).unwrap_err().to_string()
        };
        assert!(error(&params, &[], 5).contains("the prompt is empty"));
        assert!(error(&params, &[1, 2, 3], 0).contains("the prompt has 3 tokens, which leaves no room"));
        let wrong = SamplingParams { temperature: f32::NAN, ..SamplingParams::default() };
        assert!(error(&wrong, &[1], 5).contains("temperature"));
        let mut generation = start(&params, 5);
        assert!(generation.push(Logits::All(vec![])).is_err());
        assert!(generation.push(Logits::All(vec![f32::NAN; 384])).is_err() && generation.tokens().is_empty());
        assert_eq!(generation.push(logits(70, 71)).unwrap().text, "b");
    }
}
