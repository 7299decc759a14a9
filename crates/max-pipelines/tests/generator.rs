//! Text generation: the texts of Transformers, the logits of llama.cpp's files, and the same answer however it is asked for.

use std::path::{Path, PathBuf};

use max_core::DType;
use max_driver::CPU;
use max_pipelines::text::chat::ChatMessage;
use max_pipelines::text::sampling::SamplingParams;
use max_pipelines::{Cache, DecoderOptions, ModelFiles, Pages, Prompt, Step, Stored, TextGenerator};
use max_weights::load_weights;
use serde_json::Value;

fn goldens() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens")
}

fn read(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn tokens(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|token| token.as_u64().unwrap() as u32).collect()
}

fn load(path: &Path) -> TextGenerator {
    TextGenerator::load(
        path.to_str().unwrap(),
        &DecoderOptions { page_size: 16, ..DecoderOptions::default() },
    )
    .unwrap()
}

fn greedy(count: usize) -> SamplingParams {
    SamplingParams { max_new_tokens: Some(count), ignore_eos: true, ..SamplingParams::greedy() }
}

#[test]
fn texts_are_those_of_transformers() {
    // Transformers computed in float32; weights in bfloat16 would be multiplied by rounded inputs.
    let quantize = Some(Stored::Floats(DType::Float32));
    let options = DecoderOptions { quantize, page_size: 16, ..DecoderOptions::default() };
    for name in ["llama2", "llama3"] {
        let folder = goldens().join("decoders").join(name);
        let generator = TextGenerator::load(folder.to_str().unwrap(), &options).unwrap();
        for case in read(&folder.join("generate.json"))["generations"].as_array().unwrap() {
            let prompt = match case["prompt"].as_str() {
                Some(text) => Prompt::Text(text.into()),
                None => {
                    let message = |m: &Value| {
                        ChatMessage::new(m["role"].as_str().unwrap(), m["content"].as_str().unwrap())
                    };
                    Prompt::Chat(case["messages"].as_array().unwrap().iter().map(message).collect())
                }
            };
            assert_eq!(generator.tokens(&prompt).unwrap(), tokens(&case["ids"]), "{name} {prompt:?}");
            let expected = tokens(&case["generated"]);
            let answer = generator.generate(&prompt, &greedy(expected.len())).unwrap();
            assert_eq!(answer.tokens, expected, "{name} {prompt:?}");
            // A stream cannot know that bytes will not become valid text after those that are, as whole texts can.
            let text = case["text"].as_str().unwrap();
            assert!(
                answer.text == text || name == "llama2" && text.contains('\u{fffd}'),
                "{name} {prompt:?}"
            );
            assert_eq!(answer.finish_reason.as_str(), "length");
        }
    }
}

#[test]
fn gguf_files_are_as_exact_as_in_llama_cpp() {
    let folder = goldens().join("gguf");
    let arrays = load_weights(&[folder.join("goldens.safetensors")]).unwrap();
    let described = read(&folder.join("goldens.json"));
    for file in described["files"].as_array().unwrap() {
        let name = file["file"].as_str().unwrap();
        let stem = name.strip_suffix(".gguf").unwrap();
        let expected = arrays.get(&format!("{stem}.exact")).unwrap().data.to_vec::<f32>().unwrap();
        let model = ModelFiles::Gguf(folder.join(name)).open();
        let model = model.and_then(|opened| opened.load(&DecoderOptions::default(), &mut |_, _| ()));
        let model = model.unwrap_or_else(|error| panic!("{name}: {error}"));
        let prompt = tokens(&file["prompt"]);
        let mut cache = Cache::new(model.config(), model.cache_config(), &CPU()).unwrap();
        let mut pages = Pages::default();
        cache.reserve(&mut pages, prompt.len()).unwrap();
        let found = model.run_all(&cache, &mut [Step { tokens: &prompt, pages: &mut pages }]).unwrap();
        let found = found.to_vec::<f32>().unwrap();
        let found = &found[found.len() - expected.len()..];
        let errors: Vec<f64> = found.iter().zip(&expected).map(|(a, b)| f64::from((a - b).abs())).collect();
        let most = errors.iter().copied().fold(0.0, f64::max);
        let rms = (errors.iter().map(|error| error * error).sum::<f64>() / errors.len() as f64).sqrt();
        let bound = |key: &str| file["llama_cpp"][key].as_f64().unwrap() * 1.5;
        assert!(most <= bound("max") && rms <= bound("rms"), "{name}: {most} {rms} of {}", file["llama_cpp"]);
    }
}

#[test]
fn an_answer_does_not_depend_on_how_it_is_asked_for() {
    let generator = load(&goldens().join("decoders/llama3"));
    let params = |seed| SamplingParams {
        temperature: 1.0,
        top_k: 40,
        seed: Some(seed),
        max_new_tokens: Some(24),
        ignore_eos: true,
        ..SamplingParams::default()
    };
    let texts = ["The river is wide", "a", "Where does the old road lead, and who goes there?"];
    let prompts: Vec<_> = texts
        .iter()
        .enumerate()
        .map(|(at, text)| (Prompt::Text((*text).into()), params(at as u64)))
        .collect();
    let alone: Vec<_> =
        prompts.iter().map(|(prompt, params)| generator.generate(prompt, params).unwrap().tokens).collect();
    let together = generator.generate_batch(&prompts).unwrap();
    assert_eq!(alone, together.into_iter().map(|answer| answer.tokens).collect::<Vec<_>>());
    assert_ne!(alone[0], generator.generate(&prompts[0].0, &params(77)).unwrap().tokens);
    let mut conversation = generator.conversation();
    for (number, (prompt, params)) in prompts.iter().enumerate() {
        // The first part of a prompt that was read before is not read again.
        for again in 0..2 {
            let mut stream = conversation.stream(prompt, params).unwrap();
            let pieces: String = stream.by_ref().map(|piece| piece.unwrap().text).collect();
            let answer = stream.answer().unwrap();
            assert_eq!((answer.tokens, answer.text), (alone[number].clone(), pieces));
            assert!(again == 0 || answer.stats.cached_tokens > 0);
        }
    }
}

#[test]
fn answers_can_be_stopped_and_the_next_one_works() {
    let options = DecoderOptions {
        page_size: 16,
        cache_tokens: Some(64),
        max_length: Some(64),
        ..DecoderOptions::default()
    };
    let folder = goldens().join("decoders/llama3");
    let generator = TextGenerator::load(folder.to_str().unwrap(), &options).unwrap();
    let prompt = Prompt::Text("The river is wide".into());
    let whole = generator.generate(&prompt, &greedy(20)).unwrap();
    let mut stream = generator.stream(&prompt, &greedy(20)).unwrap();
    for _ in 0..3 {
        stream.next().unwrap().unwrap();
    }
    stream.cancel();
    assert!(stream.next().is_none());
    let answer = stream.answer().unwrap();
    assert_eq!((answer.finish_reason.as_str(), &answer.tokens[..]), ("cancelled", &whole.tokens[..3]));
    // Two answers of 40 tokens do not fit a cache of 64.
    let mut first = generator.stream(&prompt, &greedy(40)).unwrap();
    let mut second = generator.stream(&prompt, &greedy(40)).unwrap();
    let failed =
        (0..40).find_map(|_| first.next().and_then(Result::err).or(second.next().and_then(Result::err)));
    assert!(failed.unwrap().to_string().contains("the cache is full"));
    drop((first, second));
    assert_eq!(generator.generate(&prompt, &greedy(20)).unwrap().tokens, whole.tokens);
    // The context ends an answer.
    let long = generator.generate(&prompt, &greedy(1000)).unwrap();
    assert_eq!(long.tokens.len() + long.stats.prompt_tokens, 64);
    let message = |prompt: Prompt| generator.generate(&prompt, &greedy(1)).unwrap_err().to_string();
    assert!(message(Prompt::Text("river ".repeat(100))).contains("leaves no room"));
    assert!(message(Prompt::Tokens(vec![])).contains("empty"));
    assert!(message(Prompt::Tokens(vec![1 << 20])).contains("there is no token"));
    assert_eq!(generator.generate(&prompt, &greedy(20)).unwrap().tokens, whole.tokens);
}

#[test]
fn broken_models_are_errors() {
    let source = goldens().join("decoders/llama3");
    let folder = std::env::temp_dir().join(format!("max-broken-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let copy = |name: &str| std::fs::copy(source.join(name), folder.join(name)).unwrap();
    for name in ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        copy(name);
    }
    let load = || TextGenerator::load(folder.to_str().unwrap(), &DecoderOptions::default()).map(|_| ());
    load().unwrap();
    let layers = r#"{"architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 384,
        "intermediate_size": 8, "num_hidden_layers": 2147483647}"#;
    for (file, text) in [
        ("config.json", layers),
        ("tokenizer.json", "{\"model\": 3}"),
        ("tokenizer.json", ""),
        ("config.json", "{\"architectures\": [\"Unheard\"]}"),
        ("config.json", "{\"architectures\": [\"LlamaForCausalLM\"], \"hidden_size\": -1}"),
        ("tokenizer_config.json", "{\"chat_template\": 3}"),
        ("tokenizer_config.json", "{\"pad_token\": {}}"),
        ("model.safetensors", "x"),
    ] {
        std::fs::write(folder.join(file), text).unwrap();
        assert!(load().is_err(), "{file} with {text:?}");
        copy(file);
    }
    load().unwrap();
    std::fs::remove_dir_all(folder).unwrap();
    assert!(TextGenerator::load("/no/such/model.gguf", &DecoderOptions::default()).is_err());
}
