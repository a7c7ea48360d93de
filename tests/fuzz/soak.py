#!/usr/bin/env python3
"""Runs fuzz targets for a fixed number of executions, and says how many there were.

usage: tests/fuzz/soak.py [--build DIR] [--processes N] TARGET=RUNS...
for example: make fuzz-build && tests/fuzz/soak.py gguf=10000000 manifest=6000000 split=6000000

Each target starts from its committed corpus and its dictionary, if it has one, and is divided among the processes.
What libFuzzer finds goes to a folder that is removed at the end; a crashing input is kept in the build folder. The
exit status is 0 when every process made all of its executions.
"""
import argparse
import concurrent.futures
import os
import re
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
MAX_LEN = 4096


def run(args, target, runs, seed):
    """(target, executions, seconds, output) of one process."""
    corpus = os.path.join(HERE, "corpus", target)
    words = os.path.join(HERE, target + ".dict")
    build = os.path.join(ROOT, args.build)
    start = time.time()
    with tempfile.TemporaryDirectory() as work:
        cmd = [os.path.join(build, "fuzz", "fuzz_" + target), f"-runs={runs}", f"-max_len={MAX_LEN}", "-timeout=60",
               "-rss_limit_mb=2048", "-print_final_stats=1", f"-seed={seed}", f"-artifact_prefix={build}/", work]
        if os.path.exists(words):
            cmd.append("-dict=" + words)
        if os.path.isdir(corpus):
            cmd.append(corpus)
        done = subprocess.run(cmd, capture_output=True, check=False)
    text = done.stderr.decode("utf-8", "replace")
    match = re.search(r"number_of_executed_units: (\d+)", text)
    return target, done.returncode, int(match.group(1)) if match else 0, time.time() - start, text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build-fuzz")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("targets", nargs="+", metavar="TARGET=RUNS")
    args = parser.parse_args()
    jobs = []
    for word in args.targets:
        target, _, runs = word.partition("=")
        if not runs.isdigit() or int(runs) < args.processes:
            parser.error(f"{word} is not of the form TARGET=RUNS")
        jobs += [(target, int(runs) // args.processes, 1 + i) for i in range(args.processes)]
    total, bad = {}, []
    with concurrent.futures.ThreadPoolExecutor(args.processes) as pool:
        futures = [pool.submit(run, args, *job) for job in jobs]
        for (target, wanted, seed), future in zip(jobs, futures):
            _, status, count, seconds, text = future.result()
            total[target] = total.get(target, 0) + count
            print(f"fuzz_{target} (seed {seed}): {count:,} executions in {seconds:.0f} s, exit status {status}", flush=True)
            if status != 0 or count < wanted:
                bad.append(target)
                print(text[-4000:], flush=True)
    for target, count in total.items():
        print(f"{target}: {count:,}")
    print(f"total: {sum(total.values()):,} executions" + (f"; failed: {', '.join(bad)}" if bad else ", no fault"))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
