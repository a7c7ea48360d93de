"""Packages of schema 2: written, read, served, converted, merged; one made by other means; every fault by its code."""
import hashlib
import json
import os
import shutil
import struct
import tempfile
import unittest
import urllib.request

import common
import ggufpy

ROOT_KEYS = ["schema_version", "package_id", "model_id", "source_model", "format", "layer_count", "artifact_catalog", "sidecars",
             "publisher_metadata", "publisher_defaults", "generation", "native_abi_version", "generator_version",
             "created_at_unix_secs"]
LOCATORS = ("tensor_part", "tensor_offset", "tensor_size", "tensor_alignment")
MODELS = {"plain": {"layers": 4}, "tied": {"layers": 3, "tied": True, "type": "q8_0"},
          "replicated": {"layers": 3, "rope_freqs": True, "bias": True}}


def package_id(doc):
    """The canonical digest, by other means than the program's: inner keys of the documents here are in order already."""
    d = json.loads(json.dumps(doc))
    d["package_id"], d["created_at_unix_secs"] = "", 0
    d["source_model"]["files"].sort(key=lambda f: f["path"])
    d["artifact_catalog"]["entries"].sort(key=lambda a: a["id"])
    d = {k: d[k] for k in ROOT_KEYS if k in d}
    return "sha256:" + hashlib.sha256(json.dumps(d, separators=(",", ":"), ensure_ascii=False).encode()).hexdigest()


def load(package):
    with open(os.path.join(package, "model-package.json"), encoding="utf-8") as f:
        return json.load(f)


def save(package, doc, seal=True):
    """Writes a manifest; seal: with the package_id that it should have."""
    if seal:
        doc["package_id"] = package_id(doc)
    with open(os.path.join(package, "model-package.json"), "w", encoding="utf-8") as f:
        json.dump(doc, f, indent=2)


def restate(package, artifact):
    """Makes the manifest state the size and digest that an artifact's file has now."""
    doc = load(package)
    for entry in doc["artifact_catalog"]["entries"]:
        if entry["id"] == artifact:
            path = os.path.join(package, entry["path"])
            entry["byte_size"], entry["sha256"] = os.path.getsize(path), common.sha256(path)
    save(package, doc)


def locator(data, key):
    """Where the values of one of the carrier's arrays begin, and their format."""
    raw = ggufpy.string("skippy.package." + key)
    at = data.index(raw) + len(raw)
    kind, elem, _ = struct.unpack_from("<IIQ", data, at)
    assert kind == ggufpy.ARRAY
    return at + 16, "<" + ggufpy.KINDS[elem]


def foreign(model, out):
    """A package by the rules alone: layer files repeat the common tensors, as the first writers' did; ids and paths have
    nothing in common; the carrier lists its tensors backwards, with offsets that mean nothing."""
    entries = []
    with ggufpy.File(model) as f:
        pairs = [p for p in f.pairs if not p[0].startswith("split.")]
        if not f.value("general.alignment"):
            pairs.append(("general.alignment", ggufpy.encode(ggufpy.U32, 32)))
        of_layer = lambda t: int(t.name.split(".")[1]) if t.name.startswith("blk.") else None
        layers = 1 + max(of_layer(t) for t in f.tensors if of_layer(t) is not None)
        content = lambda ts: [(t.name, t.dims, t.kind, bytes(t.data)) for t in sorted(ts, key=lambda t: t.name)]
        shared = [t for t in f.tensors if of_layer(t) is None]
        parts = {"common": shared, **{f"layer-{i:05d}": [t for t in f.tensors if of_layer(t) == i] for i in range(layers)}}
        os.makedirs(os.path.join(out, "data"))
        places = {}
        for number, name in enumerate(sorted(parts)):
            path = os.path.join(out, "data", f"f{number}.gguf")
            copies = [] if name == "common" else shared
            ggufpy.write(path, pairs, content(parts[name] + copies), f.alignment)
            entries.append({"id": name, "path": f"data/f{number}.gguf", "byte_size": os.path.getsize(path),
                            "sha256": common.sha256(path)})
            with ggufpy.File(path) as part:
                for t in parts[name]:
                    places[t.name] = (number, part.data_start + part.by_name[t.name].offset, t.size, f.alignment)
        listed = f.tensors[::-1]
        u32, u64 = ggufpy.U32, ggufpy.U64
        own = [("metadata_only", ggufpy.encode(ggufpy.BOOL, True)), ("part_count", ggufpy.encode(u32, len(parts))),
               ("locator_schema", ggufpy.encode(u32, 1))]
        for k, key in enumerate(LOCATORS):
            own.append((key, ggufpy.encode(ggufpy.ARRAY, [places[t.name][k] for t in listed], u32 if k in (0, 3) else u64)))
        head = b"GGUF" + struct.pack("<IQQ", 3, len(listed), len(pairs) + len(own))
        head += b"".join(ggufpy.string(k) + raw for k, raw in pairs + [("skippy.package." + k, raw) for k, raw in own])
        for t in listed:
            head += ggufpy.string(t.name) + struct.pack(f"<I{len(t.dims)}QIQ", len(t.dims), *t.dims, t.kind, 7)
        head += b"\0" * (-len(head) % f.alignment)
    carrier = os.path.join(out, "data", "carrier.gguf")
    with open(carrier, "wb") as f:
        f.write(head)
    entries.insert(1, {"id": "m.e-t_a", "path": "data/carrier.gguf", "byte_size": len(head), "sha256": common.sha256(carrier)})
    sha = common.sha256(model)
    save(out, {"schema_version": 2, "package_id": "", "model_id": "org/m",
               "source_model": {"sha256": sha, "metadata_artifact_id": "m.e-t_a", "primary_file": "m.gguf", "files": [
                   {"path": "m.gguf", "byte_size": os.path.getsize(model), "sha256": sha}]},
               "format": "gguf", "layer_count": layers, "artifact_catalog": {"entries": entries},
               "native_abi_version": "0.1.53", "generator_version": "0.76.1", "created_at_unix_secs": 1})


class Schema2(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.model = common.generated(**MODELS["plain"])
        cls.package = os.path.join(cls.folder.name, "package")
        cls.write(cls.model, cls.package)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    @staticmethod
    def write(model, out, *flags):
        done = common.run("write-package", model, "--local", "--schema", "2", "--out-dir", out, *flags)
        assert done.returncode == 0, done.stderr.decode()

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def copy(self):
        """A copy of the package that may be spoiled."""
        return shutil.copytree(self.package, os.path.join(tempfile.mkdtemp(dir=self.folder.name), "p"))

    def ok(self, *args):
        done = common.run(*args)
        self.assertEqual(done.returncode, 0, f"{args}: {done.stderr.decode()}")
        return done

    def logits(self, model, *args):
        out = self.path("logits")
        self.ok("logits", model, "--out", out, *args, "1", "2", "3", "4")
        return common.sha256(out)

    def issues(self, package):
        done = common.run("preflight", package, "--json")
        report = json.loads(done.stdout)
        return done.returncode, {i["code"] for i in report["issues"]}

    def test_same_logits(self):
        for name, options in MODELS.items():
            model = common.generated(**options)
            want = self.logits(model)
            one, parts, alien = self.path(name + "-one"), self.path(name + "-parts"), self.path(name + "-foreign")
            self.write(model, one)
            self.write(model, parts, "--max-artifact-bytes", "20000")
            foreign(model, alien)
            self.assertGreater(len(load(parts)["artifact_catalog"]["entries"]), 10)
            for package in (one, parts, alien):
                self.assertEqual(self.issues(package)[0], 0, package)
                for cut in ((), ("--cut", "1"), ("--cut", "1,2")):
                    self.assertEqual(self.logits(package, "--verify", *cut), want, (package, cut))

    def test_package_id(self):
        doc = load(self.package)
        self.assertEqual(doc["package_id"], package_id(doc))
        self.assertEqual(list(doc), [k for k in ROOT_KEYS if k in doc])

    def test_run_and_serve(self):
        answers = [self.ok("run", m, "--ids", "-p", "1 2 3", "-n", "5", "--ignore-eos").stdout for m in (self.model, self.package)]
        self.assertEqual(*answers)
        self.assertGreater(len(answers[0].split()), 4)
        texts = []
        for package in (common.package_of(self.model), self.package):
            process, url = common.serve(package, "--local-stages", "2", "-t", "1")
            with process:
                body = json.dumps({"prompt": "hello", "max_tokens": 8, "temperature": 0, "ignore_eos": True}).encode()
                request = urllib.request.Request(url + "/v1/completions", body, {"Content-Type": "application/json"})
                with urllib.request.urlopen(request, timeout=60) as answer:
                    texts.append(json.load(answer)["choices"][0]["text"])
                process.stop()
        self.assertEqual(*texts)

    def test_needed_parts(self):
        """A middle stage needs the carrier and its layers, and nothing that is shared."""
        package = self.copy()
        os.remove(os.path.join(package, "shared", "common.gguf"))
        for layer in (0, 3):
            os.remove(os.path.join(package, "layers", f"layer-{layer:05d}.gguf"))
        self.ok("materialize", package, "1..3", "--out", self.path("middle.gguf"))
        for gone in ("0..1", "3..4", "all"):
            done = common.run("materialize", package, gone, "--out", self.path("no.gguf"))
            self.assertEqual(done.returncode, 1)
            self.assertIn(b"is missing", done.stderr)
        self.assertFalse(os.path.exists(self.path("no.gguf")))

    def test_convert(self):
        for name, options in MODELS.items():
            one = common.package_of(common.generated(**options))
            two, back = self.path(name + "-c2"), self.path(name + "-c1")
            self.ok("convert", one, "--to", "2", "--out-dir", two, "--jobs", "2")
            done = self.ok("convert", two, "--to", "1", "--out-dir", back, "--json")
            self.assertEqual(json.loads(done.stdout), load(back))
            for folder, _, files in os.walk(one):
                for file in files:
                    path = os.path.relpath(os.path.join(folder, file), one)
                    if file.endswith((".gguf", ".json")):
                        self.assertEqual(common.sha256(os.path.join(one, path)), common.sha256(os.path.join(back, path)), path)
            self.assertEqual(self.issues(two)[0], 0)
            self.assertEqual(self.logits(two), self.logits(one))
        self.assertEqual(common.run("convert", two, "--to", "2", "--out-dir", self.path("x")).returncode, 1)
        self.assertEqual(common.run("convert", two, "--to", "1", "--out-dir", back).returncode, 1)
        for wrong in (("--to", "3"), (), ("--to", "2", "--slim"), ("--to", "1", "--max-artifact-bytes", "5"), ("--nonsense",)):
            self.assertEqual(common.run("convert", two, *wrong, "--out-dir", self.path("x")).returncode, 2, wrong)
        self.assertFalse(os.path.exists(self.path("x")))

    def test_convert_foreign(self):
        """What the other tool wrote becomes a package of schema 1 with the same weights."""
        alien, one = self.path("alien"), self.path("alien-1")
        foreign(self.model, alien)
        self.ok("convert", alien, "--to", "1", "--out-dir", one)
        self.assertEqual(self.logits(one), self.logits(self.model))
        self.assertEqual(self.issues(one)[0], 0)

    def test_materialize(self):
        for name, options in MODELS.items():
            model = common.generated(**options)
            two, out = self.path(name + "-m2"), self.path("whole.gguf")
            self.write(model, two, "--max-artifact-bytes", "30000")
            for package in (common.package_of(model), two):
                report = json.loads(self.ok("materialize", package, "all", "--out", out, "--json").stdout)
                self.assertEqual(report["sha256"], common.sha256(out))
                self.assertEqual(report["artifact_bytes"], os.path.getsize(out))
                with ggufpy.File(model) as a, ggufpy.File(out) as b:
                    own = [p for p in b.pairs if not p[0].startswith("skippy.package.")]
                    if not a.value("general.alignment"):
                        self.assertEqual(own.pop()[0], "general.alignment")
                    self.assertEqual(own, a.pairs)  # every key, in its order
                    self.assertEqual(b.value("skippy.package.materialized"), True)
                    self.assertEqual([t.facts for t in b.tensors], [t.facts for t in a.tensors])
                    for x, y in zip(a.tensors, b.tensors):
                        self.assertEqual(bytes(x.data), bytes(y.data), x.name)
                self.assertEqual(self.logits(out), self.logits(model))
        for bad in ("out-00001-of-00002.gguf", "package/out.gguf", "package/layers/x.gguf"):
            done = common.run("materialize", self.package, "all", "--out", self.path(bad))
            self.assertEqual(done.returncode, 1, bad)
            self.assertFalse(os.path.exists(self.path(bad)))
        for wrong in (("0..9x",), ("all", "more"), (), ("2..1",)):
            self.assertEqual(common.run("materialize", self.package, *wrong, "--out", out).returncode, 2, wrong)
        self.assertEqual(common.run("materialize", self.package, "all").returncode, 2)
        self.assertEqual(common.run("materialize", self.package, "2..9", "--out", out).returncode, 1)

    def test_damage(self):
        package = self.copy()
        with open(os.path.join(package, "layers", "layer-00001.gguf"), "r+b") as f:
            f.seek(-70, os.SEEK_END)
            f.write(b"\x55\xaa")
        for command in (("convert", package, "--to", "1", "--out-dir", self.path("broken")),
                        ("materialize", package, "1..2", "--out", self.path("broken.gguf")),
                        ("logits", package, "--verify", "--out", self.path("broken.bin"), "1")):
            done = common.run(*command)
            self.assertEqual(done.returncode, 1)
            self.assertIn(b"layers/layer-00001.gguf", done.stderr)
        self.assertEqual([n for n in os.listdir(self.folder.name) if n.startswith("broken")], [])

    # ---- every code ----

    def expect(self, package, code, error=True):
        status, codes = self.issues(package)
        self.assertIn(code, codes)
        self.assertEqual(status, 1 if error else 0, codes)
        if error:  # and no one may run it
            self.assertEqual(common.run("logits", package, "--out", self.path("no.bin"), "1").returncode, 1, code)

    def test_manifest_codes(self):
        def entry(doc, i):
            return doc["artifact_catalog"]["entries"][i]

        def generation(block):
            return lambda d: d.update(generation={"speculative_decoding": block})
        ngram = {"type": "ngram-cache", "proposer": "c"}
        cache = {"type": "ngram-cache", "ngram_min": 1, "ngram_max": 2, "max_proposal_tokens": 3, "history_scope": "request"}
        sidecar = {"kind": "mmproj", "artifact_id": "layer-00000", "name": "x"}
        changes = {
            "unknown_field": lambda d: d.update(future=1),
            "missing_value": lambda d: d.pop("generator_version"),
            "invalid_digest": lambda d: entry(d, 1).update(sha256="A" * 64),
            "invalid_identifier": lambda d: entry(d, 2).update(id="layer 0"),
            "invalid_path": lambda d: entry(d, 2).update(path="../x.gguf"),
            "unknown_source_file": lambda d: d["source_model"].update(primary_file="other.gguf"),
            "invalid_metadata_artifact": lambda d: d.update(sidecars=[dict(sidecar, artifact_id="metadata")]),
            "source_identity_mismatch": lambda d: d["source_model"].update(sha256="0" * 64),
            "duplicate_artifact": lambda d: entry(d, 3).update(id="layer-00000"),
            "duplicate_artifact_path": lambda d: entry(d, 3).update(path=entry(d, 2)["path"]),
            "duplicate_sidecar": lambda d: d.update(sidecars=[sidecar, sidecar]),
            "layer_out_of_bounds": lambda d: d.update(layer_count=3),
            "unknown_artifact": lambda d: d["source_model"].update(metadata_artifact_id="nothing"),
            "unsupported_projector_kind": lambda d: d.update(sidecars=[dict(sidecar, kind="lora")]),
            "unknown_strategy": generation({"default": "x", "proposers": {"c": cache}, "strategies": {"n": ngram}}),
            "unknown_proposer": generation({"default": "n", "strategies": {"n": ngram}}),
            "invalid_generation_value": generation({"default": "n", "proposers": {"c": dict(cache, ngram_min=0)}, "strategies": {"n": ngram}}),
            "incompatible_skippy_abi_version": lambda d: d.update(native_abi_version="1.0.0"),
            "invalid_format": lambda d: d.update(format="layer-package"),
            "invalid_manifest_field": lambda d: d.update(layer_count="4"),
            "empty_artifact": lambda d: entry(d, 2).update(byte_size=0),
            "unsupported_schema_version": lambda d: d.update(schema_version=3),
            "artifact_size_mismatch": lambda d: entry(d, 2).update(byte_size=5),
            "artifact_sha256_mismatch": lambda d: entry(d, 2).update(sha256="0" * 64),
        }
        for code, change in changes.items():
            with self.subTest(code=code):
                package = self.copy()
                doc = load(package)
                change(doc)
                save(package, doc)
                if code == "artifact_sha256_mismatch":  # sizes alone do not show it: only --verify refuses
                    self.assertIn(code, self.issues(package)[1])
                    self.assertEqual(common.run("logits", package, "--verify", "--out", self.path("no.bin"), "1").returncode, 1)
                else:
                    self.expect(package, code)
        package = self.copy()
        save(package, dict(load(package), package_id="sha256:" + "0" * 64), seal=False)
        self.expect(package, "package_identity_mismatch", error=False)
        self.assertEqual(self.logits(package), self.logits(self.model))

    def test_carrier_codes(self):
        """One number of the carrier is wrong, and the manifest agrees with the file."""
        cases = [("unknown_artifact", "tensor_part", lambda v: 99), ("invalid_alignment", "tensor_alignment", lambda v: 24),
                 ("misaligned_offset", "tensor_offset", lambda v: v + 4), ("storage_out_of_bounds", "tensor_offset", lambda v: 1 << 40),
                 ("invalid_stored_length", "tensor_size", lambda v: v - 4), ("overlapping_storage", "tensor_offset", "next")]
        for code, key, change in cases:
            with self.subTest(code=code):
                package = self.copy()
                path = os.path.join(package, "shared", "metadata.gguf")
                with open(path, "rb") as f:
                    data = bytearray(f.read())
                at, fmt = locator(data, key)
                parts, part_fmt = locator(data, "tensor_part")
                if change == "next":  # the place of another tensor of the same part
                    size = struct.calcsize(fmt)
                    part = lambda i: struct.unpack_from(part_fmt, data, parts + 4 * i)[0]
                    other = next(i for i in range(1, 40) if part(i) == part(0))
                    data[at:at + size] = data[at + other * size:at + (other + 1) * size]
                else:
                    struct.pack_into(fmt, data, at, change(struct.unpack_from(fmt, data, at)[0]))
                with open(path, "wb") as f:
                    f.write(data)
                restate(package, "metadata")
                self.expect(package, code)

    def test_part_disagrees(self):
        """A part whose own header says otherwise than the carrier: another type, another shape, another place, nothing."""
        name = "blk.2.attn_q.weight"
        ours = lambda change: lambda ts: [change(*t) if t[0] == name else t for t in ts]
        changes = [("replica_mismatch", ours(lambda n, d, k, x: (n, d, 26, x))),
                   ("replica_mismatch", ours(lambda n, d, k, x: (n, (d[0] * 2, d[1] // 2), k, x))),
                   ("replica_mismatch", lambda ts: ts[::-1]),
                   ("missing_tensor", ours(lambda n, d, k, x: ("blk.2.other", d, k, x)))]
        model = common.generated(layers=4, ff=64, kv_heads=4)  # rows of several sizes
        package = self.path("disagree")
        self.write(model, package)
        path = os.path.join(package, "layers", "layer-00002.gguf")
        with ggufpy.File(path) as f:
            pairs, tensors = list(f.pairs), [(t.name, t.dims, t.kind, bytes(t.data)) for t in f.tensors]
        for i, (code, change) in enumerate(changes):
            with self.subTest(case=i):
                ggufpy.write(path, pairs, change(tensors))
                restate(package, "layer-00002")
                done = common.run("logits", package, "--out", self.path("no.bin"), "1")
                self.assertEqual(done.returncode, 1)
                self.assertIn(b"layer-00002.gguf", done.stderr)
                self.assertIn(code, self.issues(package)[1])


if __name__ == "__main__":
    unittest.main()
