//! Tokenizers and detokenizers give what Transformers gives, from folders and from GGUF files, and answers end where they should.

use std::path::PathBuf;
use std::sync::OnceLock;

use max_pipelines::Folder;
use max_pipelines::text::tokenizer::TextTokenizer;
use max_weights::{Metadata, MetadataValue, load_weights};
use proptest::prelude::*;
use serde_json::Value;

fn folder(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/goldens/decoders")).join(name)
}

fn json(folder_name: &str, file: &str) -> Value {
    serde_json::from_slice(&std::fs::read(folder(folder_name).join(file)).unwrap()).unwrap()
}

fn load(name: &str) -> TextTokenizer {
    TextTokenizer::from_folder(&Folder::Path(folder(name))).unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

fn set(metadata: &mut Metadata, name: &str, value: impl Into<MetadataValue>) {
    metadata.insert(format!("tokenizer.ggml.{name}"), value.into());
}

/// The metadata that a GGUF file has in place of the `tokenizer.json` of one of the folders.
fn metadata(name: &str) -> Metadata {
    let tokenizer = json(name, "tokenizer.json");
    let vocab = tokenizer["model"]["vocab"].as_object().unwrap();
    let mut tokens = vec![String::new(); vocab.len()];
    for (token, id) in vocab {
        tokens[id.as_u64().unwrap() as usize] = token.clone();
    }
    let mut types = vec![1i32; tokens.len()];
    for added in tokenizer["added_tokens"].as_array().unwrap() {
        types[added["id"].as_u64().unwrap() as usize] = 3;
    }
    let merges = tokenizer["model"]["merges"].as_array().unwrap().iter();
    let merges: Vec<[&str; 2]> =
        merges.map(|pair| [pair[0].as_str().unwrap(), pair[1].as_str().unwrap()]).collect();
    let mut metadata = Metadata::new();
    match name {
        "llama2" => {
            types[0] = 2;
            types[3..259].fill(6);
            let rank = |token: &String| merges.iter().position(|pair| pair.concat() == *token);
            let score = |token: &String| rank(token).map_or(-1e6, |rank| -(rank as f32));
            set(&mut metadata, "model", "llama");
            set(&mut metadata, "scores", tokens.iter().map(score).collect::<Vec<f32>>());
            set(&mut metadata, "unknown_token_id", 0u32);
            set(&mut metadata, "bos_token_id", 1u32);
            set(&mut metadata, "eos_token_id", 2u32);
        }
        _ => {
            let merges = merges.iter().map(|pair| pair.join(" ")).collect::<Vec<String>>();
            set(&mut metadata, "model", "gpt2");
            set(&mut metadata, "pre", "llama-bpe");
            set(&mut metadata, "merges", merges);
            set(&mut metadata, "bos_token_id", 0u32);
            set(&mut metadata, "eos_token_id", 4u32);
        }
    }
    set(&mut metadata, "tokens", tokens);
    set(&mut metadata, "token_type", types);
    metadata
}

/// The tokenizer in one of the GGUF files.
fn gguf(file: &str) -> TextTokenizer {
    let path = folder("../gguf").join(file);
    TextTokenizer::from_gguf(load_weights(&[path]).unwrap().metadata()).unwrap()
}

/// Both tokenizers, from folders, from metadata, and from files that llama.cpp reads.
fn all() -> Vec<(&'static str, TextTokenizer)> {
    let made = |name| (name, TextTokenizer::from_gguf(&metadata(name)).unwrap());
    vec![
        ("llama2", load("llama2")),
        ("llama3", load("llama3")),
        made("llama2"),
        made("llama3"),
        ("llama2", gguf("llama2-f16.gguf")),
        ("llama3", gguf("llama3-q4_0.gguf")),
    ]
}

#[test]
fn texts_become_the_same_tokens_and_tokens_the_same_texts() {
    for (name, tokenizer) in all() {
        let goldens = json(name, "tokens.json");
        for record in goldens["texts"].as_array().unwrap() {
            let text = record["text"].as_str().unwrap();
            let tokens = ids(&record["ids"]);
            assert_eq!(tokenizer.encode(text, true).unwrap(), tokens, "{name}: {text:?}");
            let plain = tokenizer.encode(text, false).unwrap();
            assert_eq!(plain, ids(&record["ids_without_special"]), "{name}: {text:?}");
            assert_eq!(tokenizer.decode(&tokens, true), record["decoded"], "{name}: {text:?}");
            assert_eq!(tokenizer.decode(&tokens, false), record["decoded_with_special"], "{name}: {text:?}");
            // The goldens wait for the end of a token whose last character is not whole; a stream shows the others at once.
            let (mut stream, mut shown, mut expected) = (tokenizer.stream(), String::new(), String::new());
            for (&token, part) in tokens.iter().zip(record["stream"].as_array().unwrap()) {
                shown += &stream.push(token);
                expected += part.as_str().unwrap();
                assert!(shown.starts_with(&expected) && !shown.contains('\u{FFFD}'), "{name}: {text:?}");
                assert!(part == "" || shown == expected, "{name}: {text:?}: {shown:?}");
            }
            assert_eq!(shown, expected, "{name}: {text:?}");
            assert_eq!(stream.finish(), "");
        }
        for record in goldens["broken"].as_array().unwrap() {
            assert_eq!(tokenizer.decode(&ids(&record["ids"]), true), record["decoded"], "{name}");
        }
        for record in json(name, "generate.json")["generations"].as_array().unwrap() {
            assert_eq!(tokenizer.decode(&ids(&record["generated"]), true), record["text"], "{name}");
        }
    }
}

#[test]
fn what_begins_and_ends_texts() {
    let bos_and_ends = |tokenizer: &TextTokenizer| {
        let bos = tokenizer.bos().map(|(token, text)| (token, text.to_owned()));
        (tokenizer.vocab_size(), bos, tokenizer.eos_text().map(str::to_owned), tokenizer.ends().to_vec())
    };
    for (name, tokenizer) in all() {
        let expected = match name {
            "llama2" => (352, Some((1, "<s>".into())), Some("</s>".into()), vec![2]),
            _ => (384, Some((0, "<|begin_of_text|>".into())), Some("<|eot_id|>".into()), vec![1, 4]),
        };
        assert_eq!(bos_and_ends(&tokenizer), expected, "{name}");
        assert!(tokenizer.is_special(1) && !tokenizer.is_special(300) && !tokenizer.is_special(u32::MAX));
        assert_eq!((tokenizer.token_text(384), tokenizer.stream().push(u32::MAX)), (None, String::new()));
    }
    let template = std::fs::read_to_string(folder("llama2").join("chat_template.jinja")).unwrap();
    assert_eq!(load("llama2").chat_template(), Some(template.as_str()));
    let template = json("llama3", "tokenizer_config.json")["chat_template"].as_str().unwrap().to_owned();
    assert_eq!(load("llama3").chat_template(), Some(template.as_str()));
}

#[test]
fn chat_templates_in_metadata() {
    let mut metadata = metadata("llama3");
    metadata.insert("tokenizer.chat_template".into(), "one".into());
    metadata.insert("tokenizer.chat_template.tool_use".into(), "two".into());
    let tokenizer = TextTokenizer::from_gguf(&metadata).unwrap();
    assert_eq!(tokenizer.chat_template(), Some("one"));
    assert_eq!(tokenizer.named_chat_template("tool_use"), Some("two"));
    assert_eq!(tokenizer.chat_template_names().collect::<Vec<_>>(), ["default", "tool_use"]);
}

/// The error of metadata in which something was changed.
fn refused(name: &str, change: impl FnOnce(&mut Metadata)) -> String {
    let mut metadata = metadata(name);
    change(&mut metadata);
    TextTokenizer::from_gguf(&metadata).unwrap_err().to_string()
}

#[test]
fn corrupt_metadata_is_an_error_that_names_it() {
    let fields = [
        ("llama2", "tokens"),
        ("llama2", "token_type"),
        ("llama2", "scores"),
        ("llama2", "unknown_token_id"),
        ("llama2", "model"),
        ("llama2", "add_space_prefix"),
        ("llama3", "tokens"),
        ("llama3", "token_type"),
        ("llama3", "merges"),
        ("llama3", "pre"),
        ("llama3", "bos_token_id"),
        ("llama3", "eos_token_id"),
        ("llama3", "eot_token_id"),
        ("llama3", "add_bos_token"),
    ];
    for (name, field) in fields {
        let numbers = refused(name, |metadata| set(metadata, field, vec![7i32; 3]));
        assert!(numbers.contains(&format!("tokenizer.ggml.{field}")), "{field}: {numbers}");
        refused(name, |metadata| set(metadata, field, -1i32));
        refused(name, |metadata| set(metadata, field, f32::NAN));
        refused(name, |metadata| set(metadata, field, vec!["x".to_owned(), "x".to_owned()]));
        if ["tokens", "scores", "model", "merges"].contains(&field) {
            let missing = refused(name, |metadata| {
                metadata.remove(&format!("tokenizer.ggml.{field}"));
            });
            assert!(missing.contains(&format!("there is no tokenizer.ggml.{field}")), "{missing}");
        }
    }
    for merge in ["a", "a ", " a", "", "a zzzz", "zzzz a", "t \u{1F600}", &format!("a {}", "b".repeat(5000))]
    {
        let merges = vec![merge.to_owned()];
        refused("llama3", |metadata| set(metadata, "merges", merges));
    }
    let error = refused("llama3", |metadata| set(metadata, "bos_token_id", 384u32));
    assert!(error.contains("tokenizer.ggml.bos_token_id must be one of the 384 tokens"), "{error}");
    refused("llama3", |metadata| set(metadata, "eos_token_id", u64::MAX));
    refused("llama3", |metadata| set(metadata, "tokens", vec![String::from("same"); 384]));
    refused("llama2", |metadata| set(metadata, "tokens", Vec::<String>::new()));
    refused("llama2", |metadata| set(metadata, "scores", vec![f32::NAN; 352]));
    refused("llama2", |metadata| {
        let mut tokens: Vec<String> = (0..352).map(|index| format!("t{index}")).collect();
        tokens[351] = "a".repeat(1 << 20);
        set(metadata, "tokens", tokens);
    });
}

#[test]
fn user_defined_tokens_are_text_and_stay_whole() {
    for name in ["llama2", "llama3"] {
        let mut metadata = metadata(name);
        let value = metadata.get_mut("tokenizer.ggml.tokens").unwrap();
        let mut tokens = value.as_array().unwrap().as_strings().unwrap().to_vec();
        tokens.push("<tool call>".into());
        let last = tokens.len() as u32 - 1;
        *value = tokens.into();
        let mut types = vec![1i32; last as usize + 1];
        types[last as usize] = 4;
        set(&mut metadata, "token_type", types);
        if name == "llama2" {
            let scores = (0..=last).map(|id| -(id as f32)).collect::<Vec<f32>>();
            set(&mut metadata, "scores", scores);
        }
        let tokenizer = TextTokenizer::from_gguf(&metadata).unwrap();
        let tokens = tokenizer.encode("a<tool call>", false).unwrap();
        assert_eq!(tokens.last(), Some(&last), "{name}");
        assert!(!tokenizer.is_special(last));
        assert_eq!(tokenizer.decode(&tokens, true), "a<tool call>");
    }
}

#[test]
fn tokens_that_end_texts_are_special_whatever_a_file_calls_them() {
    for types in [Some(vec![1i32; 384]), Some(vec![4; 384]), None] {
        let mut metadata = metadata("llama3");
        metadata.remove("tokenizer.ggml.token_type");
        if let Some(types) = types {
            set(&mut metadata, "token_type", types);
        }
        set(&mut metadata, "eot_token_id", 3u8);
        let tokenizer = TextTokenizer::from_gguf(&metadata).unwrap();
        assert_eq!(tokenizer.ends(), [1, 3, 4]);
        assert_eq!(tokenizer.encode("a<|eot_id|>", true).unwrap(), [0, 69, 4]);
        assert_eq!(tokenizer.decode(&[69, 4, 3], true), "a");
    }
}

/// A folder with the tokenizer of `llama3` and other files beside it.
fn with_files(label: &str, files: &[(&str, &str)]) -> Result<TextTokenizer, String> {
    let path = std::env::temp_dir().join(format!("max-text-{label}-{}", std::process::id()));
    std::fs::create_dir_all(&path).unwrap();
    std::fs::copy(folder("llama3").join("tokenizer.json"), path.join("tokenizer.json")).unwrap();
    for (name, text) in files {
        std::fs::write(path.join(name), text).unwrap();
    }
    let loaded = TextTokenizer::from_folder(&Folder::Path(path.clone()));
    std::fs::remove_dir_all(&path).unwrap();
    loaded.map_err(|error| error.to_string())
}

#[test]
fn the_files_beside_a_tokenizer() {
    let tokenizer = with_files("none", &[]).unwrap();
    assert_eq!((tokenizer.bos(), tokenizer.eos_text(), tokenizer.ends()), (None, None, &[][..]));
    assert_eq!(tokenizer.chat_template(), None);

    let config = r#"{"bos_token": {"content": "<|begin_of_text|>"}, "eos_token": "<|eot_id|>", "add_bos_token": false,
        "add_eos_token": true,
        "chat_template": [{"name": "default", "template": "a"}, {"name": "rag", "template": "b"}]}"#;
    let files =
        [("tokenizer_config.json", config), ("config.json", r#"{"text_config": {"eos_token_id": [1, 3]}}"#)];
    let tokenizer = with_files("config", &files).unwrap();
    assert_eq!(tokenizer.bos(), Some((0, "<|begin_of_text|>")));
    assert_eq!(tokenizer.ends(), [1, 3, 4]);
    assert_eq!((tokenizer.chat_template(), tokenizer.named_chat_template("rag")), (Some("a"), Some("b")));
    assert_eq!(tokenizer.encode("a", true).unwrap(), [69, 4]);

    let generation = r#"{"bos_token_id": 0, "eos_token_id": [4, 1]}"#;
    let tokenizer = with_files("generation", &[("generation_config.json", generation)]).unwrap();
    assert_eq!((tokenizer.bos(), tokenizer.eos_text()), (Some((0, "<|begin_of_text|>")), Some("<|eot_id|>")));

    for (file, text, expected) in [
        ("tokenizer.json", "{}", "the tokenizer cannot be used"),
        ("tokenizer.json", "\u{0}\u{1}", "the tokenizer cannot be used"),
        ("tokenizer_config.json", r#"{"bos_token": "<none>"}"#, "no token of the vocabulary"),
        ("tokenizer_config.json", r#"{"eos_token": {"text": "x"}}"#, "'eos_token' in tokenizer_config.json"),
        ("tokenizer_config.json", r#"{"bos_token": "a", "add_bos_token": 7}"#, "'add_bos_token'"),
        ("tokenizer_config.json", r#"{"chat_template": 7}"#, "'chat_template'"),
        ("tokenizer_config.json", r#"{"chat_template": [{"name": "x"}]}"#, "'chat_template'"),
        ("generation_config.json", r#"{"eos_token_id": -1}"#, "'eos_token_id' in generation_config.json"),
        ("generation_config.json", r#"{"eos_token_id": [1, "x"]}"#, "'eos_token_id'"),
        ("generation_config.json", r#"{"eos_token_id": 384}"#, "token 384 ends a text"),
        ("config.json", r#"{"eos_token_id": 4294967296}"#, "'eos_token_id' in config.json"),
    ] {
        let error = with_files("wrong", &[(file, text)]).unwrap_err();
        assert!(error.contains(expected), "{file} {text}: {error}");
    }
}

/// What a stream makes of tokens.
fn streamed(tokenizer: &TextTokenizer, tokens: &[u32]) -> String {
    let mut stream = tokenizer.stream();
    let text: String = tokens.iter().map(|&token| stream.push(token)).collect();
    text + &stream.finish()
}

/// All tokenizers, each with what the library makes of its folder.
fn shared() -> &'static [(&'static str, TextTokenizer, tokenizers::Tokenizer)] {
    static SHARED: OnceLock<Vec<(&str, TextTokenizer, tokenizers::Tokenizer)>> = OnceLock::new();
    let library = |name: &str| tokenizers::Tokenizer::from_file(folder(name).join("tokenizer.json")).unwrap();
    SHARED
        .get_or_init(|| all().into_iter().map(|(name, tokenizer)| (name, tokenizer, library(name))).collect())
}

proptest! {
    #[test]
    fn decoding_is_the_librarys(tokens in prop::collection::vec(0u32..400, 0..40), special: bool) {
        for (name, tokenizer, library) in shared() {
            let expected = library.decode(&tokens, special).unwrap();
            prop_assert_eq!(tokenizer.decode(&tokens, special), expected, "{}", name);
        }
    }

    #[test]
    fn streams_of_bytes_are_the_text_decoded_at_once(tokens in prop::collection::vec(0u32..400, 0..60)) {
        let (_, tokenizer, _) = &shared()[1];
        prop_assert_eq!(streamed(tokenizer, &tokens), tokenizer.decode(&tokens, true));
    }

    #[test]
    fn streams_of_texts_are_the_text(text in any::<String>()) {
        for (name, tokenizer, library) in shared() {
            let tokens = tokenizer.encode(&text, true).unwrap();
            let expected = library.encode(text.as_str(), true).unwrap();
            prop_assert_eq!(&tokens, expected.get_ids(), "{}", name);
            prop_assert_eq!(streamed(tokenizer, &tokens), tokenizer.decode(&tokens, true), "{}", name);
        }
    }

    /// Tokens for bytes that are not UTF-8 together: what is whole before the mistake is shown, the rest is replaced.
    #[test]
    fn streams_with_bytes_to_fall_back_on(
        runs in prop::collection::vec((any::<String>(), prop::collection::vec(any::<u8>(), 0..4)), 0..6)
    ) {
        let (_, tokenizer, _) = &shared()[0];
        // A letter between the runs, without the mark of a space.
        let letter = (0..352).find(|&id| tokenizer.token_text(id).as_deref() == Some("b")).unwrap();
        let (mut tokens, mut expected) = (vec![letter], String::from("b"));
        for (text, wrong) in runs {
            let run = [text.as_bytes(), &wrong].concat();
            tokens.extend(run.iter().map(|&byte| u32::from(byte) + 3));
            tokens.push(letter);
            let whole = std::str::from_utf8(&run).map_or_else(|error| error.valid_up_to(), str::len);
            expected += std::str::from_utf8(&run[..whole]).unwrap();
            expected.extend(std::iter::repeat_n('\u{FFFD}', run.len() - whole));
            expected.push('b');
        }
        prop_assert_eq!(streamed(tokenizer, &tokens), expected);
    }

    #[test]
    fn any_text_comes_back(text in any::<String>()) {
        let (_, tokenizer, _) = &shared()[1];
        // Special tokens that are written out would be left out.
        prop_assume!(!text.contains("<|"));
        prop_assert_eq!(tokenizer.decode(&tokenizer.encode(&text, true).unwrap(), true), text);
    }
}
