//! Text, token after token.

use std::time::{Duration, Instant};

use max_core::{DType, Result, bail};
use max_weights::MetadataValue;

use crate::architecture::Architecture;
use crate::decoder::{DecoderModel, DecoderOptions, ModelFiles, Sequence, Sequences};
use crate::embedded::BOX;
use crate::text::chat::{ChatMessage, ChatTemplate};
use crate::text::request::{Generation, Progress};
use crate::text::sampling::{LogProbabilities, Logits, SamplingParams, Wanted};
use crate::text::stop::FinishReason;
use crate::text::tokenizer::TextTokenizer;

/// A model that continues texts.
///
/// ```
/// use max_pipelines::text::sampling::SamplingParams;
/// use max_pipelines::{Prompt, TextGenerator};
///
/// let generator = TextGenerator::load_default()?; // or load("model.gguf", &DecoderOptions::default())
/// let params = SamplingParams { max_new_tokens: Some(50), ..generator.sampling().clone() };
/// let answer = generator.generate(&Prompt::Text("Once upon a time".into()), &params)?;
/// println!("{}", answer.text);
///
/// // Piece by piece; an answer that is dropped is cancelled.
/// for piece in generator.stream(&Prompt::Text("Once upon a time".into()), &params)? {
///     print!("{}", piece?.text);
/// }
/// # Ok::<(), max_core::Error>(())
/// ```
pub struct TextGenerator {
    architecture: &'static str,
    name: String,
    tokenizer: TextTokenizer,
    chat: Option<Result<ChatTemplate>>,
    sampling: SamplingParams,
    sequences: Sequences,
    load_time: Duration,
}

/// What is continued.
#[derive(Clone, Debug)]
pub enum Prompt {
    /// A text as it is.
    Text(String),
    /// A conversation, which the model's chat template turns into a text.
    Chat(Vec<ChatMessage>),
    /// Tokens.
    Tokens(Vec<u32>),
}

/// An answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Its text.
    pub text: String,
    /// Its tokens, with the one that ended it.
    pub tokens: Vec<u32>,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// The log probabilities of its tokens, where asked for.
    pub log_probabilities: Option<LogProbabilities>,
    /// How long it took.
    pub stats: AnswerStats,
}

/// How long an answer took.
#[derive(Clone, Copy, Debug, Default)]
pub struct AnswerStats {
    /// The tokens of the prompt.
    pub prompt_tokens: usize,
    /// Those of the prompt that were in the cache already.
    pub cached_tokens: usize,
    /// The tokens of the answer.
    pub new_tokens: usize,
    /// The time until the first token of the answer.
    pub time_to_first_token: Duration,
    /// The time for the other tokens.
    pub generation_time: Duration,
}

impl AnswerStats {
    /// The tokens of the prompt that were computed, per second.
    pub fn prompt_rate(&self) -> f64 {
        (self.prompt_tokens - self.cached_tokens.min(self.prompt_tokens)) as f64
            / self.time_to_first_token.as_secs_f64().max(1e-9)
    }

    /// The tokens of the answer after the first one, per second.
    pub fn generation_rate(&self) -> f64 {
        self.new_tokens.saturating_sub(1) as f64 / self.generation_time.as_secs_f64().max(1e-9)
    }
}

impl TextGenerator {
    /// The model in a GGUF file or a folder, or with a name.
    pub fn load(model: &str, options: &DecoderOptions) -> Result<TextGenerator> {
        TextGenerator::from_files(&ModelFiles::find(model, &|_| ())?, options, &mut |_, _| ())
    }

    /// The toy that is part of the program: it needs no files.
    pub fn load_default() -> Result<TextGenerator> {
        TextGenerator::from_files(&ModelFiles::Embedded(&BOX), &DecoderOptions::default(), &mut |_, _| ())
    }

    /// The model in files; a function is told how many of its weights are loaded.
    pub fn from_files(
        files: &ModelFiles,
        options: &DecoderOptions,
        each: &mut dyn FnMut(usize, usize),
    ) -> Result<TextGenerator> {
        TextGenerator::read(files, options, each).map_err(|e| e.context(format!("in {files}")))
    }

    fn read(
        files: &ModelFiles,
        options: &DecoderOptions,
        each: &mut dyn FnMut(usize, usize),
    ) -> Result<TextGenerator> {
        let start = Instant::now();
        let (architecture, name, tokenizer, sampling, model) = match files {
            ModelFiles::Folder(folder) if options.dummy => {
                let architecture = Architecture::of(&folder.model_config()?)?.name;
                let tokenizer = TextTokenizer::from_folder(folder)?;
                let sampling = SamplingParams::of_folder(folder)?;
                (architecture, files.to_string(), tokenizer, sampling, files.dummy(options)?)
            }
            ModelFiles::Folder(folder) => {
                let (opened, tokenizer) = (files.open()?, TextTokenizer::from_folder(folder)?);
                let sampling = SamplingParams::of_folder(folder)?;
                (opened.architecture, files.to_string(), tokenizer, sampling, opened.load(options, each)?)
            }
            ModelFiles::Gguf(_) | ModelFiles::Embedded(_) => {
                let opened = files.open()?;
                let metadata = opened.weights.metadata();
                let tokenizer = TextTokenizer::from_gguf(metadata)?;
                let sampling = SamplingParams::of_gguf(metadata)?;
                let name = metadata.get("general.name").and_then(MetadataValue::as_str);
                let name = name.map_or_else(|| files.to_string(), str::to_string);
                (opened.architecture, name, tokenizer, sampling, opened.load(options, each)?)
            }
        };
        // What is wrong with a template matters to conversations only.
        let chat = tokenizer
            .chat_template()
            .map(|source| ChatTemplate::new(source).map_err(|error| error.context(format!("in {files}"))));
        if tokenizer.vocab_size() > model.config().vocab_size {
            bail!(
                value,
                "the tokenizer has {} tokens, but the model only {}",
                tokenizer.vocab_size(),
                model.config().vocab_size
            );
        }
        let sequences = Sequences::new(model, &options.device)?;
        let load_time = start.elapsed();
        Ok(TextGenerator { architecture, name, tokenizer, chat, sampling, sequences, load_time })
    }

    /// The name of its architecture.
    pub fn architecture(&self) -> &'static str {
        self.architecture
    }

    /// Its own name, or that of its files.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its tokenizer.
    pub fn tokenizer(&self) -> &TextTokenizer {
        &self.tokenizer
    }

    /// How the model suggests to choose tokens; greedily if it suggests nothing.
    pub fn sampling(&self) -> &SamplingParams {
        &self.sampling
    }

    /// What computes tokens.
    pub fn model(&self) -> &DecoderModel {
        self.sequences.model()
    }

    /// Whether it knows conversations.
    pub fn has_chat_template(&self) -> bool {
        self.chat.is_some()
    }

    /// How long loading took.
    pub fn load_time(&self) -> Duration {
        self.load_time
    }

    /// The bytes of its weights, and of its cache.
    pub fn memory(&self) -> [usize; 2] {
        [self.model().weight_bytes(), self.sequences.cache_bytes()]
    }

    /// The tokens of a prompt.
    pub fn tokens(&self, prompt: &Prompt) -> Result<Vec<u32>> {
        match prompt {
            Prompt::Tokens(tokens) => Ok(tokens.clone()),
            Prompt::Text(text) => self.tokenizer.encode(text, true),
            Prompt::Chat(messages) => {
                let Some(chat) = &self.chat else {
                    bail!(value, "{} has no chat template: give the prompt as it is", self.name)
                };
                let chat = chat.as_ref().map_err(Clone::clone)?;
                let text = chat.render(messages, true, self.tokenizer.named_tokens())?;
                let mut tokens = self.tokenizer.encode(&text, false)?;
                // Most templates write the first token themselves.
                if let Some((bos, _)) = self.tokenizer.bos()
                    && self.tokenizer.encode("", true)?.first() == Some(&bos)
                    && tokens.first() != Some(&bos)
                {
                    tokens.insert(0, bos);
                }
                Ok(tokens)
            }
        }
    }

    /// The whole answer to a prompt.
    pub fn generate(&self, prompt: &Prompt, params: &SamplingParams) -> Result<Answer> {
        let mut stream = self.stream(prompt, params)?;
        for piece in &mut stream {
            piece?;
        }
        stream.answer()
    }

    /// The answer to a prompt, piece by piece.
    pub fn stream<'a>(&'a self, prompt: &Prompt, params: &SamplingParams) -> Result<AnswerStream<'a, 'a>> {
        AnswerStream::new(self, Place::Own(self.sequences.sequence()), self.tokens(prompt)?, params)
    }

    /// A conversation, which keeps what it has computed for the next turn.
    pub fn conversation(&self) -> Conversation<'_> {
        Conversation { generator: self, sequence: self.sequences.sequence() }
    }

    /// A new sequence without tokens.
    pub(crate) fn sequence(&self) -> Sequence<'_> {
        self.sequences.sequence()
    }

    /// The answers to several prompts, computed together. Each is the one that it would get alone.
    pub fn generate_batch(&self, prompts: &[(Prompt, SamplingParams)]) -> Result<Vec<Answer>> {
        let mut streams = Vec::with_capacity(prompts.len());
        for (prompt, params) in prompts {
            let mut stream = self.stream(prompt, params)?;
            stream.start()?;
            streams.push(stream);
        }
        loop {
            let mut active: Vec<_> =
                streams.iter_mut().filter(|stream| stream.generation.finish_reason().is_none()).collect();
            if active.is_empty() {
                break;
            }
            let start = Instant::now();
            let (rereading, mut steady): (Vec<_>, Vec<_>) =
                active.drain(..).partition(|stream| stream.rereads());
            for stream in rereading {
                stream.step()?;
            }
            let tokens: Vec<u32> = steady.iter().map(|stream| stream.last).collect();
            let wanted: Vec<Wanted> = steady.iter().map(|stream| stream.wanted()).collect();
            let mut sequences: Vec<&mut Sequence> =
                steady.iter_mut().map(|stream| stream.place.sequence()).collect();
            if sequences.is_empty() {
                continue;
            }
            let logits = self.sequences.advance(&mut sequences, &tokens, &wanted)?;
            for (stream, logits) in steady.iter_mut().zip(logits) {
                stream.choose(logits)?;
                stream.stats.generation_time += start.elapsed();
            }
        }
        streams.into_iter().map(AnswerStream::answer).collect()
    }
}

/// A conversation with a model, turn by turn.
pub struct Conversation<'a> {
    generator: &'a TextGenerator,
    sequence: Sequence<'a>,
}

impl<'a> Conversation<'a> {
    /// The answer to a prompt, piece by piece. What the prompt begins with and was computed before, say the earlier turns, is
    /// not computed again.
    pub fn stream<'b>(
        &'b mut self,
        prompt: &Prompt,
        params: &SamplingParams,
    ) -> Result<AnswerStream<'a, 'b>> {
        let tokens = self.generator.tokens(prompt)?;
        AnswerStream::new(self.generator, Place::Shared(&mut self.sequence), tokens, params)
    }
}

/// Where an answer is computed.
enum Place<'a, 'b> {
    Own(Sequence<'a>),
    Shared(&'b mut Sequence<'a>),
}

impl<'a> Place<'a, '_> {
    fn sequence(&mut self) -> &mut Sequence<'a> {
        match self {
            Place::Own(sequence) => sequence,
            Place::Shared(sequence) => sequence,
        }
    }
}

/// An answer that is being computed: an iterator over its pieces. After an error there are no more.
pub struct AnswerStream<'a, 'b> {
    generator: &'a TextGenerator,
    place: Place<'a, 'b>,
    prompt: Vec<u32>,
    generation: Generation,
    last: u32,
    started: bool,
    failed: bool,
    stats: AnswerStats,
}

impl<'a, 'b> AnswerStream<'a, 'b> {
    fn new(
        generator: &'a TextGenerator,
        place: Place<'a, 'b>,
        prompt: Vec<u32>,
        params: &SamplingParams,
    ) -> Result<AnswerStream<'a, 'b>> {
        let longest = generator.model().config().max_length;
        if prompt.len() >= longest {
            bail!(
                value,
                "a prompt of {} tokens leaves no room for an answer: the context has {longest} tokens",
                prompt.len()
            );
        }
        let generation = Generation::new(&generator.tokenizer, params, &prompt, longest - prompt.len())?;
        let stats = AnswerStats { prompt_tokens: prompt.len(), ..AnswerStats::default() };
        Ok(AnswerStream {
            generator,
            place,
            prompt,
            generation,
            last: 0,
            started: false,
            failed: false,
            stats,
        })
    }

    /// The seed of its random numbers.
    pub fn seed(&self) -> u64 {
        self.generation.seed()
    }

    /// Ends the answer, and gives the text that was held back.
    pub fn cancel(&mut self) -> String {
        self.generation.cancel()
    }

    /// How long it has taken so far.
    pub fn stats(&self) -> AnswerStats {
        AnswerStats { new_tokens: self.generation.tokens().len(), ..self.stats }
    }

    /// The answer; an error if it has not ended.
    pub fn answer(self) -> Result<Answer> {
        let Some(finish_reason) = self.generation.finish_reason().cloned() else {
            bail!(runtime, "the answer has not ended")
        };
        Ok(Answer {
            text: self.generation.text().to_string(),
            tokens: self.generation.tokens().to_vec(),
            finish_reason,
            log_probabilities: self.generation.log_probabilities().cloned(),
            stats: self.stats(),
        })
    }

    /// Reads the prompt and chooses the first token.
    fn start(&mut self) -> Result<Progress> {
        let start = Instant::now();
        let prompt = std::mem::take(&mut self.prompt);
        let wanted = self.wanted();
        let sequence = self.place.sequence();
        let same = sequence.tokens().iter().zip(&prompt).take_while(|(a, b)| a == b).count();
        self.stats.cached_tokens = same.min(prompt.len() - 1);
        let logits = sequence.read(&prompt, wanted, &mut |_| Ok(()))?;
        let progress = self.choose(logits)?;
        self.stats.time_to_first_token = start.elapsed();
        self.started = true;
        Ok(progress)
    }

    /// Computes the logits after the last token and chooses the next one.
    fn step(&mut self) -> Result<Progress> {
        let start = Instant::now();
        let wanted = self.wanted();
        let logits = self.place.sequence().push(self.last, wanted)?;
        let progress = self.choose(logits)?;
        self.stats.generation_time += start.elapsed();
        Ok(progress)
    }

    /// Whether the next token needs the whole sequence again.
    fn rereads(&self) -> bool {
        let length = match &self.place {
            Place::Own(sequence) => sequence.tokens().len() + 1,
            Place::Shared(sequence) => sequence.tokens().len() + 1,
        };
        self.generator.model().config().reread_at(length)
    }

    /// What the next token depends on.
    fn wanted(&self) -> Wanted {
        self.generation.wanted(self.generator.model().config().vocab_size)
    }

    fn choose(&mut self, logits: Logits) -> Result<Progress> {
        let progress = self.generation.push(logits)?;
        self.last = progress.token;
        Ok(progress)
    }
}

impl Iterator for AnswerStream<'_, '_> {
    type Item = Result<Progress>;

    fn next(&mut self) -> Option<Result<Progress>> {
        if self.failed || self.generation.finish_reason().is_some() {
            return None;
        }
        let next = if self.started { self.step() } else { self.start() };
        self.failed = next.is_err();
        Some(next)
    }
}

/// What a cache can have, by the names of options.
pub const CACHE_DTYPES: &[(&str, DType)] = &[
    ("float32", DType::Float32),
    ("bfloat16", DType::BFloat16),
    ("float16", DType::Float16),
    ("q8_0", DType::UInt8),
];
