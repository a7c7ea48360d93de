"""plan: the division and its numbers, against a second computation by the rules of the standard."""
import itertools
import json
import os
import subprocess
import time
import unittest

import ggufpy as g

import common
import shapes

SKIPPY = os.path.join(common.BUILD, "skippy-model-package")
KINDS = ({}, {"tied": True}, {"rope": True, "experts": 4}, {"tied": True, "rope": True, "per_layer": True, "grow": 9},
         {"mtp": 1, "grow": 5}, {"mtp": 2, "mtp_own": True, "tied": True, "rope": True}, {"mtp": 1, "tied": True})


def older(*args):
    return subprocess.run([SKIPPY, *map(str, args)], capture_output=True, timeout=60, check=False)


def plan(model, *args):
    done = common.run("plan", model, "--json", *args)
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


class Model:
    """Sizes of a model's tensors, and what a range needs, told a second time."""

    def __init__(self, paths, mtp=0, mtp_own=False, **_):
        self.sizes = {}
        for path in paths:
            with g.File(path) as f:
                self.sizes.update({t.name: t.size for t in f.tensors})
        self.layers = 1 + max(shapes.layer(n) for n in self.sizes if shapes.role(n) == "layer")
        self.tied = "output.weight" not in self.sizes
        self.mtp = mtp
        self.borrows = range(self.layers - mtp, self.layers) if mtp and not mtp_own else range(0)

    def owned(self, first, end):
        """Names in a file for the range alone; what belongs nowhere is everywhere."""
        def has(n):
            role = shapes.role(n)
            if role == "layer":
                return first <= shapes.layer(n) < end
            return {"embedding": first == 0, "metadata": True}.get(role, end == self.layers)
        return [n for n in self.sizes if has(n)]

    def loaded(self, first, end):
        names = self.owned(first, end)
        again = (end == self.layers and self.tied) or any(first <= i < end for i in self.borrows)
        return names + (["token_embd.weight"] if again and first > 0 else [])

    def bytes(self, names):
        return sum(self.sizes[n] for n in names)

    def best(self, stages):
        """(largest, sum of squares) of the best cut into stages, MTP layers left with the last trunk layer."""
        best = None
        for cuts in itertools.combinations(range(1, self.layers - self.mtp), stages - 1):
            sizes = [self.bytes(self.loaded(a, b)) for a, b in zip((0, *cuts), (*cuts, self.layers))]
            mine = (max(sizes), sum(s * s for s in sizes))
            best = mine if best is None or mine < best else best
        return best


class Division(unittest.TestCase):
    def check_stages(self, model, doc):
        at = 0
        for i, s in enumerate(doc["stages"]):
            a, b = s["layer_start"], s["layer_end"]
            self.assertEqual((s["stage_index"], a), (i, at))
            self.assertGreater(b, a)
            at = b
            self.assertEqual(s["includes_embeddings"], i == 0)
            self.assertEqual(s["includes_output"], i == len(doc["stages"]) - 1)
            names = model.owned(a, b)
            self.assertEqual((s["tensor_count"], s["tensor_bytes"]), (len(names), model.bytes(names)))
        self.assertEqual(at, model.layers)
        self.assertEqual((doc["schema_version"], doc["stage_count"], doc["layer_count"]),
                         (1, len(doc["stages"]), model.layers))

    def check_ours(self, model, doc):
        self.check_stages(model, doc)
        sizes = []
        for s in doc["stages"]:
            names = model.loaded(s["layer_start"], s["layer_end"])
            self.assertEqual((s["loaded_tensor_count"], s["loaded_bytes"]), (len(names), model.bytes(names)))
            self.assertEqual(s["loaded_bytes"], s["layer_bytes"] + s["embedding_bytes"] + s["output_bytes"] +
                             s["replicated_bytes"])
            sizes.append(s["loaded_bytes"])
        self.assertEqual((doc["total_loaded_bytes"], doc["largest_stage_bytes"]), (sum(sizes), max(sizes)))
        self.assertAlmostEqual(doc["balance"], max(sizes) * len(sizes) / sum(sizes))
        self.assertEqual((doc["tied_output"], doc["mtp_layer_count"]), (model.tied, model.mtp))
        return max(sizes), sum(s * s for s in sizes)

    def test_older_dialect(self):
        """Exactly its keys, by count unless asked otherwise."""
        for kind in KINDS:
            path = shapes.model(layers=7, **kind)
            model = Model([path], **kind)
            for n in range(1, 8):
                done = older("plan", path, "--stages", n)
                self.assertEqual((done.returncode, done.stderr), (0, b""))
                doc = json.loads(done.stdout)
                self.assertEqual(list(doc), ["schema_version", "stage_count", "layer_count", "stages"])
                for i, s in enumerate(doc["stages"]):
                    self.assertEqual(list(s), ["stage_index", "layer_start", "layer_end", "includes_embeddings",
                                               "includes_output", "tensor_count", "tensor_bytes"])
                    self.assertEqual(s["layer_end"] - s["layer_start"], 7 // n + (i < 7 % n))
                self.check_stages(model, doc)
                self.assertEqual(older("plan", "--by", "count", "--stages", n, path).stdout, done.stdout)
                ours = plan(path, "--stages", n, "--by", "count")
                self.check_ours(model, ours)
                self.assertEqual([{k: s[k] for k in doc["stages"][0]} for s in ours["stages"]], doc["stages"])

    def test_by_bytes_is_the_best_cut(self):
        for kind in KINDS:
            path = shapes.model(layers=7, **kind)
            model = Model([path], **kind)
            for n in range(1, 8 - model.mtp):
                doc = plan(path, "--stages", n)
                self.assertEqual(doc["by"], "bytes")
                self.assertEqual(self.check_ours(model, doc), model.best(n), (kind, n))
                self.assertEqual(doc, plan(path, "--stages", n, "--by", "bytes"))
                as_older = json.loads(older("plan", path, "--by", "bytes", "--stages", n).stdout)
                self.assertEqual([s["layer_end"] for s in as_older["stages"]], [s["layer_end"] for s in doc["stages"]])

    def test_mtp_layers_stay_with_the_trunk(self):
        path = shapes.model(layers=7, mtp=2, mtp_own=True, tied=True, rope=True)
        self.assertEqual(plan(path, "--stages", 5)["stages"][-1]["layer_start"], 4)
        done = common.run("plan", path, "--stages", "6")
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"of which the last 2 (MTP)", done.stderr)
        doc = plan(path, "--stages", 6, "--by", "count")  # by count nothing but the number of layers matters
        self.assertEqual(doc["stages"][-1]["layer_start"], 6)
        self.assertTrue(any("cut off from the trunk" in n for n in doc["notes"]), doc["notes"])

    def test_notes(self):
        def notes(**kind):
            return "\n".join(plan(shapes.model(layers=7, **kind), "--stages", 3)["notes"])
        self.assertIn("tied: there is no output.weight", notes(tied=True))
        self.assertIn("tensors of no layer, embedding or output (64 B) are loaded by every stage", notes(rope=True, experts=4))
        borrowed = notes(mtp=1, grow=5)
        self.assertIn("layer 6 is an MTP layer, on the stage of the last trunk layer", borrowed)
        self.assertIn("an MTP layer has no token embeddings of its own", borrowed)
        own = notes(mtp=2, mtp_own=True, tied=True, rope=True)
        self.assertIn("layers 5 to 6 are MTP layers", own)
        self.assertNotIn("of its own", own)
        self.assertRegex(notes(grow=30), r"cut by count, the largest stage would load .* more\)")

    def test_split_sets_and_packages(self):
        kind = {"mtp": 1, "grow": 5}
        path = shapes.model(layers=7, **kind)
        model = Model([path], **kind)
        package, second = common.package_of(path), os.path.join(common.WORK, "plan-schema-2")
        done = common.run("write-package", path, "--local", "--schema", "2", "--max-artifact-bytes", "2000", "--out-dir",
                          second)
        self.assertEqual(done.returncode, 0, done.stderr)
        for n in (1, 3, 6):
            want = plan(path, "--stages", n)
            self.check_ours(model, want)
            for first in (True, False):
                paths = shapes.split_model(3, first, layers=7, **kind)
                self.assertEqual(plan(paths[-1], "--stages", n), want)
            self.assertEqual(plan(package, "--stages", n), want)
            self.assertEqual(plan(second, "--stages", n), want)
            self.assertEqual(json.loads(older("plan", package, "--stages", n).stdout),
                             json.loads(older("plan", path, "--stages", n).stdout))

    def test_serve_cuts_alike(self):
        """What serve does with a package of a model without MTP layers is what plan says."""
        source = common.generated(layers=9, tied=True)
        package = common.package_of(source)
        want = [(s["layer_start"], s["layer_end"]) for s in plan(package, "--stages", 3)["stages"]]
        process, _ = common.serve(package, "--local-stages", "3")
        with process:
            for i, (a, b) in enumerate(want):
                process.wait_for(rf"(?m)^{i + 1} +\S+ +{a}\.\.{b} ")

    def test_text(self):
        path = shapes.model(layers=7, tied=True, rope=True, per_layer=True, grow=9)
        doc = plan(path, "--stages", 3)
        done = common.run("plan", path, "--stages", "3")
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        lines = done.stdout.decode().splitlines()
        self.assertEqual(lines[0], f"{path}: 7 layers over 3 stages, cut by bytes")
        for line, s in zip(lines[3:6], doc["stages"]):
            self.assertEqual(line.split()[:4], [str(s["stage_index"]), f"{s['layer_start']}..{s['layer_end']}",
                                               str(s["layer_end"] - s["layer_start"]), str(s["loaded_tensor_count"])])
        self.assertTrue(lines[7].startswith(f"balance {doc['balance']:.3f}: stage "))
        self.assertEqual([line[2:] for line in lines[8:]], doc["notes"])


class Wrong(unittest.TestCase):
    def test_numbers_of_stages(self):
        path = shapes.model(layers=7)
        for n in ("0", "8", "4294967295"):
            for by in ("bytes", "count"):
                done = common.run("plan", path, "--stages", n, "--by", by)
                self.assertEqual((done.returncode, done.stdout), (1, b""))
                self.assertIn(f"can be cut into 1 to 7 stages, not {n}".encode(), done.stderr)
            done = older("plan", path, "--stages", n)
            self.assertEqual((done.returncode, done.stdout), (1, b""))
            self.assertTrue(done.stderr.startswith(b"Error: "))
            done = common.run("plan", path, "--json", "--stages", n)
            self.assertEqual(done.returncode, 1)
            self.assertIn("1 to 7", json.loads(done.stdout)["error"]["message"])

    def test_models(self):
        vision = os.path.join(common.WORK, "plan-vision.gguf")
        g.write(vision, [("general.architecture", g.encode(g.STRING, "clip"))],
                [("v.blk.0.attn_q.weight", (32, 4), 0, bytes(512))])
        for path, says in ((vision, "no transformer layers"), (os.path.join(common.WORK, "absent"), "absent"),
                           (common.WORK, "model-package.json")):
            for run in (common.run, older):
                done = run("plan", path, "--stages", "2")
                self.assertEqual((done.returncode, done.stdout), (1, b""))
                self.assertIn(says, done.stderr.decode())

    def test_usage(self):
        path = shapes.model(layers=7)
        for args in ((), (path,), ("--stages", "2"), (path, "--stages"), (path, path, "--stages", "2"),
                     (path, "--stages", "x"), (path, "--stages", "-1"), (path, "--stages", "2.5"),
                     (path, "--stages", "4294967296"), (path, "--stages", "2", "--by", "hand"), (path, "--stages", "2", "-x")):
            for run in (common.run, older):
                done = run("plan", *args)
                self.assertEqual((done.returncode, done.stdout), (2, b""), args)
                self.assertIn(b"--help", done.stderr)
        for run in (common.run, older):
            done = run("plan", "--help")
            self.assertEqual((done.returncode, done.stderr), (0, b""))
            self.assertTrue(done.stdout.startswith(b"usage: "))


class Size(unittest.TestCase):
    def test_two_thousand_layers(self):
        path = os.path.join(common.WORK, "deep.gguf")
        tensors = [("token_embd.weight", (64, 5000), 0, None)]
        for i in range(2000):
            tensors += [(f"blk.{i}.{part}.weight", (64, 16 + i * 7 % 13), 0, None)
                        for part in ("attn_norm", "attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up", "ffn_down")]
        tensors.append(("output_norm.weight", (64,), 0, None))
        g.write(path, [("general.architecture", g.encode(g.STRING, "llama"))], tensors)
        start = time.perf_counter()
        doc = plan(path, "--stages", 64)
        seconds = time.perf_counter() - start
        print(f"2000 layers, {len(tensors)} tensors, 64 stages: {seconds * 1e3:.0f} ms")
        self.assertLess(seconds, 5)
        self.assertEqual(doc["stage_count"], 64)
        self.assertLess(doc["balance"], 1.1)


if __name__ == "__main__":
    unittest.main()
