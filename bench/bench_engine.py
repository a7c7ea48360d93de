#!/usr/bin/env python3
"""Speed of the engine beside llama.cpp's on the same files, with the same threads, in the same run.

usage: bench/bench_engine.py [--build DIR] [--dir FOLDER] [--minutes M] [--rounds N] [--slice S] [--threads N,N] [--only TEXT]
                             [--quick] [--full] [--keep] [--no-stages] [--no-load] [--json]
PEER_RUN names a program that runs llama.cpp's tools (PEER_RUN llama-bench ...); without it the peer's columns stay empty.
Whether its ggml is the same build as Strata's matters: see docs/engine.md, Speed.

Models: SmolLM2-135M Q4_1 and gemma3-270m Q4_K_M from .cache when they are there, and models with the shapes of
Llama-3.2-1B (Q4_K, Q8_0), Qwen3-1.7B (Q4_K) and a mixture of experts of 3 GB (128 experts, 8 used, Q4_K), whose weights are
random: mkmodel writes them into --dir (a temporary folder; with --keep a folder of your own, used again if they are there).
For each model, with 2 threads and with 1:
  decode     one sequence, token by token, after an empty prompt       against llama-bench -n
  prefill    512 tokens in one batch                                   against llama-bench -p
  batch 8    eight sequences that decode together                      against llama-batched-bench -npl 8
and with all threads:
  stages     `strata serve` with two local stages against one, over HTTP, decode
  load       the whole process from its start to the first token, file in the page cache, without a warm-up run
             against llama-completion -n 1, less what starting PEER_RUN costs; beside it the highest resident memory
In all but the last both contestants run at once and take turns: each computes for --slice seconds (0.1) while the other one
is stopped, so that a slow second of the machine hits both alike. What a contestant tells by its own clock is then half of its
speed; shown is twice that. Loading is measured one process at a time, and who goes first alternates. Shown are medians,
and medians of the ratios of one round. --minutes (12) is shared out among the models: rounds go on until a model's share is
over, at least two, at most --rounds (5). By default the large models decode fewer tokens than llama-bench's usual 128, to
keep within that; --full takes 128 and 512 for all, and twice the time or more; --quick is a trial: the two small models and a
small mixture of experts, two rounds, two minutes.
"""
import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import bench  # the running server as a contestant is the same there

ROOT = Path(__file__).resolve().parent.parent
PEER = os.environ.get("PEER_RUN", "").split()
GIB, MIB = 1 << 30, 1 << 20

LLAMA_1B = ("--layers 16 --embd 2048 --heads 32 --kv-heads 8 --head-dim 64 --ff 8192 --vocab-size 128256 --tied --rope-freqs "
            "--ctx 131072")
QWEN3 = "--arch qwen3 --layers 28 --embd 2048 --heads 16 --kv-heads 8 --head-dim 128 --ff 6144 --vocab-size 151936 --tied --ctx 32768"
MOE = ("--arch qwen3moe --embd 2048 --heads 32 --kv-heads 4 --head-dim 128 --ff 6144 --experts 128 --experts-used 8 "
       "--expert-ff 768 --vocab-size 32768 --tied --ctx 32768")
K = "--type q4_K --embd-type q6_K"

# Name, cached file or options of mkmodel, decode wanted, two stages wanted (None: not measured), share of the time.
MODELS = [
    SimpleNamespace(name="SmolLM2-135M Q4_1", file="SmolLM2-135M-Instruct.Q4_1.gguf", decode=1.05, stages=0.97, weight=1, size=0.14),
    SimpleNamespace(name="gemma3-270m Q4_K_M", file="gemma-3-270m-q4_k_m.gguf", decode=1.05, stages=0.97, weight=1, size=0.27),
    SimpleNamespace(name="Llama-3.2-1B shape Q4_K", make=f"{LLAMA_1B} {K}", decode=1.00, stages=0.99, weight=3, size=1.2),
    SimpleNamespace(name="Llama-3.2-1B shape Q8_0", make=f"{LLAMA_1B} --type q8_0", decode=1.00, stages=0.99, weight=3, size=1.2),
    SimpleNamespace(name="Qwen3-1.7B shape Q4_K", make=f"{QWEN3} {K}", decode=1.00, stages=None, weight=4, size=1.7),
    SimpleNamespace(name="MoE 128x8 shape Q4_K, 3 GB", make=f"{MOE} --layers 9 {K}", decode=1.00, stages=None, weight=2, size=0.5),
]
SMALL_MOE = SimpleNamespace(name="MoE 32x4 shape Q4_K, small", decode=1.00, stages=None, weight=1, size=0.3,
                            make=f"{MOE.replace('--experts 128 --experts-used 8', '--experts 32 --experts-used 4')} --layers 3 {K}")


def lengths(args, model, threads):
    """(prompt, decoded, steps of the batch): what fits the time."""
    if args.full or model.size < 0.3:
        return 512, 128, 64
    return (512, 48, 16) if threads > 1 else (256, 24, 8)


def output(*command, cwd=None):
    done = subprocess.run([str(c) for c in command], stdin=subprocess.DEVNULL, capture_output=True, check=False, cwd=cwd)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stderr.decode(errors='replace')[-2000:]}")
    return done.stdout.decode()


class Contestant:
    """A command that runs only between go() and halt(), with all its processes."""

    def __init__(self, command, cwd):
        self.command, self.cwd = [str(x) for x in command], cwd
        self.process, self.done, self.output = None, False, ""

    def go(self):
        if self.process and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGCONT)
            return
        if self.process:
            self.finish()
        else:
            self.out, self.err = tempfile.TemporaryFile(), tempfile.TemporaryFile()
            self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=self.out, stderr=self.err, cwd=self.cwd,
                                            start_new_session=True)

    def halt(self):
        if self.process and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGSTOP)

    def finish(self):
        """Takes what the ended command printed."""
        self.out.seek(0)
        self.err.seek(0)
        if self.process.returncode != 0:
            sys.exit(f"{' '.join(self.process.args)} failed:\n{self.err.read().decode(errors='replace')[-2000:]}")
        self.output = self.out.read().decode()
        self.done = True

    def kill(self):
        if self.process and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def take_turns(contestants, seconds):
    """Until all are done. Who is done still has its turns, idle: the others must not get faster."""
    try:
        while not all(c.done for c in contestants):
            for c in contestants:
                end = time.monotonic() + seconds
                if not c.done:
                    c.go()
                time.sleep(max(0, end - time.monotonic()))
                c.halt()
    finally:
        for c in contestants:
            c.kill()


def contestants(args, model, threads, what):
    """The engine and, when there is one, the peer: set to the same work in the same order, so that they do it at the same time."""
    prompt, n, steps = lengths(args, model, threads)
    common = [args.strata, "bench", model.path, "-t", threads, "--json"]
    # Both compute a prompt before they measure. Of those that they measure the last does not count: the other one may have ended by then.
    prompts = 3
    ours = {"prefill": ["-p", prompt, "-n", 0, "--batch", 0, "-r", prompts],
            "decode": ["-p", 0, "-n", n, "--batch", 0, "-r", 1],
            "batch": ["-p", 0, "-n", 0, "--batch", 8, "--steps", steps, "-r", 1]}[what]
    peer = {"prefill": ["llama-bench", "-p", prompt, "-n", 0, "-r", prompts, "-o", "json"],
            "decode": ["llama-bench", "-p", 0, "-n", n, "-r", 1, "-o", "json"],
            "batch": ["llama-batched-bench", "-c", 1024, "-npp", 16, "-ntg", steps, "-npl", 8, "--output-format", "jsonl"]}[what]
    cwd = os.path.dirname(model.path)  # PEER_RUN may see no more than the current folder and /tmp
    return [Contestant(common + ours, cwd)] + ([Contestant([*PEER, *peer, "-m", model.path, "-t", threads], cwd)] if PEER else [])


def mean_speed(what, rounds):
    return statistics.mean(rounds[:-1] if what == "prefill" else rounds)


def our_speed(what, output):
    return mean_speed(what, json.loads(output)[what]["rounds"])


def peer_speed(what, output):
    if what == "batch":
        return json.loads(next(x for x in output.splitlines() if x.startswith("{")))["speed_tg"]
    return mean_speed(what, json.loads(output)[0]["samples_ts"])


class Values:
    """One value a round, by name."""

    def __init__(self):
        self.all = {}

    def note(self, name, value):
        self.all.setdefault(name, []).append(value)

    def median(self, name):
        return statistics.median(self.all[name]) if self.all.get(name) else None

    def ratio(self, a, b):
        """Of each round, then the median: neighbours in time share the machine's moods."""
        pairs = [x / y for x, y in zip(self.all.get(a, []), self.all.get(b, [])) if y]
        return statistics.median(pairs) if pairs else None

    def spread(self, name):
        v = self.all.get(name)
        return (max(v) - min(v)) / statistics.median(v) if v else None


def warm(path):
    with open(path, "rb") as f:
        while f.read(8 * MIB):
            pass


def rounds_for(args, seconds, turn):
    """Calls turn(round) until the time is over: at least two times, at most --rounds."""
    start, longest = time.monotonic(), 0.0
    for i in range(args.rounds):
        begin = time.monotonic()
        if i >= 2 and begin - start + longest > seconds:
            break
        turn(i)
        longest = max(longest, time.monotonic() - begin)


def bench_speed(args, model, threads, seconds):
    values, last = Values(), {}

    def turn(i):
        for what in ("decode", "prefill", "batch"):
            pair = contestants(args, model, threads, what)
            take_turns(pair[::-1] if i % 2 else pair, args.slice)
            last["found"] = json.loads(pair[0].output)
            values.note(what + " ours", len(pair) * our_speed(what, pair[0].output))
            if PEER:
                values.note(what + " peer", len(pair) * peer_speed(what, pair[1].output))
    rounds_for(args, seconds, turn)
    alone = json.loads(output(args.strata, "bench", model.path, "-t", threads, "-p", 0, "-n", lengths(args, model, threads)[1],
                              "--batch", 0, "-r", 1, "--json"))  # what memory gives must not be measured by halves
    values.note("share", alone["bandwidth"]["share"])
    values.note("rate", alone["bandwidth"]["bytes_per_second"])
    return values, last["found"]


def ask_in_turns(servers, n, seconds):
    """Tokens per second of each server, all asked at once for n tokens, and computing by turns. Counted are a server's own turns."""
    answers, turns = [None] * len(servers), [[] for _ in servers]

    def ask(k):
        answers[k] = servers[k].ask("The", n)
    clients = [threading.Thread(target=ask, args=(k,), daemon=True) for k in range(len(servers))]
    try:
        for s in servers:
            s.halt()
        for c in clients:
            c.start()
        while any(c.is_alive() for c in clients):
            for s, own in zip(servers, turns):
                begin = time.perf_counter()
                s.go()
                time.sleep(seconds)
                s.halt()
                own.append((begin, time.perf_counter()))
    finally:
        for s in servers:
            s.go()  # else they could not be ended
    if None in answers:
        sys.exit("a server did not answer")

    def rate(answer, own):
        _, first, last, usage = answer
        return (usage["completion_tokens"] - 1) / sum(max(0, min(end, last) - max(begin, first)) for begin, end in own)
    return [rate(*x) for x in zip(answers, turns)]


def bench_stages(args, model, seconds):
    """Decoding over one and over two local stages, each asked over HTTP."""
    values = Values()
    package = os.path.join(args.work, "package")
    output(args.strata, "write-package", model.path, "--local", "--out-dir", package)
    n = 256 if args.full or model.size < 0.3 else 64
    served = []
    try:
        for stages in (1, 2):
            served.append(bench.Served(SimpleNamespace(strata=args.strata, package=package, threads=max(args.threads)), stages))
            served[-1].ask("The", 8)

        def turn(i):
            order = (1, 0) if i % 2 else (0, 1)
            for k, rate in zip(order, ask_in_turns([served[k] for k in order], n, args.slice)):
                values.note(f"{k + 1} stages", rate)
        rounds_for(SimpleNamespace(rounds=3 * args.rounds), seconds, turn)
    finally:
        for s in served:
            s.close()
        shutil.rmtree(package, ignore_errors=True)
    return values


def timed(*command, cwd):
    """Seconds of a process, and its highest resident memory."""
    start = time.perf_counter()
    process = subprocess.Popen([str(c) for c in command], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                               cwd=cwd)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} failed")
    return seconds, usage.ru_maxrss * 1024


def bench_load(args, model, seconds):
    values, threads, folder = Values(), max(args.threads), os.path.dirname(model.path)
    warm(model.path)

    def run_ours():
        s, memory = timed(args.strata, "run", model.path, "-p", "The", "-n", 1, "-c", 512, "-t", threads, cwd=folder)
        values.note("load ours", s)
        values.note("memory ours", memory)

    def run_peer():
        start, _ = timed(*PEER, "true", cwd=folder)
        s, memory = timed(*PEER, "llama-completion", "-m", model.path, "-p", "The", "-n", 1, "-c", 512, "-t", threads, "--no-warmup",
                          "-no-cnv", "--fit", "off", cwd=folder)
        values.note("load peer", s - start)
        values.note("memory peer", memory)

    def turn(i):
        order = [run_ours] + ([run_peer] if PEER else [])
        for contestant in order[::-1] if i % 2 else order:
            contestant()
    rounds_for(args, seconds, turn)
    return values


# ---- models ----

def find_models(args):
    models = [m for m in MODELS if hasattr(m, "file")] + [SMALL_MOE] if args.quick else MODELS
    out, notes = [], []
    for m in models:
        if args.only and args.only.lower() not in m.name.lower():
            continue
        if hasattr(m, "file"):
            m.path = str(ROOT / ".cache" / m.file)
            if not os.path.exists(m.path):
                notes.append(f"{m.name} is left out: .cache/{m.file} is not there (scripts/fetch-model)")
                continue
            m.path = os.path.realpath(m.path)
        out.append(m)
    return out, notes


def make(args, model):
    """Writes a generated model; the file is there afterwards."""
    if hasattr(model, "file"):
        return
    name = "".join(c if c.isalnum() else "-" for c in model.name.lower()) + ".gguf"
    model.path = os.path.join(args.models, name)
    if not os.path.exists(model.path):
        output(ROOT / args.build / "tools" / "mkmodel", "--out", model.path + ".part", "--repeat", *model.make.split())
        os.rename(model.path + ".part", model.path)


def drop(args, model):
    if not hasattr(model, "file") and not args.keep:
        os.remove(model.path)


# ---- the table ----

def row(what, ours, peer, unit, ratio, wanted=None, spread=None, lower=False):
    holds = None
    if wanted is not None and ratio is not None:
        holds = ratio <= wanted if lower else ratio >= wanted
    return {"what": what, "ours": ours, "peer": peer, "unit": unit, "ratio": ratio, "wanted": wanted, "lower": lower, "holds": holds,
            "spread": spread}


def speed_rows(args, model, threads, values):
    prompt, n, steps = lengths(args, model, threads)
    out = []
    for what, label, wanted in (("decode", f"decode {n}", model.decode), ("prefill", f"prefill {prompt}", 1.0),
                                ("batch", f"batch 8 x {steps}", 1.0)):
        out.append(row(f"{label}, t={threads}", values.median(what + " ours"), values.median(what + " peer"), "t/s",
                       values.ratio(what + " ours", what + " peer"), wanted, values.spread(what + " ours")))
    out.append(row(f"decode's share of {values.median('rate') / 1e9:.1f} GB/s, t={threads}", 100 * values.median("share"), None, "%", None))
    return out


def print_rows(title, rows):
    print(f"\n{title}")
    for r in rows:
        number = ["" if v is None else f"{v:,.2f}" for v in (r["ours"], r["peer"])]
        wanted = "" if r["wanted"] is None else f"{'<=' if r['lower'] else '>='} {r['wanted']:.2f}"
        print(f"  {r['what']:38} {number[0]:>10} {number[1]:>10} {r['unit']:5} {'' if r['ratio'] is None else format(r['ratio'], '.3f'):>7} "
              f"{wanted:>8} {'' if r['holds'] is None else 'yes' if r['holds'] else 'NO':4}"
              f"{'' if r['spread'] is None else format(100 * r['spread'], '4.0f') + ' %'}".rstrip(), flush=True)


def bench_model(args, model, seconds):
    """All rows of one model."""
    make(args, model)
    rows, values = [], {}
    parts = 2.0 * len(args.threads) + (1 if model.stages and args.stages else 0) + (1 if args.load else 0)
    for threads in args.threads:
        v, found = bench_speed(args, model, threads, 2 * seconds / parts)
        rows += speed_rows(args, model, threads, v)
        values[f"speed t={threads}"] = v.all
    if model.stages and args.stages:
        v = bench_stages(args, model, seconds / parts)
        rows.append(row("2 local stages, 1 local stage: decode", v.median("2 stages"), v.median("1 stages"), "t/s",
                        v.ratio("2 stages", "1 stages"), model.stages, v.spread("2 stages")))
        values["stages"] = v.all
    if args.load:
        v = bench_load(args, model, seconds / parts)
        rows.append(row("load to the first token", v.median("load ours"), v.median("load peer"), "s", v.ratio("load ours", "load peer"),
                        1.0, v.spread("load ours"), lower=True))
        peak = [None if v.median(k) is None else v.median(k) / MIB for k in ("memory ours", "memory peer")]
        rows.append(row("highest resident memory of that", *peak, "MiB", v.ratio("memory ours", "memory peer")))
        values["load"] = v.all
    memory = found["memory"]
    rows.append(row("  weights; of these, copied", memory["weight_bytes"] / MIB, memory["copied_bytes"] / MIB, "MiB", None))
    rows.append(row("  state of 8 sequences; scratch", memory["kv_bytes"] / MIB, memory["scratch_bytes"] / MIB, "MiB", None))
    drop(args, model)
    return rows, values


def run(args):
    models, notes = find_models(args)
    total = sum(m.weight for m in models)
    end = time.monotonic() + 60 * args.minutes
    result = []
    if not args.json:
        print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}; medians of interleaved rounds; ratio: ours / peer, median of rounds; "
              "spread of ours")
        print(f"  {'':38} {'Strata':>10} {'peer':>10} {'':5} {'ratio':>7} {'wanted':>8}      spread")
    for m in models:
        seconds = (end - time.monotonic()) * m.weight / total
        total -= m.weight
        rows, values = bench_model(args, m, max(seconds, 0))
        result.append({"model": m.name, "rows": rows, "values": values})
        if not args.json:
            print_rows(m.name, rows)
    if not PEER:
        notes.append("the peer's columns are empty: PEER_RUN names no command")
    if os.getloadavg()[0] > os.cpu_count() + 1:
        notes.append(f"the machine was busy (load {os.getloadavg()[0]:.1f}): with more than one thread these ratios tell little")
    if args.json:
        print(json.dumps({"models": result, "notes": notes}, indent=2))
    for note in notes if not args.json else []:
        print("note: " + note)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build")
    parser.add_argument("--dir", default=tempfile.gettempdir(), help="where the generated models go: up to 4 GiB at a time")
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--slice", type=float, default=0.1)
    parser.add_argument("--threads", default="2,1")
    parser.add_argument("--only", help="models whose name contains this")
    parser.add_argument("--no-stages", dest="stages", action="store_false")
    parser.add_argument("--no-load", dest="load", action="store_false")
    for flag in ("--quick", "--full", "--keep", "--json"):
        parser.add_argument(flag, action="store_true")
    args = parser.parse_args()
    args.minutes = args.minutes or (2 if args.quick else 40 if args.full else 12)
    args.rounds = 2 if args.quick else args.rounds
    args.threads = [min(int(t), os.cpu_count()) for t in args.threads.split(",")]
    args.threads = list(dict.fromkeys(args.threads))
    args.strata = str(ROOT / args.build / "strata")
    if not os.access(args.strata, os.X_OK):
        sys.exit(f"{args.strata} is not there: run make, or name the build's folder with --build")
    if args.slice <= 0:
        sys.exit("--slice must be above 0 seconds")
    free = shutil.disk_usage(args.dir).free
    if free < (2 if args.quick else 6) * GIB:
        sys.exit(f"{args.dir} has {free / GIB:.1f} GiB free, and 6 GiB are needed: name another folder with --dir")
    with tempfile.TemporaryDirectory(prefix="strata-bench-", dir=args.dir) as work:
        args.work = work
        args.models = args.dir if args.keep else work
        run(args)


if __name__ == "__main__":
    main()
