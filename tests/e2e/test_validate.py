"""preflight, validate and validate-package: sound files pass, every difference is found and named, in both dialects.

What is changed in a file is changed by ggufpy, which shares no code with Strata; the manifest follows suit, so that only
the difference under test is there.
"""
import json
import os
import shutil
import signal
import struct
import subprocess
import time
import unittest

import common
import ggufpy

SKIPPY = os.path.join(common.BUILD, "skippy-model-package")
SANITIZED = "asan" in os.path.basename(common.BUILD)
LAYERS = 5
META, EMBD, OUT = "shared/metadata.gguf", "shared/embeddings.gguf", "shared/output.gguf"
LAYER = [f"layers/layer-{i:05d}.gguf" for i in range(LAYERS)]
PREFLIGHT_KEYS = ["schema_version", "package_path", "valid", "model_id", "layer_count", "activation_width", "manifest_sha256",
                  "checked_artifact_count", "missing_artifact_count", "issue_count", "issues", "artifacts", "stages"]
VALIDATE_KEYS = ["valid", "full_tensor_count", "required_owned_tensor_count", "missing_owned_tensors",
                 "duplicate_owned_tensors", "slices"]
PACKAGE_KEYS = ["valid", "full_tensor_count", "layer_count", "manifest_layer_count_matches_model",
                "activation_width_matches_model", "expected_activation_width", "manifest_activation_width",
                "source_sha256_matches_manifest", "required_owned_tensor_count", "missing_owned_tensors",
                "duplicate_owned_tensors", "checked_artifact_count", "artifacts", "checked_projector_count", "projectors",
                "missing_layers", "duplicate_layers"]


def older(*args, limit_s=120):
    return subprocess.run([SKIPPY, *map(str, args)], stdin=subprocess.DEVNULL, capture_output=True, timeout=limit_s,
                          check=False)


def rewrite(path, change):
    """Writes a GGUF file anew after change(pairs, tensors): lists of (key, raw) and (name, dims, kind, payload)."""
    with ggufpy.File(path) as f:
        pairs, alignment = list(f.pairs), f.alignment
        tensors = [(t.name, t.dims, t.kind, bytes(t.data)) for t in f.tensors]
    change(pairs, tensors)
    ggufpy.write(path, pairs, tensors, alignment)


def index(tensors, name):
    return [t[0] for t in tensors].index(name)


class Package(unittest.TestCase):
    """A copy of one small package for each test."""

    @classmethod
    def setUpClass(cls):
        cls.model = common.generated(layers=LAYERS, rope_freqs=True, seed=3)
        cls.original = common.package_of(cls.model)

    def setUp(self):
        self.dir = os.path.join(common.WORK, "validate-" + self.id().rsplit(".", 1)[1])
        shutil.rmtree(self.dir, ignore_errors=True)
        shutil.copytree(self.original, self.dir)

    def tearDown(self):
        shutil.rmtree(self.dir, ignore_errors=True)

    def path(self, part):
        return os.path.join(self.dir, part)

    def manifest(self):
        with open(self.path("model-package.json"), encoding="utf-8") as f:
            return json.load(f)

    def store(self, manifest):
        with open(self.path("model-package.json"), "w", encoding="utf-8") as f:
            json.dump(manifest, f, indent=2)

    def entry(self, manifest, part):
        entries = [*manifest["shared"].values(), *manifest["layers"], *manifest.get("projectors", [])]
        return next(e for e in entries if e["path"] == part)

    def follow(self, part):
        """The manifest's entry says what the file is now like."""
        manifest = self.manifest()
        entry = self.entry(manifest, part)
        entry["artifact_bytes"] = os.path.getsize(self.path(part))
        entry["sha256"] = common.sha256(self.path(part))
        with ggufpy.File(self.path(part)) as f:
            entry["tensor_count"], entry["tensor_bytes"] = len(f.tensors), sum(t.size for t in f.tensors)
        self.store(manifest)

    def change(self, part, change):
        rewrite(self.path(part), change)
        self.follow(part)

    def restore(self, part):
        shutil.copyfile(os.path.join(self.original, part), self.path(part))
        shutil.copyfile(os.path.join(self.original, "model-package.json"), self.path("model-package.json"))

    def flip(self, part, at):
        with open(self.path(part), "r+b") as f:
            f.seek(at, os.SEEK_END if at < 0 else os.SEEK_SET)
            byte = f.read(1)[0]
            f.seek(-1, os.SEEK_CUR)
            f.write(bytes([byte ^ 0x10]))

    def report(self, *args, status=None):
        """Strata's JSON report, checked against the exit status."""
        done = common.run(*args, "--json")
        report = json.loads(done.stdout)
        self.assertEqual(done.returncode, 0 if report["valid"] else 1, done.stderr)
        self.assertEqual(report["valid"], not [i for i in report["issues"] if i["severity"] == "error"])
        for issue in report["issues"]:
            self.assertTrue(issue["remediation"] and issue["message"] and issue["code"])
        if status is not None:
            self.assertEqual(done.returncode, status, report["issues"])
        return report

    def errors(self, report):
        return {(i["code"], i.get("path")) for i in report["issues"] if i["severity"] == "error"}

    def preflight(self, *args, **kwargs):
        return self.report("preflight", self.dir, *args, **kwargs)

    def validate(self, *args, **kwargs):
        return self.report("validate-package", self.model, self.dir, *args, **kwargs)


class Sound(Package):
    def test_text(self):
        done = common.run("preflight", self.dir)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(b"sound: 5 layers, 9 files", done.stdout)
        self.assertIn(b"every digest matches", done.stdout)
        self.assertEqual(done.stderr, b"")
        done = common.run("validate-package", self.model, self.dir)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(b"valid: 9 files hold all", done.stdout)
        self.assertIn(common.sha256(self.model).encode(), done.stdout)

    def test_reports(self):
        self.assertEqual([k for k in self.preflight(status=0) if k in PREFLIGHT_KEYS], PREFLIGHT_KEYS)
        report = self.validate(status=0)
        self.assertEqual(list(report)[:len(PACKAGE_KEYS)], PACKAGE_KEYS)
        with ggufpy.File(self.model) as f:
            names = {t.name for t in f.tensors}
            self.assertEqual(report["full_tensor_count"], len(names))
            self.assertEqual(report["required_owned_tensor_count"], len(names) - 1)
            size = sum(t.size for t in f.tensors)
            copies = sum(t.size for t in f.tensors if t.name == "rope_freqs.weight") * (LAYERS + 2)
        self.assertEqual(report["compared_tensor_count"], len(names) + LAYERS + 2)
        self.assertEqual(report["compared_bytes"], size + copies)
        for a in report["artifacts"]:
            self.assertEqual(a["sha256"], common.sha256(self.path(a["path"])))
        self.assertEqual([(f["path"], f["sha256"]) for f in report["source_files"]],
                         [(os.path.basename(self.model), common.sha256(self.model))])

    def test_jobs(self):
        """The report does not depend on how many threads made it."""
        for part in LAYER:
            self.flip(part, -1)
        for command in (("preflight", self.dir), ("validate-package", self.model, self.dir)):
            outs = {common.run(*command, "--json", "--jobs", n).stdout for n in (1, 2, 3, 16)}
            self.assertEqual(len(outs), 1)

    def test_older_dialect(self):
        done = older("preflight", self.dir)
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        report = json.loads(done.stdout)
        self.assertEqual(list(report), PREFLIGHT_KEYS)
        self.assertNotIn("sha256_matches_manifest", report["artifacts"][0])
        self.assertEqual((report["stages"], report["issues"], report["valid"]), ([], [], True))
        report = json.loads(older("preflight", self.dir, "--verify-sha256").stdout)
        self.assertTrue(all(a["sha256_matches_manifest"] for a in report["artifacts"]))
        done = older("validate-package", self.model, self.dir)
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        report = json.loads(done.stdout)
        self.assertEqual(list(report), PACKAGE_KEYS)
        self.assertEqual([a["path"] for a in report["artifacts"]], [META, EMBD, OUT, *LAYER])
        self.assertEqual(list(report["artifacts"][0]),
                         ["path", "tensor_count", "owned_tensor_count", "tensor_bytes", "artifact_bytes",
                          "sha256_matches_manifest", "tensor_count_matches_manifest", "tensor_bytes_matches_manifest",
                          "artifact_bytes_matches_manifest", "missing_from_full"])

    def test_older_failures(self):
        """JSON alone on stdout, one line on stderr, exit status 1."""
        self.flip(OUT, -1)
        for args, says in ((("preflight", self.dir, "--verify-sha256"), b"Error: package preflight failed\n"),
                           (("validate-package", self.model, self.dir), b"Error: package validation failed\n"),
                           (("validate", self.model, self.path(OUT)), b"Error: slice validation failed\n")):
            done = older(*args)
            self.assertEqual((done.returncode, done.stderr), (1, says))
            self.assertIs(json.loads(done.stdout)["valid"], False)
        # The digest is not looked at unless asked for; the older tool wants the width, the standard only advises it.
        self.assertEqual(older("preflight", self.dir).returncode, 0)
        self.restore(OUT)
        manifest = self.manifest()
        del manifest["activation_width"]
        self.store(manifest)
        self.preflight(status=0)
        done = older("preflight", self.dir)
        self.assertEqual(done.returncode, 1)
        self.assertEqual([i["code"] for i in json.loads(done.stdout)["issues"]], ["missing_activation_width"])
        self.assertEqual(json.loads(done.stdout)["activation_width"], None)
        # No package at all is a report, too.
        for command in ("preflight",):
            done = older(command, "/nonexistent/package")
            self.assertEqual((done.returncode, done.stderr), (1, b"Error: package preflight failed\n"))
            self.assertEqual([i["code"] for i in json.loads(done.stdout)["issues"]], ["missing_manifest"])

    def test_stages(self):
        for n, parts in ((1, [["metadata", "embeddings", *[f"layer:{i}" for i in range(5)], "output"]]),
                         (2, [["metadata", "embeddings", "layer:0", "layer:1", "layer:2"],
                              ["metadata", "layer:3", "layer:4", "output"]]),
                         (5, [["metadata", "embeddings", "layer:0"], ["metadata", "layer:1"], ["metadata", "layer:2"],
                              ["metadata", "layer:3"], ["metadata", "layer:4", "output"]])):
            for report in (json.loads(older("preflight", self.dir, "--stages", n).stdout),
                           self.preflight("--stages", n, "--by", "count", status=0)):
                self.assertEqual([s["parts"] for s in report["stages"]], parts)
                for i, stage in enumerate(report["stages"]):
                    self.assertEqual((stage["stage_index"], stage["part_count"], stage["missing_parts"]), (i, len(parts[i]), []))
                    self.assertEqual(stage["includes_embeddings"], i == 0)
                    self.assertEqual(stage["includes_output"], i == n - 1)
                    files = {"metadata": META, "embeddings": EMBD, "output": OUT}
                    files = [files.get(p) or LAYER[int(p[6:])] for p in stage["parts"]]
                    self.assertEqual(stage["artifact_bytes"], sum(os.path.getsize(self.path(f)) for f in files))
        for n, code in ((0, "invalid_stage_count"), (6, "stage_count_exceeds_layer_count"),
                        (2**63, "stage_count_exceeds_layer_count")):
            report = self.preflight("--stages", n, status=1)
            self.assertEqual([i["code"] for i in report["issues"] if i["severity"] == "error"], [code])
            self.assertEqual(json.loads(older("preflight", self.dir, "--stages", n).stdout)["issues"][0]["code"], code)
        os.remove(self.path(LAYER[3]))
        stages = self.preflight("--stages", 2, "--by", "count", status=1)["stages"]
        self.assertEqual([s["missing_parts"] for s in stages], [[], ["layer:3"]])

    def test_stages_by_bytes(self):
        """One layer as heavy as all others: by bytes it is alone."""
        def heavy(_, tensors):
            kind = tensors[0][2]
            tensors.append(("blk.4.heavy.weight", (1 << 20,), kind, bytes(ggufpy.tensor_bytes(kind, (1 << 20,)))))
        self.change(LAYER[4], heavy)
        stages = self.preflight("--stages", 2, status=0)["stages"]
        self.assertEqual([(s["layer_start"], s["layer_end"]) for s in stages], [(0, 4), (4, 5)])
        plan = json.loads(common.run("plan", self.dir, "--stages", "2", "--json").stdout)
        self.assertEqual([(s["layer_start"], s["layer_end"]) for s in plan["stages"]], [(0, 4), (4, 5)])

    def test_tied(self):
        model = common.generated(layers=3, tied=True, seed=4)
        package = common.package_of(model)
        report = self.report("preflight", package, "--stages", "3", status=0)
        self.assertEqual([s["parts"] for s in report["stages"]],
                         [["metadata", "embeddings", "layer:0"], ["metadata", "layer:1"],
                          ["metadata", "embeddings", "layer:2", "output"]])
        self.report("validate-package", model, package, status=0)

    def test_record(self):
        env = {"SOURCE_DATE_EPOCH": "1700000000"}
        card = os.path.join(self.dir, "README.md")
        before = common.sha256(card) if os.path.exists(card) else None
        done = common.run("validate-package", self.model, self.dir, "--record", env=env)
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(self.path("validation.json"), encoding="utf-8") as f:
            text = f.read()
        doc = json.loads(text)
        self.assertTrue(doc["valid"])
        self.assertEqual(doc["manifest_sha256"], common.sha256(self.path("model-package.json")))
        self.assertEqual(doc["created_at_unix_secs"], 1700000000)
        self.assertNotIn(common.WORK, text)
        self.assertEqual([i["code"] for i in self.preflight(status=0)["issues"] if i["code"] == "stray_file"], [])
        if before:
            self.assertNotEqual(before, common.sha256(card))  # the card shows the result now
        again = common.run("validate-package", self.model, self.dir, "--record", "--json", env=env)
        self.assertEqual(again.returncode, 0)
        with open(self.path("validation.json"), encoding="utf-8") as f:
            self.assertEqual(f.read(), text)
        self.flip(OUT, -1)
        self.assertEqual(common.run("validate-package", self.model, self.dir, "--record").returncode, 1)
        with open(self.path("validation.json"), encoding="utf-8") as f:
            self.assertFalse(json.load(f)["valid"])


class Damage(Package):
    def test_a_byte_anywhere(self):
        """A byte of the header, of a tensor, of the padding: in each artifact, in each found by its digest."""
        for part in (META, EMBD, OUT, *LAYER):
            size = os.path.getsize(self.path(part))
            with ggufpy.File(self.path(part)) as f:
                first = f.data_start
            for at in (30, first - 1, first, first + (size - first) // 2, size - 1):
                with self.subTest(part=part, at=at):
                    self.flip(part, at)
                    self.assertIn(("artifact_sha256_mismatch", part), self.errors(self.preflight(status=1)))
                    self.assertIn(("artifact_sha256_mismatch", part), self.errors(self.validate(status=1)))
                    self.flip(part, at)
        self.preflight(status=0)

    def test_payload(self):
        """The manifest agrees with the altered file: only the source tells. Which tensor, and where, is told."""
        for part, name in ((META, "rope_freqs.weight"), (EMBD, "token_embd.weight"), (OUT, "output.weight"),
                           (LAYER[3], "blk.3.ffn_down.weight"), (LAYER[0], "rope_freqs.weight")):
            with self.subTest(part=part, name=name):
                def alter(_, tensors, name=name):
                    i = index(tensors, name)
                    payload = bytearray(tensors[i][3])
                    payload[9] ^= 1
                    tensors[i] = (*tensors[i][:3], bytes(payload))
                self.change(part, alter)
                report = self.validate(status=1)
                self.assertEqual(self.errors(report), {("tensor_payload_mismatch", part)})
                found = {a["path"]: a["mismatches"] for a in report["artifacts"] if a["mismatches"]}
                self.assertEqual(found, {part: [{"tensor": name, "what": "payload", "first_byte": 9}]})
                self.restore(part)

    def test_types_and_shapes(self):
        """As many bytes, but another type or shape."""
        def retype(_, tensors):
            i = index(tensors, "blk.1.attn_q.weight")
            self.assertEqual(tensors[i][2], 0)
            tensors[i] = (*tensors[i][:2], 26, tensors[i][3])

        def reshape(_, tensors):
            i = index(tensors, "blk.1.attn_k.weight")
            a, b = tensors[i][1]
            self.assertNotEqual(a, b)
            tensors[i] = (tensors[i][0], (b, a), *tensors[i][2:])

        def flatten(_, tensors):
            i = index(tensors, "blk.1.attn_k.weight")
            a, b = tensors[i][1]
            tensors[i] = (tensors[i][0], (a * b,), *tensors[i][2:])
        for change, code, what in ((retype, "tensor_type_mismatch", "type"), (reshape, "tensor_shape_mismatch", "shape"),
                                   (flatten, "tensor_shape_mismatch", "shape")):
            self.change(LAYER[1], change)
            report = self.validate(status=1)
            self.assertEqual(self.errors(report), {(code, LAYER[1])})
            mismatch, = [m for a in report["artifacts"] for m in a["mismatches"]]
            self.assertEqual(mismatch["what"], what)
            self.assertNotEqual(mismatch["expected"], mismatch["actual"])
            self.restore(LAYER[1])

    def test_exchanged_layers(self):
        """Two layers' files change places, with the manifest; with their tensors renamed, too."""
        manifest = self.manifest()
        a, b = self.entry(manifest, LAYER[1]), self.entry(manifest, LAYER[2])
        a["layer_index"], b["layer_index"] = 2, 1
        self.store(manifest)
        for report in (self.preflight(status=1), self.validate(status=1)):
            self.assertTrue({("foreign_tensor", LAYER[1]), ("foreign_tensor", LAYER[2])} <= self.errors(report))
        self.restore(LAYER[1])
        for part, old, new in ((LAYER[1], b"blk.1.", "blk.2."), (LAYER[2], b"blk.2.", "blk.1.")):
            def rename(pairs, tensors, old=old.decode(), new=new):
                tensors[:] = [(t[0].replace(old, new), *t[1:]) for t in tensors]
                pairs[:] = [(k, ggufpy.encode(ggufpy.I32, int(new[4]) + k.endswith("_end")))
                            if k in ("skippy.slice.layer_start", "skippy.slice.layer_end") else (k, v) for k, v in pairs]
            rewrite(self.path(part), rename)
        os.rename(self.path(LAYER[1]), self.path("x"))
        os.rename(self.path(LAYER[2]), self.path(LAYER[1]))
        os.rename(self.path("x"), self.path(LAYER[2]))
        self.follow(LAYER[1])
        self.follow(LAYER[2])
        self.preflight(status=0)  # nothing in the package tells
        codes = {c for c, _ in self.errors(self.validate(status=1))}
        self.assertEqual(codes, {"tensor_payload_mismatch"})

    def test_tensors(self):
        """Missing, extra, duplicated, unknown."""
        def drop(_, tensors):
            del tensors[index(tensors, "blk.2.attn_q.weight")]

        def extra(_, tensors):
            tensors.append(("blk.2.extra.weight", (8,), 0, bytes(32)))

        def twice(_, tensors):
            tensors.append(("output_norm.weight", (64,), 0, bytes(256)))

        def none(_, tensors):
            tensors.clear()
        self.change(LAYER[2], drop)
        self.preflight(status=0)
        report = self.validate(status=1)
        self.assertEqual(self.errors(report), {("missing_tensor", LAYER[2])})
        self.assertEqual(report["missing_owned_tensors"], ["blk.2.attn_q.weight"])
        self.restore(LAYER[2])
        self.change(LAYER[2], extra)
        report = self.validate(status=1)
        self.assertEqual(self.errors(report), {("unknown_tensor", LAYER[2])})
        self.assertEqual([a["missing_from_full"] for a in report["artifacts"] if a["path"] == LAYER[2]],
                         [["blk.2.extra.weight"]])
        self.restore(LAYER[2])
        self.change(LAYER[2], twice)
        for report in (self.preflight(status=1), self.validate(status=1)):
            self.assertTrue({("foreign_tensor", LAYER[2]), ("duplicate_tensor", LAYER[2])} <= self.errors(report))
        self.assertEqual(report["duplicate_owned_tensors"], ["output_norm.weight"])
        self.restore(LAYER[2])
        self.change(LAYER[2], none)
        self.assertEqual(self.errors(self.preflight(status=1)), {("missing_tensor", LAYER[2])})

    def test_metadata(self):
        def rename(pairs, _):
            pairs[:] = [(k, ggufpy.encode(ggufpy.STRING, "another")) if k == "general.name" else (k, v) for k, v in pairs]
        self.change(META, rename)
        self.preflight(status=0)
        self.assertEqual(self.errors(self.validate(status=1)), {("metadata_mismatch", META)})

    def test_files(self):
        """Gone, a folder, a link to nothing, a link out, shorter, longer, empty, no GGUF: and always a report."""
        part, path = LAYER[2], self.path(LAYER[2])
        outside = os.path.join(common.WORK, "outside.gguf")
        shutil.copyfile(path, outside)
        size = os.path.getsize(path)

        def header():
            with open(path, "r+b") as f:
                f.write(b"GGUF" + struct.pack("<IQQ", 3, 2**62, 2**62))
        for make, code in ((lambda: None, "missing_artifact"), (lambda: os.mkdir(path), "artifact_not_file"),
                           (lambda: os.symlink("nothing", path), "missing_artifact"),
                           (lambda: os.symlink(outside, path), "artifact_outside_package"),
                           (lambda: os.symlink(path, path), "artifact_unreadable"),
                           (lambda: os.mkfifo(path), "artifact_not_file"),
                           (lambda: (shutil.copyfile(outside, path), os.truncate(path, size - 1)), "artifact_size_mismatch"),
                           (lambda: (shutil.copyfile(outside, path), os.truncate(path, size + 1)), "artifact_size_mismatch"),
                           (lambda: open(path, "wb").close(), "artifact_size_mismatch"),
                           (lambda: (shutil.copyfile(outside, path), os.truncate(path, 100), os.truncate(path, size)),
                            "invalid_artifact_gguf"),
                           (lambda: (shutil.copyfile(outside, path), header()), "invalid_artifact_gguf")):
            if os.path.isdir(path) and not os.path.islink(path):
                os.rmdir(path)
            elif os.path.lexists(path):
                os.remove(path)
            make()
            with self.subTest(code=code):
                self.assertIn((code, part), self.errors(self.preflight(status=1)))
                report = self.validate(status=1)
                self.assertIn((code, part), self.errors(report))
                self.assertEqual(len(report["artifacts"]), 3 + LAYERS)
                done = older("validate-package", self.model, self.dir)
                self.assertEqual(done.returncode, 1)
                self.assertEqual(list(json.loads(done.stdout)), PACKAGE_KEYS)

    @unittest.skipIf(os.geteuid() == 0 and not shutil.which("setpriv"), "nothing is unreadable to root")
    def test_permissions(self):
        """Root reads everything, unless it gives up what lets it."""
        weak = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
        os.chmod(self.path(LAYER[2]), 0)
        for args in (("preflight", self.dir), ("validate-package", self.model, self.dir)):
            done = subprocess.run([*weak, common.STRATA, *args, "--json"], capture_output=True, timeout=60, check=False)
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertIn(("artifact_unreadable", LAYER[2]), self.errors(json.loads(done.stdout)))

    def test_another_model(self):
        other = common.generated(layers=LAYERS, rope_freqs=True, seed=99)
        report = self.report("validate-package", other, self.dir, status=1)
        codes = {c for c, _ in self.errors(report)}
        self.assertTrue({"source_sha256_mismatch", "tensor_payload_mismatch"} <= codes, codes)
        smaller = common.generated(layers=2, seed=3)
        codes = {c for c, _ in self.errors(self.report("validate-package", smaller, self.dir, status=1))}
        self.assertTrue({"source_layer_count_mismatch", "unknown_tensor", "metadata_mismatch"} <= codes, codes)


class Many(unittest.TestCase):
    def test_a_hundred_faults(self):
        """Every one is in the report; the text stays short unless asked for more."""
        layers = 110
        model = common.generated(layers=layers, embd=16, heads=2, kv_heads=1, ff=16, seed=5)
        package = os.path.join(common.WORK, "hundred")
        shutil.rmtree(package, ignore_errors=True)
        shutil.copytree(common.package_of(model), package)
        bad = [f"layers/layer-{i:05d}.gguf" for i in range(100)]
        for part in bad:
            with open(os.path.join(package, part), "r+b") as f:
                f.seek(-3, os.SEEK_END)
                byte = f.read(1)
                f.seek(-3, os.SEEK_END)
                f.write(bytes([byte[0] ^ 1]))
        for args in (("preflight", package), ("validate-package", model, package)):
            report = json.loads(common.run(*args, "--json").stdout)
            self.assertEqual({i["path"] for i in report["issues"] if i["code"] == "artifact_sha256_mismatch"}, set(bad))
            self.assertGreaterEqual(report["error_count"], 100)
            text = common.run(*args)
            self.assertEqual(text.returncode, 1)
            self.assertLess(len(text.stdout.splitlines()), 30)
            self.assertIn(b"--verbose", text.stdout)
            verbose = common.run(*args, "--verbose").stdout
            self.assertTrue(all(part.encode() in verbose for part in bad))

    def test_deep(self):
        """2,000 layers in a moment."""
        def tensor(name, *dims):
            return name, dims, 0, bytes(ggufpy.tensor_bytes(0, dims))
        pairs = [("general.architecture", ggufpy.encode(ggufpy.STRING, "llama")),
                 ("llama.block_count", ggufpy.encode(ggufpy.U32, 2000)),
                 ("llama.embedding_length", ggufpy.encode(ggufpy.U32, 8))]
        tensors = [tensor("token_embd.weight", 8, 4), *(tensor(f"blk.{i}.attn_norm.weight", 8) for i in range(2000)),
                   tensor("output_norm.weight", 8), tensor("output.weight", 8, 4)]
        model = os.path.join(common.WORK, "deep.gguf")
        ggufpy.write(model, pairs, tensors)
        package = common.package_of(model)
        start = time.time()
        report = json.loads(common.run("preflight", package, "--stages", "2000", "--json").stdout)
        took = time.time() - start
        self.assertTrue(report["valid"])
        self.assertEqual((len(report["artifacts"]), len(report["stages"])), (2003, 2000))
        self.assertLess(took, 60 if SANITIZED else 10)
        self.assertEqual(common.run("validate-package", model, package).returncode, 0)


    def test_mtp(self):
        """A stage with an MTP layer that borrows the token embeddings needs them; as many stages as layers can be had."""
        def tensor(name, *dims):
            return name, dims, 0, bytes(ggufpy.tensor_bytes(0, dims))
        pairs = [("general.architecture", ggufpy.encode(ggufpy.STRING, "llama")),
                 ("llama.block_count", ggufpy.encode(ggufpy.U32, 3)), ("llama.embedding_length", ggufpy.encode(ggufpy.U32, 8)),
                 ("llama.nextn_predict_layers", ggufpy.encode(ggufpy.U32, 1))]
        tensors = [tensor("token_embd.weight", 8, 4), *(tensor(f"blk.{i}.attn_norm.weight", 8) for i in range(3)),
                   *(tensor(f"blk.2.nextn.{n}.weight", 8) for n in ("eh_proj", "enorm", "hnorm")),
                   tensor("output_norm.weight", 8), tensor("output.weight", 8, 4)]
        model = os.path.join(common.WORK, "mtp.gguf")
        ggufpy.write(model, pairs, tensors)
        package = common.package_of(model)
        for n, last in ((2, ["metadata", "embeddings", "layer:1", "layer:2", "output"]),
                        (3, ["metadata", "embeddings", "layer:2", "output"])):
            report = json.loads(common.run("preflight", package, "--stages", n, "--json").stdout)
            self.assertTrue(report["valid"], report["issues"])
            self.assertEqual((len(report["stages"]), report["stages"][-1]["parts"]), (n, last))
            self.assertTrue(report["stages"][-1]["includes_embeddings"])
        strategy, = report["generation"]["speculative_decoding"]["strategies"]
        self.assertEqual(strategy["name"], report["generation"]["speculative_decoding"]["default"])
        self.assertEqual(common.run("validate-package", model, package).returncode, 0)


class Large(Package):
    """A file of many GiB that takes no room: a hole, declared as a projector."""

    def add_hole(self, size):
        path = self.path("projectors/mmproj.gguf")
        os.makedirs(os.path.dirname(path))
        with open(path, "wb") as f:
            f.truncate(size)
        manifest = self.manifest()
        manifest["projectors"] = [{"kind": "mmproj", "path": "projectors/mmproj.gguf", "tensor_count": 1, "tensor_bytes": 32,
                                   "artifact_bytes": size, "sha256": "0" * 64}]
        self.store(manifest)

    def test_interrupt(self):
        """Ctrl-C ends it within a moment, with exit status 1, in the middle of a large file."""
        self.add_hole(64 << 30)
        for args in (("preflight", self.dir), ("validate-package", self.model, self.dir)):
            with common.Process(*args) as process:
                time.sleep(0.7)
                start = time.time()
                self.assertEqual(process.stop(signal.SIGINT, limit_s=30), 1, process.text)
                self.assertLess(time.time() - start, 10 if SANITIZED else 3)
                self.assertIn("interrupted", process.text)

    def test_memory(self):
        """Whatever the size, a few MiB."""
        self.add_hole(1 << 30)
        for args in (("preflight", self.dir), ("validate-package", self.model, self.dir)):
            most = 0
            with common.Process(*args) as process:
                while process.process.poll() is None:
                    try:
                        with open(f"/proc/{process.pid}/status", encoding="ascii") as f:
                            most = max([most, *(int(line.split()[1]) for line in f if line.startswith("VmHWM"))])
                    except (FileNotFoundError, ProcessLookupError):
                        break
                    time.sleep(0.02)
                self.assertEqual(process.stop(), 1)
            self.assertGreater(most, 0)
            if not SANITIZED:
                self.assertLess(most, 64 << 10)

class Slices(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model = common.generated(layers=LAYERS, rope_freqs=True, seed=3)

    def setUp(self):
        self.dir = os.path.join(common.WORK, "slices")
        shutil.rmtree(self.dir, ignore_errors=True)
        done = common.run("write-stages", self.model, "--stages", "3", "--out-dir", self.dir)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.slices = [os.path.join(self.dir, f"stage-{i:03d}.gguf") for i in range(3)]

    def validate(self, *slices, status):
        done = common.run("validate", self.model, *(slices or self.slices), "--json")
        self.assertEqual(done.returncode, status, done.stdout)
        return json.loads(done.stdout)

    def codes(self, report):
        return {(i["code"], i.get("path")) for i in report["issues"]}

    def test_sound(self):
        report = self.validate(status=0)
        self.assertEqual(list(report)[:len(VALIDATE_KEYS)], VALIDATE_KEYS)
        self.assertEqual(report["issues"], [])
        for s in report["slices"]:
            self.assertEqual(s["sha256"], common.sha256(s["path"]))
        done = older("validate", self.model, *self.slices)
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        report = json.loads(done.stdout)
        self.assertEqual(list(report), VALIDATE_KEYS)
        self.assertEqual(list(report["slices"][0]), ["path", "tensor_count", "owned_tensor_count", "tensor_bytes",
                                                     "missing_from_full", "sha256"])
        self.assertIn(b"valid: 3 slices", common.run("validate", self.model, *self.slices).stdout)
        self.validate(self.model, status=0)  # a model is its own only slice

    def test_faults(self):
        report = self.validate(*self.slices[:2], status=1)
        self.assertIn("output.weight", report["missing_owned_tensors"])
        report = self.validate(*self.slices, self.slices[1], status=1)
        self.assertIn("blk.2.attn_q.weight", report["duplicate_owned_tensors"])
        report = self.validate(*self.slices, "/nonexistent/slice.gguf", status=1)
        self.assertEqual(self.codes(report), {("missing_artifact", "/nonexistent/slice.gguf")})

        def alter(_, tensors):
            i = index(tensors, "blk.2.attn_q.weight")
            tensors[i] = (*tensors[i][:3], bytes(len(tensors[i][3])))
        rewrite(self.slices[1], alter)
        report = self.validate(status=1)
        self.assertEqual(self.codes(report), {("tensor_payload_mismatch", self.slices[1])})
        self.assertEqual([m["tensor"] for m in report["slices"][1]["mismatches"]], ["blk.2.attn_q.weight"])
        os.truncate(self.slices[2], 1000)
        report = self.validate(status=1)
        self.assertIn(("invalid_artifact_gguf", self.slices[2]), self.codes(report))
        self.assertIn(("tensor_payload_mismatch", self.slices[1]), self.codes(report))


class Usage(Package):
    def test_wrong_usage(self):
        for args in (("preflight",), ("preflight", "a", "b"), ("preflight", self.dir, "--stages"),
                     ("preflight", self.dir, "--stages", "x"), ("preflight", self.dir, "--stages", "-1"),
                     ("preflight", self.dir, "--by", "weight"), ("preflight", self.dir, "--jobs", "0"),
                     ("preflight", self.dir, "--jobs", "257"), ("preflight", self.dir, "--unknown"),
                     ("preflight", self.dir, "--require-signature", "x"),
                     ("validate",), ("validate", self.model), ("validate", self.model, "x", "--jobs", "x"),
                     ("validate-package",), ("validate-package", self.model), ("validate-package", "a", "b", "c"),
                     ("validate-package", self.model, self.dir, "--projector")):
            done = common.run(*args)
            self.assertEqual((done.returncode, done.stdout), (2, b""), args)
            self.assertTrue(done.stderr)
        for args in (("preflight",), ("preflight", self.dir, "--json"), ("preflight", self.dir, "--no-digests"),
                     ("validate", self.model), ("validate-package", self.model), ("validate-package", self.model, self.dir, "--record")):
            done = older(*args)
            self.assertEqual((done.returncode, done.stdout), (2, b""), args)

    def test_no_source(self):
        for command, args in (("validate", ["/nonexistent/m.gguf", self.path(OUT)]),
                              ("validate-package", ["/nonexistent/m.gguf", self.dir]),
                              ("validate-package", [self.path("model-package.json"), self.dir])):
            done = common.run(command, *args, "--json")
            self.assertEqual(done.returncode, 1)
            self.assertTrue(json.loads(done.stdout)["error"]["message"])
            self.assertEqual(len(done.stderr.splitlines()), 1)
            done = older(command, *args)
            self.assertEqual((done.returncode, done.stdout), (1, b""))
            self.assertTrue(done.stderr.startswith(b"Error: "))

    def test_help(self):
        for command in ("preflight", "validate", "validate-package"):
            for run in (common.run, older):
                done = run(command, "--help")
                self.assertEqual((done.returncode, done.stderr), (0, b""))
                self.assertIn(b"usage: ", done.stdout)


if __name__ == "__main__":
    unittest.main()
