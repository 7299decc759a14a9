//! Tiny decoders of every architecture give the logits of Transformers, prompt at once, token by token, and in company.

use std::io::Write;
use std::path::{Path, PathBuf};

use max_core::DType;
use max_driver::{CPU, Device};
use max_pipelines::text::sampling::{Logits, Wanted};
use max_pipelines::{Cache, DecoderModel, DecoderOptions, Folder, ModelFiles, Pages, Step, Stored};
use max_weights::load_weights;
use serde_json::Value;

fn goldens() -> PathBuf {
    std::env::var("MAX_GOLDENS")
        .map_or_else(|_| Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/decoders"), PathBuf::from)
}

/// What Transformers computes for a prompt.
struct Case {
    name: String,
    prompt: Vec<u32>,
    generated: Vec<u32>,
    logits: Vec<f32>,
}

fn cases(folder: &Path) -> Vec<Case> {
    let text = std::fs::read(folder.join("goldens.json")).unwrap();
    let described: Value = serde_json::from_slice(&text).unwrap();
    let arrays = load_weights(&[folder.join("goldens.safetensors")]).unwrap();
    let tokens = |value: &Value| -> Vec<u32> {
        value.as_array().unwrap().iter().map(|token| token.as_u64().unwrap() as u32).collect()
    };
    let read = |case: &Value| {
        let name = case["name"].as_str().unwrap().to_string();
        let logits = arrays.get(&format!("{name}.logits")).unwrap().data.to_vec::<f32>().unwrap();
        Case { name, prompt: tokens(&case["prompt"]), generated: tokens(&case["generated"]), logits }
    };
    described["cases"].as_array().unwrap().iter().map(read).collect()
}

fn load(folder: &Path, options: &DecoderOptions) -> DecoderModel {
    let files = ModelFiles::Folder(Folder::Path(folder.into()));
    files.open().and_then(|opened| opened.load(options, &mut |_, _| ())).unwrap()
}

/// Small pages, so that sequences have several.
fn options() -> DecoderOptions {
    DecoderOptions { page_size: 16, cache_tokens: Some(1024), ..DecoderOptions::default() }
}

/// Compares rows of logits; the greatest difference.
fn worst(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    found
        .iter()
        .zip(expected)
        .map(|(a, b)| if a.is_finite() { (a - b).abs() } else { f32::INFINITY })
        .fold(0.0, f32::max)
}

fn greatest(row: &[f32]) -> u32 {
    let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    row.iter().position(|&x| x == most).unwrap() as u32
}

/// Runs the cases of a folder on a device: the prompt at once with all logits, then token by token.
fn check(folder: &Path, device: &Device, tolerance: f32) {
    // What is scaled with the length has no longest one.
    let max_length = folder.ends_with("llama-dynamic").then_some(128);
    // A GPU would compute with 16-bit weights in 16 bits.
    let quantize = Some(Stored::Floats(DType::Float32));
    let model = load(folder, &DecoderOptions { max_length, device: device.clone(), quantize, ..options() });
    let vocab = model.config().vocab_size;
    for case in cases(folder) {
        let name = format!("{} {}", folder.display(), case.name);
        let all = [&case.prompt[..], &case.generated].concat();
        let mut cache = Cache::new(model.config(), model.cache_config(), device).unwrap();
        let mut pages = Pages::default();
        cache.reserve(&mut pages, all.len()).unwrap();
        let mut found = model
            .run_all(&cache, &mut [Step { tokens: &case.prompt, pages: &mut pages }])
            .unwrap()
            .to_vec::<f32>()
            .unwrap();
        for (at, token) in case.generated.iter().enumerate() {
            assert_eq!(greatest(&found[found.len() - vocab..]), *token, "token {at} of {name}");
            let length = case.prompt.len() + at + 1;
            let logits = match model.config().reread_at(length) {
                true => {
                    pages = Pages::default();
                    cache = Cache::new(model.config(), model.cache_config(), device).unwrap();
                    cache.reserve(&mut pages, all.len()).unwrap();
                    model.run(&cache, &mut [Step { tokens: &all[..length], pages: &mut pages }])
                }
                false => model.run(&cache, &mut [Step { tokens: &[*token], pages: &mut pages }]),
            };
            found.extend(logits.unwrap().to_vec::<f32>().unwrap());
        }
        let worst = worst(&found, &case.logits);
        assert!(worst < tolerance, "{worst} for {name}");
    }
}

/// Checks every architecture on a device.
fn check_all(device: &Device, tolerance: f32) {
    let mut folders: Vec<PathBuf> = goldens()
        .read_dir()
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.join("goldens.json").exists())
        .collect();
    folders.sort();
    assert!(folders.len() >= 19, "{folders:?}");
    let fails = |folder: &&PathBuf| std::panic::catch_unwind(|| check(folder, device, tolerance)).is_err();
    let failed: Vec<_> = folders.iter().filter(fails).collect();
    assert!(failed.is_empty(), "{failed:?}");
}

#[test]
fn every_architecture_gives_the_logits_of_transformers() {
    check_all(&CPU(), 1e-4);
}

#[test]
fn every_architecture_gives_the_same_tokens_on_a_gpu() {
    match Device::accelerator(None) {
        Ok(device) => check_all(&device, 1e-3),
        Err(why) => {
            // Not eprintln!, whose output tests capture.
            let _ = writeln!(std::io::stderr(), "skipped: no GPU: {}", why.message());
        }
    }
}

/// What is wanted of logits is what a sort of all of them gives, after prompts and after single tokens.
fn check_wanted(device: &Device) {
    let folder = goldens().join("llama3");
    let model = load(&folder, &DecoderOptions { device: device.clone(), ..options() });
    let prompts = cases(&folder).into_iter().map(|case| case.prompt);
    let prompts: Vec<Vec<u32>> = prompts.filter(|prompt| prompt.len() > 1).collect();
    let run = |wanted: Wanted| {
        let mut cache = Cache::new(model.config(), model.cache_config(), device).unwrap();
        let mut pages: Vec<Pages> = prompts.iter().map(|_| Pages::default()).collect();
        for (own, prompt) in pages.iter_mut().zip(&prompts) {
            cache.reserve(own, prompt.len() + 3).unwrap();
        }
        // The last sequence always wants everything.
        let mut all = vec![wanted; prompts.len()];
        all[prompts.len() - 1] = Wanted::All;
        let mut found = Vec::new();
        for token in [None, Some(7), Some(8), Some(9)] {
            let tokens: Vec<Vec<u32>> =
                prompts.iter().map(|prompt| token.map_or(prompt.clone(), |token| vec![token])).collect();
            let steps = tokens.iter().zip(&mut pages).map(|(tokens, pages)| Step { tokens, pages });
            found.extend(model.next(&cache, &mut steps.collect::<Vec<_>>(), &all).unwrap());
        }
        found
    };
    let rows = run(Wanted::All);
    for count in [1, 40, 255, 300] {
        for (at, (found, row)) in run(Wanted::Largest(count)).into_iter().zip(&rows).enumerate() {
            let (Logits::All(row), last) = (row, (at + 1).is_multiple_of(prompts.len())) else {
                panic!("{row:?}")
            };
            let mut sorted: Vec<(u32, f32)> = (0..).zip(row.iter().copied()).collect();
            sorted.sort_by(|a, b| b.1.partial_cmp(&a.1).unwrap());
            match found {
                Logits::Largest(found) => assert!(!last && found == sorted[..count], "{count}: {found:?}"),
                // The host has all of them anyway, and a device sorts so many only.
                Logits::All(found) => {
                    assert!(found == *row && (last || device.runs_on_host() || count > 256), "{count}");
                }
            }
        }
    }
    let nothing = run(Wanted::Nothing);
    assert!(nothing.iter().any(|logits| *logits == Logits::Largest(vec![])));
}

#[test]
fn what_is_wanted_of_logits_is_found() {
    check_wanted(&CPU());
    match Device::accelerator(None) {
        Ok(device) => check_wanted(&device),
        Err(why) => {
            let _ = writeln!(std::io::stderr(), "skipped: no GPU: {}", why.message());
        }
    }
}

#[test]
fn older_configs_mean_the_same() {
    for folder in goldens().read_dir().unwrap().map(|entry| entry.unwrap().path()) {
        let old = folder.join("config.v4.json");
        if !old.exists() {
            continue;
        }
        let describe = |file: &Path| {
            let copy = std::env::temp_dir().join(format!("max-decoder-{}", std::process::id()));
            std::fs::create_dir_all(&copy).unwrap();
            std::fs::copy(file, copy.join("config.json")).unwrap();
            std::fs::copy(folder.join("model.safetensors"), copy.join("model.safetensors")).unwrap();
            let config =
                format!("{:?}", ModelFiles::Folder(Folder::Path(copy.clone())).open().unwrap().config);
            std::fs::remove_dir_all(copy).unwrap();
            config
        };
        assert_eq!(describe(&old), describe(&folder.join("config.json")), "{}", folder.display());
    }
}

#[test]
fn company_and_chunks_change_no_bit() {
    let bfloat16 = Some(Stored::Floats(DType::BFloat16));
    for (name, quantize) in [("llama3", None), ("gemma3", None), ("llama3", bfloat16), ("gemma3", bfloat16)] {
        let folder = goldens().join(name);
        let model = load(&folder, &DecoderOptions { quantize, ..options() });
        let vocab = model.config().vocab_size;
        let mut cases = cases(&folder);
        cases.retain(|case| case.prompt.len() > 1);
        assert!(cases.len() >= 3, "{name}");
        let alone: Vec<Vec<f32>> = cases
            .iter()
            .map(|case| {
                let mut cache = Cache::new(model.config(), model.cache_config(), &CPU()).unwrap();
                let mut pages = Pages::default();
                cache.reserve(&mut pages, case.prompt.len() + 1).unwrap();
                let steps = [&case.prompt[..], &case.generated[..1]];
                let run = |tokens| model.run(&cache, &mut [Step { tokens, pages: &mut pages }]);
                steps
                    .map(run)
                    .into_iter()
                    .flat_map(|logits| logits.unwrap().to_vec::<f32>().unwrap())
                    .collect()
            })
            .collect();
        let mut cache = Cache::new(model.config(), model.cache_config(), &CPU()).unwrap();
        let mut pages: Vec<Pages> = cases.iter().map(|_| Pages::default()).collect();
        for (own, case) in pages.iter_mut().zip(&cases) {
            cache.reserve(own, case.prompt.len() + 1).unwrap();
        }
        // The prompt in two parts, of which only the first has company of the same kind; then all together.
        let cut = |case: &Case| (case.prompt.len() / 3).max(1);
        let mut run = |part: &dyn Fn(&Case) -> Vec<u32>| {
            let tokens: Vec<Vec<u32>> = cases.iter().map(part).collect();
            let steps = tokens.iter().zip(&mut pages).map(|(tokens, pages)| Step { tokens, pages });
            model.run(&cache, &mut steps.collect::<Vec<_>>()).unwrap().to_vec::<f32>().unwrap()
        };
        run(&|case| case.prompt[..cut(case)].to_vec());
        let prompts = run(&|case| case.prompt[cut(case)..].to_vec());
        let next = run(&|case| case.generated[..1].to_vec());
        for (at, alone) in alone.iter().enumerate() {
            let row = |logits: &[f32]| {
                logits[at * vocab..][..vocab].iter().map(|x| x.to_bits()).collect::<Vec<_>>()
            };
            let bits: Vec<u32> = alone.iter().map(|x| x.to_bits()).collect();
            assert_eq!(row(&prompts), bits[..vocab], "{name} {quantize:?}");
            assert_eq!(row(&next), bits[vocab..], "{name} {quantize:?}");
        }
    }
}

/// Weights in bfloat16 are multiplied by inputs of that dtype, which costs little of what their own rounding does.
#[test]
fn matrices_in_halves_are_close() {
    let folder = goldens().join("llama3");
    let case = cases(&folder).swap_remove(0);
    for (dtype, most) in [(DType::Float16, 2e-2), (DType::BFloat16, 1e-1)] {
        let model = load(&folder, &DecoderOptions { quantize: Some(Stored::Floats(dtype)), ..options() });
        let mut cache = Cache::new(model.config(), model.cache_config(), &CPU()).unwrap();
        let mut pages = Pages::default();
        cache.reserve(&mut pages, case.prompt.len()).unwrap();
        let found = model.run_all(&cache, &mut [Step { tokens: &case.prompt, pages: &mut pages }]).unwrap();
        let found = found.to_vec::<f32>().unwrap();
        let worst = worst(&found, &case.logits[..found.len()]);
        assert!(worst < most && worst > 0.0, "{worst} for {dtype}");
    }
}

#[test]
fn caches_of_other_dtypes_are_close() {
    let folder = goldens().join("llama-linear");
    let case = cases(&folder).swap_remove(0);
    for (cache_dtype, most) in [(DType::Float16, 2e-2), (DType::BFloat16, 1e-1)] {
        let model = load(&folder, &DecoderOptions { cache_dtype: Some(cache_dtype), ..options() });
        let mut cache = Cache::new(model.config(), model.cache_config(), &CPU()).unwrap();
        let mut pages = Pages::default();
        cache.reserve(&mut pages, case.prompt.len()).unwrap();
        let found = model.run_all(&cache, &mut [Step { tokens: &case.prompt, pages: &mut pages }]).unwrap();
        let found = found.to_vec::<f32>().unwrap();
        let worst = worst(&found, &case.logits[..found.len()]);
        assert!(worst < most && worst > 0.0, "{worst} for {cache_dtype}");
    }
}

#[test]
fn what_does_not_fit_is_an_error() {
    let model = load(&goldens().join("llama-linear"), &options());
    let mut cache = Cache::new(model.config(), model.cache_config(), &CPU()).unwrap();
    let mut pages = Pages::default();
    let error = cache.reserve(&mut pages, 1025).unwrap_err().to_string();
    assert!(error.contains("the cache is full"), "{error}");
    cache.reserve(&mut pages, 16).unwrap();
    let mut message = |tokens: &[u32]| {
        model.run(&cache, &mut [Step { tokens, pages: &mut pages }]).unwrap_err().to_string()
    };
    assert!(message(&[]).contains("without new tokens"));
    assert!(message(&[1 << 30]).contains("there is no token"));
    assert!(message(&[1; 17]).contains("page -1"), "{}", message(&[1; 17]));
    let long = vec![1; model.config().max_length + 1];
    assert!(message(&long).contains("longer than the context"));
    cache.release(pages);
    cache.reserve(&mut Pages::default(), 1024).unwrap();
}
