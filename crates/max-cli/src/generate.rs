//! `max generate`: texts that go on, and conversations.

use std::io::{self, BufRead, IsTerminal, Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use max_core::{Error, Result};
use max_pipelines::text::chat::ChatMessage;
use max_pipelines::text::sampling::SamplingParams;
use max_pipelines::{
    Answer, AnswerStats, AnswerStream, BOX, DecoderOptions, ModelFiles, Prompt, Stored, TextGenerator,
};
use max_weights::Target;
use serde_json::json;

use crate::arguments::{AnswerFormat, Generate, LoadFormat};
use crate::progress::{Bar, downloads};
use crate::{Outcome, say};

/// The most tokens of an answer if nothing is said.
const USUAL_ANSWER: usize = 512;

pub fn run(arguments: &Generate, output: &mut dyn Write) -> Outcome {
    // What is wrong on the command line is said before a model is looked for.
    params(arguments, &SamplingParams::greedy()).validate()?;
    let prompt = match (&arguments.prompt, &arguments.prompt_file) {
        (Some(prompt), _) => Some(prompt.clone()),
        (None, Some(file)) => Some(text_of(file)?),
        (None, None) => None,
    };
    let generator = load(arguments)?;
    let params = params(arguments, generator.sampling());
    let stopped = Arc::new(AtomicBool::new(false));
    let flag = stopped.clone();
    // A second Ctrl-C, while nothing notices the first, ends the program.
    let handler = move || {
        if flag.swap(true, Ordering::SeqCst) {
            std::process::exit(130);
        }
    };
    ctrlc::set_handler(handler).map_err(|error| Error::runtime(format!("cannot handle Ctrl-C: {error}")))?;
    if arguments.interactive {
        return converse(&generator, arguments, &params, prompt, &stopped, output);
    }
    let prompt = prompt.unwrap_or_default();
    let prompt = match uses_chat(&generator, arguments) {
        true => Prompt::Chat(messages(arguments, &prompt)),
        false => Prompt::Text(prompt),
    };
    let stream = generator.stream(&prompt, &params)?;
    let seed = stream.seed();
    match arguments.output {
        AnswerFormat::Text => {
            let answer = show(stream, &stopped, output)?;
            writeln!(output)?;
            output.flush()?;
            if arguments.stats {
                report(&generator, &answer.stats);
            }
        }
        AnswerFormat::Json => {
            let answer = show(stream, &stopped, &mut io::sink())?;
            writeln!(output, "{}", described(&generator, &answer, seed))?;
        }
    }
    Ok(())
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

fn load(arguments: &Generate) -> Result<TextGenerator> {
    let options = DecoderOptions {
        device: arguments.machine.device()?,
        threads: arguments.machine.threads.map(usize::from),
        max_length: arguments.max_length,
        cache_dtype: arguments.cache_dtype,
        quantize: arguments.quantize.map(|target| match target {
            Target::DType(dtype) => Stored::Floats(dtype),
            Target::Encoding(encoding) => Stored::Blocks(encoding),
        }),
        dummy: arguments.load_format == LoadFormat::Dummy,
        ..DecoderOptions::default()
    };
    let files = match &arguments.model {
        Some(model) => ModelFiles::find(model, &downloads())?,
        None => {
            let about = BOX.about;
            say(&format!(
                "This is {about}.\nFor a real model: --model with a GGUF file, a folder or a name.\n\n"
            ));
            ModelFiles::Embedded(&BOX)
        }
    };
    let mut bar = None;
    let generator = TextGenerator::from_files(&files, &options, &mut |done, all| {
        bar.get_or_insert_with(|| Bar::of_items(all)).set(done as u64);
    })?;
    if let Some(bar) = bar {
        bar.clear();
    }
    Ok(generator)
}

/// The contents of a file, or of standard input.
fn text_of(file: &Path) -> Result<String> {
    let mut text = String::new();
    let (name, read) = match file == Path::new("-") {
        true => ("standard input".to_string(), io::stdin().lock().read_to_string(&mut text).map(|_| ())),
        false => (file.display().to_string(), std::fs::read_to_string(file).map(|read| text = read)),
    };
    read.map_err(|error| Error::runtime(format!("cannot read {name}: {error}")))?;
    Ok(text)
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
fn show(
    mut stream: AnswerStream,
    stopped: &AtomicBool,
    output: &mut dyn Write,
) -> std::result::Result<Answer, crate::Failure> {
    stopped.store(false, Ordering::SeqCst);
    while let Some(piece) = stream.next() {
        output.write_all(piece?.text.as_bytes())?;
        if stopped.swap(false, Ordering::SeqCst) {
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
    stopped: &AtomicBool,
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
            .and_then(|stream| show(stream, stopped, output));
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
