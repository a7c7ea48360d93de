#!/usr/bin/env python3
"""Speed of the package commands beside what the machine can do: cp, sha256sum, dd, openssl speed, in the same run.

usage: bench/bench_package.py [--build DIR] [--size GIB] [--jobs N] [--rounds N] [--dir FOLDER] [--json]

Makes a model of --size GiB (4) of random bytes, and cuts it into a package:
  write-package     against `cp` and then `sha256sum` of the copy, from a warm and from a cold page cache, on the disk and
                    in memory (where there is enough). write-package flushes every file to the disk; cp does not, so its
                    time is also given with the `sync -f` that would.
  of the hardware   bytes written per second, as a share of min(disk write rate, jobs x SHA-256 rate)
  private memory    the highest RssAnon of write-package
  inspect           of a file with a vocabulary of 150,000 tokens
  preflight         bytes hashed per second, as a share of what as many `openssl dgst` at once make of the same files, and
                    of jobs x SHA-256 rate, which is that of a buffer in the processor's cache: mapping a file's pages
                    costs some 8 % of the time that hashing them takes, whoever does it
  llama-gguf-split  the same file into as many parts, for orientation (PEER_RUN names a command that runs llama.cpp's tools)
Rounds are interleaved, so that a slow minute of the machine hits all alike; shown are medians, and medians of the ratios
of one round. Needs three times the size on the disk, and as much free memory for the part in memory.
"""
import argparse
import json
import os
import re
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests", "e2e"))
import ggufpy  # noqa: E402  (after the path is set)

GIB, MIB = 1 << 30, 1 << 20
PEER = os.environ.get("PEER_RUN", "").split()
MEMORY = "/dev/shm"
INSPECTIONS = 21


# ---- models ----

def vocabulary(n):
    tokens = [b"token-%d" % i for i in range(n)]
    return [("tokenizer.ggml.model", ggufpy.encode(ggufpy.STRING, "gpt2")),
            ("tokenizer.ggml.tokens", ggufpy.encode(ggufpy.ARRAY, tokens, ggufpy.STRING)),
            ("tokenizer.ggml.token_type", ggufpy.encode(ggufpy.ARRAY, [1] * n, ggufpy.I32)),
            ("tokenizer.ggml.merges", ggufpy.encode(ggufpy.ARRAY, [b"tok en-%d" % i for i in range(n)], ggufpy.STRING))]


def metadata(layers, width, tokens):
    return [("general.architecture", ggufpy.encode(ggufpy.STRING, "llama")),
            ("general.name", ggufpy.encode(ggufpy.STRING, "bench")),
            ("llama.block_count", ggufpy.encode(ggufpy.U32, layers)),
            ("llama.embedding_length", ggufpy.encode(ggufpy.U32, width)), *vocabulary(tokens)]


def make_model(path, size):
    """A model of about `size` bytes: the shape of a dense one, F16, payloads random."""
    width, tokens, f16 = 2048 if size >= 2 * GIB else 512, 32000, 1
    matrices = {"attn_q": width, "attn_k": width // 4, "attn_v": width // 4, "attn_output": width, "ffn_gate": 4 * width,
                "ffn_up": 4 * width, "ffn_down": 4 * width}
    layer_bytes = sum(2 * width * n for n in matrices.values())
    layers = max(1, round((size - 4 * width * tokens) / layer_bytes))
    shapes = [("token_embd.weight", (width, tokens), f16)]
    for i in range(layers):
        shapes += [(f"blk.{i}.{name}.weight", (width, n), f16) for name, n in matrices.items()]
    shapes += [("output_norm.weight", (width,), 0), ("output.weight", (width, tokens), f16)]
    pairs, infos, offset = metadata(layers, width, tokens), b"", 0
    for name, dims, kind in shapes:
        infos += ggufpy.string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)
        offset += ggufpy.tensor_bytes(kind, dims)
    assert all(ggufpy.tensor_bytes(k, d) % 32 == 0 for _, d, k in shapes)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(shapes), len(pairs))
    head += b"".join(ggufpy.string(k) + raw for k, raw in pairs) + infos
    payload = ggufpy.Random(1)
    with open(path, "wb") as f:
        f.write(head + b"\0" * (-len(head) % 32))
        for at in range(0, offset, 8 * MIB):
            f.write(payload(min(8 * MIB, offset - at)))
        os.fsync(f.fileno())
    return layers


# ---- measuring ----

def timed(*cmd, cwd=None):
    start = time.perf_counter()
    done = subprocess.run([str(c) for c in cmd], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=cwd, check=False)
    seconds = time.perf_counter() - start
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, cmd))} failed:\n{done.stderr.decode()[-2000:]}")
    return seconds, done.stdout


def warm(path):
    with open(path, "rb") as f:
        while f.read(8 * MIB):
            pass


def cold(path):
    """Drops the file from the page cache; False when the system kept it."""
    subprocess.run(["sync", "-f", path], check=True)
    with open(path, "rb") as f:
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    fincore = shutil.which("fincore")
    if not fincore:
        return True
    out = subprocess.run([fincore, "--bytes", "--noheadings", "--output", "RES", path], capture_output=True, check=True).stdout
    return int(out) < os.path.getsize(path) // 100


def folder_bytes(folder):
    return sum(os.path.getsize(os.path.join(d, f)) for d, _, files in os.walk(folder) for f in files)


class Bench:
    def __init__(self, args, work):
        self.args, self.work = args, work
        self.source = os.path.join(work, "model.gguf")
        self.memory_dir = None
        self.values = {}  # what -> one value a round
        self.notes = []

    def note(self, name, value):
        self.values.setdefault(name, []).append(value)

    def median(self, name):
        return statistics.median(self.values[name]) if name in self.values else None

    def write_package(self, source, out):
        seconds, _ = timed(self.args.strata, "write-package", source, "--out-dir", out, "--local", "--jobs", self.args.jobs)
        return seconds

    def copy(self, source, out):
        """cp and sha256sum; and with the flush that makes it safe."""
        cp, _ = timed("cp", source, out)
        sha, _ = timed("sha256sum", out)
        sync, _ = timed("sync", "-f", out)
        return cp + sha, cp + sha + sync

    def round(self, source, folder, name, prepare):
        """One pair of runs; who goes first changes with the round."""
        package, copy = os.path.join(folder, "package"), os.path.join(folder, "copy.gguf")
        order = ["ours", "cp"] if len(self.values.get(name + " ours", [])) % 2 else ["cp", "ours"]
        for who in order:
            if not prepare(source):
                self.notes.append(f"the page cache kept a part of the source in a round from cold ({name})")
            if who == "ours":
                ours = self.write_package(source, package)
                self.note(name + " ours", ours)
                self.note(name + " rate", folder_bytes(package) / ours)
                subprocess.run(["sync", "-f", package], check=True)
                shutil.rmtree(package)
            else:
                plain, flushed = self.copy(source, copy)
                self.note(name + " cp", plain)
                self.note(name + " cp flushed", flushed)
                os.remove(copy)
        self.note(name + " ratio", self.values[name + " ours"][-1] / self.values[name + " cp"][-1])
        self.note(name + " ratio flushed", self.values[name + " ours"][-1] / self.values[name + " cp flushed"][-1])

    def hash_rate(self):
        """Bytes a second of one core, and of `jobs` processes at once."""
        for name, more in (("sha", []), ("sha multi", ["-multi", str(self.args.jobs)])):
            _, out = timed("openssl", "speed", "-seconds", "2", "-bytes", "16384", *more, "-evp", "sha256")
            found = re.findall(r"^sha256\s+([0-9.]+)k", out.decode(), re.M | re.I)
            self.note(name, float(found[-1]) * 1000)

    def disk_rate(self):
        warm(self.source)
        out = os.path.join(self.work, "dd")
        seconds, _ = timed("dd", f"if={self.source}", f"of={out}", "bs=8M", "conv=fsync")
        self.note("dd", os.path.getsize(out) / seconds)
        os.remove(out)

    def preflight(self, package):
        for part in (os.path.join(d, f) for d, _, files in os.walk(package) for f in files):
            warm(part)
        seconds, _ = timed(self.args.strata, "preflight", package, "--json")
        rate = folder_bytes(package) / seconds
        seconds, _ = timed("sh", "-c", f"find . -type f -print0 | xargs -0 -n 4 -P {self.args.jobs} openssl dgst -sha256", cwd=package)
        self.note("dgst", folder_bytes(package) / seconds)
        self.note("preflight share dgst", rate / self.values["dgst"][-1])
        self.note("preflight", rate)
        self.note("preflight share", rate / (self.args.jobs * self.values["sha"][-1]))
        self.note("preflight share multi", rate / self.values["sha multi"][-1])

    def peer(self, parts):
        if not PEER:
            return
        warm(self.source)
        with ggufpy.File(self.source) as f:
            tensors = len(f.tensors)
        seconds, _ = timed(*PEER, "llama-gguf-split", "--split", "--split-max-tensors", max(1, -(-tensors // parts)), "model.gguf",
                           "peer", cwd=self.work)
        for name in os.listdir(self.work):
            if name.startswith("peer-"):
                os.remove(os.path.join(self.work, name))
        self.note("peer", seconds)

    def memory(self):
        """Highest RssAnon: pages of the map of the source belong to the page cache, and do not count."""
        out = os.path.join(self.work, "package")
        process = subprocess.Popen([self.args.strata, "write-package", self.source, "--out-dir", out, "--local", "--jobs", str(self.args.jobs)],
                                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        peak = [0, 0]

        def sample():
            while process.poll() is None:
                try:
                    with open(f"/proc/{process.pid}/status", encoding="ascii") as f:
                        text = f.read()
                except OSError:
                    return
                for i, key in enumerate(("RssAnon", "VmHWM")):
                    match = re.search(key + r":\s+(\d+) kB", text)
                    if match:
                        peak[i] = max(peak[i], int(match.group(1)) * 1024)
                time.sleep(0.005)
        sampler = threading.Thread(target=sample)
        sampler.start()
        status = process.wait()
        sampler.join()
        if status != 0:
            sys.exit("write-package failed")
        self.note("memory", peak[0])
        self.note("resident", peak[1])
        return out

    def inspect(self):
        path = os.path.join(self.work, "vocabulary.gguf")
        ggufpy.write(path, metadata(2, 8, 150_000), [("token_embd.weight", (8, 16), 0, bytes(512)), ("blk.0.a.weight", (8,), 0, bytes(32)),
                                                     ("blk.1.a.weight", (8,), 0, bytes(32)), ("output_norm.weight", (8,), 0, bytes(32))])
        for name, flags in (("inspect", []), ("inspect summary", ["--json", "--summary"])):
            for _ in range(INSPECTIONS):
                self.note(name, timed(self.args.strata, "inspect", path, *flags)[0])

    def run(self):
        in_memory = self.memory_folder()
        layers = make_model(self.source, int(self.args.size * GIB))
        package = self.memory()
        keep = os.path.join(self.work, "preflight")
        os.rename(package, keep)
        parts = len([f for _, _, files in os.walk(keep) for f in files if f.endswith(".gguf")])
        self.inspect()
        for _ in range(self.args.rounds):
            self.hash_rate()
            self.preflight(keep)
        shutil.rmtree(keep)
        for _ in range(self.args.rounds):
            self.disk_rate()
            self.round(self.source, self.work, "warm", lambda p: warm(p) or True)
            self.round(self.source, self.work, "cold", cold)
            self.peer(parts)
        if in_memory:
            source = os.path.join(in_memory, "model.gguf")
            shutil.copyfile(self.source, source)
            for _ in range(self.args.rounds):
                self.round(source, in_memory, "memory", lambda p: warm(p) or True)
            self.memory_dir.cleanup()
        return layers, parts

    def memory_folder(self):
        """A folder in memory when three copies of the model fit into what is free, the page cache being none of it."""
        with open("/proc/meminfo", encoding="ascii") as f:
            free = int(re.search(r"MemAvailable:\s+(\d+)", f.read()).group(1)) * 1024
        if not os.path.isdir(MEMORY) or min(free, shutil.disk_usage(MEMORY).free) < 3.5 * self.args.size * GIB:
            self.notes.append("not enough free memory for the rounds in memory")
            return None
        self.memory_dir = tempfile.TemporaryDirectory(prefix="strata-bench-", dir=MEMORY)  # removed at the end, however that comes
        return self.memory_dir.name


# ---- the table ----

def rows(b):
    """(what, value, unit, share or ratio, wanted, whether it holds)."""
    share = b.median("warm rate") / min(b.median("dd"), b.args.jobs * b.median("sha"))
    out = [("disk write rate (dd conv=fsync)", b.median("dd") / MIB, "MiB/s", None, None),
           ("SHA-256, one core (openssl speed)", b.median("sha") / MIB, "MiB/s", None, None),
           (f"SHA-256, {b.args.jobs} processes at once", b.median("sha multi") / MIB, "MiB/s", None, None)]
    for name in ("warm", "cold", "memory"):
        if name + " ours" not in b.values:
            continue
        out += [(f"{name}: cp, sha256sum", b.median(name + " cp"), "s", None, None),
                (f"{name}: cp, sha256sum, sync -f", b.median(name + " cp flushed"), "s", None, None),
                (f"{name}: write-package --jobs {b.args.jobs}", b.median(name + " ours"), "s", b.median(name + " ratio"), ("<=", 0.70)),
                (f"{name}:   against cp with the flush", b.median(name + " ours"), "s", b.median(name + " ratio flushed"), ("<=", 0.70))]
    out += [("write-package, of the hardware (warm)", b.median("warm rate") / MIB, "MiB/s", share, (">=", 0.90)),
            ("write-package, private memory", b.median("memory") / MIB, "MiB", b.median("memory") / (64 * MIB), ("<=", 1.0)),
            ("inspect, 150,000 tokens", 1000 * b.median("inspect"), "ms", b.median("inspect") / 0.030, ("<=", 1.0)),
            ("inspect --json --summary", 1000 * b.median("inspect summary"), "ms", b.median("inspect summary") / 0.030, ("<=", 1.0)),
            (f"{b.args.jobs} x openssl dgst -sha256 of the package", b.median("dgst") / MIB, "MiB/s", None, None),
            ("preflight, of that", b.median("preflight") / MIB, "MiB/s", b.median("preflight share dgst"), (">=", 0.95)),
            (f"preflight, of {b.args.jobs} x SHA-256 in cache", b.median("preflight") / MIB, "MiB/s", b.median("preflight share"), None),
            (f"preflight, of {b.args.jobs} processes at once", b.median("preflight") / MIB, "MiB/s", b.median("preflight share multi"), None)]
    if "peer" in b.values:
        out.append(("llama-gguf-split (warm, not flushed)", b.median("peer"), "s", b.median("warm ours") / b.median("peer"), None))
    return out


def report(b, layers, parts):
    table = [(*r, r[4] is None or (r[3] <= r[4][1] if r[4][0] == "<=" else r[3] >= r[4][1])) for r in rows(b)]
    if b.args.json:
        print(json.dumps({"size_gib": b.args.size, "layers": layers, "files": parts, "jobs": b.args.jobs, "rounds": b.args.rounds, "notes": b.notes,
                          "values": b.values, "rows": [{"what": r[0], "value": r[1], "unit": r[2], "ratio": r[3], "wanted": r[4], "holds": r[5]}
                                                       for r in table]}, indent=2))
        return
    print(f"model of {os.path.getsize(b.source) / GIB:.2f} GiB, {layers} layers, package of {parts} files, {os.cpu_count()} processors, "
          f"medians of {b.args.rounds} interleaved rounds")
    head = f"{'':44} {'value':>12} {'':6} {'ratio':>7} {'wanted':>9}"
    print(head + "\n" + "-" * (len(head) + 6))
    for what, value, unit, ratio, wanted, holds in table:
        print(f"{what:44} {value:12,.2f} {unit:6} {'' if ratio is None else f'{ratio:.3f}':>7} "
              f"{'' if wanted is None else f'{wanted[0]} {wanted[1]:.2f}':>9} {'' if wanted is None else ' yes' if holds else ' NO'}".rstrip())
    for note in dict.fromkeys(b.notes):
        print("note: " + note)
    if not PEER:
        print("note: llama-gguf-split is left out: PEER_RUN names no command")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build")
    parser.add_argument("--size", type=float, default=4.0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dir", default=tempfile.gettempdir(), help="a folder on the disk to be measured")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    args.strata = os.path.join(ROOT, args.build, "strata")
    need, free = 3.2 * args.size * GIB, shutil.disk_usage(args.dir).free
    if free < need:
        sys.exit(f"{args.dir} has {free / GIB:.1f} GiB free, and {need / GIB:.1f} GiB are needed: name another folder with --dir, "
                 "or a smaller --size")
    with tempfile.TemporaryDirectory(prefix="strata-bench-", dir=args.dir) as work:
        b = Bench(args, work)
        report(b, *b.run())


if __name__ == "__main__":
    main()
