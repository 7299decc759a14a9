//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use max_core::{DType, Result};
use max_driver::{Device, DeviceSpec, load_devices};
use max_weights::Target;

/// Run models on CPUs and GPUs.
#[derive(Debug, Parser)]
#[command(
    name = "max",
    version,
    subcommand_required = true,
    arg_required_else_help = true,
    after_help = "\
Examples:
  max generate --prompt \"Once upon a time\"
  max generate --model model.gguf --prompt \"Why is the sky blue?\"
  max generate --model Qwen/Qwen2.5-0.5B-Instruct --interactive
  max encode --prompt \"The child is happy.\" --prompt \"The kid is glad.\"
  max encode --model sentence-transformers/all-MiniLM-L6-v2 --file texts.txt --output json
  max inspect model.safetensors

`max help COMMAND` says more about a command."
)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Continue a text, or answer in a conversation
    Generate(Box<Generate>),
    /// Turn texts into vectors: similar texts have similar vectors
    Encode(Encode),
    /// Measure how well a model predicts a text
    Perplexity(Perplexity),
    /// List architectures, built-in models, and models in the local cache
    List,
    /// Convert weights to another format, dtype or quantization
    Convert(Convert),
    /// Show what is in a file of weights or in a saved graph
    Inspect(Inspect),
    /// Print a script with which a shell completes commands
    Completions {
        /// The shell
        shell: Shell,
    },
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  max encode --prompt \"The child is happy.\"
  max encode --prompt \"The child is happy.\" --prompt \"The kid is glad.\" --output json
  max encode --file texts.txt --output npy > vectors.npy
  max encode --model ./all-MiniLM-L6-v2 --file - < texts.txt

A model that is given by name comes from the local cache of the Hugging Face hub (HF_HOME, HF_HUB_CACHE). If it is not there,
it is downloaded (HF_ENDPOINT; HF_TOKEN for models that are not public), unless HF_HUB_OFFLINE=1.")]
pub struct Encode {
    /// A folder with a model, or a name like organization/name; without it, the built-in encoder
    #[arg(short, long, value_name = "PATH|NAME")]
    pub model: Option<String>,
    /// A text; can be given several times
    #[arg(short, long, value_name = "TEXT", required_unless_present = "file")]
    pub prompt: Vec<String>,
    /// A file with a text on each line; - is standard input
    #[arg(short, long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// The format of the result [default: the ending of the output file's name, or text]
    #[arg(long, value_name = "FORMAT")]
    pub output: Option<Format>,
    /// A file for the result, instead of standard output
    #[arg(short, long, value_name = "FILE")]
    pub output_file: Option<PathBuf>,
    /// The dtype to compute in: float32, bfloat16 or float16 [default: float32 on a CPU, the model's own on a GPU]
    #[arg(long, value_name = "DTYPE", value_parser = float)]
    pub dtype: Option<DType>,
    /// The most texts that run together
    #[arg(long, value_name = "COUNT", default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..))]
    pub batch_size: u16,
    #[command(flatten)]
    pub machine: Machine,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  max generate --prompt \"Once upon a time\"
  max generate --interactive
  max generate --model model.gguf --prompt \"Why is the sky blue?\" --stats
  max generate --model ./Llama-3.2-1B --prompt \"Once upon a time\" --no-chat-template --max-new-tokens 100
  max generate --model ./Qwen2.5-0.5B-Instruct --quantize q8_0 --interactive

A prompt is a message of a conversation if the model has a chat template. In a conversation, Ctrl-C stops an answer, and /exit or
the end of the input ends it. Where a model that is given by name comes from: see `max help encode`.")]
pub struct Generate {
    /// A GGUF file, a folder with a model, or a name like organization/name; without it, the built-in toy
    #[arg(short, long, value_name = "PATH|NAME")]
    pub model: Option<String>,
    /// What to continue or to answer
    #[arg(short, long, value_name = "TEXT", required_unless_present_any = ["interactive", "prompt_file"])]
    pub prompt: Option<String>,
    /// A file with the prompt; - is standard input
    #[arg(long, value_name = "FILE", conflicts_with = "prompt")]
    pub prompt_file: Option<PathBuf>,
    /// What the model is told before the conversation
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// Talk with the model, line by line
    #[arg(short, long, conflicts_with = "output")]
    pub interactive: bool,
    /// The most tokens of an answer [default: what the context has room for, at most 512]
    #[arg(long, value_name = "COUNT")]
    pub max_new_tokens: Option<usize>,
    /// The least tokens of an answer
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    pub min_new_tokens: usize,
    /// How random the answer is; 0 always takes the most probable token [default: what the model suggests, or 0]
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
    pub temperature: Option<f32>,
    /// How many of the most probable tokens are considered [default: what the model suggests, or -1 for 255]
    #[arg(long, value_name = "COUNT", allow_negative_numbers = true)]
    pub top_k: Option<i64>,
    /// The probability that the considered tokens have together [default: what the model suggests, or 1]
    #[arg(long, value_name = "SHARE", allow_negative_numbers = true)]
    pub top_p: Option<f32>,
    /// The least probability of a token, as a share of that of the most probable one [default: what the model suggests, or 0]
    #[arg(long, value_name = "SHARE", allow_negative_numbers = true)]
    pub min_p: Option<f32>,
    /// What is subtracted from a token's logit for each time it is in the answer
    #[arg(long, value_name = "NUMBER", default_value_t = 0.0, allow_negative_numbers = true)]
    pub frequency_penalty: f32,
    /// What is subtracted from a token's logit if it is in the answer
    #[arg(long, value_name = "NUMBER", default_value_t = 0.0, allow_negative_numbers = true)]
    pub presence_penalty: f32,
    /// What the logits of tokens in the prompt or the answer are divided by [default: what the model suggests, or 1]
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
    pub repetition_penalty: Option<f32>,
    /// Go on after a token that ends a text
    #[arg(long)]
    pub ignore_eos: bool,
    /// A text that ends the answer; can be given several times
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,
    /// A token that ends the answer; can be given several times, or with commas
    #[arg(long, value_name = "TOKEN", value_delimiter = ',')]
    pub stop_token_ids: Vec<u32>,
    /// The seed of random numbers [default: another one each time]
    #[arg(long, value_name = "NUMBER")]
    pub seed: Option<u64>,
    /// Give the model the prompt as it is
    #[arg(long)]
    pub no_chat_template: bool,
    /// The format of the answer
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub output: AnswerFormat,
    /// Say how long it took, and how much memory
    #[arg(long)]
    pub stats: bool,
    /// Where weights come from
    #[arg(long, value_name = "FORMAT", default_value = "auto")]
    pub load_format: LoadFormat,
    #[command(flatten)]
    pub loading: Loading,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  max perplexity --file text.txt
  max perplexity --model ./Llama-3.2-1B --file text.txt --quantize q4_k
  max perplexity --model model.gguf --file text.txt --stride 256 --output json

A text that is longer than the context is read in windows. Each begins a stride after the one before it, and only tokens that are
new in it count, so that every token counts once and has at least the rest of a window before it. A small stride is slower, and
gives every token more to go by.")]
pub struct Perplexity {
    /// A GGUF file, a folder with a model, or a name like organization/name; without it, the built-in toy
    #[arg(short, long, value_name = "PATH|NAME")]
    pub model: Option<String>,
    /// A file with the text; - is standard input
    #[arg(short, long, value_name = "FILE")]
    pub file: PathBuf,
    /// How many tokens after the one before a window begins [default: half a window]
    #[arg(long, value_name = "COUNT")]
    pub stride: Option<usize>,
    /// The format of the result
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub output: ScoreFormat,
    #[command(flatten)]
    pub loading: Loading,
}

/// How a perplexity is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ScoreFormat {
    /// A line
    Text,
    /// {"perplexity": ..., "tokens": ..., "window": ..., ...}
    Json,
}

/// How a model that generates text is loaded.
#[derive(Args, Debug)]
pub struct Loading {
    /// Convert matrices when they are loaded: bfloat16, float16, q8_0, q4_0, q4_k, q5_k or q6_k
    #[arg(long, value_name = "DTYPE|ENCODING", value_parser = |name: &str| name.parse::<Target>().map_err(|e| e.message().to_string()))]
    pub quantize: Option<Target>,
    /// The elements of the cache: float32, bfloat16, float16 or q8_0; by default what fits the weights and the device
    #[arg(long, value_name = "DTYPE", value_parser = cache_dtype)]
    pub cache_dtype: Option<DType>,
    /// The most tokens of a sequence: prompt and answer together, or a window [default: the model's context, at most 8192]
    #[arg(long, value_name = "COUNT")]
    pub max_length: Option<usize>,
    #[command(flatten)]
    pub machine: Machine,
}

/// How an answer is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AnswerFormat {
    /// The text, as it is generated
    Text,
    /// {"text": ..., "tokens": [...], "finish_reason": ..., "stats": {...}}
    Json,
}

/// Where weights come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LoadFormat {
    /// The files of the model
    Auto,
    /// Nowhere: they mean nothing, and the model is only good for measuring
    Dummy,
}

/// How vectors are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// A line of numbers for each text; on a terminal the first ones only, and how similar the texts are
    Text,
    /// {"embeddings": [[...], ...]}
    Json,
    /// A float32 array in NumPy's format
    Npy,
}

/// What a model runs on.
#[derive(Args, Debug)]
pub struct Machine {
    /// Where to run: cpu, gpu or gpu:NUMBER
    #[arg(long, value_name = "DEVICE", default_value = "cpu", value_parser = device)]
    pub devices: DeviceSpec,
    /// The number of threads [default: one per core]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..))]
    pub threads: Option<u16>,
}

impl Machine {
    /// The device, if the machine has it.
    pub fn device(&self) -> Result<Device> {
        Ok(load_devices(&[self.devices])?.swap_remove(0))
    }
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  max convert pytorch_model.bin model.safetensors
  max convert model.safetensors model.gguf --to q8_0
  max convert model.safetensors.index.json model.gguf --to q4_k

Vectors, which are small and sensitive, and integers stay as they are.")]
pub struct Convert {
    /// Files of weights: .safetensors, .gguf, .bin, .pt or .pth, or an index of such files
    #[arg(value_name = "FILE", required = true)]
    pub inputs: Vec<PathBuf>,
    /// The new file: .safetensors or .gguf
    #[arg(value_name = "NEW_FILE")]
    pub output: PathBuf,
    /// What matrices become: a float dtype, such as bfloat16, or an encoding, such as q8_0 or q4_k
    #[arg(long, value_name = "DTYPE|ENCODING", value_parser = |name: &str| name.parse::<Target>().map_err(|e| e.message().to_string()))]
    pub to: Option<Target>,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  max inspect model.safetensors
  max inspect model.gguf --output json")]
pub struct Inspect {
    /// A file of weights, an index of such files, or a saved graph
    pub file: PathBuf,
    /// The format of the description
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub output: Description,
}

/// How a file is described.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Description {
    /// A table
    Text,
    /// One object with everything, long lists of metadata included
    Json,
}

/// A device by its name.
fn device(name: &str) -> Result<DeviceSpec, &'static str> {
    let number = |text: &str| text.parse::<u16>().ok().map(i32::from);
    match name.split_once(':') {
        None if name == "cpu" => Ok(DeviceSpec::cpu(-1)),
        None if name == "gpu" => Ok(DeviceSpec::accelerator(0)),
        Some(("gpu", id)) => number(id).map(DeviceSpec::accelerator).ok_or("expected a number after gpu:"),
        _ => Err("expected cpu, gpu or gpu:NUMBER"),
    }
}

/// A dtype that models can be computed in.
fn float(name: &str) -> Result<DType, &'static str> {
    match name {
        "float32" | "f32" => Ok(DType::Float32),
        "bfloat16" | "bf16" => Ok(DType::BFloat16),
        "float16" | "f16" => Ok(DType::Float16),
        _ => Err("expected float32, bfloat16 or float16"),
    }
}

fn cache_dtype(name: &str) -> std::result::Result<DType, String> {
    let known = max_pipelines::CACHE_DTYPES.iter();
    match known.clone().find(|(own, _)| *own == name) {
        Some((_, dtype)) => Ok(*dtype),
        None => Err(format!("there are {}", known.map(|(name, _)| *name).collect::<Vec<_>>().join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn devices_have_names() {
        assert_eq!(device("cpu"), Ok(DeviceSpec::cpu(-1)));
        assert_eq!(device("gpu"), device("gpu:0"));
        assert_eq!(device("gpu:3"), Ok(DeviceSpec::accelerator(3)));
        for wrong in ["", "CPU", "cpu:0", "gpu:", "gpu:-1", "gpu:99999", "tpu"] {
            assert!(device(wrong).is_err(), "{wrong}");
        }
    }
}
