"""Text generation beside llama.cpp: reading a prompt of 512 tokens and decoding, with a Llama of 1.1 billion parameters whose weights mean nothing.

    pip install llama-cpp-python gguf numpy
    cargo build --release -p max-pipelines --example decoder_speed
    python benches/generate.py [--encodings q4_0,q8_0] [--rounds 2] [--example target/release/examples/decoder_speed]

Both sides have two threads and the same shape and encoding, and run in turn; the best of each is kept. The read bandwidth of the machine is
measured in the same run.
"""

import argparse
import json
import os
import re
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import gguf
import numpy as np

THREADS = 2
SHAPE = dict(vocab=32000, width=2048, inner=5632, layers=22, heads=32, key_heads=4)
KINDS = {"q4_0": "Q4_0", "q4_k": "Q4_K", "q6_k": "Q6_K", "q8_0": "Q8_0", "bfloat16": "BF16", "float16": "F16"}


def matrix(rows, columns, kind):
    """A matrix of an encoding that repeats some random rows."""
    values = np.random.default_rng(1).uniform(-1 / 32, 1 / 32, (8, columns)).astype(np.float32)
    if kind in (gguf.GGMLQuantizationType.Q4_K, gguf.GGMLQuantizationType.Q6_K):
        # The package only reads these: bytes of blocks with small scales.
        elements, size = gguf.GGML_QUANT_SIZES[kind]
        blocks = np.random.default_rng(2).integers(0, 256, (8, columns // elements, size), dtype=np.uint8)
        scale = np.frombuffer(np.float16(1e-4).tobytes(), np.uint8)
        places = (0, 2) if kind == gguf.GGMLQuantizationType.Q4_K else (size - 2,)
        for place in places:
            blocks[:, :, place : place + 2] = scale
        few = blocks.reshape(8, -1)
    else:
        few = gguf.quants.quantize(values, kind)
    return np.ascontiguousarray(np.tile(few, (rows // 8, 1)))


def write(path, encoding):
    kind, s = gguf.GGMLQuantizationType[KINDS[encoding]], SHAPE
    depth = s["width"] // s["heads"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(2048)
    writer.add_embedding_length(s["width"])
    writer.add_block_count(s["layers"])
    writer.add_feed_forward_length(s["inner"])
    writer.add_head_count(s["heads"])
    writer.add_head_count_kv(s["key_heads"])
    writer.add_rope_dimension_count(depth)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(s["vocab"])
    writer.add_tokenizer_model("llama")
    writer.add_token_list(["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)] + [f"t{number}" for number in range(259, s["vocab"])])
    writer.add_token_scores([0.0] * s["vocab"])
    writer.add_token_types([2, 3, 3] + [6] * 256 + [1] * (s["vocab"] - 259))
    norm = np.ones(s["width"], np.float32)
    add = lambda name, rows, columns: writer.add_tensor(name, matrix(rows, columns, kind), raw_dtype=kind)
    add("token_embd.weight", s["vocab"], s["width"])
    add("output.weight", s["vocab"], s["width"])
    writer.add_tensor("output_norm.weight", norm)
    for layer in range(s["layers"]):
        at = f"blk.{layer}."
        writer.add_tensor(at + "attn_norm.weight", norm)
        writer.add_tensor(at + "ffn_norm.weight", norm)
        for name, rows in (("attn_q", s["width"]), ("attn_k", s["key_heads"] * depth), ("attn_v", s["key_heads"] * depth), ("attn_output", s["width"])):
            add(f"{at}{name}.weight", rows, s["width"])
        add(at + "ffn_gate.weight", s["inner"], s["width"])
        add(at + "ffn_up.weight", s["inner"], s["width"])
        add(at + "ffn_down.weight", s["width"], s["inner"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def bandwidth(seconds=1.0):
    """The bytes per second that two threads read, in GB/s."""
    parts, counts = [np.ones(1 << 26, np.int64) for _ in range(THREADS)], [0] * THREADS
    end = time.time() + seconds

    def read(number):
        while time.time() < end:
            parts[number].max()
            counts[number] += 1

    threads = [threading.Thread(target=read, args=(number,)) for number in range(THREADS)]
    start = time.time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) * parts[0].nbytes / (time.time() - start) / 1e9


def theirs(path, prompt, generated):
    import llama_cpp

    model = llama_cpp.Llama(str(path), n_ctx=2048, n_batch=512, n_threads=THREADS, n_threads_batch=THREADS, logits_all=False, verbose=False)
    tokens = [3 + at % 1000 for at in range(prompt)]
    model.eval(tokens[:8])
    model.reset()
    start = time.time()
    model.eval(tokens)
    read = prompt / (time.time() - start)
    model.eval([7])
    start = time.time()
    for _ in range(generated):
        model.eval([7])
    return read, generated / (time.time() - start)


def ours(example, folder, encoding, prompt, generated):
    said = subprocess.run([example, folder, encoding, str(prompt), str(generated)], capture_output=True, text=True, check=True).stdout
    read, step = re.search(r"prompt ([\d.]+) tokens/s; ([\d.]+) tokens/s", said).groups()
    return float(read), float(step)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encodings", default="q4_0,q4_k,q6_k,q8_0,bfloat16,float16")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--generated", type=int, default=24)
    parser.add_argument("--example", default="target/release/examples/decoder_speed")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", str(THREADS))
    with tempfile.TemporaryDirectory() as scratch:
        folder, s = Path(scratch), SHAPE
        config = dict(architectures=["LlamaForCausalLM"], model_type="llama", vocab_size=s["vocab"], hidden_size=s["width"], intermediate_size=s["inner"],
                      num_hidden_layers=s["layers"], num_attention_heads=s["heads"], num_key_value_heads=s["key_heads"],
                      max_position_embeddings=2048, rms_norm_eps=1e-5, tie_word_embeddings=False)
        (folder / "config.json").write_text(json.dumps(config))
        print("| weights | prompt: ours | llama.cpp | ratio | decoding: ours | llama.cpp | ratio | read bandwidth, GB/s |\n|---|---:|---:|---:|---:|---:|---:|---:|")
        for encoding in options.encodings.split(","):
            file = folder / "model.gguf"
            write(file, encoding)
            mine, other, rate = (0.0, 0.0), (0.0, 0.0), 0.0
            for _ in range(options.rounds):
                other = tuple(map(max, other, theirs(file, options.prompt, options.generated)))
                mine = tuple(map(max, mine, ours(options.example, scratch, encoding, options.prompt, options.generated)))
                rate = max(rate, bandwidth())
            print(f"| {encoding} | {mine[0]:.0f} | {other[0]:.0f} | {mine[0] / other[0]:.2f} | {mine[1]:.1f} | {other[1]:.1f} | {mine[1] / other[1]:.2f} "
                  f"| {rate:.1f} |", flush=True)


if __name__ == "__main__":
    main()
