"""strata bench: what was asked for is measured, figures agree with each other and with the model's sizes."""
import json
import statistics
import unittest

import common

SMALL = ("-p", 40, "-n", 6, "--batch", 3, "--steps", 4, "-r", 3, "-t", 1)


def bench(model, *options):
    done = common.run("bench", model, *options, "--json")
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


class Bench(unittest.TestCase):
    def test_figures(self):
        found = bench(common.generated(layers=3), *SMALL)
        for what, n in (("prefill", 40), ("decode", 6), ("batch", 3)):
            figure = found[what]
            self.assertEqual((figure["n"], len(figure["rounds"])), (n, 3))
            self.assertGreater(min(figure["rounds"]), 0)
            self.assertAlmostEqual(figure["tokens_per_second"], statistics.median(figure["rounds"]), places=6)
            self.assertGreaterEqual(figure["spread"], 0)
        self.assertEqual((found["threads"], found["kv_type"], found["architecture"]), (1, "f16", "llama"))
        self.assertGreater(found["load"]["seconds_to_first_token"], found["load"]["seconds"])
        band = found["bandwidth"]
        self.assertAlmostEqual(band["share"], found["decode"]["tokens_per_second"] * band["bytes_per_token"] / band["bytes_per_second"],
                               places=6)

    def test_bytes_of_a_token(self):
        """All weights but the embeddings, of which one row is read, and the experts that are not used."""
        def read(**options):
            model = common.generated(arch="qwen3moe", layers=2, experts=8, **options)
            found = bench(model, "-p", 0, "-n", 2, "--batch", 0, "-r", 1, "-t", 1)
            return found["memory"]["weight_bytes"], found["bandwidth"]["bytes_per_token"]
        all_used, some = read(experts_used=8, expert_ff=96), read(experts_used=2, expert_ff=96)
        self.assertEqual(all_used[0], some[0])
        self.assertEqual(all_used[1] - some[1], 2 * 6 * 3 * 64 * 96 * 4)  # layers, experts, matrices, a matrix of f32
        self.assertLess(all_used[1], all_used[0])

    def test_parts_left_out(self):
        found = bench(common.generated(layers=2), "-p", 0, "-n", 3, "--batch", 0, "-r", 1)
        self.assertEqual([len(found[what]["rounds"]) for what in ("prefill", "decode", "batch")], [0, 1, 0])

    def test_text(self):
        done = common.run("bench", common.generated(layers=2), *SMALL, "--kv-type", "f32")
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        for part in ("prefill of 40 tokens", "decode of 6 tokens", "decode of 3 sequences at once", "load to the first token", "weights",
                     "scratch", "KV f32", "decode reads"):
            self.assertIn(part, done.stdout.decode())

    def test_no_repack(self):
        model = common.generated(layers=2, type="q4_0")
        self.assertEqual(bench(model, *SMALL, "--no-repack")["memory"]["repacked_bytes"], 0)

    def test_usage(self):
        model = common.generated(layers=2)
        for options in ((), (model, model), (model, "--batch", 1), (model, "--batch", 65), (model, "-r", 0), (model, "--kv-type", "q1")):
            self.assertEqual(common.run("bench", *options).returncode, 2, options)
        done = common.run("bench", model, "-p", 64, "-c", 32)
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"too short", done.stderr)


if __name__ == "__main__":
    unittest.main()
