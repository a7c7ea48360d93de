"""Every architecture, every way a model can be stored: packaged, validated, recomposed, and compared byte for byte.

The layouts of 131 architectures are recorded in tests/golden/archs.json.gz (see tests/golden/record_archs.py); archs.py
makes a small model of each. The judge is ggufpy.py, a reader that shares no code with Strata. With PEER_RUN set (a
command that runs the tools of an installed llama.cpp) the same is done with that program's own files, shards and types.
"""
import atexit
import concurrent.futures
import glob
import itertools
import json
import os
import re
import shutil
import subprocess
import tempfile
import unittest

import archs
import common
import ggufpy

PEER = os.environ.get("PEER_RUN", "").split()
GIB = 1 << 30
PIECE = 1 << 20


def fast_folder():
    """Small files go to memory where there is room: thousands of them are flushed one by one."""
    if not os.access("/dev/shm", os.W_OK) or shutil.disk_usage("/dev/shm").free < 2 * GIB:
        return common.WORK
    folder = tempfile.mkdtemp(prefix="strata-archs-", dir="/dev/shm")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


FAST = fast_folder()

SHARED = ("shared/metadata.gguf", "shared/embeddings.gguf", "shared/output.gguf")
EMBEDDING = ("token_embd.weight", "per_layer_token_embd.weight")
OUTPUT = ("output.weight", "output.bias", "output_norm.weight", "output_norm.bias")
RANDOM = ggufpy.Random(20)


def strata(*args, **kwargs):
    """Runs a command that must succeed; returns its stdout. kwargs as common.run takes them."""
    done = common.run(*args, **{"limit_s": 300, **kwargs})
    if done.returncode != 0:
        raise AssertionError(f"strata {' '.join(map(str, args))}: exit status {done.returncode}\n"
                             f"{done.stdout.decode()[-3000:]}\n{done.stderr.decode()[-2000:]}")
    return done.stdout


def strata_json(*args, **kwargs):
    return json.loads(strata(*args, "--json", **kwargs))


def equal(a, b):
    """Whether two views hold the same bytes; in pieces, so that a tensor of 4 GiB does not become two copies of it."""
    return len(a) == len(b) and all(bytes(a[i:i + PIECE]) == bytes(b[i:i + PIECE]) for i in range(0, len(a), PIECE))


def require(ok, *what):
    if not ok:
        raise AssertionError(" ".join(map(str, what)))


class Source:
    """A model as the source has it: one file, or all files of a split set."""

    def __init__(self, paths):
        self.files = [ggufpy.File(p) for p in paths]
        self.tensors = [t for f in self.files for t in f.tensors]
        self.by_name = {t.name: t for t in self.tensors}
        self.alignment = self.files[0].alignment
        self.keys = {k for k, _ in self.files[0].pairs}
        self.pairs = [p for p in self.files[0].pairs if not p[0].startswith("split.")]

    def close(self):
        for f in self.files:
            f.close()

    def check_pairs(self, f):
        """The file's pairs are those of the source: all of them, in order, the same bytes; and nothing but our own marks."""
        own = [p for p in f.pairs if p[0] in self.keys or not (p[0].startswith("skippy.") or p[0] == "general.alignment")]
        require([k for k, _ in own] == [k for k, _ in self.pairs], f.path, "keys differ:",
                next((x for x in itertools.zip_longest([k for k, _ in own], [k for k, _ in self.pairs]) if x[0] != x[1]), ""))
        for (key, raw), (_, want) in zip(own, self.pairs):
            require(raw == want, f.path, "the value of", key, "differs")
        require(f.alignment == self.alignment, f.path, "alignment", f.alignment, "instead of", self.alignment)

    def check_tensors(self, f, want):
        """The file holds exactly the tensors `want`, each as the source has it."""
        require(set(f.by_name) == set(want), f.path, "holds other tensors:", sorted(set(f.by_name) ^ set(want))[:5])
        for name in want:
            t, s = f.by_name[name], self.by_name[name]
            require(t.facts == s.facts, f.path, t.facts, "instead of", s.facts)
            require(equal(t.data, s.data), f.path, "the payload of", name, "differs")


def layer_of(name):
    match = re.match(r"blk\.([0-9]+)\.", name) or re.fullmatch(r"cache_.+_l([0-9]+)", name)
    return int(match.group(1)) if match else None


def wanted(source, path, layer):
    """Names of the tensors that the standard puts into a part."""
    layers = {t.name: layer_of(t.name) for t in source.tensors}
    everywhere = {n for n, at in layers.items() if at is None and n not in EMBEDDING + OUTPUT}
    own = {SHARED[1]: set(EMBEDDING), SHARED[2]: set(OUTPUT)}.get(path, set())
    if layer is not None:
        own = {n for n, at in layers.items() if at == layer}
    return everywhere | own & set(layers)


def check_parts(source, package):
    """The package of schema 1, seen without Strata's help."""
    with open(os.path.join(package, "model-package.json"), encoding="utf-8") as f:
        manifest = json.load(f)
    parts = [(manifest["shared"][k], None) for k in ("metadata", "embeddings", "output")]
    parts += [(x, x["layer_index"]) for x in manifest["layers"]]
    require([p["path"] for p, _ in parts[:3]] == list(SHARED), "shared parts have other names")
    require([i for _, i in parts[3:]] == list(range(manifest["layer_count"])), "layers are not in order")
    for entry, layer in parts:
        path = os.path.join(package, entry["path"])
        with ggufpy.File(path) as f:
            source.check_pairs(f)
            source.check_tensors(f, wanted(source, entry["path"], layer))
            require(os.path.getsize(path) == entry["artifact_bytes"], path, "artifact_bytes")
            require(len(f.tensors) == entry["tensor_count"], path, "tensor_count")
            require(sum(t.size for t in f.tensors) == entry["tensor_bytes"], path, "tensor_bytes")
    return manifest


def check_report(report, *empty):
    require(report["valid"] is True, "not valid:", json.dumps(report)[:2000])
    for key in empty:
        require(report[key] == [], key, "is", report[key])


def check_preflight(package, *args, **kwargs):
    report = strata_json("preflight", package, *args, **kwargs)
    errors = [i for i in report["issues"] if i["severity"] == "error"]
    require(report["valid"] is True and not errors, "preflight:", errors)
    return report


def check_recomposed(source, package, manifest, out, **kwargs):
    strata("materialize", package, f"0..{manifest['layer_count']}", "--out", out, **kwargs)
    with ggufpy.File(out) as f:
        source.check_pairs(f)
        source.check_tensors(f, list(source.by_name))
    os.remove(out)


def write_package(model, out, *args, **kwargs):
    strata("write-package", model, "--out-dir", out, "--local", *args, **kwargs)


def check_package(paths, work, *args, **kwargs):
    """The whole way of one model; returns its manifest. Leaves the package in work/package."""
    package, source = os.path.join(work, "package"), Source(paths)
    try:
        write_package(paths[-1], package, *args, **kwargs)
        manifest = check_parts(source, package)
        check_report(strata_json("validate-package", paths[0], package, **kwargs), "missing_owned_tensors",
                     "duplicate_owned_tensors", "missing_layers", "duplicate_layers")
        check_preflight(package, "--stages", "1", **kwargs)
        check_recomposed(source, package, manifest, os.path.join(work, "whole.gguf"), **kwargs)
    finally:
        source.close()
    return manifest


def check_slices(paths, work, layer_count):
    """The model cut into stages, and one slice cut by hand."""
    stages, source = os.path.join(work, "stages"), Source(paths)
    try:
        n = min(2, layer_count)
        strata("write-stages", paths[0], "--stages", n, "--out-dir", stages)
        slices = sorted(glob.glob(os.path.join(stages, "*.gguf")))
        require(len(slices) == n, "slices:", slices)
        check_report(strata_json("validate", paths[0], *slices), "missing_owned_tensors", "duplicate_owned_tensors")
        seen = set()
        for path in slices:
            with ggufpy.File(path) as f:
                source.check_pairs(f)
                source.check_tensors(f, list(f.by_name))
                seen |= set(f.by_name)
        require(seen == set(source.by_name), "the slices do not hold the whole model")
        whole = os.path.join(work, "slice.gguf")
        strata("write", paths[0], "--layers", f"0..{layer_count}", "--out", whole)
        with ggufpy.File(whole) as f:
            source.check_pairs(f)
            source.check_tensors(f, list(source.by_name))
    finally:
        source.close()


def files_of(folder):
    """Relative path -> content of every file below a folder."""
    out = {}
    for path in glob.glob(os.path.join(folder, "**"), recursive=True):
        if os.path.isfile(path):
            with open(path, "rb") as f:
                out[os.path.relpath(path, folder)] = f.read()
    return out


def gguf_files_of(folder):
    return {k: v for k, v in files_of(folder).items() if k.endswith(".gguf")}


def check_schemas(paths, work):
    """To schema 2 and back: the fragments come back as they were; a package written as 2 at once holds the same files.

    Schema 1 does not keep the order of tensors across its parts, so the carrier (shared/metadata.gguf) of a converted
    package may list them in another order; everything else is the same to the byte.
    """
    one, two, back, direct = (os.path.join(work, n) for n in ("package", "two", "back", "direct"))
    source = Source(paths)
    try:
        strata("convert", one, "--to", "2", "--out-dir", two)
        strata("convert", two, "--to", "1", "--out-dir", back)
        check_preflight(back)
        require(gguf_files_of(one) == gguf_files_of(back), "fragments changed on the way to schema 2 and back")
        write_package(paths[0], direct, "--schema", "2")
        carrier, made = "shared/metadata.gguf", []
        for package in (two, direct):
            report = check_preflight(package)
            check_report(strata_json("validate-package", paths[0], package))
            check_recomposed(source, package, report, os.path.join(work, "whole.gguf"))
            made.append(gguf_files_of(package))
        require(made[0].keys() == made[1].keys() and all(made[0][k] == made[1][k] for k in made[0] if k != carrier),
                "schema 2, converted and written, differ")
        require(len(made[0][carrier]) == len(made[1][carrier]), "the carriers differ in more than their order")
    finally:
        source.close()


def in_folder(name, job, base=FAST):
    """job(folder) in a folder of its own, which is removed; returns a text when it failed."""
    work = tempfile.mkdtemp(prefix=name + "-", dir=base)
    try:
        job(work)
    except (AssertionError, ggufpy.Bad, OSError, KeyError, subprocess.SubprocessError, json.JSONDecodeError) as e:
        return f"{name}: {type(e).__name__}: {e}"
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return None


def for_all(items, job):
    """job(item, folder) for each, two at a time; fails with every fault found."""
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        faults = list(pool.map(lambda x: in_folder(str(x), lambda work: job(x, work)), items))
    faults = [f for f in faults if f]
    if faults:
        raise AssertionError(f"{len(faults)} of {len(items)} failed:\n" + "\n".join(f[:1500] for f in faults[:10]))


class Recorded(unittest.TestCase):
    """The 131 layouts."""

    def test_all_are_there(self):
        self.assertEqual(len(archs.names()), 131)
        self.assertEqual(sum(len(a["tensors"]) for a in archs.load().values()), 8207)

    def test_whole(self):
        def job(name, work):
            path = os.path.join(work, name + ".gguf")
            ggufpy.write(path, *archs.content(name))
            manifest = check_package([path], work)
            check_slices([path], work, manifest["layer_count"])
        for_all(archs.names(), job)

    def test_shards(self):
        """Two to five parts, the first one with and without tensors: the same fragments as from the whole file."""
        def job(name, work):
            content = archs.content(name)
            path, one = os.path.join(work, name + ".gguf"), os.path.join(work, "one")
            ggufpy.write(path, *content)
            write_package(path, one)
            seed = archs.names().index(name)
            parts = ggufpy.split(os.path.join(work, name), ["general.architecture"], *content, 2 + seed % 4, seed % 2 == 0)
            check_package(parts, work)
            require(gguf_files_of(one) == gguf_files_of(os.path.join(work, "package")), "shards give other fragments")
        for_all(archs.names(), job)

    def test_schemas(self):
        def job(name, work):
            path = os.path.join(work, name + ".gguf")
            ggufpy.write(path, *archs.content(name))
            write_package(path, os.path.join(work, "package"))
            check_schemas([path], work)
        for_all(archs.names(), job)


def small(layers=2, width=8, tokens=16, extra=(), arch="llama"):
    """(pairs, tensors) of a plain model; extra: more tensors."""
    def tensor(name, *dims):
        return name, dims, 0, RANDOM(ggufpy.tensor_bytes(0, dims))
    pairs = [("general.architecture", ggufpy.encode(ggufpy.STRING, arch)),
             ("general.name", ggufpy.encode(ggufpy.STRING, "small")),
             (arch + ".block_count", ggufpy.encode(ggufpy.U32, layers)),
             (arch + ".embedding_length", ggufpy.encode(ggufpy.U32, width))]
    tensors = [tensor("token_embd.weight", width, tokens)]
    for i in range(layers):
        tensors += [tensor(f"blk.{i}.attn_norm.weight", width), tensor(f"blk.{i}.ffn_up.weight", width, 2)]
    return pairs, tensors + [*extra, tensor("output_norm.weight", width), tensor("output.weight", width, tokens)]


class Corners(unittest.TestCase):
    """Models that stretch the format."""

    def check(self, content, name, base=FAST, **options):
        def job(work):
            path = os.path.join(work, name + ".gguf")
            ggufpy.write(path, *content, **options)
            self.manifest = check_package([path], work)
            check_slices([path], work, self.manifest["layer_count"])
        fault = in_folder(name, job, base)
        self.assertIsNone(fault, fault)

    def test_every_tensor_type(self):
        extra = []
        for kind, (elems, _) in ggufpy.TYPES.items():
            for dims in ((elems,), (2 * elems, 3), (elems, 2, 2), (elems, 1, 2, 3)):
                name = f"blk.{kind % 2}.t{kind}_{len(dims)}.weight"
                extra.append((name, dims, kind, RANDOM(ggufpy.tensor_bytes(kind, dims))))
        self.check(small(extra=extra), "types")

    def test_alignments(self):
        """The key may stand anywhere, and its place is kept."""
        for alignment, at in ((1, 0), (8, 2), (64, 4), (4096, 1), (1 << 20, 3)):
            with self.subTest(alignment=alignment):
                pairs, tensors = small()
                pairs.insert(at, ("general.alignment", ggufpy.encode(ggufpy.U32, alignment)))
                self.check((pairs, tensors), f"alignment-{alignment}", alignment=alignment)

    def test_version_2(self):
        self.check(small(), "version-2", version=2)

    def test_odd_pairs(self):
        """Every kind, empty and long values, bytes that are no text, keys that are no identifiers."""
        pairs, tensors = small()
        for kind, fmt in ggufpy.KINDS.items():
            value = {"?": True, "f": 0.1, "d": float("-inf")}.get(fmt, 1)
            pairs += [(f"odd.kind{kind}", ggufpy.encode(kind, value)),
                      (f"odd.none{kind}", ggufpy.encode(ggufpy.ARRAY, [], kind)),
                      (f"odd.some{kind}", ggufpy.encode(ggufpy.ARRAY, [value] * 1000, kind))]
        pairs += [("odd.bytes", ggufpy.encode(ggufpy.STRING, bytes(range(256)))),
                  ("odd.empty", ggufpy.encode(ggufpy.STRING, b"")),
                  ("odd.long", ggufpy.encode(ggufpy.STRING, b"x" * 3_000_000)),
                  ("odd.strings", ggufpy.encode(ggufpy.ARRAY, [b"", b"\0", b"\xff\xfe", b"\n"], ggufpy.STRING)),
                  ("odd key with spaces, \u00fcml\u00e4uts and\ttabs", ggufpy.encode(ggufpy.U8, 1)), ("k" * 1000, ggufpy.encode(ggufpy.U8, 2))]
        self.check((pairs, tensors), "pairs")

    def test_odd_names(self):
        """Names that look like others; all that are no layer's are copied into every part."""
        names = ["cache_k_l0", "cache_v_rot_l1", "blk.2.nextn.eh_proj.weight", "blk.0.\u00e4.weight", "blk.00.x.weight", "rope_freqs.weight",
                 "v.blk.0.attn_q.weight", "enc.blk.7.attn_q.weight", "mm.0.weight", "blk.weight", "blk..weight", "blk.-1.weight", "blk.1x.weight",
                 "output.weight.scale", "token_embd.bias", "output_norm", "x" * 63, "a b", "cache_l0", "per_layer_token_embd.weight"]
        extra = [(n, (4, 3), 0, RANDOM(48)) for n in names]
        self.check(small(layers=3, extra=extra), "names")

    def test_gaps_and_lone_layers(self):
        """One layer; a first layer that is not 0; both are answered clearly and leave nothing behind when refused."""
        self.check(small(layers=1), "one-layer")
        pairs, tensors = small(layers=3)
        self.refused((pairs, [t for t in tensors if not t[0].startswith("blk.0.")]), "layer 0")
        self.refused((pairs, [t for t in tensors if not t[0].startswith("blk.1.")]), "layer 1")

    def refused(self, content, *says):
        def job(work):
            path, out = os.path.join(work, "m.gguf"), os.path.join(work, "package")
            ggufpy.write(path, *content)
            done = common.run("write-package", path, "--out-dir", out, "--local")
            text = done.stderr.decode()
            require(done.returncode == 1, "exit status", done.returncode, text)
            for part in says:
                require(part in text, repr(part), "is not in", text)
            require(not os.path.exists(out), "a folder was left behind")
        fault = in_folder("refused", job)
        self.assertIsNone(fault, fault)

    def test_missing_and_odd_keys(self):
        """Each key left out in turn, and those that are needed with odd values: written and sound, or refused cleanly."""
        pairs, tensors = small()
        width = "llama.embedding_length"
        odd = [(width, ggufpy.U32, 0), (width, ggufpy.I32, -8), (width, ggufpy.U64, 1 << 32), (width, ggufpy.STRING, "8"),
               (width, ggufpy.F32, 8.0), ("general.architecture", ggufpy.U32, 1), ("general.architecture", ggufpy.STRING, ""),
               ("general.architecture", ggufpy.STRING, b"\xff\0"), ("general.architecture", ggufpy.STRING, "x" * 5000),
               ("llama.block_count", ggufpy.U32, 7), ("llama.block_count", ggufpy.STRING, "many"), ("general.name", ggufpy.BOOL, True)]
        changed = [[p for p in pairs if p[0] != key] for key, _ in pairs]
        changed += [[(k, ggufpy.encode(kind, value)) if k == key else (k, raw) for k, raw in pairs] for key, kind, value in odd]
        refused = 0
        for number, content in enumerate(changed):
            def job(work):
                path, out = os.path.join(work, "m.gguf"), os.path.join(work, "package")
                ggufpy.write(path, content, tensors)
                done = common.run("write-package", path, "--out-dir", out, "--local")
                if done.returncode == 0:
                    check_parts(Source([path]), out)
                    check_preflight(out)
                    return False
                require(done.returncode == 1, "exit status", done.returncode, done.stderr.decode(errors="replace"))
                require(not os.path.exists(out), "a folder was left behind")
                # Whatever bytes the file put into the message, the answer for programs is a document.
                said = json.loads(common.run("write-package", path, "--out-dir", out, "--local", "--json").stdout)
                require(said["error"]["message"], "no message")
                return True
            answer = []
            fault = in_folder(f"keys-{number}", lambda work: answer.append(job(work)))
            self.assertIsNone(fault, fault)
            refused += answer[0]
        self.assertGreater(refused, 8)
        self.assertLess(refused, len(changed))

    def test_not_a_decoder(self):
        """Models without blk.N layers (T5's enc.blk and dec.blk, vision files) have no layer range: refused by name."""
        pairs, _ = small(arch="t5")
        for names in (("token_embd.weight", "enc.blk.0.attn_q.weight", "dec.blk.0.attn_q.weight"),
                      ("v.blk.0.attn_q.weight", "v.patch_embd.weight"), ()):
            self.refused((pairs, [(n, (8, 2), 0, RANDOM(64)) for n in names]), "layer")

    def test_without_output(self):
        """Tied embeddings, and an encoder without an output norm: nothing of the output part but what is there."""
        pairs, tensors = small()
        self.check((pairs, [t for t in tensors if t[0] != "output.weight"]), "tied")
        self.check((pairs, [t for t in tensors if not t[0].startswith("output")]), "no-output")

    def test_without_embeddings(self):
        """A model without token_embd.weight cannot be run: refused, or else a package that its own preflight accepts."""
        pairs, tensors = small()
        content = pairs, [t for t in tensors if t[0] not in EMBEDDING]

        def job(work):
            path, out = os.path.join(work, "m.gguf"), os.path.join(work, "package")
            ggufpy.write(path, *content)
            done = common.run("write-package", path, "--out-dir", out, "--local")
            if done.returncode == 1:
                require(b"token_embd" in done.stderr, done.stderr.decode())
                require(not os.path.exists(out), "a folder was left behind")
            else:
                require(done.returncode == 0, done.stderr.decode())
                check_preflight(out)
        fault = in_folder("headless", job)
        self.assertIsNone(fault, fault)

    def test_two_thousand_layers(self):
        self.check(small(layers=2000), "layers")

    def test_large_vocabulary(self):
        """300,000 tokens and as many merges, in every one of the fragments."""
        n = 300_000
        pairs, tensors = small(layers=3, tokens=n)
        tokens = [b"token-%d" % i for i in range(n)]
        pairs += [("tokenizer.ggml.model", ggufpy.encode(ggufpy.STRING, "gpt2")),
                  ("tokenizer.ggml.tokens", ggufpy.encode(ggufpy.ARRAY, tokens, ggufpy.STRING)),
                  ("tokenizer.ggml.token_type", ggufpy.encode(ggufpy.ARRAY, [1] * n, ggufpy.I32)),
                  ("tokenizer.ggml.scores", ggufpy.encode(ggufpy.ARRAY, [0.5] * n, ggufpy.F32)),
                  ("tokenizer.ggml.merges", ggufpy.encode(ggufpy.ARRAY, [b"a%d b" % i for i in range(n)], ggufpy.STRING))]
        self.check((pairs, tensors), "vocabulary")

    def test_tensor_over_four_gib(self):
        """Sizes and offsets beyond 32 bits. The source is a hole; the fragment and the recomposed file are 4 GiB each."""
        if shutil.disk_usage(common.WORK).free < 12 * GIB:
            self.skipTest("needs 12 GiB of disk")
        rows = 1 << 20
        big = ("blk.0.ffn_up.weight", (1024, rows, 1), 0, None)  # 4 GiB
        last = ("blk.1.attn_norm.weight", (8,), 0, RANDOM(32))    # lies beyond them
        pairs, tensors = small(layers=1)
        tensors = [t for t in tensors if t[0] != big[0]]
        tensors.insert(1, big)
        tensors.insert(2, ("blk.0.extra.weight", (1024, 256), 0, RANDOM(PIECE)))

        def job(work):
            path = os.path.join(work, "big.gguf")
            ggufpy.write(path, pairs, [*tensors, last])
            require(os.stat(path).st_blocks * 512 < GIB, "the source is no sparse file")
            check_package([path], work, limit_s=600)
        fault = in_folder("big", job, common.WORK)
        self.assertIsNone(fault, fault)

    def test_repeatable(self):
        """One job or four, twice: the same bytes, the manifest included."""
        def job(work):
            path, env = os.path.join(work, "m.gguf"), {"SOURCE_DATE_EPOCH": "1700000000"}
            ggufpy.write(path, *small(layers=9))
            made = []
            for i, jobs in enumerate((1, 4, 4, 2)):
                out = os.path.join(work, str(i))
                write_package(path, out, "--jobs", jobs, env=env)
                made.append(files_of(out))
            require(all(m == made[0] for m in made), "the same call gave other bytes")
            require("model-package.json" in made[0] and len(gguf_files_of(os.path.join(work, "0"))) == 12, sorted(made[0]))
        fault = in_folder("repeat", job)
        self.assertIsNone(fault, fault)


@unittest.skipUnless(PEER, "PEER_RUN names no command that runs llama.cpp's tools")
class Peer(unittest.TestCase):
    """The peer's own files."""

    @classmethod
    def setUpClass(cls):
        cls.work = tempfile.mkdtemp(prefix="strata-peer-", dir="/tmp")
        cls.addClassCleanup(shutil.rmtree, cls.work, ignore_errors=True)
        cls.peer("test-llama-archs", "-o", cls.work)
        cls.models = sorted(glob.glob(os.path.join(cls.work, "*.gguf")), key=cls.stem)

    @staticmethod
    def stem(path):
        return os.path.basename(path)[:-len(".gguf")]

    @staticmethod
    def peer(*args):
        done = subprocess.run([*PEER, *map(str, args)], capture_output=True, check=False, timeout=600)
        if done.returncode != 0:
            raise AssertionError(f"{args}: {done.stderr.decode()[-1500:]}")
        return done.stdout

    def for_models(self, job):
        for_all([self.stem(m) for m in self.models], lambda name, work: job(os.path.join(self.work, name + ".gguf"), work))

    def test_layouts_are_the_recorded_ones(self):
        self.assertEqual([self.stem(m) for m in self.models], archs.names())
        for path in self.models:
            record = archs.load()[self.stem(path)]
            with ggufpy.File(path) as f:
                self.assertEqual([[t.name, *t.dims] for t in f.tensors], record["tensors"], path)

    def test_whole(self):
        def job(path, work):
            check_slices([path], work, check_package([path], work)["layer_count"])
        self.for_models(job)

    def shards(self, *options):
        def job(path, work):
            one, stem = os.path.join(work, "one"), os.path.join(work, self.stem(path))
            self.peer("llama-gguf-split", "--split", "--split-max-tensors", "17", *options, path, stem)
            parts = sorted(glob.glob(stem + "-*.gguf"))
            require(len(parts) > 1, "the peer made", parts)
            with ggufpy.File(parts[0]) as f:
                require(bool(f.tensors) != bool(options), "the first part holds", len(f.tensors), "tensors")
            check_package(parts, work)
            write_package(path, one)
            require(gguf_files_of(one) == gguf_files_of(os.path.join(work, "package")), "shards give other fragments")
        self.work_in_tmp(job)

    def work_in_tmp(self, job):
        """The peer sees /tmp under the same name, but not every other folder."""
        faults = [in_folder(os.path.basename(m), lambda work, m=m: job(m, work), self.work) for m in self.models]
        faults = [f for f in faults if f]
        self.assertFalse(faults, "\n".join(f[:1500] for f in faults[:10]))

    def test_shards(self):
        """As the peer cuts them."""
        self.shards()

    def test_shards_without_tensors_in_the_first(self):
        self.shards("--no-tensor-first-split")

    def test_quantized(self):
        """Types that the peer makes, mixtures included."""
        chosen = [m for m in self.models if self.stem(m) in
                  ("llama-dense", "qwen3moe-moe", "gemma3-dense", "mamba2-dense", "gpt-oss-moe", "deepseek2-moe")]
        self.assertEqual(len(chosen), 6)
        for model in chosen:
            for kind in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K_M", "Q4_K_M", "Q5_K_M", "Q6_K", "IQ4_NL", "IQ4_XS",
                         "TQ1_0", "TQ2_0", "BF16", "F16", "MXFP4_MOE"):
                def job(work):
                    path = os.path.join(work, "q.gguf")
                    self.peer("llama-quantize", model, path, kind)
                    with ggufpy.File(path) as f:
                        require({t.kind for t in f.tensors} != {0}, "nothing was quantized to", kind)
                    check_package([path], work)
                fault = in_folder(f"{self.stem(model)}-{kind}", job, self.work)
                self.assertIsNone(fault, fault)

    def test_recomposed_computes_the_same(self):
        """The peer's logits of a recomposed model are those of the source, bit for bit."""
        for name in ("llama-dense", "qwen3moe-moe", "gemma3-dense", "mamba2-dense", "jamba-dense", "gpt-oss-moe", "glm-dsa-moe"):
            path = os.path.join(self.work, name + ".gguf")

            def job(work):
                package, whole = os.path.join(work, "package"), os.path.join(work, "whole.gguf")
                write_package(path, package)
                with open(os.path.join(package, "model-package.json"), encoding="utf-8") as f:
                    n = json.load(f)["layer_count"]
                strata("materialize", package, f"0..{n}", "--out", whole)
                logits = []
                for model in (path, whole):
                    out = os.path.join(work, "logits.f32")
                    self.peer("logits", model, out, *range(1, 20))
                    with open(out, "rb") as f:
                        logits.append(f.read())
                require(len(logits[0]) > 0 and logits[0] == logits[1], "logits differ")
            fault = in_folder(name, job, self.work)
            self.assertIsNone(fault, fault)


if __name__ == "__main__":
    unittest.main()
