"""A small Llama in plain PyTorch, with the weight names and the configuration of Hugging Face's LlamaForCausalLM."""

import torch
from torch import nn
from torch.nn import functional as F

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 4096,
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "max_position_embeddings": 1024,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": True,
    "initializer_range": 0.02,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 5,
}


class RMSNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return F.rms_norm(x, (x.shape[-1],), self.weight.to(x.dtype), CONFIG["rms_norm_eps"])


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        width, self.head = config["hidden_size"], config["head_dim"]
        self.heads, self.pairs = config["num_attention_heads"], config["num_key_value_heads"]
        self.q_proj = nn.Linear(width, self.heads * self.head, bias=False)
        self.k_proj = nn.Linear(width, self.pairs * self.head, bias=False)
        self.v_proj = nn.Linear(width, self.pairs * self.head, bias=False)
        self.o_proj = nn.Linear(self.heads * self.head, width, bias=False)

    def forward(self, x, rope, cache):
        batch, length, _ = x.shape
        split = lambda y: y.view(batch, length, -1, self.head).transpose(1, 2)
        q, k, v = rotated(split(self.q_proj(x)), rope), rotated(split(self.k_proj(x)), rope), split(self.v_proj(x))
        if cache is not None:
            if cache:
                k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
            cache[:] = [k, v]
        share = self.heads // self.pairs
        k, v = k.repeat_interleave(share, 1), v.repeat_interleave(share, 1)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=length > 1)
        return self.o_proj(seen.transpose(1, 2).reshape(batch, length, -1))


class MLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        width, inner = config["hidden_size"], config["intermediate_size"]
        self.gate_proj, self.up_proj = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.self_attn, self.mlp = Attention(config), MLP(config)
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(config["hidden_size"]), RMSNorm(config["hidden_size"])

    def forward(self, x, rope, cache):
        x = x + self.self_attn(self.input_layernorm(x), rope, cache)
        return x + self.mlp(self.post_attention_layernorm(x))


class Inner(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embed_tokens = nn.Embedding(config["vocab_size"], config["hidden_size"])
        self.layers = nn.ModuleList(Layer(config) for _ in range(config["num_hidden_layers"]))
        self.norm = RMSNorm(config["hidden_size"])


class Llama(nn.Module):
    """Ids to logits. `caches` has an empty list for each layer at first, and then what later tokens need."""

    def __init__(self, config=CONFIG):
        super().__init__()
        self.model = Inner(config)
        self.frequencies = config["rope_theta"] ** (-torch.arange(0, config["head_dim"], 2) / config["head_dim"])
        deep = (2 * config["num_hidden_layers"]) ** -0.5
        for name, weight in self.named_parameters():
            if weight.dim() > 1:
                nn.init.normal_(weight, std=config["initializer_range"] * (deep if name.endswith(("o_proj.weight", "down_proj.weight")) else 1))

    def forward(self, ids, caches=None):
        start = caches[0][0].shape[2] if caches and caches[0] else 0
        positions = torch.arange(start, start + ids.shape[1], device=ids.device)
        angles = positions[:, None] * self.frequencies.to(ids.device)
        rope = angles.cos(), angles.sin()
        x = self.model.embed_tokens(ids)
        if torch.is_autocast_enabled(ids.device.type):
            x = x.to(torch.get_autocast_dtype(ids.device.type))
            rope = tuple(part.to(x.dtype) for part in rope)
        for number, layer in enumerate(self.model.layers):
            x = layer(x, rope, caches[number] if caches else None)
        return F.linear(self.model.norm(x), self.model.embed_tokens.weight)


def rotated(x, rope):
    """Positions, as rotations of pairs that are half a head apart."""
    cos, sin = rope
    one, two = x.chunk(2, -1)
    return torch.cat([one * cos - two * sin, two * cos + one * sin], -1)


@torch.no_grad()
def generate(model, ids, limit, end=CONFIG["eos_token_id"], temperature=0.0, chooser=None):
    """The ids that follow: the likeliest, or drawn by `temperature` from a seeded generator."""
    caches = [[] for _ in model.model.layers]
    logits, made = model(torch.tensor([ids]), caches)[0, -1], []
    while len(made) < limit and len(ids) + len(made) < CONFIG["max_position_embeddings"]:
        if temperature:
            token = torch.multinomial(torch.softmax(logits.float() / temperature, -1), 1, generator=chooser).item()
        else:
            token = logits.argmax().item()
        if token == end:
            break
        made.append(token)
        logits = model(torch.tensor([[token]]), caches)[0, -1]
    return made
