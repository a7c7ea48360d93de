"""What a run takes, told without running it: the numbers are those of the run, for every architecture, whole and cut."""
import json
import os
import unittest

import arch_models
import common

SIZES = ("weight_bytes", "copied_bytes", "kv_bytes", "scratch_bytes", "context", "batch", "threads", "architecture")


def dry(model, *args, status=0):
    done = common.run("run", model, "--dry-run", "--json", *args)
    assert done.returncode == status, done.stderr.decode()
    return json.loads(done.stdout)


class DryRun(unittest.TestCase):
    def test_equals_the_run(self):
        for row in arch_models.ROWS:
            model = common.generated(**row.options)
            for args in (("-p", "one two three", "-n", "4"), ("-p", "x", "-c", "700", "-b", "64", "--kv-type", "f32", "-t", "1")):
                with self.subTest(row=row.name, args=args):
                    told = dry(model, *args)
                    done = common.run("run", model, "--json", *args)
                    self.assertEqual(done.returncode, 0, done.stderr.decode())
                    engine = json.loads(done.stdout)["engine"]
                    self.assertEqual({k: told["engine"][k] for k in SIZES}, {k: engine[k] for k in SIZES})
                    self.assertEqual(told["total_bytes"], sum(engine[k] for k in ("weight_bytes", "kv_bytes", "scratch_bytes")))
                    self.assertTrue(told["fits"])
                    self.assertGreater(told["available_bytes"], told["total_bytes"])

    def test_equals_the_stages_of_a_cut(self):
        """But for the last stage, which here has logits of every position."""
        for row in arch_models.ROWS:
            model = common.generated(**row.options)
            cut = row.legal_cuts[len(row.legal_cuts) // 2]
            package = common.package_of(model)
            done = common.run("logits", package, "--out", os.path.join(common.WORK, "out.f32"), "--json", "--kv-type", "f16",
                              "--cut", cut, *range(1, 40))
            self.assertEqual(done.returncode, 0, done.stderr.decode())
            stages = json.loads(done.stdout)["stages"]
            with open(os.path.join(package, "model-package.json"), encoding="utf-8") as f:
                blocks = json.load(f)["layer_count"]  # those behind the trunk belong to the last range
            for stage in stages:
                with self.subTest(row=row.name, first=stage["first"]):
                    end = blocks if stage is stages[-1] else stage["end"]
                    told = dry(package, "-c", "39", "--layers", f"{stage['first']}..{end}")
                    self.assertEqual((told["first"], told["end"]), (stage["first"], stage["end"]))
                    same = SIZES[:3] if stage is stages[-1] else SIZES[:4]
                    self.assertEqual([told["engine"][k] for k in same], [stage[k] for k in same])

    def test_context(self):
        """That of the options, of the prompt, or of the model, in this order."""
        model = common.generated(layers=2, seed=1)
        self.assertEqual(dry(model)["engine"]["context"], 2048)
        self.assertEqual(dry(model, "-c", "77")["engine"]["context"], 77)
        self.assertEqual(dry(model, "--ids", "-p", "1 2 3", "-n", "5")["engine"]["context"], 8)

    def test_does_not_fit(self):
        model = common.generated(layers=2, seed=1)
        args = ("-c", "16000000", "--kv-type", "f32", "-b", "16384")
        told = dry(model, *args, status=1)
        self.assertFalse(told["fits"])
        done = common.run("run", model, *args, "-p", "x")
        self.assertEqual(done.returncode, 1)
        text = done.stderr.decode()
        for part in ("layers 0..2 need", "weights", "KV cache", "16000000 positions", "scratch", "batches of 16384 tokens",
                     "of memory is available", "lower the"):
            self.assertIn(part, text)
            self.assertIn(part, told["why"])
        # People get the table, and the same line.
        done = common.run("run", model, "--dry-run", *args)
        self.assertEqual(done.returncode, 1)
        self.assertIn("weights, mapped", done.stdout.decode())
        self.assertIn("layers 0..2 need", done.stderr.decode())

    def test_table(self):
        model = common.generated(layers=2, seed=1)
        done = common.run("run", model, "--dry-run", "-c", "512")
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        told, rows = dry(model, "-c", "512"), {}
        for line in done.stdout.decode().splitlines()[3:]:
            rows[line[:16].strip()] = int(line.split()[-1])
        engine = told["engine"]
        self.assertEqual(rows["weights, mapped"] + rows["weights, copied"] + rows["weights, packed"], engine["weight_bytes"])
        self.assertEqual(rows["weights, copied"], engine["copied_bytes"])
        self.assertEqual((rows["KV cache"], rows["scratch"], rows["total"]),
                         (engine["kv_bytes"], engine["scratch_bytes"], told["total_bytes"]))
        self.assertGreater(rows["available"], rows["total"])

    def test_usage(self):
        model = common.generated(layers=2, seed=1)
        for args, says in ((("--layers", "0..1", "-p", "x"), "--dry-run"), (("--dry-run", "--layers", "1..1"), "FIRST..END"),
                           (("--dry-run", "--layers", "x"), "FIRST..END")):
            done = common.run("run", model, *args)
            self.assertEqual(done.returncode, 2)
            self.assertIn(says, done.stderr.decode())
        done = common.run("run", model, "--dry-run", "--layers", "0..3")
        self.assertEqual(done.returncode, 1)
        self.assertIn("2", done.stderr.decode())


if __name__ == "__main__":
    unittest.main()
