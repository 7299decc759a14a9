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
    for command in ["encode", "list", "convert", "inspect", "completions"] {
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
    for expected in ["BertModel", "MPNetModel", "encoder", "some/model"] {
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
