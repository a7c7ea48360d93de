"""Latent attention and grouped experts against the models' own formulas, written out in plain Python.

The formulas are those of DeepSeek's published model code, in the form before any rearrangement: keys and values of every
head. This is what holds where llama.cpp computes something else: see src/model/arch/arch_deepseek2.c.
"""
import array
import math
import operator
import os
import struct
import subprocess
import unittest

import common

TOKENS = [(1 + 7 * i) % 250 for i in range(20)]
MAX_RELATIVE = 1e-4
PEER = os.environ.get("PEER_RUN", "").split()


class Gguf:
    """Keys and F32 tensors of a file."""

    FORMATS = {4: "I", 5: "i", 6: "f", 7: "?"}

    def __init__(self, path):
        with open(path, "rb") as f:
            self.bytes = f.read()
        self.at = 4
        self.keys, infos = {}, []
        _, n_tensors, n_keys = self.take("IQQ")
        for _ in range(n_keys):
            name = self.text()
            self.keys[name] = self.value(*self.take("I"))
        for _ in range(n_tensors):
            name = self.text()
            shape = self.take("Q" * self.take("I")[0])
            kind, offset = self.take("IQ")
            assert kind == 0, name
            infos.append((name, shape, offset))
        data = -(-self.at // 32) * 32
        self.tensors = {name: self.rows(shape, data + offset) for name, shape, offset in infos}

    def take(self, fmt):
        values = struct.unpack_from("<" + fmt, self.bytes, self.at)
        self.at += struct.calcsize("<" + fmt)
        return values

    def text(self):
        n = self.take("Q")[0]
        self.at += n
        return self.bytes[self.at - n:self.at].decode("utf-8", "replace")

    def value(self, kind):
        if kind == 8:
            return self.text()
        if kind == 9:
            kind, n = self.take("IQ")
            return [self.value(kind) for _ in range(n)]
        return self.take(self.FORMATS[kind])[0]

    def rows(self, shape, at):
        """A vector, a list of rows, or a list of such lists."""
        values = array.array("f", self.bytes[at:at + 4 * math.prod(shape)])
        for n in shape[:-1]:
            values = [values[i:i + n] for i in range(0, len(values), n)]
        return values


def dot(a, b):
    return sum(map(operator.mul, a, b))


def times(rows, x):
    return [dot(r, x) for r in rows]


def rms(x, w, eps):
    f = 1 / math.sqrt(dot(x, x) / len(x) + eps)
    return [v * f * g for v, g in zip(x, w)]


def softmax(x):
    top = max(x)
    e = [math.exp(v - top) for v in x]
    total = sum(e)
    return [v / total for v in e]


def swiglu(gate, up, down, x):
    return times(down, [g / (1 + math.exp(-g)) * u for g, u in zip(times(gate, x), times(up, x))])


def best(scores, n):
    return sorted(range(len(scores)), key=lambda i: -scores[i])[:n]


class Reference:
    def __init__(self, path, group_by=None):
        g = Gguf(path)
        self.tensors = g.tensors
        self.key = lambda name, default=None: g.keys.get("deepseek2." + name, default)
        self.eps = self.key("attention.layer_norm_rms_epsilon")
        self.heads = self.key("attention.head_count")
        self.rank = self.key("attention.kv_lora_rank")
        self.n_rot = self.key("rope.dimension_count")
        self.dim_k = self.key("attention.key_length_mla") or self.key("attention.key_length")
        self.dim_v = self.key("attention.value_length_mla") or self.key("attention.value_length")
        self.nope = self.dim_k - self.n_rot
        self.group_by = group_by
        self.rotation()

    @staticmethod
    def mscale(factor, m):
        return 0.1 * m * math.log(factor) + 1 if factor > 1 else 1

    def rotation(self):
        """Frequencies, the factor on cosine and sine, the factor on the products of queries and keys."""
        d, base = self.n_rot, self.key("rope.freq_base")
        plain = [base ** (-2 * i / d) for i in range(d // 2)]
        self.scale, self.length = self.dim_k ** -0.5, 1
        self.freqs = plain
        if self.key("rope.scaling.type") != "yarn":
            return
        factor, context = self.key("rope.scaling.factor"), self.key("rope.scaling.original_context_length")
        all_dim = self.key("rope.scaling.yarn_log_multiplier", 0) * 10

        def dim_of(rotations):
            return d * math.log(context / (rotations * 2 * math.pi)) / (2 * math.log(base))
        low, high = max(math.floor(dim_of(32)), 0), min(math.ceil(dim_of(1)), d - 1)
        for i, f in enumerate(plain):
            ramp = min(max((i - low) / max(high - low, 0.001), 0), 1)
            self.freqs[i] = f / factor * ramp + f * (1 - ramp)
        # A model that gives mscale_all_dim gives the same mscale; one that gives neither has 1 and 0.
        self.length = self.mscale(factor, all_dim or 1) / self.mscale(factor, all_dim)
        self.scale *= self.mscale(factor, all_dim) ** 2

    def rotate(self, x, pos):
        out = list(x)
        for i, f in enumerate(self.freqs):
            c, s = math.cos(pos * f) * self.length, math.sin(pos * f) * self.length
            out[2 * i], out[2 * i + 1] = x[2 * i] * c - x[2 * i + 1] * s, x[2 * i] * s + x[2 * i + 1] * c
        return out

    def w(self, il, name):
        return self.tensors.get(f"blk.{il}.{name}.weight")

    def queries(self, il, a, pos):
        if self.w(il, "attn_q"):
            q = times(self.w(il, "attn_q"), a)
        else:
            q = times(self.w(il, "attn_q_b"), rms(times(self.w(il, "attn_q_a"), a), self.w(il, "attn_q_a_norm"), self.eps))
        heads = [q[h * self.dim_k:(h + 1) * self.dim_k] for h in range(self.heads)]
        return [h[:self.nope] + self.rotate(h[self.nope:], pos) for h in heads]

    def keys_values(self, il, a, pos):
        both = times(self.w(il, "attn_kv_a_mqa"), a)
        c = rms(both[:self.rank], self.w(il, "attn_kv_a_norm"), self.eps)
        pe = self.rotate(both[self.rank:], pos)
        if self.w(il, "attn_kv_b"):
            kv, n = times(self.w(il, "attn_kv_b"), c), self.nope + self.dim_v
            heads = [kv[h * n:(h + 1) * n] for h in range(self.heads)]
            return [h[:self.nope] + pe for h in heads], [h[self.nope:] for h in heads]
        # attn_k_b holds, for each number of c, what it adds to the key.
        keys = [[dot(column, c) for column in zip(*self.w(il, "attn_k_b")[h])] + pe for h in range(self.heads)]
        return keys, [times(self.w(il, "attn_v_b")[h], c) for h in range(self.heads)]

    def attention(self, il, x):
        a = [rms(v, self.w(il, "attn_norm"), self.eps) for v in x]
        state, out = [], []
        for pos, v in enumerate(a):
            state.append(self.keys_values(il, v, pos))
            mixed = []
            for h, q in enumerate(self.queries(il, v, pos)):
                p = softmax([dot(q, k[h]) * self.scale for k, _ in state])
                mixed += [dot(p, column) for column in zip(*(values[h] for _, values in state))]
            out.append(times(self.w(il, "attn_output"), mixed))
        return out

    def route(self, il, f):
        logits = times(self.w(il, "ffn_gate_inp"), f)
        bias = self.tensors.get(f"blk.{il}.exp_probs_b.bias")
        sigmoid = self.key("expert_gating_func") == 2
        p = [1 / (1 + math.exp(-v)) for v in logits] if sigmoid else softmax(logits)
        scores = [a + b for a, b in zip(p, bias)] if bias else list(p)
        n_groups = self.key("expert_group_count")
        if n_groups > 1:
            n = len(p) // n_groups
            count = self.group_by or (2 if bias else 1)
            ranks = [sum(sorted(scores[g * n:(g + 1) * n])[-count:]) for g in range(n_groups)]
            kept = best(ranks, self.key("expert_group_used_count"))
            scores = [s if i // n in kept else -math.inf for i, s in enumerate(scores)]
        ids = best(scores, self.key("expert_used_count"))
        weights = [p[i] for i in ids]
        if self.key("expert_weights_norm"):
            total = sum(weights)
            weights = [v / total for v in weights]
        return zip(ids, [v * self.key("expert_weights_scale") for v in weights])

    def feed_forward(self, il, f):
        if il < self.key("leading_dense_block_count"):
            return swiglu(self.w(il, "ffn_gate"), self.w(il, "ffn_up"), self.w(il, "ffn_down"), f)
        y = swiglu(self.w(il, "ffn_gate_shexp"), self.w(il, "ffn_up_shexp"), self.w(il, "ffn_down_shexp"), f)
        for i, weight in self.route(il, f):
            one = swiglu(*(self.w(il, f"ffn_{part}_exps")[i] for part in ("gate", "up", "down")), f)
            y = [a + weight * b for a, b in zip(y, one)]
        return y

    def logits(self, tokens):
        x = [list(self.tensors["token_embd.weight"][t]) for t in tokens]
        for il in range(self.key("block_count")):
            x = [list(map(operator.add, a, b)) for a, b in zip(x, self.attention(il, x))]
            for v in x:
                f = self.feed_forward(il, rms(v, self.w(il, "ffn_norm"), self.eps))
                v[:] = map(operator.add, v, f)
        return [times(self.tensors["output.weight"], rms(v, self.tensors["output_norm.weight"], self.eps)) for v in x]


def relative(want, got):
    return max(abs(a - b) for a, b in zip(want, got)) / max(map(abs, want))


class LatentReference(unittest.TestCase):
    MODELS = {
        "V3": {},
        "V3 with YaRN": {"rope": "yarn:8:32"},
        "YaRN without yarn_log_multiplier": {"rope": "yarn:8:32", "variant": "nomul"},
        "V2: groups by their best expert": {"variant": "v2"},
        "attn_kv_b": {"variant": "legacy,lite,v2", "rope": "yarn:8:32"},
    }

    @staticmethod
    def ours(model):
        out = os.path.join(common.WORK, "latent.f32")
        done = common.run("logits", model, "--out", out, "--threads", 2, *TOKENS)
        assert done.returncode == 0, done.stderr.decode()
        with open(out, "rb") as f:
            return array.array("f", f.read())

    def test_models(self):
        for name, options in self.MODELS.items():
            with self.subTest(name):
                model = common.generated(arch="deepseek2", layers=2, **options)
                want = [v for row in Reference(model).logits(TOKENS) for v in row]
                worst = relative(want, self.ours(model))
                print(f"{name}: largest difference {worst:.1e} of the largest logit")
                self.assertLessEqual(worst, MAX_RELATIVE)

    def test_the_rule_for_groups_matters(self):
        model = common.generated(arch="deepseek2", layers=2, variant="v2")
        other = [v for row in Reference(model, group_by=2).logits(TOKENS) for v in row]
        self.assertGreater(relative(other, self.ours(model)), 100 * MAX_RELATIVE)

    @unittest.skipUnless(PEER, "PEER_RUN names no llama.cpp")
    def test_where_llama_cpp_deviates(self):
        """It ranks V2's groups by two experts, and scales V3's softmax where the model's own code does not."""
        for name, other in (("V2: groups by their best expert", {"group_by": 2}), ("YaRN without yarn_log_multiplier", None),
                            ("V3 with YaRN", {})):
            with self.subTest(name):
                model = common.generated(arch="deepseek2", layers=2, **self.MODELS[name])
                out = os.path.join(common.WORK, "latent-peer.f32")
                subprocess.run([*PEER, "logits", model, out, *map(str, TOKENS)], check=True, capture_output=True, timeout=120)
                with open(out, "rb") as f:
                    theirs = array.array("f", f.read())
                away = relative([v for row in Reference(model).logits(TOKENS) for v in row], theirs)
                print(f"{name}: llama.cpp is {away:.1e} of the largest logit away from the model's formulas")
                if other is not None:
                    as_found = [v for row in Reference(model, **other).logits(TOKENS) for v in row]
                    self.assertLessEqual(relative(as_found, theirs), MAX_RELATIVE)
                if other != {}:
                    self.assertGreater(away, 100 * MAX_RELATIVE)


if __name__ == "__main__":
    unittest.main()
