#!/usr/bin/env python3
"""Small vocabularies for tests: trains them, and builds GGUF files that hold nothing but a vocabulary.

usage: mkvocab.py train TEXT_FILE OUT_DIR        writes spm-vocab.txt and bpe-vocab.txt (deterministic)
       mkvocab.py build VOCAB_FILE OUT.gguf [--pre NAME]
       mkvocab.py pairs SEED OUT.gguf --pre NAME
       mkvocab.py convert FILE OUT.gguf [--pre NAME]

`pairs` makes a byte-level vocabulary with a token for every pair of bytes and no longer one, merged in an order that
hangs on SEED: a cut between two bytes shows in the ids wherever their pair ranks before both of its neighbours, so
a few seeds show nearly every cut of a pre-tokenizer. vocab_data.h makes the same vocabularies for the unit tests.

`convert` takes a real vocabulary: a tokenizer.json of byte-level BPE, a tekken.json, or a SentencePiece model (BPE).

A vocabulary file is UTF-8 text, one item per line, fields separated by one tab:
  # ...                       a comment
  @KEY <tab> KIND <tab> VALUE a metadata pair; KIND is str, bool (0 or 1) or u32
  +LEFT <tab> RIGHT           a merge, in order of rank
  SCORE <tab> TYPE <tab> TEXT a token, in order of ids; TYPE as in tokenizer.ggml.token_type
In LEFT, RIGHT and TEXT, \\\\ is a backslash and \\xNN a byte; every byte below 0x21, 0x7F and invalid UTF-8 is so written.
"""
import base64
import json
import re
import struct
import sys
from collections import Counter, defaultdict
from pathlib import Path

SPACE = "\u2581"


def byte_chars():
    """The character that stands for each byte in a byte-level vocabulary."""
    keep = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    out, extra = {}, 0
    for b in range(256):
        if b in keep:
            out[b] = chr(b)
        else:
            out[b] = chr(256 + extra)
            extra += 1
    return out


def learn(units, count):
    """BPE: units are lists of symbols (strings). Returns merges [(left, right)], most frequent pair first, ties by text."""
    freq, where = Counter(), defaultdict(set)
    for n, unit in enumerate(units):
        for pair in zip(unit, unit[1:]):
            freq[pair] += 1
            where[pair].add(n)
    merges, made = [], set()
    while len(merges) < count and freq:
        best = min(freq, key=lambda p: (-freq[p], p))
        if freq[best] < 2:
            break
        text = best[0] + best[1]
        if text in made or len(text) > 16:
            del freq[best]
            continue
        made.add(text)
        merges.append(best)
        for n in sorted(where.pop(best)):
            unit, out, i = units[n], [], 0
            for pair in zip(unit, unit[1:]):
                freq[pair] -= 1
            while i < len(unit):
                if i + 1 < len(unit) and (unit[i], unit[i + 1]) == best:
                    out.append(text)
                    i += 2
                else:
                    out.append(unit[i])
                    i += 1
            units[n] = out
            for pair in zip(out, out[1:]):
                freq[pair] += 1
                where[pair].add(n)
        freq.pop(best, None)
        freq = +freq
    return merges


def escape(s):
    return "".join(c if c >= "\x21" and c not in "\\\x7f" and not c.isspace() else
                   "\\\\" if c == "\\" else "".join(f"\\x{b:02X}" for b in c.encode()) for c in s)


def unescape(s):
    return re.sub(rb"\\(x[0-9A-F]{2}|\\)", lambda m: b"\\" if m[1] == b"\\" else bytes([int(m[1][1:], 16)]), s.encode())


def header(kind):
    return [f"# A {kind} vocabulary for tests, trained by tests/tools/mkvocab.py on tests/data/corpus.txt.",
            "# @key, kind, value; +left, right: a merge; else score, type, text. \\\\ is a backslash, \\xNN a byte."]


def train_spm(lines):
    """Scores fall with each merge, as in SentencePiece; merges may cross words, as in vocabularies with long spaces."""
    units = [list(SPACE + line.replace(" ", SPACE)) for line in lines]
    chars = Counter(c for unit in units for c in unit)
    merges = learn(units, 1500)
    out = header("SentencePiece")
    for key, kind, value in (("model", "str", "llama"), ("bos_token_id", "u32", "1"), ("eos_token_id", "u32", "2"),
                             ("unknown_token_id", "u32", "0"), ("add_bos_token", "bool", "1")):
        out.append(f"@tokenizer.ggml.{key}\t{kind}\t{value}")
    tokens = [("0", 2, "<unk>"), ("0", 3, "<s>"), ("0", 3, "</s>")]
    tokens += [("0", 6, f"<0x{b:02X}>") for b in range(256)]
    tokens += [("0", 4, s) for s in ("<|im_start|>", "<tool_call>", "<|im", "\t\t", "====")] + [("0", 3, "<end_of_turn>")]
    texts = [a + b for a, b in merges]
    # Every fourth score repeats the one before: ties must go to the left.
    tokens += [(str(-(i - (i % 4 == 3))), 1, t) for i, t in enumerate(texts)]
    single = sorted((c for c, n in chars.items() if n >= 3), key=lambda c: (-chars[c], c))
    tokens += [(str(-len(texts) - i), 1, c) for i, c in enumerate(single)]
    seen = set()
    for score, kind, text in tokens:
        if text not in seen:
            seen.add(text)
            out.append(f"{score}\t{kind}\t{escape(text)}")
    return out


def train_bpe(lines):
    """Merges cross words, numbers and punctuation, so that each place where a pre-tokenizer cuts shows in the ids."""
    chars = byte_chars()
    units = [[chars[b] for b in line.encode()] for line in lines]
    merges = learn(units, 1500)
    out = header("byte-level BPE")
    for key, kind, value in (("model", "str", "gpt2"), ("bos_token_id", "u32", "1"), ("eos_token_id", "u32", "2")):
        out.append(f"@tokenizer.ggml.{key}\t{kind}\t{value}")
    tokens = [(3, "<|endoftext|>"), (3, "<|im_start|>"), (3, "<|im_end|>"), (4, "<tool_call>"), (4, "<|im"), (4, "\t\t")]
    tokens += [(1, chars[b]) for b in range(256)] + [(1, a + b) for a, b in merges]
    out += [f"0\t{kind}\t{escape(text)}" for kind, text in tokens]
    out += [f"+{escape(a)}\t{escape(b)}" for a, b in merges]
    return out


def train(text_file, out_dir):
    lines = Path(text_file).read_bytes().decode().split("\n")[:-1]
    # No token may be a part of a special token's text: the ids of such text would then hang on the order of merges.
    marks = ("<|", "|>", "im_", "<s", "s>", "<unk", "<pad", "<bos", "<eos", "INST", "_of_turn", "<0x", "_call", "====", "\t\t")
    lines = [line for line in lines if not any(m in line for m in marks)]
    for name, items in (("spm-vocab.txt", train_spm(lines)), ("bpe-vocab.txt", train_bpe(lines))):
        (Path(out_dir) / name).write_bytes("".join(item + "\n" for item in items).encode())
        print(f"{name}: {len(items)} items", file=sys.stderr)


def pack_str(b):
    return struct.pack("<Q", len(b)) + b


def pack_kv(key, kind, body):
    return pack_str(key.encode()) + struct.pack("<I", kind) + body


def pack_array(key, kind, items):
    return pack_kv(key, 9, struct.pack("<IQ", kind, len(items)) + b"".join(items))


KINDS = {"str": (8, lambda v: pack_str(v.encode())), "bool": (7, lambda v: bytes([int(v)])),
         "u32": (4, lambda v: struct.pack("<I", int(v)))}


def write_gguf(out_file, keys, tokens, merges, pre):
    """keys: (key, kind, value); tokens: (score, type, bytes); merges: bytes."""
    pairs = [pack_kv("general.architecture", 8, pack_str(b"llama"))]
    for key, kind, value in keys:
        number, pack = KINDS[kind]
        pairs.append(pack_kv(key, number, pack(value)))
    if pre:
        pairs.append(pack_kv("tokenizer.ggml.pre", 8, pack_str(pre.encode())))
    pairs.append(pack_array("tokenizer.ggml.tokens", 8, [pack_str(t) for _, _, t in tokens]))
    pairs.append(pack_array("tokenizer.ggml.scores", 6, [struct.pack("<f", s) for s, _, _ in tokens]))
    pairs.append(pack_array("tokenizer.ggml.token_type", 5, [struct.pack("<i", k) for _, k, _ in tokens]))
    if merges:
        pairs.append(pack_array("tokenizer.ggml.merges", 8, [pack_str(m) for m in merges]))
    for key in ("context_length", "embedding_length", "block_count", "feed_forward_length", "attention.head_count"):
        pairs.append(pack_kv("llama." + key, 4, struct.pack("<I", 1)))
    pairs.append(pack_kv("llama.attention.layer_norm_rms_epsilon", 6, struct.pack("<f", 1e-5)))
    data = b"GGUF" + struct.pack("<IQQ", 3, 0, len(pairs)) + b"".join(pairs)
    Path(out_file).write_bytes(data + bytes(-len(data) % 32))


def build(vocab_file, out_file, pre):
    keys, tokens, merges = [], [], []
    for line in Path(vocab_file).read_bytes().decode().split("\n"):
        if not line or line[0] == "#":
            continue
        fields = line.split("\t")
        if line[0] == "@":
            keys.append((fields[0][1:], fields[1], fields[2]))
        elif line[0] == "+" and len(fields) == 2:
            merges.append(unescape(fields[0][1:]) + b" " + unescape(fields[1]))
        else:
            tokens.append((float(fields[0]), int(fields[1]), unescape(fields[2])))
    write_gguf(out_file, keys, tokens, merges, pre)


def shuffled(x, seed):
    """A number below 65536, mixed one to one; test_vocab_pairs in vocab_data.h does the same."""
    for k in range(4):
        x = (x * 40503 + seed * 2654435 + k) & 0xFFFF
        x ^= x >> 7
    return x


def pairs(seed, out_file, pre):
    chars = [c.encode() for _, c in sorted(byte_chars().items())]
    order = [shuffled(rank, seed) for rank in range(1 << 16)]
    tokens = [(0.0, 3, b"<|endoftext|>")] + [(0.0, 1, c) for c in chars]
    tokens += [(0.0, 1, chars[p >> 8] + chars[p & 255]) for p in order]
    keys = [("tokenizer.ggml.model", "str", "gpt2"), ("tokenizer.ggml.bos_token_id", "u32", 0),
            ("tokenizer.ggml.eos_token_id", "u32", 0)]
    write_gguf(out_file, keys, tokens, [chars[p >> 8] + b" " + chars[p & 255] for p in order], pre)


def from_hf(doc):
    model = doc["model"]
    if model["type"] != "BPE" or model.get("byte_fallback"):
        sys.exit("only a byte-level BPE tokenizer.json can be converted")
    texts = {i: t for t, i in model["vocab"].items()}
    kinds = {t["id"]: 3 if t["special"] else 4 for t in doc["added_tokens"]}
    texts.update({t["id"]: t["content"] for t in doc["added_tokens"]})
    tokens = [(0.0, kinds.get(i, 1) if i in texts else 5, texts.get(i, f"[PAD{i}]").encode()) for i in range(max(texts) + 1)]
    merges = [" ".join(m) if isinstance(m, list) else m for m in model["merges"]]
    return tokens, [m.encode() for m in merges], []


def halves(word, rank):
    """The two parts from which a token is made: merge its bytes with all tokens that rank before it."""
    parts, top = [bytes([b]) for b in word], rank[word]
    while len(parts) > 2:
        best = min(range(len(parts) - 1), key=lambda i: rank.get(parts[i] + parts[i + 1], top))
        if rank.get(parts[best] + parts[best + 1], top) >= top:
            return None
        parts[best:best + 2] = [parts[best] + parts[best + 1]]
    return parts


def from_tekken(doc):
    chars = {b: c for b, c in byte_chars().items()}
    special = doc["config"]["default_num_special_tokens"]
    words = [base64.b64decode(v["token_bytes"]) for v in doc["vocab"][:doc["config"]["default_vocab_size"] - special]]
    rank = {w: i for i, w in enumerate(words)}
    names = {0: "<unk>", 1: "<s>", 2: "</s>", 3: "[INST]", 4: "[/INST]"}
    tokens = [(0.0, 3, names.get(i, f"<SPECIAL_{i}>").encode()) for i in range(special)]

    def spell(w):
        return "".join(chars[b] for b in w).encode()
    tokens += [(0.0, 1, spell(w)) for w in words]
    made = [halves(w, rank) for w in words if len(w) > 1]
    return tokens, [spell(m[0]) + b" " + spell(m[1]) for m in made if m], [("tokenizer.ggml.bos_token_id", "u32", 1),
                                                                            ("tokenizer.ggml.eos_token_id", "u32", 2)]


def protobuf(data):
    """The fields of a protocol buffer message: (number, value)."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            b = data[at]
            at += 1
            value |= (b & 127) << shift
            shift += 7
            if b < 128:
                return value
    while at < len(data):
        tag = varint()
        if tag & 7 == 0:
            yield tag >> 3, varint()
            continue
        n = varint() if tag & 7 == 2 else 4 if tag & 7 == 5 else 8
        yield tag >> 3, data[at:at + n]
        at += n


def from_sentencepiece(data):
    tokens, add_prefix = [], True
    for number, value in protobuf(data):
        if number == 1:
            piece = dict(protobuf(value))
            tokens.append((struct.unpack("<f", piece.get(2, bytes(4)))[0], piece.get(3, 1), piece[1]))
        elif number == 3:
            add_prefix = bool(dict(protobuf(value)).get(3, 1))
    return tokens, [], [("tokenizer.ggml.add_space_prefix", "bool", add_prefix)]


def convert(file, out_file, pre):
    data = Path(file).read_bytes()
    if data[:1] != b"{":
        tokens, merges, keys = from_sentencepiece(data)
        keys.append(("tokenizer.ggml.model", "str", "llama"))
    else:
        doc = json.loads(data)
        tokens, merges, keys = from_hf(doc) if "model" in doc else from_tekken(doc)
        keys.append(("tokenizer.ggml.model", "str", "gpt2"))
        if "model" in doc:  # any token will do: the ids of text are compared
            keys += [(f"tokenizer.ggml.{k}_token_id", "u32", next(i for i, t in enumerate(tokens) if t[1] == 3)) for k in ("bos", "eos")]
    write_gguf(out_file, keys, tokens, merges, pre)


def main():
    a, pre = sys.argv[1:], None
    if len(a) == 5 and a[3] == "--pre":
        a, pre = a[:3], a[4]
    if len(a) != 3:
        sys.exit(__doc__)
    if a[0] == "train":
        train(a[1], a[2])
    elif a[0] == "build":
        build(a[1], a[2], pre)
    elif a[0] == "pairs" and pre:
        pairs(int(a[1]), a[2], pre)
    elif a[0] == "convert":
        convert(a[1], a[2], pre)
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
