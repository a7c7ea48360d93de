"""Real models against what llama.cpp computes: distributions, greedy texts, perplexity of a book.

What was recorded is binding on the CPU kernels that it was recorded with, as test_golden.py explains. STRATA_CHUNKS is
how many chunks of the book are measured (6; 40 is 20,480 tokens).
"""
import array
import json
import math
import os
import re
import subprocess
import unittest

import common
import test_golden as golden

TEXT = os.path.join(common.ROOT, "tests", "data", "perplexity.txt")
CHUNKS = int(os.environ.get("STRATA_CHUNKS", "6"))
MAX_PERPLEXITY = 1e-3  # relative
MAX_PERPLEXITY_OTHER_KERNELS = 1e-2


def load(name):
    with open(os.path.join(golden.GOLDEN, name), encoding="utf-8") as f:
        return json.load(f)


def kernels(model):
    done = common.run("run", model, "--ids", "-p", "1", "-n", "0", "--json", limit_s=300)
    return json.loads(done.stdout)["engine"]["backend"]


@common.needs_gemma3
class Gemma3(unittest.TestCase):
    def setUp(self):
        self.index = load("real-gemma3.json")
        self.same_kernels = kernels(common.GEMMA3) == self.index["backend"]

    def test_distribution(self):
        n, top, tokens = self.index["n_vocab"], self.index["top"], self.index["tokens"]
        with open(os.path.join(golden.GOLDEN, "real-gemma3.top"), "rb") as f:
            recorded = f.read()
        got = golden.ours(common.GEMMA3, tokens)
        self.assertEqual(len(got), len(tokens) * n)
        total = 0.0
        for p in range(len(tokens)):
            at = p * top * 8
            ids = array.array("I", recorded[at:at + 4 * top])
            logs = array.array("f", recorded[at + 4 * top:at + 8 * top])
            mine = golden.log_softmax(got[p * n:(p + 1) * n])
            kl = sum(math.exp(l) * (l - mine[i]) for i, l in zip(ids, logs))
            # What lies outside the recorded tokens counts as one more outcome.
            rest, my_rest = 1 - sum(map(math.exp, logs)), 1 - sum(math.exp(mine[i]) for i in ids)
            if rest > 1e-6 and my_rest > 1e-9:
                kl += rest * math.log(rest / my_rest)
            total += kl
        print(f"gemma3: mean KL divergence {total / len(tokens):.1e} over {len(tokens)} positions")
        self.assertLessEqual(total / len(tokens),
                             golden.MAX_MEAN_KL if self.same_kernels else golden.MAX_MEAN_KL_OTHER_KERNELS)

    def test_greedy(self):
        same = 0
        for entry in self.index["greedy"]:
            done = common.run("run", common.GEMMA3, "--ids", "--json", "--threads", 2, "-n", len(entry["tokens"]),
                              "--ignore-eos", "-p", " ".join(map(str, entry["prompt"])), limit_s=300)
            self.assertEqual(done.returncode, 0, done.stderr)
            got = json.loads(done.stdout)["tokens"]
            self.assertEqual(len(got), len(entry["tokens"]))
            if got == entry["tokens"]:
                same += 1
                continue
            k = next(i for i, (a, b) in enumerate(zip(got, entry["tokens"])) if a != b)
            print(f"{entry['text']!r} parts at token {k}: {entry['best'][k]} against {entry['second'][k]}")
            self.assertLess(entry["best"][k] - entry["second"][k], golden.NEAR_TIE, entry["text"])
        print(f"gemma3: {same} of {len(self.index['greedy'])} greedy continuations are the same")
        if self.same_kernels:
            self.assertEqual(same, len(self.index["greedy"]))

    def test_cut(self):
        """Over the borders between layers with and without a window."""
        tokens = self.index["tokens"][:16]
        whole = golden.ours(common.GEMMA3, tokens)
        out = os.path.join(common.WORK, "cut.f32")
        done = common.run("logits", common.GEMMA3, "--out", out, "--threads", 2, "--cut", "5,6,12", *tokens, limit_s=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(golden.floats(out) == whole)

    def test_tokens(self):
        """Its SentencePiece vocabulary, as llama.cpp splits the prompts."""
        for entry in self.index["greedy"]:
            if "\n" in entry["text"]:
                continue  # tokenize takes one text a line
            done = common.run("tokenize", common.GEMMA3, stdin=entry["text"].encode())
            self.assertEqual([int(i) for i in done.stdout.split()], entry["prompt"], entry["text"])


def measure(model, chunks, *options):
    done = common.run("perplexity", model, "-f", TEXT, "--chunks", chunks, "--json", "--threads", 2, *options, limit_s=3000)
    assert done.returncode == 0, done.stderr.decode()
    got = json.loads(done.stdout)
    assert len(got["running"]) == chunks and got["predictions"] == chunks * 255
    return got


def peer_running(model, chunks, *options):
    """The running result that llama-perplexity prints after each chunk."""
    done = subprocess.run([*golden.PEER, "llama-perplexity", "-m", model, "-f", TEXT, "-t", "2", "-c", "512", "-b", "512",
                           "--chunks", str(chunks), *options], capture_output=True, timeout=3000, check=False)
    text = (done.stdout + done.stderr).decode(errors="replace")
    assert done.returncode == 0, text[-2000:]
    return [float(v) for v in re.findall(r"\[\d+\](\d+\.\d+),", text)]


class Perplexity(unittest.TestCase):
    """Recorded with llama.cpp's defaults and an F16 cache (tests/golden/record_perplexity.py)."""

    def check(self, what, running, want, bound):
        worst = max(abs(a / b - 1) for a, b in zip(running, want))
        print(f"{what}: perplexity {running[-1]:.4f} and {want[len(running) - 1]:.4f} over {len(running)} chunks, "
              f"largest difference on the way {worst:.1e}")
        self.assertLessEqual(len(running), len(want))
        self.assertLessEqual(worst, bound)

    def recorded(self, name, model, bound):
        entry = load("perplexity.json")[name]
        self.assertGreaterEqual(len(entry["running"]) * 512, 20000)
        got = measure(model, min(CHUNKS, len(entry["running"])))
        self.check(name, got["running"], entry["running"],
                   bound if kernels(model) == entry["backend"] else MAX_PERPLEXITY_OTHER_KERNELS)

    @common.needs_model
    def test_smollm2(self):
        self.recorded("smollm2", common.MODEL, MAX_PERPLEXITY)

    @common.needs_gemma3
    def test_gemma3(self):
        self.recorded("gemma3", common.GEMMA3, MAX_PERPLEXITY)

    @common.needs_model
    def test_cache_types(self):
        """Two chunks with each other type of the cache: as llama.cpp with the same type."""
        for kv in ("bf16", "q8_0", "q4_0"):
            with self.subTest(kv):
                entry = load("perplexity.json")["smollm2-" + kv]
                got = measure(common.MODEL, 2, "--kv-type", kv)
                self.check(f"smollm2, {kv}", got["running"], entry["running"],
                           MAX_PERPLEXITY if kernels(common.MODEL) == entry["backend"] else 3 * MAX_PERPLEXITY_OTHER_KERNELS)

    @unittest.skipUnless(golden.PEER, "PEER_RUN names no llama.cpp")
    def test_live(self):
        for model in filter(None, (common.MODEL, common.GEMMA3)):
            with self.subTest(model):
                got, want = measure(model, CHUNKS)["running"], peer_running(model, CHUNKS)
                self.assertEqual(len(want), CHUNKS)
                self.check(f"{os.path.basename(model)}, live", got, want, MAX_PERPLEXITY)


class Command(unittest.TestCase):
    """`strata perplexity` itself, on a generated model."""

    @staticmethod
    def measure(model, *options, text=TEXT):
        done = common.run("perplexity", model, "-f", text, "--threads", 2, "--json", *options)
        assert done.returncode == 0, done.stderr.decode()
        return json.loads(done.stdout)

    def test_against_logits(self):
        """The same number from raw logits, for a vocabulary that wants its first token before every text and one without."""
        with open(TEXT, "rb") as f:
            line = f.read(1500).replace(b"\n", b" ")
        path = os.path.join(common.WORK, "line.txt")
        with open(path, "wb") as f:
            f.write(line)
        for mode, bos in (("spm", True), ("bpe", False)):
            model = common.generated(vocab_mode=mode, seed=5)
            ids = [int(i) for i in common.run("tokenize", model, stdin=line).stdout.split()]
            self.assertEqual(ids[0] == 1, bos)
            total, count = 0.0, 0
            for c in range(3):
                chunk = ids[c * 10:c * 10 + 10]
                rows = golden.ours(model, [1, *chunk[1:]] if bos else chunk)
                n = len(rows) // 10
                for p in range(5, 9):
                    total -= golden.log_softmax(rows[p * n:(p + 1) * n])[chunk[p + 1]]
                    count += 1
            got = self.measure(model, "--chunk", 10, "--chunks", 3, "--kv-type", "f32", text=path)
            self.assertEqual((got["tokens"], got["predictions"]), (len(ids), count))
            self.assertAlmostEqual(got["perplexity"] / math.exp(total / count), 1, 4)

    def test_options(self):
        model = common.generated(vocab_mode="spm", seed=5)
        whole = self.measure(model, "--chunk", 64, "--chunks", 4)
        small = self.measure(model, "--chunk", 64, "--chunks", 4, "--batch", 7)
        self.assertAlmostEqual(whole["perplexity"] / small["perplexity"], 1, 2)
        self.assertEqual((whole["chunks"], whole["chunk_tokens"], whole["predictions"]), (4, 64, 4 * 31))
        self.assertEqual(len(whole["running"]), 4)
        self.assertEqual(whole["running"][-1], whole["perplexity"])
        self.assertGreater(whole["error"], 0)
        done = common.run("perplexity", model, "-f", TEXT, "--chunk", 64, "--chunks", 4)
        self.assertRegex(done.stdout.decode(), r"^perplexity \d+\.\d{4} \+- \d+\.\d{4} \(4 chunks of 64 tokens, 124 pred")
        package = common.package_of(model)
        self.assertEqual(self.measure(package, "--chunk", 64, "--chunks", 4)["running"], whole["running"])

    def test_refused(self):
        model = common.generated(vocab_mode="spm", seed=5)
        short = os.path.join(common.WORK, "short.txt")
        with open(short, "w", encoding="utf-8") as f:
            f.write("A few words.\n")
        done = common.run("perplexity", model, "-f", short)
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"two chunks of 512 are the least", done.stderr)
        done = common.run("perplexity", model, "-f", os.path.join(common.WORK, "none.txt"), "--json")
        self.assertEqual(done.returncode, 1)
        self.assertIn("none.txt", json.loads(done.stdout)["error"]["message"])
        for options in ((), ("-f",), ("-f", short, "--chunk", "3"), ("-f", short, "--kv-type", "f8"), ("-f", short, "x")):
            self.assertEqual(common.run("perplexity", model, *options).returncode, 2)


if __name__ == "__main__":
    unittest.main()
