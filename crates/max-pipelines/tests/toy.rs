//! The toy in the program says what it said, in every encoding, and predicts its stories. `UPDATE_EXPECT=1 cargo test -p
//! max-pipelines --test toy` rewrites the texts after it was trained anew.

use std::path::Path;

use expect_test::expect_file;
use max_core::{DType, QuantizationEncoding};
use max_pipelines::text::chat::ChatMessage;
use max_pipelines::text::sampling::SamplingParams;
use max_pipelines::{BOX, DecoderOptions, ModelFiles, Prompt, Stored, TextGenerator};
use max_weights::{WeightsFormat, load_weights};

fn heldout() -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/box/heldout.txt"))
        .unwrap()
}

/// The toy with matrices in some form.
fn toy(quantize: Option<Stored>, max_length: Option<usize>) -> TextGenerator {
    let options = DecoderOptions { quantize, max_length, ..DecoderOptions::default() };
    TextGenerator::from_files(&ModelFiles::Embedded(&BOX), &options, &mut |_, _| ()).unwrap()
}

const FORMS: [(&str, Stored); 8] = [
    ("float32", Stored::Floats(DType::Float32)),
    ("bfloat16", Stored::Floats(DType::BFloat16)),
    ("float16", Stored::Floats(DType::Float16)),
    ("q8_0", Stored::Blocks(QuantizationEncoding::Q8_0)),
    ("q6_k", Stored::Blocks(QuantizationEncoding::Q6_K)),
    ("q5_k", Stored::Blocks(QuantizationEncoding::Q5_K)),
    ("q4_k", Stored::Blocks(QuantizationEncoding::Q4_K)),
    ("q4_0", Stored::Blocks(QuantizationEncoding::Q4_0)),
];

#[test]
fn greedy_answers_stay_what_they_are() {
    let prompts = [
        Prompt::Text("Once upon a time".into()),
        Prompt::Text("One sunny morning, a little fox".into()),
        Prompt::Chat(vec![ChatMessage::new("user", "Tell me a story about a dragon.")]),
        Prompt::Chat(vec![ChatMessage::new("user", "What is 27 + 45?")]),
        Prompt::Chat(vec![ChatMessage::new("user", "What is max-rs?")]),
    ];
    let params = SamplingParams { max_new_tokens: Some(80), ..SamplingParams::greedy() };
    for (name, form) in FORMS {
        let generator = toy(Some(form), None);
        let answers = prompts.iter().map(|prompt| {
            let answer = generator.generate(prompt, &params).unwrap();
            format!("{prompt:?}\n{} ({})\n\n", answer.text, answer.finish_reason.as_str())
        });
        expect_file![format!("goldens/box/{name}.txt")].assert_eq(&answers.collect::<String>());
    }
}

#[test]
fn it_is_what_it_says() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/box/box.gguf");
    let weights = load_weights(&[&path]).unwrap();
    assert_eq!(weights.format(), WeightsFormat::Gguf);
    let parameters: usize = weights
        .names()
        .map(|name| {
            let info = weights.info(name).unwrap();
            let of_blocks = |encoding: QuantizationEncoding| {
                let block = encoding.block_parameters().unwrap();
                info.num_bytes / block.block_size * block.elements_per_block
            };
            info.quantization_encoding.map_or_else(|| info.shape.iter().product(), of_blocks)
        })
        .sum();
    let millions = format!("{:.1} million parameters", parameters as f64 / 1e6);
    assert!(BOX.about.contains(&millions), "{} has {millions}", BOX.about);
    let generator = TextGenerator::load_default().unwrap();
    assert!(generator.has_chat_template() && !generator.sampling().is_greedy());
    assert_eq!(generator.memory()[0], toy(Some(FORMS[3].1), None).memory()[0]);
}

#[test]
fn blocks_predict_nearly_as_well_as_floats() {
    let text = heldout();
    // Some stories are enough.
    let text = &text[..text.char_indices().nth(5_000).unwrap().0];
    let perplexity =
        |form: Stored| toy(Some(form), None).likelihood(text, None, &mut |_, _| Ok(())).unwrap().perplexity();
    let exact = perplexity(Stored::Floats(DType::Float32));
    assert!(exact > 1.0 && exact < 2.0, "{exact}");
    for (name, form) in FORMS {
        let found = perplexity(form);
        let most = if ["q4_0", "q4_k"].contains(&name) { 0.1 } else { 0.01 };
        assert!((found / exact - 1.0).abs() < most, "{name}: {found}, and {exact} in float32");
    }
}

#[test]
fn windows_cover_every_token_once() {
    let text = heldout();
    let text = &text[..text.char_indices().nth(400).unwrap().0];
    let whole = toy(None, None);
    let tokens = whole.tokenizer().encode(text, true).unwrap();
    // Token by token, as an answer would be computed.
    let params = |at: usize| SamplingParams {
        logit_bias: [(tokens[at], 1e6)].into(),
        logprobs: Some(0),
        max_new_tokens: Some(1),
        ignore_eos: true,
        ..SamplingParams::greedy()
    };
    let one = |from: usize, at: usize| {
        let prompt = [&tokens[..1], &tokens[from.max(1)..at]].concat();
        let answer = whole.generate(&Prompt::Tokens(prompt), &params(at)).unwrap();
        f64::from(answer.log_probabilities.unwrap().token_log_probabilities[0])
    };
    let alone: Vec<f64> = (1..tokens.len()).map(|at| one(0, at)).collect();
    assert_eq!(whole.likelihood(text, None, &mut |_, _| Ok(())).unwrap().log_probabilities, alone);
    for (window, stride) in [(16, None), (16, Some(15)), (16, Some(1)), (2, None), (33, Some(20))] {
        let generator = toy(None, Some(window));
        let mut told = Vec::new();
        let found = generator.likelihood(text, stride, &mut |done, all| {
            told.push(done);
            assert_eq!(all, tokens.len() - 1);
            Ok(())
        });
        let found = found.unwrap();
        let stride = stride.unwrap_or(window / 2);
        assert_eq!((found.window, found.stride), (window, stride));
        assert!(told.is_sorted() && told.last() == Some(&alone.len()));
        // The token at a place is new in the first window that reaches it.
        let from = |at: usize| (at + 1).saturating_sub(window).div_ceil(stride) * stride + 1;
        let expected: Vec<f64> = (1..tokens.len()).map(|at| one(from(at), at)).collect();
        assert_eq!(found.log_probabilities, expected, "{window} {stride}");
    }
}

#[test]
fn what_cannot_be_predicted_is_an_error() {
    let generator = toy(None, Some(16));
    let message =
        |text: &str, stride| generator.likelihood(text, stride, &mut |_, _| Ok(())).unwrap_err().to_string();
    assert!(message("", None).contains("a text of 0 tokens"));
    assert!(message("Once upon", Some(0)).contains("expected 1 to 15"));
    assert!(message("Once upon", Some(16)).contains("expected 1 to 15"));
    let tiny = toy(None, Some(1));
    let error = tiny.likelihood("Once upon", None, &mut |_, _| Ok(())).unwrap_err();
    assert!(error.message().contains("no room"), "{error}");
    let stopped =
        generator.likelihood("Once upon a time", None, &mut |_, _| max_core::bail!(runtime, "enough"));
    assert_eq!(stopped.unwrap_err().message(), "enough");
    assert_eq!(generator.likelihood("!", None, &mut |_, _| Ok(())).unwrap().log_probabilities.len(), 1);
}
