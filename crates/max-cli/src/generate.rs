//! `max generate`: texts that go on, and conversations.

use std::io::{self, BufRead, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use max_core::{Error, Result, bail};
use max_pipelines::text::chat::ChatMessage;
use max_pipelines::text::sampling::SamplingParams;
use max_pipelines::{Answer, AnswerStats, AnswerStream, BOX, Prompt, TextGenerator};
use serde_json::json;

use crate::arguments::{AnswerFormat, Generate, LoadFormat};
use crate::{Outcome, loading, say};

/// The most tokens of an answer if nothing is said.
const USUAL_ANSWER: usize = 512;

pub fn run(arguments: &Generate, output: &mut dyn Write) -> Outcome {
    // What is wrong on the command line is said before a model is looked for.
    params(arguments, &SamplingParams::greedy()).validate()?;
    let prompt = match (&arguments.prompt, &arguments.prompt_file) {
        (Some(prompt), _) => Some(prompt.clone()),
        (None, Some(file)) => Some(loading::text_of(file)?),
        (None, None) => None,
    };
    let dummy = arguments.load_format == LoadFormat::Dummy;
    let generator = loading::load(arguments.model.as_deref(), &arguments.loading, dummy)?;
    let params = params(arguments, generator.sampling());
    notice_interrupts()?;
    if arguments.interactive {
        introduce(arguments);
        return converse(&generator, arguments, &params, prompt, output);
    }
    let prompt = prompt.unwrap_or_default();
    let prompt = match uses_chat(&generator, arguments) {
        true => Prompt::Chat(messages(arguments, &prompt)),
        false => Prompt::Text(prompt),
    };
    let stream = generator.stream(&prompt, &params)?;
    let seed = stream.seed();
    introduce(arguments);
    match arguments.output {
        AnswerFormat::Text => {
            let answer = show(stream, output)?;
            writeln!(output)?;
            output.flush()?;
            if arguments.stats {
                report(&generator, &answer.stats);
            }
        }
        AnswerFormat::Json => {
            let answer = show(stream, &mut io::sink())?;
            writeln!(output, "{}", described(&generator, &answer, seed))?;
        }
    }
    Ok(())
}

/// Whether Ctrl-C was pressed and nothing has noticed it yet.
static STOPPED: AtomicBool = AtomicBool::new(false);

/// From now on, Ctrl-C ends an answer; the second one, while nothing notices the first, ends the program.
fn notice_interrupts() -> Result<()> {
    let handler = || {
        if STOPPED.swap(true, Ordering::SeqCst) {
            std::process::exit(130);
        }
    };
    match ctrlc::set_handler(handler) {
        // A Python program may run several commands.
        Ok(()) | Err(ctrlc::Error::MultipleHandlers) => Ok(()),
        Err(error) => bail!(runtime, "cannot handle Ctrl-C: {error}"),
    }
}

/// What the command line says, and where it says nothing, what the model suggests.
fn params(arguments: &Generate, suggested: &SamplingParams) -> SamplingParams {
    SamplingParams {
        top_k: arguments.top_k.unwrap_or(suggested.top_k),
        top_p: arguments.top_p.unwrap_or(suggested.top_p),
        min_p: arguments.min_p.unwrap_or(suggested.min_p),
        temperature: arguments.temperature.unwrap_or(suggested.temperature),
        frequency_penalty: arguments.frequency_penalty,
        presence_penalty: arguments.presence_penalty,
        repetition_penalty: arguments.repetition_penalty.unwrap_or(suggested.repetition_penalty),
        max_new_tokens: Some(arguments.max_new_tokens.unwrap_or(USUAL_ANSWER.max(arguments.min_new_tokens))),
        min_new_tokens: arguments.min_new_tokens,
        ignore_eos: arguments.ignore_eos,
        stop: arguments.stop.clone(),
        stop_token_ids: arguments.stop_token_ids.clone(),
        seed: arguments.seed,
        ..SamplingParams::default()
    }
}

/// Says that the toy is one, so that nobody takes it for what models can do.
fn introduce(arguments: &Generate) {
    if arguments.model.is_none() {
        say(&format!(
            "This is {}.\nFor a real model: --model with a GGUF file, a folder or a name.\n\n",
            BOX.about
        ));
    }
}

/// Whether prompts are messages of a conversation.
fn uses_chat(generator: &TextGenerator, arguments: &Generate) -> bool {
    generator.has_chat_template() && !arguments.no_chat_template
}

fn messages(arguments: &Generate, prompt: &str) -> Vec<ChatMessage> {
    let system = arguments.system.iter().map(|text| ChatMessage::new("system", text));
    system.chain([ChatMessage::new("user", prompt)]).collect()
}

/// Writes an answer while it is generated, until it ends or is stopped.
fn show(mut stream: AnswerStream, output: &mut dyn Write) -> std::result::Result<Answer, crate::Failure> {
    STOPPED.store(false, Ordering::SeqCst);
    while let Some(piece) = stream.next() {
        output.write_all(piece?.text.as_bytes())?;
        if STOPPED.swap(false, Ordering::SeqCst) {
            output.write_all(stream.cancel().as_bytes())?;
        }
        output.flush()?;
    }
    Ok(stream.answer()?)
}

/// A conversation on the terminal, or of lines of the input.
fn converse(
    generator: &TextGenerator,
    arguments: &Generate,
    params: &SamplingParams,
    first: Option<String>,
    output: &mut dyn Write,
) -> Outcome {
    let chat = uses_chat(generator, arguments);
    let watched = io::stdin().is_terminal();
    if watched {
        let (name, architecture) = (generator.name(), generator.architecture());
        say(&format!("{name} ({architecture}). /exit ends the conversation, Ctrl-C an answer.\n"));
        if !chat {
            say("It has no chat template: it continues what you write.\n");
        }
    }
    let mut conversation = generator.conversation();
    let mut said: Vec<ChatMessage> = messages(arguments, "");
    said.pop();
    let mut text = String::new();
    let mut lines = io::stdin().lock().lines();
    let mut next = first;
    loop {
        let line = match next.take() {
            Some(line) => line,
            None => {
                if watched {
                    say("> ");
                }
                match lines.next() {
                    Some(line) => {
                        line.map_err(|error| Error::runtime(format!("cannot read the input: {error}")))?
                    }
                    None => break,
                }
            }
        };
        match line.trim() {
            "/exit" | "/quit" => break,
            "" => continue,
            _ => {}
        }
        let prompt = match chat {
            true => {
                said.push(ChatMessage::new("user", &line));
                if forget(generator, &mut said, arguments.system.iter().len(), params)? {
                    say("(What was said first no longer fits the context, and is forgotten.)\n");
                }
                Prompt::Chat(said.clone())
            }
            false => {
                text.push_str(&line);
                Prompt::Text(text.clone())
            }
        };
        let answer = conversation
            .stream(&prompt, params)
            .map_err(crate::Failure::from)
            .and_then(|stream| show(stream, output));
        match answer {
            Ok(answer) => {
                writeln!(output)?;
                output.flush()?;
                if arguments.stats {
                    report(generator, &answer.stats);
                }
                text.push_str(&answer.text);
                said.push(ChatMessage::new("assistant", answer.text));
            }
            // The next message may fit again.
            Err(crate::Failure::Error(error)) => {
                say(&format!("max: {}\n", crate::on_one_line(&error)));
                if chat {
                    said.pop();
                } else {
                    text.truncate(text.len() - line.len());
                }
            }
            Err(other) => return Err(other),
        }
    }
    Ok(())
}

/// Removes the oldest turns after the first messages until there is room for an answer; whether there was something to
/// remove.
fn forget(
    generator: &TextGenerator,
    said: &mut Vec<ChatMessage>,
    first: usize,
    params: &SamplingParams,
) -> Result<bool> {
    let context = generator.model().config().max_length;
    let room = params.max_new_tokens.unwrap_or(context).min(context / 4);
    let before = said.len();
    // A turn is a message and its answer.
    while said.len() > first + 2 && generator.tokens(&Prompt::Chat(said.clone()))?.len() + room > context {
        said.drain(first..first + 2);
    }
    Ok(said.len() < before)
}

/// Says how long an answer took.
fn report(generator: &TextGenerator, stats: &AnswerStats) {
    let [weights, cache] = generator.memory();
    say(&format!(
        "\nloaded in {:.0} ms; {} prompt tokens ({} cached), first token after {:.0} ms ({:.1} tokens/s); {} tokens, {:.1} \
         tokens/s; weights {:.0} MB, cache {:.0} MB{}\n",
        generator.load_time().as_secs_f64() * 1e3,
        stats.prompt_tokens,
        stats.cached_tokens,
        stats.time_to_first_token.as_secs_f64() * 1e3,
        stats.prompt_rate(),
        stats.new_tokens,
        stats.generation_rate(),
        weights as f64 / 1e6,
        cache as f64 / 1e6,
        resident().map_or(String::new(), |bytes| format!(", process {:.0} MB", bytes as f64 / 1e6)),
    ));
}

/// An answer as JSON.
fn described(generator: &TextGenerator, answer: &Answer, seed: u64) -> serde_json::Value {
    let [weights, cache] = generator.memory();
    let milliseconds = |time: std::time::Duration| (time.as_secs_f64() * 1e6).round() / 1e3;
    json!({
        "text": answer.text,
        "tokens": answer.tokens,
        "finish_reason": answer.finish_reason.as_str(),
        "seed": seed,
        "stats": {
            "load_ms": milliseconds(generator.load_time()),
            "prompt_tokens": answer.stats.prompt_tokens,
            "new_tokens": answer.stats.new_tokens,
            "time_to_first_token_ms": milliseconds(answer.stats.time_to_first_token),
            "tokens_per_second": answer.stats.generation_rate(),
            "weight_bytes": weights,
            "cache_bytes": cache,
            "resident_bytes": resident(),
        },
    })
}

/// The memory of this process that is in RAM, where the system says it.
fn resident() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    Some(text.split_whitespace().nth(1)?.parse::<u64>().ok()? * 4096)
}
