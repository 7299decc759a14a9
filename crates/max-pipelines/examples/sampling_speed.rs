//! Times the choice of one token from a vocabulary of 131,072: `cargo run --release --example sampling_speed`.

use std::time::Instant;

use max_core::Result;
use max_core::random::Distribution;
use max_pipelines::text::sampling::{Sampler, SamplingParams};

const TOKENS: usize = 131_072;
const RUNS: usize = 200;

fn main() -> Result<()> {
    let seeded = SamplingParams { seed: Some(1), ..SamplingParams::default() };
    let all = SamplingParams { top_k: TOKENS as i64, ..seeded.clone() };
    let cases = [
        ("greedy", SamplingParams::greedy()),
        ("top_k 40, top_p 0.95", SamplingParams { top_k: 40, top_p: 0.95, ..seeded.clone() }),
        ("top_p 0.95 (top_k -1)", SamplingParams { top_p: 0.95, ..seeded.clone() }),
        ("greedy, 5 logprobs", SamplingParams { logprobs: Some(5), ..SamplingParams::greedy() }),
        ("all tokens", all.clone()),
        ("all tokens, top_p 0.95", SamplingParams { top_p: 0.95, ..all }),
    ];
    println!("microseconds a token    peaked logits    flat logits");
    for (name, params) in cases {
        print!("{name:<24}");
        for spread in [4.0, 1.0] {
            let mut sampler = Sampler::new(&params, &[], &[])?;
            let row = (0..TOKENS)
                .map(|at| spread * Distribution::Normal.draw::<f32>(3, at as u64))
                .collect::<Vec<_>>();
            let mut logits = row.clone();
            let mut times = Vec::with_capacity(RUNS);
            for _ in 0..RUNS {
                logits.copy_from_slice(&row);
                let start = Instant::now();
                sampler.sample(&mut logits)?;
                times.push(start.elapsed());
            }
            times.sort();
            print!("{:>13.1}", times[RUNS / 2].as_secs_f64() * 1e6);
        }
        println!();
    }
    Ok(())
}
