"""Every type of weights that llama-quantize makes runs, in every role, with the numbers of llama.cpp.

Recorded numbers always (tests/golden/record_types.py). With PEER_RUN the whole of it live, and models that llama-quantize
itself makes: each of the names it knows, with an importance matrix where there must be one.

Computed in one batch, as llama.cpp does here, the numbers are the same to the last bit. Other CPU kernels, and tokens that
are computed one by one, add up in another order, which now and then turns a rounding of an activation to 8 bits.
"""
import json
import math
import operator
import os
import re
import subprocess
import unittest

import arch_models as archs
import common
import ggufpy
import type_models as types

PEER = os.environ.get("PEER_RUN", "").split()
MAX_RELATIVE = 1e-3         # of the largest logit
MAX_RELATIVE_TURNED = 6e-2  # where a rounding of an activation may turn
FLOATS = {0, 1, 30}         # F32, F16, BF16: no activation is rounded to 8 bits
# Least correlation with the logits of the model before it was quantized. Random weights suffer more than trained ones:
# of those with two bits and less hardly anything is left, so that only llama.cpp's numbers tell whether they are right.
LEAST_CORRELATION = {"f16": 0.9999, "bf16": 0.999, "q8_0": 0.99, "q6_K": 0.98, "q5_K": 0.95, "q5_1": 0.95, "q5_0": 0.95,
                     "q4_K": 0.85, "q4_1": 0.85, "q4_0": 0.85, "iq4_nl": 0.85, "iq4_xs": 0.85, "nvfp4": 0.75,
                     "mxfp4": 0.75, "q3_K": 0.6, "iq3_s": 0.6, "iq3_xxs": 0.45, "iq2_s": 0.3, "q2_K": 0.25}


def logits(model, *options):
    out = os.path.join(common.WORK, "types.f32")
    done = common.run("logits", model, "--out", out, "--threads", 2, *options, *types.tokens())
    assert done.returncode == 0, done.stderr.decode()
    return archs.floats(out)


def peer(*args):
    done = subprocess.run([*PEER, *map(str, args)], capture_output=True, timeout=300, check=False)
    assert done.returncode == 0, (args, done.stderr.decode()[-2000:])
    return done


def peer_logits(model):
    out = os.path.join(common.WORK, "types-peer.f32")
    peer("logits", model, out, *types.tokens())
    return archs.floats(out)


def relative(want, got):
    assert len(want) == len(got)
    return max(map(abs, map(operator.sub, want, got))) / max(map(abs, want))


def correlation(a, b):
    """Of two lists around zero."""
    dot, aa, bb = (sum(map(operator.mul, x, y)) for x, y in ((a, b), (a, a), (b, b)))
    return dot / math.sqrt(aa * bb)


def kinds(model):
    with ggufpy.File(model) as f:
        return {t.kind for t in f.tensors}


class Types(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.models = types.make_all()

    def test_recorded(self):
        index = types.index()
        done = common.run("run", self.models["f32"], "--ids", "-p", "1", "-n", "0", "--json")
        same_kernels = json.loads(done.stdout)["engine"]["backend"] == index["backend"]
        self.assertEqual(sorted(index["types"]), sorted(self.models))
        for name, model in self.models.items():
            with self.subTest(name):
                entry = index["types"][name]
                self.assertEqual(types.digest(model), entry["sha256"], "mkmodel makes another file than was recorded")
                at_once = types.difference(entry["logits"], logits(model))
                in_turn = types.difference(entry["logits"], logits(model, "--prompt", types.POSITIONS // 2))
                print(f"{name}: largest difference {at_once:.1e} of the largest logit, one by one {in_turn:.1e}")
                exact = kinds(model) <= FLOATS
                self.assertLessEqual(at_once, MAX_RELATIVE if same_kernels or exact else MAX_RELATIVE_TURNED)
                self.assertLessEqual(in_turn, MAX_RELATIVE if exact else MAX_RELATIVE_TURNED)

    def test_near_the_original(self):
        want = logits(self.models["f32"])
        for name, least in LEAST_CORRELATION.items():
            with self.subTest(name):
                got = correlation(want, logits(self.models[name]))
                print(f"{name}: correlation {got:.4f} with the model in F32")
                self.assertLess(got, 1 - 1e-7)
                self.assertGreater(got, least)

    def test_cut(self):
        for name, model in self.models.items():
            with self.subTest(name):
                self.assertTrue(logits(model, "--cut", "1") == logits(model))

    @unittest.skipUnless(PEER, "PEER_RUN names no llama.cpp")
    def test_live(self):
        for name, model in self.models.items():
            with self.subTest(name):
                worst = relative(peer_logits(model), logits(model))
                print(f"{name}, live: largest difference {worst:.1e} of the largest logit")
                self.assertLessEqual(worst, MAX_RELATIVE)


@unittest.skipUnless(PEER, "PEER_RUN names no llama.cpp")
class Quantize(unittest.TestCase):
    """Models that llama-quantize makes: all its names, of a model with experts and of one without."""
    SOURCES = {"experts": {**types.MODEL, "type": "f16"},
               "dense": {"arch": "llama", "layers": 4, "embd": 256, "heads": 4, "kv_heads": 2, "ff": 512, "type": "f16",
                         "tied": True}}

    @staticmethod
    def names():
        text = subprocess.run([*PEER, "llama-quantize", "--help"], capture_output=True, check=False)
        text = (text.stdout + text.stderr).decode()
        return re.findall(r"^ +\d+ +or +(\w+)", text[text.index("allowed quantization types"):], re.M)

    def test_every_name(self):
        names = self.names()
        self.assertGreater(len(names), 35)
        path, seen = os.path.join(common.WORK, "quantized.gguf"), set()
        for what, options in self.SOURCES.items():
            source, matrix = common.generated(**options), os.path.join(common.WORK, "imatrix.gguf")
            peer("llama-imatrix", "-m", source, "-f", os.path.join(common.ROOT, "tests", "data", "corpus.txt"), "-o", matrix,
                 "--chunks", 4, "-c", 64)
            for name in names:
                with self.subTest(name, model=what):
                    peer("llama-quantize", "--imatrix", matrix, source, path, name, 2)
                    seen |= kinds(path)
                    worst = relative(peer_logits(path), logits(path))
                    print(f"{what}, {name}: largest difference {worst:.1e} of the largest logit")
                    self.assertLessEqual(worst, MAX_RELATIVE)
        # Every type that llama-quantize has a name for was among them; NVFP4 has none.
        with_ggml = {k for model in types.make_all().values() for k in kinds(model)}
        self.assertEqual(with_ggml - seen, {40})


if __name__ == "__main__":
    unittest.main()
