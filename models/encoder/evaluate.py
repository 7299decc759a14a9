"""How often the encoder finds the paraphrase: the share of triples.tsv in which a sentence is nearer to its paraphrase than to the
unrelated sentence, beside the same share for TF-IDF.

    python evaluate.py [--wrong] [--transformers]

With --transformers the vectors are also compared with those of Hugging Face's BertModel and tokenizer.
"""

import argparse
import json
import math
import re
from collections import Counter
from pathlib import Path

import torch

from model import Encoder, WordPiece, padded

HERE = Path(__file__).parent


def triples():
    rows = [line.split("\t") for line in (HERE / "triples.tsv").read_text().splitlines()]
    assert all(len(row) == 3 for row in rows), "a triple is three sentences between tabs"
    return rows


def encoder_scores(model, encode, rows):
    """For each triple the two cosines."""
    with torch.no_grad():
        anchors, near, far = (model(padded([encode(text) for text in column])) for column in zip(*rows))
    return list(zip((anchors * near).sum(1).tolist(), (anchors * far).sum(1).tolist()))


def tfidf_scores(rows):
    """The same with words weighted by how rare they are among these sentences."""
    words = lambda text: re.findall(r"[a-z0-9']+", text.lower())
    sentences = [Counter(words(text)) for row in rows for text in row]
    seen = Counter(word for sentence in sentences for word in sentence)
    weight = {word: math.log(len(sentences) / count) + 1 for word, count in seen.items()}

    def vector(text):
        counts = {word: count * weight[word] for word, count in Counter(words(text)).items()}
        norm = math.sqrt(sum(value * value for value in counts.values()))
        return {word: value / norm for word, value in counts.items()}

    def cosine(a, b):
        a, b = vector(a), vector(b)
        return sum(value * b.get(word, 0.0) for word, value in a.items())

    return [(cosine(anchor, near), cosine(anchor, far)) for anchor, near, far in rows]


def report(model, encode, show_wrong=False):
    """The lines of the result."""
    rows = triples()
    lines = []
    for name, scores in (("encoder", encoder_scores(model, encode, rows)), ("TF-IDF", tfidf_scores(rows))):
        right = sum(near > far for near, far in scores)
        margin = sum(near - far for near, far in scores) / len(scores)
        lines.append(f"{name}: {right} of {len(rows)} triples right ({100 * right / len(rows):.1f}%), mean margin {margin:.3f}")
        if show_wrong and name == "encoder":
            for (near, far), row in zip(scores, rows):
                if near <= far:
                    lines.append(f"  {near:.3f} {far:.3f}  " + " | ".join(row))
    return lines


def load():
    """The model of this folder, in 32-bit floats."""
    from safetensors.torch import load_file

    model = Encoder(json.loads((HERE / "config.json").read_text()))
    model.load_state_dict({name: weight.float() for name, weight in load_file(HERE / "model.safetensors").items()})
    return model.eval()


def difference_from_transformers(model, encode):
    """The largest difference between our vectors and those of the public implementation, over all triples."""
    from transformers import BertModel, PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(HERE / "tokenizer.json"), pad_token="[PAD]")
    bert = BertModel.from_pretrained(HERE, add_pooling_layer=False, dtype=torch.float32).eval()
    texts = [text for row in triples() for text in row]
    batch = tokenizer(texts, padding=True, return_tensors="pt", return_token_type_ids=True)
    ours = padded([encode(text) for text in texts])
    assert torch.equal(ours, batch["input_ids"]), "the tokenizers disagree"
    with torch.no_grad():
        hidden = bert(**batch).last_hidden_state
        mask = batch["attention_mask"][:, :, None]
        pooled = torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)
        return (pooled - model(ours)).abs().max().item()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wrong", action="store_true", help="show the triples that the encoder gets wrong")
    parser.add_argument("--transformers", action="store_true", help="compare with Hugging Face's implementation")
    options = parser.parse_args()
    model, encode = load(), WordPiece(HERE)
    print("\n".join(report(model, encode, options.wrong)))
    if options.transformers:
        print(f"largest difference from Transformers: {difference_from_transformers(model, encode):.1e}")


if __name__ == "__main__":
    main()
