"""Small models by hand, for the commands that look at shapes and names alone: MTP layers, experts, tied embeddings."""
import os

import ggufpy as g

import common

WIDTH = 32


def content(layers=6, mtp=0, mtp_own=False, tied=False, experts=0, rope=False, per_layer=False, arch="glm4moe",
            grow=0, vocab=40):
    """(pairs, tensors) as ggufpy.write takes them. The last `mtp` layers hold nextn tensors; layer i has i * grow rows
    more than the first."""
    fill = g.Random(layers + 100 * mtp)
    tensors = []

    def add(name, dims, kind=0):
        tensors.append((name, dims, kind, fill(g.tensor_bytes(kind, dims))))
    pairs = [("general.architecture", g.encode(g.STRING, arch)), ("general.name", g.encode(g.STRING, "Shape")),
             (f"{arch}.block_count", g.encode(g.U32, layers)), (f"{arch}.context_length", g.encode(g.U32, 4096)),
             (f"{arch}.embedding_length", g.encode(g.U32, WIDTH)),
             (f"{arch}.attention.head_count", g.encode(g.U32, 4)),
             (f"{arch}.attention.head_count_kv", g.encode(g.ARRAY, [1 + i % 2 for i in range(layers)], g.I32)),
             ("tokenizer.ggml.model", g.encode(g.STRING, "gpt2")),
             ("tokenizer.ggml.tokens", g.encode(g.ARRAY, [f"t{i}" for i in range(vocab)], g.STRING)),
             ("tokenizer.ggml.scores", g.encode(g.ARRAY, [i / 2 for i in range(vocab)], g.F32))]
    if mtp:
        pairs.append((f"{arch}.nextn_predict_layers", g.encode(g.U32, mtp)))
    if experts:
        pairs += [(f"{arch}.expert_count", g.encode(g.U32, experts)),
                  (f"{arch}.expert_used_count", g.encode(g.U32, 2)), (f"{arch}.expert_shared_count", g.encode(g.U32, 1))]
    add("token_embd.weight", (WIDTH, vocab), 8)
    if per_layer:
        add("per_layer_token_embd.weight", (WIDTH, 12))
    for i in range(layers):
        add(f"blk.{i}.attn_norm.weight", (WIDTH,))
        add(f"blk.{i}.attn_q.weight", (WIDTH, WIDTH + i * grow), 8)
        if experts:
            add(f"blk.{i}.ffn_up_exps.weight", (WIDTH, 16, experts), 2)
        if rope and i == 1:
            add("rope_freqs.weight", (16,))
        if i >= layers - mtp:
            for part in ("eh_proj", "enorm", "hnorm"):
                add(f"blk.{i}.nextn.{part}.weight", (WIDTH, 3))
            if mtp_own:
                add(f"blk.{i}.nextn.embed_tokens.weight", (WIDTH, vocab))
    add("output_norm.weight", (WIDTH,))
    if not tied:
        add("output.weight", (WIDTH, vocab), 8)
    return pairs, tensors


_made = {}


def model(**options):
    """The path of such a model, made once a run."""
    key = tuple(sorted(options.items()))
    if key not in _made:
        path = os.path.join(common.WORK, f"shape-{len(_made)}.gguf")
        g.write(path, *content(**options))
        _made[key] = path
    return _made[key]


def split_model(parts, tensor_first=True, **options):
    """The paths of the same as a split set."""
    key = (parts, tensor_first, tuple(sorted(options.items())))
    if key not in _made:
        prefix = os.path.join(common.WORK, f"shape-{len(_made)}")
        _made[key] = g.split(prefix, (), *content(**options), parts, tensor_first)
    return _made[key]


def role(name):
    """Class of a tensor, as the standard has it."""
    if name.startswith("blk.") and name.split(".")[1].isdigit():
        return "layer"
    return {"token_embd.weight": "embedding", "per_layer_token_embd.weight": "embedding",
            "output_norm.weight": "final_norm", "output.weight": "output"}.get(name, "metadata")


def layer(name):
    return int(name.split(".")[1]) if role(name) == "layer" else None
