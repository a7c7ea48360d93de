"""Broken models of every architecture: an error that names what is wrong, never a crash, never silence.

tools/breakmodel makes the broken models from a whole one and tells how opening and running each ended.
"""
import collections
import json
import os
import re
import subprocess
import unittest

import common

BREAKMODEL = os.path.join(common.BUILD, "tools", "breakmodel")
LAYERS = {"lfm2": 3, "lfm2moe": 3}  # one of each kind; others have 2
# More than the plain model of an architecture, so that each kind of tensor occurs.
VARIANTS = {
    "llama": [{}, {"bias": True, "scales": True, "rope_freqs": True}, {"experts": 4},
              {"type": "q8_0"}],
    "gpt-oss": [{}, {"type": "mxfp4"}],
    "deepseek2": [{}, {"scales": True, "nextn": 1, "rope": "yarn:8:64", "variant": "temperature"},
                  {"variant": "legacy,lite"}, {"variant": "fused"}],
}
# What models may lack: computing without it is right.
OPTIONAL = re.compile(r"\.bias$|\.scale$|^output\.weight$|^rope_freqs\.weight$|attn_[qk]_norm\.weight$|attn_sinks\.weight$")
# Tensors that stand for another one: when they are gone, the other one is asked for.
INSTEAD = {"ffn_gate_up_exps.weight": "ffn_gate_exps.weight"}


def architectures():
    path = os.path.join(common.WORK, "unknown-arch.gguf")
    with open(common.generated(), "rb") as f:
        whole = f.read()
    at = whole.index(b"llama")
    with open(path, "wb") as f:
        f.write(whole[:at] + b"lamas" + whole[at + 5:])
    done = common.run("logits", path, "--out", os.path.join(common.WORK, "x.f32"), 1)
    return re.search(r"Strata can run: (.*)", done.stderr.decode()).group(1).split(", ")


def layer_of(name):
    m = re.match(r"blk\.(\d+)\.", name)
    return int(m.group(1)) if m else 0


class BrokenModels(unittest.TestCase):
    def check_tensor(self, trial):
        what, name, end, text = trial["what"], trial["name"], trial["end"], trial["text"]
        self.assertFalse(text.startswith("run: "), trial)  # found before anything is computed
        if what == "remove" and OPTIONAL.search(name):
            self.assertIn(end, ("ok", "error"))
        elif what == "nan":
            self.assertEqual(end, "error", trial)
            self.assertIn(f"tensor {name} holds values that are no numbers", text)
        elif what == "type" and end == "ok":
            self.assertEqual(trial["put"], "F16", trial)  # a matrix of another type that can be computed with
        else:
            self.assertEqual(end, "error", trial)
            stem = re.sub(r"^blk\.\d+\.", "", name)
            self.assertTrue(name in text or INSTEAD.get(stem, "-") in text, trial)

    def check_key(self, trial):
        key, end, text = trial["name"], trial["end"], trial["text"]
        if trial["what"] == "vocab":
            self.assertEqual(end, "error", trial)
            self.assertRegex(text, "^tensor token_embd.weight")
        elif end == "error":
            # Named is the key, or what does not fit with it.
            self.assertRegex(text, r"tensor [\w.]+|" + re.escape(key.split(".")[0]) + r"\.\w+|rope keys|block \d+|layers?")
        if re.search(r"^[\w-]+\.(attention\.head_count|embedding_length|block_count|context_length)$", key) and \
                trial["put"] in ("0", "4294967295"):
            self.assertEqual(end, "error", trial)

    def check_model(self, model, layers, what):
        done = subprocess.run([BREAKMODEL, model, os.path.join(common.WORK, "broken.gguf")], capture_output=True,
                              timeout=600, check=False)
        self.assertEqual(done.returncode, 0, done.stderr.decode()[-2000:])
        ends = collections.Counter()
        for line in done.stdout.decode().splitlines():
            trial = json.loads(line)
            ends[trial["end"]] += 1
            self.assertNotEqual(trial["end"], "signal", trial)
            self.assertNotIn("\n", trial["text"])
            if trial["what"] == "nothing":
                self.assertEqual(trial["end"], "ok", trial)
            elif trial["what"] in ("key", "vocab"):
                self.check_key(trial)
            elif layer_of(trial["name"]) >= layers:
                self.assertEqual(trial["end"], "ok", trial)  # behind the trunk: not run, not looked at
            else:
                self.check_tensor(trial)
        print(f"{what}: {sum(ends.values())} broken models, {dict(ends)}")
        self.assertGreater(ends["error"], 150)

    def test_every_architecture(self):
        for arch in architectures():
            layers = LAYERS.get(arch, 2)
            for variant in VARIANTS.get(arch, [{}]):
                with self.subTest(arch=arch, **variant):
                    model = common.generated(arch=arch, layers=layers, **variant)
                    self.check_model(model, layers, f"{arch} {variant or ''}")


if __name__ == "__main__":
    unittest.main()
