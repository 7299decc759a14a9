"""A small BERT with mean pooling, in plain PyTorch, with the weight names and the configuration of Hugging Face's BertModel."""

import json
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

CONFIG = {
    "architectures": ["BertModel"],
    "model_type": "bert",
    "vocab_size": 7168,
    "hidden_size": 192,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "intermediate_size": 768,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "max_position_embeddings": 128,
    "type_vocab_size": 1,
    "initializer_range": 0.02,
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
    "position_embedding_type": "absolute",
}


class Group(nn.Module):
    """Named submodules and nothing else; BERT has names such as `attention.self.query`."""

    def __init__(self, /, **modules):
        super().__init__()
        for name, module in modules.items():
            self.add_module(name, module)

    def __getitem__(self, name):
        return self._modules[name]


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        width, inner = config["hidden_size"], config["intermediate_size"]
        linear, norm = nn.Linear, lambda: nn.LayerNorm(width, eps=config["layer_norm_eps"])
        self.heads = config["num_attention_heads"]
        self.attention = Group(
            self=Group(query=linear(width, width), key=linear(width, width), value=linear(width, width)),
            output=Group(dense=linear(width, width), LayerNorm=norm()),
        )
        self.intermediate = Group(dense=linear(width, inner))
        self.output = Group(dense=linear(inner, width), LayerNorm=norm())

    def forward(self, x, mask):
        batch, length, width = x.shape
        split = lambda y: y.view(batch, length, self.heads, -1).transpose(1, 2)
        project, joined = self.attention["self"], self.attention["output"]
        q, k, v = (split(project[name](x)) for name in ("query", "key", "value"))
        seen = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = joined["LayerNorm"](x + joined["dense"](seen.transpose(1, 2).reshape(batch, length, width)))
        return self.output["LayerNorm"](x + self.output["dense"](F.gelu(self.intermediate["dense"](x))))


class Encoder(nn.Module):
    """Token ids, padded with zeros, to vectors of length one."""

    def __init__(self, config=CONFIG):
        super().__init__()
        width = config["hidden_size"]
        self.embeddings = Group(
            word_embeddings=nn.Embedding(config["vocab_size"], width),
            position_embeddings=nn.Embedding(config["max_position_embeddings"], width),
            token_type_embeddings=nn.Embedding(config["type_vocab_size"], width),
            LayerNorm=nn.LayerNorm(width, eps=config["layer_norm_eps"]),
        )
        self.encoder = Group(layer=nn.ModuleList(Layer(config) for _ in range(config["num_hidden_layers"])))
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=config["initializer_range"])
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    def forward(self, ids):
        real = ids != 0
        positions = torch.arange(ids.shape[1], device=ids.device)
        table = self.embeddings
        x = table["word_embeddings"](ids) + table["position_embeddings"](positions) + table["token_type_embeddings"].weight[0]
        x = table["LayerNorm"](x)
        mask = torch.zeros(real.shape, dtype=x.dtype, device=ids.device).masked_fill(~real, float("-inf"))[:, None, None, :]
        if torch.is_autocast_enabled():
            mask = mask.to(torch.get_autocast_dtype(ids.device.type))
        for layer in self.encoder["layer"]:
            x = layer(x, mask)
        x = x.float() * real[:, :, None]
        return F.normalize(x.sum(1) / real.sum(1, keepdim=True), dim=-1)


class WordPiece:
    """Text to ids by the vocabulary of tokenizer.json: lower case, words and punctuation, the longest known pieces first."""

    def __init__(self, folder, limit=CONFIG["max_position_embeddings"]):
        self.vocabulary = json.loads((Path(folder) / "tokenizer.json").read_text())["model"]["vocab"]
        self.limit, self.known = limit, {}

    def __call__(self, text):
        for mark in ",.!?'-":
            text = text.replace(mark, f" {mark} ")
        ids = [piece for word in text.lower().split() for piece in self._pieces(word)]
        return [self.vocabulary["[CLS]"], *ids[: self.limit - 2], self.vocabulary["[SEP]"]]

    def _pieces(self, word):
        if word not in self.known:
            ids, start = [], 0
            while start < len(word):
                prefix = "##" if start else ""
                ends = range(len(word), start, -1)
                end = next((end for end in ends if prefix + word[start:end] in self.vocabulary), None)
                if end is None:
                    ids = [self.vocabulary["[UNK]"]]
                    break
                ids.append(self.vocabulary[prefix + word[start:end]])
                start = end
            self.known[word] = ids
        return self.known[word]


def padded(rows, length=None):
    """Rows of ids as one tensor."""
    length = length or max(map(len, rows))
    ids = torch.zeros(len(rows), length, dtype=torch.long)
    for row, target in zip(rows, ids):
        target[: len(row)] = torch.tensor(row)
    return ids
