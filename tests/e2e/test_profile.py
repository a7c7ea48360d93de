"""--profile: the same results, and where the time went."""
import json
import os
import unittest

import common

IDS = "1 2 3 4 5 6 7"


class Profile(unittest.TestCase):
    def run_model(self, *options):
        done = common.run("run", common.generated(arch="deepseek2", layers=3), "--ids", "-p", IDS, "-n", 6, "-t", 2,
                          *options)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.decode(), done.stderr.decode()

    def test_run(self):
        plain, quiet = self.run_model()
        text, tables = self.run_model("--profile")
        self.assertEqual(text, plain)
        self.assertNotIn("profile", quiet)
        for part in ("profile of prefill: 7 tokens in 1 graphs", "profile of decode: 5 tokens in 5 graphs",
                     "MUL_MAT_ID f32", "ffn_down_exps.weight f32", "attn_k_b.weight f32", "blk.2", "output", "memory: "):
            self.assertIn(part, tables)

    def test_run_json(self):
        plain, profiled = (json.loads(self.run_model("--json", *more)[0]) for more in ((), ("--profile",)))
        self.assertEqual(plain["tokens"], profiled["tokens"])
        self.assertNotIn("profile", plain)
        decode = profiled["profile"]["decode"]
        self.assertEqual((decode["runs"], decode["tokens"]), (5, 5))
        self.assertGreater(decode["bytes"], 0)
        self.assertGreater(decode["memory_gb_per_second"], 0)
        self.assertEqual([row["name"] for row in decode["by_layer"]], ["input", "blk.0", "blk.1", "blk.2", "output"])
        for table in ("by_operation", "by_layer"):
            self.assertAlmostEqual(sum(row["ms"] for row in decode[table]), decode["ms"], places=6)
            self.assertEqual(sum(row["count"] for row in decode[table]), decode["operations"])
        self.assertEqual(sum(row["bytes"] for row in decode["by_layer"]), decode["bytes"])

    def test_names_of_ggml(self):
        """Operations of our own stand for some of ggml's, and are shown as these: conversions of vectors too."""
        model = common.generated(layers=2, embd=128, ff=256, quantize="q5_0")
        done = common.run("run", model, "--ids", "-p", " ".join(["5"] * 40), "-n", 2, "-t", 1, "--profile")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(b"MUL_MAT q5_0", done.stderr)
        self.assertIn(b"CPY", done.stderr)
        self.assertNotIn(b"CUSTOM", done.stderr)

    def test_logits(self):
        model, out = common.generated(layers=3), os.path.join(common.WORK, "profiled.f32")
        results = []
        for more in ((), ("--profile",), ("--profile", "--json")):
            done = common.run("logits", model, "--out", out, "--cut", 1, *more, *IDS.split())
            self.assertEqual(done.returncode, 0, done.stderr)
            with open(out, "rb") as f:
                results.append(f.read())
            if more == ("--profile",):
                self.assertEqual(done.stdout, b"n_tokens=7 n_vocab=459\n")
                self.assertIn(b"profile of layers [0, 1)", done.stderr)
                self.assertIn(b"profile of layers [1, 3)", done.stderr)
        self.assertEqual(results[0], results[1])
        self.assertEqual(results[0], results[2])
        stages = json.loads(done.stdout)["stages"]
        self.assertEqual([[row["name"] for row in s["profile"]["by_layer"]] for s in stages],
                         [["input", "blk.0"], ["blk.1", "blk.2", "output"]])


if __name__ == "__main__":
    unittest.main()
