#!/usr/bin/env python3
"""Speed of Strata beside llama.cpp on the same file, the same threads, in the same run.

usage: bench/bench.py [--build DIR] [--model FILE] [--threads N] [--rounds N] [--json]
PEER_RUN names a program that runs llama.cpp's tools (PEER_RUN llama-bench ...); without it `llama-bench` from PATH is
used, and without that the peer's columns stay empty. The rounds of all contestants are interleaved, so that a slow
minute of the machine hits all of them. Shown are the median of each, its spread, and the median ratio of a round.
"""
import argparse
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PROMPT_TOKENS, ANSWER_TOKENS = 512, 128


def peer_command():
    if os.environ.get("PEER_RUN"):
        return [os.environ["PEER_RUN"], "llama-bench"]
    found = shutil.which("llama-bench")
    return [found] if found else None


def bench_peer(args):
    out = subprocess.run([*peer_command(), "-m", args.model, "-t", str(args.threads), "-p", str(PROMPT_TOKENS), "-n",
                          str(ANSWER_TOKENS), "-r", "1", "-o", "json"], capture_output=True, check=True, timeout=600)
    rows = json.loads(out.stdout)
    return (next(r["avg_ts"] for r in rows if r["n_prompt"]), next(r["avg_ts"] for r in rows if r["n_gen"]))


def bench_run(args):
    """Like llama-bench: prefill of a long prompt, and decode after an (almost) empty one, each on its own."""
    def figures(prompt, n):
        out = subprocess.run([args.strata, "run", args.model, *prompt, "-n", str(n), "--ignore-eos", "-t",
                              str(args.threads), "-c", "1024", "--json"], capture_output=True, check=True, timeout=600)
        return json.loads(out.stdout)
    return (figures(["-f", args.prompt], 1)["prefill"]["tokens_per_second"],
            figures(["-p", "The"], ANSWER_TOKENS)["decode"]["tokens_per_second"])


class Served:
    """A `strata serve` over n local stages, asked over HTTP as a user would."""

    def __init__(self, args, stages):
        self.args = args
        self.log = tempfile.NamedTemporaryFile("w+", suffix=".log")
        self.process = subprocess.Popen([args.strata, "serve", args.package, "--local-stages", str(stages), "--threads",
                                         str(args.threads), "--ctx", "1024", "--listen", "127.0.0.1:0"],
                                        stderr=self.log, stdout=self.log, start_new_session=True)
        deadline = time.time() + 60
        self.url = None
        while not self.url:
            if self.process.poll() is not None or time.time() > deadline:
                raise SystemExit("serve did not start:\n" + open(self.log.name).read())
            time.sleep(0.05)
            match = re.search(r"listening on (http://\S+)", open(self.log.name).read())
            self.url = match and match.group(1)

    def ask(self, prompt, n):
        """When the question went out, when the first and the last event came (seconds of one clock), and the usage."""
        body = {"prompt": prompt, "max_tokens": n, "temperature": 0, "stream": True, "ignore_eos": True,
                "stream_options": {"include_usage": True}}
        request = urllib.request.Request(self.url + "/v1/completions", json.dumps(body).encode())
        start = time.perf_counter()
        lines = []
        # What the client computes between two tokens, it takes from the stages on the same cores: parse afterwards.
        with urllib.request.urlopen(request, timeout=300) as answer:
            for line in answer:
                lines.append((time.perf_counter(), line))
        events = [(at, json.loads(line[6:])) for at, line in lines if line.startswith(b"data: {")]
        times = [at for at, event in events if event["choices"]]
        usage = next(event["usage"] for _, event in reversed(events) if event.get("usage"))
        return start, times[0], times[-1], usage

    def bench(self):
        with open(self.args.prompt) as f:
            start, first, _, usage = self.ask(f.read(), 1)
        prefill = usage["prompt_tokens"] / (first - start)
        _, first, last, usage = self.ask("The", ANSWER_TOKENS)
        return prefill, (usage["completion_tokens"] - 1) / (last - first)

    def go(self):
        os.killpg(self.process.pid, signal.SIGCONT)

    def halt(self):
        os.killpg(self.process.pid, signal.SIGSTOP)

    def close(self):
        self.process.terminate()
        self.process.wait(20)


def prompt_file(args, work):
    """A text of exactly PROMPT_TOKENS tokens."""
    with open(os.path.join(ROOT, "README.md")) as f:
        words = (f.read() * 20).split()
    lo, hi = 1, len(words)
    path = os.path.join(work, "prompt.txt")

    def count(n):
        text = " ".join(words[:n])
        out = subprocess.run([args.strata, "tokenize", args.model], input=text.encode(), capture_output=True, check=True)
        return len(out.stdout.split()), text
    while lo < hi:
        mid = (lo + hi + 1) // 2
        if count(mid)[0] <= PROMPT_TOKENS:
            lo = mid
        else:
            hi = mid - 1
    with open(path, "w") as f:
        f.write(count(lo)[1])
    return path


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build")
    parser.add_argument("--model", default=os.environ.get("STRATA_MODEL"))
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    args.strata = os.path.join(ROOT, args.build, "strata")
    if not args.model:
        args.model = os.path.join(ROOT, subprocess.run([os.path.join(ROOT, "scripts", "fetch-model")], check=True,
                                                       capture_output=True, text=True).stdout.strip())
    args.model = os.path.abspath(args.model)
    with tempfile.TemporaryDirectory() as work:
        args.prompt = prompt_file(args, work)
        args.package = os.path.join(work, "package")
        subprocess.run([args.strata, "write-package", args.model, "--local", "--out-dir", args.package], check=True,
                       capture_output=True)
        one, two = Served(args, 1), Served(args, 2)
        contestants = {"strata run": lambda: bench_run(args), "strata serve, 1 local stage": one.bench,
                       "strata serve, 2 local stages": two.bench}
        if peer_command():
            contestants["llama-bench"] = lambda: bench_peer(args)
        results = {name: [] for name in contestants}
        for contestant in contestants.values():
            contestant()  # warm-up: page cache, CPU clock
        for _ in range(args.rounds):
            for name, contestant in contestants.items():
                results[name].append(contestant())
        one.close()
        two.close()
    report(args, results)


def ratios(results, name, against):
    """Of each round, then the median: neighbours in time share the machine's moods."""
    return [f"{statistics.median(a[i] / b[i] for a, b in zip(results[name], results[against])):.3f}" for i in (0, 1)]


def report(args, results):
    median = {name: [statistics.median(r[i] for r in rounds) for i in (0, 1)] for name, rounds in results.items()}
    spread = {name: [(max(r[i] for r in rounds) - min(r[i] for r in rounds)) / median[name][i] for i in (0, 1)]
              for name, rounds in results.items()}
    if args.json:
        print(json.dumps({"model": os.path.basename(args.model), "threads": args.threads, "rounds": args.rounds,
                          "median": median, "spread": spread}, indent=2))
        return
    print(f"{os.path.basename(args.model)}, {args.threads} threads, prefill of {PROMPT_TOKENS} tokens, decode of {ANSWER_TOKENS}, "
          f"median of {args.rounds} interleaved rounds (spread)")
    head = f"{'':30} {'prefill t/s':>18} {'decode t/s':>18} {'prefill ratio':>14} {'decode ratio':>13}"
    print(head + "\n" + "-" * len(head))
    base = {"strata serve, 1 local stage": "strata run", "strata serve, 2 local stages": "strata run",
            "strata run": "llama-bench"}
    for name in results:
        against = base.get(name)
        ratio = ["", ""]
        if against in median:
            ratio = ratios(results, name, against)
        cells = [f"{median[name][i]:.1f} ({spread[name][i] * 100:.0f} %)" for i in (0, 1)]
        print(f"{name:30} {cells[0]:>18} {cells[1]:>18} {ratio[0]:>14} {ratio[1]:>13}"
              + (f"   of {against}" if against in median else ""))
    split = ratios(results, "strata serve, 2 local stages", "strata serve, 1 local stage")
    print(f"2 local stages against 1, with the same client and coordinator beside them: prefill {split[0]}, decode {split[1]}")
    if "llama-bench" not in median:
        print("llama-bench was not found: set PEER_RUN, or put it on PATH, to see the ratios")


if __name__ == "__main__":
    sys.exit(main())
