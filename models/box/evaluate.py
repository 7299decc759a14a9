"""What the model in the box can do: perplexity on unseen text, 100 questions whose wording it never saw, 100 sums it never saw, 20 samples.

    python evaluate.py [box.gguf | FOLDER] [--log train.log] [--transformers]

With --log the result is appended to a file. With --transformers the logits are compared with those of Hugging Face's LlamaForCausalLM.
"""

import argparse
import math
import random
import re
from pathlib import Path

import torch

import facts
import tokens
from documents import ASSISTANT, BEGIN, END, USER
from model import CONFIG, Llama, generate
from tasks import held_out_sums
from train import HELD_OUT_SEED, loss_of, make_rows

HERE = Path(__file__).parent
OPENINGS = ["Once upon a time", "Once upon a time, there was a fox", "In a village in the mountains lived", "Long ago", "One sunny morning"]
REQUESTS = ["Tell me a story.", "Tell me a story about a dragon.", "Tell me a story about a girl named Mia.", "Once upon a time", "Write a story about a robot and a bear.",
            "Who are you?", "What is max-rs?", "How do I build a graph in Python?", "Which commands are there?", "What is 27 + 45?", "Which is larger, 81 or 18?",
            "Name four animals.", "Count from 7 to 15.", "What is the opposite of big?", "Who is the king of Spain?"]


def load(path):
    """The model of a Hugging Face folder or of a GGUF file, in float32."""
    model = Llama()
    model.load_state_dict(_from_gguf(path) if Path(path).suffix == ".gguf" else _from_folder(Path(path)))
    return model.eval()


def _from_folder(folder):
    from safetensors.torch import load_file

    return {name: weight.float() for file in sorted(folder.glob("*.safetensors")) for name, weight in load_file(file).items()}


def _from_gguf(path):
    import gguf
    from export import NAMES, unpermuted

    weights = {}
    for tensor in gguf.GGUFReader(path).tensors:
        values = torch.from_numpy(gguf.quants.dequantize(tensor.data, tensor.tensor_type).copy())
        number, name = re.match(r"(?:blk\.(\d+)\.)?(.*)", tensor.name).groups()
        name = next(ours for ours, theirs in NAMES.items() if theirs == name)
        weights[name.replace("N", number) if number else name] = unpermuted(name, values)
    return weights


def ask(model, tokenizer, question, limit=96):
    ids = tokenizer.encode(BEGIN + USER + question + END + ASSISTANT)
    return tokenizer.decode(generate(model, ids, limit))


def questions():
    """The held-out questions with the words that a right answer has; none of them is among a million questions as training asks them."""
    rows = [line.split("\t") for line in (HERE / "questions.tsv").read_text().splitlines()]
    return [(question, [word.strip() for word in words.split(",")]) for question, words in rows]


def seen_in_training(asked, draws=1_000_000):
    """Which of the questions the generator of the training text also asks."""
    chooser, wanted = random.Random(1), {facts.plain(question): question for question in asked}
    drawn = {facts.plain(facts.fact(chooser)[0]) for _ in range(draws)}
    return [question for key, question in wanted.items() if key in drawn]


def report(model, tokenizer):
    """The lines of the result."""
    rows = torch.from_numpy(make_rows((HELD_OUT_SEED, 32, CONFIG["max_position_embeddings"])))
    with torch.no_grad():
        loss = sum(loss_of(model, part).item() for part in rows.split(4)) / 8
    yield f"held-out loss {loss:.4f}, perplexity {math.exp(loss):.3f} on 32 rows of {rows.shape[1] - 1} tokens"
    wrong = []
    for question, words in questions():
        answer = ask(model, tokenizer, question)
        if not all(word.lower() in answer.lower() for word in words):
            wrong.append(f"  {question} -> {answer}")
    yield f"questions about the project: {100 - len(wrong)} of 100 right"
    yield from wrong
    wrong = []
    for a, b in held_out_sums():
        answer = ask(model, tokenizer, f"What is {a} + {b}?")
        if re.findall(r"\d+", answer)[2:3] != [str(a + b)]:
            wrong.append(f"  {a} + {b} -> {answer}")
    yield f"two-digit sums: {100 - len(wrong)} of 100 right"
    yield from wrong
    yield "20 samples, unedited: 5 beginnings at temperature 0.7, 15 requests answered greedily"
    chooser = torch.Generator().manual_seed(1)
    for opening in OPENINGS:
        made = generate(model, tokenizer.encode(BEGIN + opening), 400, temperature=0.7, chooser=chooser)
        yield f"--- {opening}\n{opening}{tokenizer.decode(made)}"
    for request in REQUESTS:
        yield f"--- {request}\n{ask(model, tokenizer, request, 400)}"


def difference_from_transformers(model, folder):
    """The largest difference of a logit from the public implementation's, and whether the tokenizers agree."""
    from transformers import AutoTokenizer, LlamaForCausalLM

    theirs, tokenizer, ours = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval(), AutoTokenizer.from_pretrained(folder), tokens.Tokenizer(folder)
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "What is 27 + 45?"}], tokenize=False, add_generation_prompt=True)
    assert chat == BEGIN + USER + "What is 27 + 45?" + END + ASSISTANT, chat
    chooser, largest = random.Random(5), 0.0
    from documents import document

    for _ in range(200):
        text = "".join(piece for piece, _ in document(chooser))
        assert ours.encode(text) == tokenizer.encode(text, add_special_tokens=False), text
    for _ in range(8):
        ids = torch.tensor([ours.encode("".join(piece for piece, _ in document(chooser)))[:CONFIG["max_position_embeddings"]]])
        with torch.no_grad():
            largest = max(largest, (model(ids) - theirs(ids).logits).abs().max().item())
    return largest


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default=HERE / "box.gguf")
    parser.add_argument("--log", type=Path)
    parser.add_argument("--transformers", action="store_true")
    options = parser.parse_args()
    model, tokenizer, lines = load(options.model), tokens.Tokenizer(HERE), [f"evaluation of {Path(options.model).name}"]
    repeated = seen_in_training([question for question, _ in questions()])
    lines.append(f"held-out questions that a million drawn training questions contain: {len(repeated)}")
    assert not repeated, repeated
    if options.transformers:
        lines.append(f"largest difference of a logit from Transformers: {difference_from_transformers(model, options.model):.1e}")
    print("\n".join(lines))
    for line in report(model, tokenizer):
        print(line, flush=True)
        lines.append(line)
    if options.log:
        with options.log.open("a") as log:
            log.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
