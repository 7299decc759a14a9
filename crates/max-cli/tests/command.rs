//! The command as a user runs it.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;

/// The command, without a cache of models and without a network.
fn max() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_max"));
    let cache = std::env::temp_dir().join("max-no-such-cache");
    command.env("HF_HUB_CACHE", cache).env("HF_HUB_OFFLINE", "1").stdin(Stdio::null());
    command
}

fn run(arguments: &[&str]) -> Output {
    max().args(arguments).output().unwrap()
}

/// What a successful command prints.
fn printed(arguments: &[&str]) -> String {
    let output = run(arguments);
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && complaint.is_empty(), "{arguments:?}: {complaint}");
    String::from_utf8(output.stdout).unwrap()
}

/// The exit status of a failing command and the one line that it complains with.
fn complaint(arguments: &[&str]) -> (i32, String) {
    let output = run(arguments);
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.stdout.is_empty() && !output.status.success(), "{arguments:?}");
    assert!(!text.contains("panicked"), "{text}");
    (output.status.code().unwrap(), text)
}

/// The one line with which a command fails that was called in the right way.
fn failure(arguments: &[&str]) -> String {
    let (status, text) = complaint(arguments);
    assert_eq!((status, text.lines().count()), (1, 1), "{text}");
    assert!(text.starts_with("max: "), "{text}");
    text
}

fn vectors(json: &str) -> Vec<Vec<f64>> {
    let json: Value = serde_json::from_str(json).unwrap();
    let rows = json["embeddings"].as_array().unwrap();
    rows.iter().map(|row| row.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()).collect()
}

fn golden(model: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../max-pipelines/tests/goldens/encoders").join(model)
}

/// A path in the folder for temporary files that no other test uses.
fn scratch(name: &str) -> PathBuf {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("max-command-{}-{number}-{name}", std::process::id()))
}

#[test]
fn the_built_in_encoder_needs_nothing() {
    let json =
        printed(&["encode", "--prompt", "The child is happy.", "-p", "The kid is glad.", "--output", "json"]);
    let vectors = vectors(&json);
    assert_eq!((vectors.len(), vectors[0].len()), (2, 192));
    let dot: f64 = vectors[0].iter().zip(&vectors[1]).map(|(a, b)| a * b).sum();
    assert!(dot > 0.5, "{dot}");
}

/// What a command that uses the toy prints, after it has said that it is one.
fn told(arguments: &[&str], input: &str) -> String {
    let mut child = max()
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{arguments:?}: {said}");
    assert!(
        said.starts_with("This is a toy of 7.3 million parameters") && said.contains("--model"),
        "{said}"
    );
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_built_in_toy_needs_nothing() {
    let story = ["generate", "--prompt", "Once upon a time", "--max-new-tokens", "30", "--seed", "1"];
    let text = told(&story, "");
    assert!(text.trim().len() > 20, "{text}");
    assert_eq!(text, told(&[&story[..], &["--threads", "1"]].concat(), ""));
    assert_ne!(text, told(&[&story[..], &["--temperature", "5"]].concat(), ""));
    let json = told(&[&story[..], &["--output", "json"]].concat(), "");
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((json["text"].as_str(), json["seed"].as_u64()), (Some(text.trim_end_matches('\n')), Some(1)));
    let greedy = ["--temperature", "0", "--max-new-tokens", "8"];
    let sum = told(&[&["generate", "--prompt", "What is 2 + 3?"][..], &greedy].concat(), "");
    let talk =
        told(&[&["generate", "--interactive"][..], &greedy].concat(), "What is 2 + 3?\n\n/exit\nnever\n");
    assert!(sum.contains('5') && talk == sum, "{sum}{talk}");
    // A conversation that is longer than the context goes on without its beginning.
    let short = ["generate", "--interactive", "--max-length", "48"];
    let answers = told(&[&short[..], &greedy].concat(), &"What is 2 + 3?\n".repeat(9));
    assert_eq!(answers.lines().count(), 9, "{answers}");
    // Nothing, and nothing but its beginning, can be answered too.
    told(&[&["generate", "--prompt", ""][..], &greedy].concat(), "");
    told(&[&["generate", "--prompt", "", "--no-chat-template"][..], &greedy].concat(), "");
    told(&[&["generate", "--prompt-file", "-"][..], &greedy].concat(), "Name three animals.");
    assert_eq!(told(&[&story[..4], &["0"]].concat(), ""), "\n");
}

/// `UPDATE_EXPECT=1` rewrites the story.
#[test]
fn the_readme_tells_what_the_toy_tells() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md");
    let readme = std::fs::read_to_string(&path).unwrap();
    let (_, rest) = readme.split_once("With `--seed 5` it is this one:\n\n```text\n").unwrap();
    let (shown, after) = rest.split_once("```").unwrap();
    let story = told(&["generate", "--prompt", "Once upon a time", "--seed", "5"], "");
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        let before = &readme[..readme.len() - rest.len()];
        std::fs::write(&path, format!("{before}{story}```{after}")).unwrap();
    } else {
        assert_eq!(shown, story);
    }
}

#[test]
fn prompts_that_do_not_fit_are_errors() {
    let long = "word ".repeat(3000);
    assert!(failure(&["generate", "--prompt", &long]).contains("the context has 1024 tokens"));
    let longest = ["generate", "--prompt", "Once upon a time", "--max-length"];
    assert!(failure(&[&longest[..], &["4"]].concat()).contains("the context has 4 tokens"));
    assert!(failure(&[&longest[..], &["0"]].concat()).contains("the context of the model has 1024"));
    assert!(failure(&[&longest[..], &["1025"]].concat()).contains("the context of the model has 1024"));
    assert!(failure(&["generate", "--prompt", "x", "--temperature", "-1"]).contains("temperature"));
    assert!(failure(&["generate", "--prompt", "x", "--temperature", "nan"]).contains("temperature"));
    assert!(failure(&["generate", "--prompt", "x", "--top-p", "1.5"]).contains("top_p"));
    assert!(failure(&["generate", "--prompt", "x", "--stop", ""]).contains("stop"));
    assert!(failure(&["generate", "--prompt", "x", "--devices", "gpu:60000"]).contains("gpu:60000"));
    assert!(failure(&["generate", "--prompt-file", "/no/such/file"]).contains("/no/such/file"));
    let stories = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/box");
    assert!(
        failure(&["generate", "--model", stories.to_str().unwrap(), "-p", "x"]).contains("no config.json")
    );
}

#[test]
fn perplexity_is_measured() {
    let path = scratch("text.txt");
    let file = path.to_str().unwrap();
    let story = "Once upon a time, there was a little fox named Mia. She lived in a forest. ";
    std::fs::write(&path, story).unwrap();
    let line = printed(&["perplexity", "--file", file]);
    assert!(line.starts_with("perplexity ") && line.contains("windows of 1024, every 512"), "{line}");
    let measured = |rest: &[&str]| -> Value {
        serde_json::from_str(&printed(&[&["perplexity", "-f", file, "--output", "json"], rest].concat()))
            .unwrap()
    };
    let whole = measured(&[]);
    let perplexity = whole["perplexity"].as_f64().unwrap();
    assert!(line.starts_with(&format!("perplexity {perplexity:.4} of {} tokens", whole["tokens"])), "{line}");
    let mean = -whole["log_likelihood"].as_f64().unwrap() / whole["tokens"].as_f64().unwrap();
    assert!((mean.exp() / perplexity - 1.0).abs() < 1e-9);
    let floats = measured(&["--quantize", "float32"])["perplexity"].as_f64().unwrap();
    assert!((floats / perplexity - 1.0).abs() < 0.02, "{floats} {perplexity}");
    let windows = measured(&["--max-length", "8", "--stride", "2"]);
    assert_eq!((&windows["window"], &windows["stride"]), (&Value::from(8), &Value::from(2)));
    assert!(windows["perplexity"].as_f64().unwrap() > perplexity);
    assert_eq!(windows["tokens"], whole["tokens"]);

    let fails = |rest: &[&str]| failure(&[&["perplexity", "--file", file], rest].concat());
    assert!(fails(&["--stride", "0"]).contains("the stride is 0; expected 1 to 1023"));
    assert!(fails(&["--max-length", "1"]).contains("no room"));
    assert!(fails(&["--model", "./nothing here"]).contains("there is no folder"));
    std::fs::write(&path, "").unwrap();
    assert!(fails(&[]).contains("is empty"));
    std::fs::write(&path, b"fine \xff").unwrap();
    assert!(fails(&[]).contains("is no UTF-8 text from byte 5 on"));
    std::fs::remove_file(&path).unwrap();
    assert!(fails(&[]).contains("cannot read"));
}

#[test]
fn formats_agree() {
    let model = golden("bert");
    let model = model.to_str().unwrap();
    let encode =
        |rest: &[&str]| run(&[&["encode", "--model", model, "-p", "The river", "-p", ""], rest].concat());
    let text = String::from_utf8(encode(&[]).stdout).unwrap();
    let lines: Vec<Vec<f64>> =
        text.lines().map(|line| line.split(' ').map(|x| x.parse().unwrap()).collect()).collect();
    let json = vectors(&String::from_utf8(encode(&["--output", "json"]).stdout).unwrap());
    assert_eq!(lines, json);
    let npy = encode(&["--output", "npy"]).stdout;
    let header = b"\x93NUMPY\x01\x00\x76\x00{'descr': '<f4', 'fortran_order': False, 'shape': (2, 48), }";
    assert!(npy.starts_with(header));
    let elements = npy[128..].chunks_exact(4).map(|x| f64::from(f32::from_le_bytes(x.try_into().unwrap())));
    assert!(elements.eq(json.iter().flatten().map(|&x| f64::from(x as f32))));
    assert_eq!(npy.len(), 128 + 2 * 48 * 4);
    for (name, expected) in
        [("v.npy", npy), ("v.json", encode(&["--output", "json"]).stdout), ("v", text.into())]
    {
        let path = scratch(name);
        let output = encode(&["--output-file", path.to_str().unwrap()]);
        assert!(output.status.success() && output.stdout.is_empty());
        assert_eq!(std::fs::read(&path).unwrap(), expected);
        std::fs::remove_file(&path).unwrap();
    }
}

#[test]
fn texts_come_from_files_and_from_standard_input() {
    let path = scratch("texts.txt");
    std::fs::write(&path, "One text.\r\n\nAnother one.\n").unwrap();
    let from_file = printed(&["encode", "--file", path.to_str().unwrap(), "--output", "json"]);
    let arguments = ["encode", "--file", "-", "--output", "json", "--threads", "1", "--batch-size", "1"];
    let mut child = max().args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(&std::fs::read(&path).unwrap()).unwrap();
    let from_input = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
    assert_eq!(from_file, from_input);
    assert_eq!(vectors(&from_file).len(), 3);
    let prompts = printed(&["encode", "-p", "One text.", "-p", "", "-p", "Another one.", "--output", "json"]);
    assert_eq!(from_file, prompts);
    std::fs::write(&path, b"fine\n\xff\xfe\n").unwrap();
    assert!(failure(&["encode", "--file", path.to_str().unwrap()]).contains("line 2"));
    std::fs::write(&path, "").unwrap();
    let nothing = printed(&["encode", "--file", path.to_str().unwrap(), "--output", "json"]);
    assert_eq!(nothing, "{\"embeddings\": []}\n");
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn wrong_command_lines_are_explained() {
    for (arguments, expected) in [
        (&["encode"][..], "--prompt"),
        (&["encode", "--prompt"], "--prompt"),
        (&["encode", "-p", "x", "--output", "xml"], "possible values: text, json, npy"),
        (&["encode", "-p", "x", "--threads", "0"], "--threads"),
        (&["encode", "-p", "x", "--devices", "tpu"], "expected cpu, gpu or gpu:NUMBER"),
        (&["encode", "-p", "x", "--dtype", "int8"], "expected float32, bfloat16 or float16"),
        (&["generate"], "--prompt"),
        (&["generate", "-p", "x", "--temperature", "hot"], "--temperature"),
        (&["generate", "-p", "x", "--max-new-tokens", "-3"], "-3"),
        (&["generate", "-p", "x", "--prompt-file", "y"], "cannot be used with"),
        (&["generate", "-i", "--output", "json"], "cannot be used with"),
        (&["generate", "-p", "x", "--quantize", "q3"], "'q3' is nothing that weights can be converted to"),
        (&["generate", "-p", "x", "--cache-dtype", "int8"], "there are float32, bfloat16, float16, q8_0"),
        (&["perplexity"], "--file"),
        (&["convert", "a", "b", "--to", "int3"], "'int3' is nothing that weights can be converted to"),
        (&["frobnicate"], "frobnicate"),
        (&["inspect"], "<FILE>"),
        (&[], "Usage: max <COMMAND>"),
    ] {
        let (status, text) = complaint(arguments);
        assert_eq!(status, 2, "{arguments:?}");
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn failures_are_one_line() {
    let folder = scratch("model");
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.to_str().unwrap();
    let fails = |expected: &str| {
        let text = failure(&["encode", "-p", "x", "--model", path]);
        assert!(text.contains(expected), "{text}");
    };
    fails("has no config.json");
    let put = |name: &str, text: &str| std::fs::write(folder.join(name), text).unwrap();
    put("config.json", "{");
    fails("config.json is not valid JSON");
    put("config.json", r#"{"architectures": ["T5Model"]}"#);
    fails("the architecture 'T5Model' is not known");
    put("config.json", r#"{"architectures": ["BertModel"], "vocab_size": "many"}"#);
    fails("'vocab_size' in config.json must be a number");
    let config = std::fs::read_to_string(golden("bert").join("config.json")).unwrap();
    put("config.json", &config);
    fails("has no weights");
    std::fs::copy(golden("mpnet").join("model.safetensors"), folder.join("model.safetensors")).unwrap();
    fails("Missing required weights");
    put("model.safetensors", "nonsense");
    fails("cannot load");
    std::fs::copy(golden("bert").join("model.safetensors"), folder.join("model.safetensors")).unwrap();
    fails("has no tokenizer.json");
    put("tokenizer.json", "{}");
    fails("tokenizer");
    put("config.json", &config.replace("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 2000000000"));
    fails("2000000000 layers");
    std::fs::remove_dir_all(&folder).unwrap();

    assert!(failure(&["encode", "-p", "x", "--model", "some/model"]).contains("HF_HUB_OFFLINE"));
    assert!(failure(&["encode", "-p", "x", "--model", "./nothing here"]).contains("there is no folder"));
    assert!(failure(&["encode", "-p", "x", "--devices", "gpu:60000"]).contains("gpu:60000"));
    assert!(failure(&["encode", "--file", "/no/such/file"]).contains("/no/such/file"));
    assert!(failure(&["encode", "-p", "x", "-o", "/no/such/folder/x.npy"]).contains("/no/such/folder"));
    assert!(failure(&["inspect", "/no/such/file.gguf"]).contains("/no/such/file.gguf"));
    assert!(failure(&["convert", "/no/such/file.gguf", "x.safetensors"]).contains("/no/such/file.gguf"));
}

#[test]
fn help_is_there() {
    let help = printed(&["--help"]);
    for command in ["generate", "encode", "perplexity", "list", "convert", "inspect", "completions"] {
        assert!(help.contains(command), "{help}");
        assert!(printed(&[command, "--help"]).contains("Usage: max"));
    }
    assert_eq!(printed(&["--version"]), format!("max {}\n", env!("CARGO_PKG_VERSION")));
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        assert!(printed(&["completions", shell]).contains("encode"), "{shell}");
    }
}

#[test]
fn what_there_is_is_listed() {
    let cache = scratch("cache");
    let snapshot = cache.join("models--some--model/snapshots/abc");
    std::fs::create_dir_all(&snapshot).unwrap();
    std::fs::create_dir_all(cache.join("models--some--model/refs")).unwrap();
    std::fs::write(cache.join("models--some--model/refs/main"), "abc").unwrap();
    for name in ["config.json", "tokenizer.json", "model.safetensors", "modules.json"] {
        std::fs::copy(golden("bert").join(name), snapshot.join(name)).unwrap();
    }
    std::fs::create_dir_all(snapshot.join("1_Pooling")).unwrap();
    std::fs::copy(golden("bert").join("1_Pooling/config.json"), snapshot.join("1_Pooling/config.json"))
        .unwrap();
    let with_cache = |arguments: &[&str]| {
        let output = max().args(arguments).env("HF_HUB_CACHE", &cache).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let list = with_cache(&["list"]);
    for expected in ["BertModel", "MPNetModel", "encoder", "box", "7.3 million parameters", "some/model"] {
        assert!(list.contains(expected), "{list}");
    }
    // A name is looked up in the cache, also offline.
    let encoded = with_cache(&["encode", "--model", "some/model", "-p", "x", "--output", "json"]);
    assert_eq!(vectors(&encoded)[0].len(), 48);
    std::fs::remove_dir_all(&cache).unwrap();
    assert!(printed(&["list"]).contains("none"));
}

#[test]
fn files_are_inspected_and_converted() {
    let source = golden("bert").join("model.safetensors");
    let source = source.to_str().unwrap();
    let text = printed(&["inspect", source]);
    assert!(
        text.contains("encoder.layer.0.attention.self.query.weight") && text.contains("[48, 48]"),
        "{text}"
    );
    let json: Value = serde_json::from_str(&printed(&["inspect", source, "--output", "json"])).unwrap();
    assert_eq!(json["kind"], "safetensors");
    let new = scratch("new.safetensors");
    let new = new.to_str().unwrap();
    let said = printed(&["convert", source, new, "--to", "bfloat16"]);
    assert!(said.contains("became"), "{said}");
    let halves = printed(&["inspect", new]);
    assert!(halves.contains("bfloat16") && halves.contains("float32"), "{halves}");
    std::fs::remove_file(new).unwrap();
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    let mut child = max()
        .args(["encode", "--file", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0; 1];
    let mut output = child.stdout.take().unwrap();
    child.stdin.take().unwrap().write_all("a text\n".repeat(2000).as_bytes()).unwrap();
    output.read_exact(&mut first).unwrap();
    drop(output);
    let ended = child.wait_with_output().unwrap();
    assert!(ended.status.success() && ended.stderr.is_empty(), "{}", String::from_utf8_lossy(&ended.stderr));
}
