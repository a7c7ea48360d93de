#!/usr/bin/env python3
"""Runs Strata's tests, one line a step, and prints the sum.

usage: tests/run.py --build DIR [--fuzz-seconds N] [--only TEXT] STEP...
Steps: unit (cmocka programs), e2e (tests/e2e/test_*.py on real processes), faults (package operations with each
allocation, write, flush and rename failing in turn), asan (all three, built with sanitizers), fuzz (each target on its
corpus), lint. The output of a step is shown when it fails; with VERBOSE=1 always.
"""
import argparse
import concurrent.futures
import glob
import os
import re
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Process tests that compare numbers, at length: instrumented, they would take an hour and show nothing new.
NUMBERS_ONLY = {"test_archs_numbers", "test_broken_models", "test_real_models"}
LIMIT_S = {"unit": 300, "e2e": 900, "faults": 900, "make": 1200}


class Sum:
    def __init__(self):
        self.passed = self.failed = self.skipped = 0
        self.bad = []

    def add(self, name, passed, failed, skipped, seconds, output):
        self.passed += passed
        self.failed += failed
        self.skipped += skipped
        state = "ok  " if not failed else "FAIL"
        note = f", {skipped} skipped" if skipped else ""
        print(f"{state} {name}: {passed} passed, {failed} failed{note} ({seconds:.1f} s)", flush=True)
        if failed:
            self.bad.append(name)
        if failed or os.environ.get("VERBOSE") or skipped:
            lines = output.splitlines()
            if not failed and not os.environ.get("VERBOSE"):
                lines = [line for line in lines if "skip" in line.lower()]
            print("\n".join("    | " + line for line in lines[-400:]), flush=True)


def run(cmd, limit_s, env=None):
    """Runs a command; returns (status, output, seconds). A command over its limit counts as failed."""
    start = time.time()
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(cmd, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)
        try:
            status = process.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            status = -1
        out.seek(0)
        text = out.read().decode("utf-8", "replace")
    if status == -1:
        text += f"\nended after its limit of {limit_s} s\n"
    return status, text, time.time() - start


def test_env(build):
    env = dict(os.environ)
    env["STRATA_BUILD"] = os.path.abspath(os.path.join(ROOT, build))
    env["STRATA_BIN"] = os.path.join(env["STRATA_BUILD"], "strata")
    env["ASAN_OPTIONS"] = "detect_leaks=1:abort_on_error=0:" + env.get("ASAN_OPTIONS", "")
    env["UBSAN_OPTIONS"] = "print_stacktrace=1:" + env.get("UBSAN_OPTIONS", "")
    for name, file in (("STRATA_MODEL", "SmolLM2-135M-Instruct.Q4_1.gguf"), ("STRATA_GEMMA3", "gemma-3-270m-q4_k_m.gguf")):
        model = os.path.join(ROOT, ".cache", file)
        if name not in env and os.path.exists(model):
            env[name] = model
    return env


def faults(total, args, suffix=""):
    cmocka(total, args, suffix, "faults/sweep", LIMIT_S["faults"])


def unit(total, args, suffix=""):
    cmocka(total, args, suffix, "unit/*/test_*", LIMIT_S["unit"])


def cmocka(total, args, suffix, pattern, limit_s):
    env = test_env(args.build)
    if "faults" in pattern and os.access("/dev/shm", os.W_OK):
        env["TMPDIR"] = "/dev/shm"  # thousands of flushes: on a disk they take minutes
    for path in sorted(glob.glob(os.path.join(ROOT, args.build, pattern))):
        if not os.access(path, os.X_OK) or path.endswith(".d"):
            continue
        name = os.path.relpath(path, os.path.join(ROOT, args.build)) + suffix
        if args.only and args.only not in name:
            continue
        status, text, seconds = run([path], limit_s, env)
        passed = sum(int(n) for n in re.findall(r"\[  PASSED  \] (\d+) test", text))
        failed = sum(int(n) for n in re.findall(r"\[  FAILED  \] (\d+) test", text))
        skipped = sum(int(n) for n in re.findall(r"\[  SKIPPED \] (\d+) test", text))
        if status != 0 and not failed:
            failed = 1
        if status == 0 and not passed and not skipped:
            failed, text = 1, text + "\nno test ran\n"
        total.add(name, passed, failed, skipped, seconds, text)


def e2e(total, args, suffix=""):
    env = test_env(args.build)
    python = sys.executable
    venv = os.path.join(ROOT, ".deps", "venv", "bin", "python")
    if os.path.exists(venv):
        python = venv
    env["STRATA_PYTHON"] = python
    env["PYTHONPATH"] = os.path.join(ROOT, "tests", "e2e")
    for path in sorted(glob.glob(os.path.join(ROOT, "tests", "e2e", "test_*.py"))):
        name = "e2e/" + os.path.basename(path)[:-3] + suffix
        if suffix and os.path.basename(path)[:-3] in NUMBERS_ONLY:
            continue
        if args.only and args.only not in name:
            continue
        status, text, seconds = run([python, "-m", "unittest", "-v", path], LIMIT_S["e2e"], env)
        ran = re.search(r"^Ran (\d+) test", text, re.M)
        ran = int(ran.group(1)) if ran else 0
        bad = sum(int(n) for n in re.findall(r"(?:failures|errors)=(\d+)", text))
        skipped = sum(int(n) for n in re.findall(r"skipped=(\d+)", text))
        if status != 0 and not bad or not ran:
            bad = max(bad, 1)
        total.add(name, max(0, ran - bad - skipped), bad, skipped, seconds, text)


def make(total, name, *targets):
    status, text, seconds = run(["make", "--no-print-directory", "-j2", *targets], LIMIT_S["make"])
    total.add(name, int(status == 0), int(status != 0), 0, seconds, text)
    return status == 0


def asan(total, args):
    if make(total, "build with ASan and UBSan", "asan-build"):
        sub = argparse.Namespace(**{**vars(args), "build": "build-asan"})
        unit(total, sub, " [asan]")
        faults(total, sub, " [asan]")
        e2e(total, sub, " [asan]")


def fuzz_one(args, path):
    name = os.path.basename(path)[len("fuzz_"):]
    corpus = os.path.join(ROOT, "tests", "fuzz", "corpus", name)
    with tempfile.TemporaryDirectory() as work:
        # libFuzzer adds what it finds to the first folder: never to the committed corpus.
        cmd = [path, f"-max_total_time={args.fuzz_seconds}", "-timeout=25", "-rss_limit_mb=2048", "-print_final_stats=1",
               f"-artifact_prefix={ROOT}/build-fuzz/"]
        words = os.path.join(ROOT, "tests", "fuzz", name + ".dict")
        cmd += ["-dict=" + words] if os.path.exists(words) else []
        cmd.append(work)
        if os.path.isdir(corpus):
            cmd.append(corpus)
        return name, run(cmd, args.fuzz_seconds + 120, test_env(args.build))


def fuzz(total, args):
    if not make(total, "build of the fuzz targets", "fuzz-build"):
        return
    targets = sorted(p for p in glob.glob(os.path.join(ROOT, "build-fuzz", "fuzz", "fuzz_*")) if not p.endswith(".d"))
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for name, (status, text, seconds) in pool.map(lambda p: fuzz_one(args, p), targets):
            runs = re.search(r"number_of_executed_units: (\d+)", text)
            note = f" ({int(runs.group(1)):,} executions)" if runs else ""
            total.add("fuzz/" + name + note, int(status == 0), int(status != 0), 0, seconds, text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build")
    parser.add_argument("--fuzz-seconds", type=int, default=40)
    parser.add_argument("--only", default="", help="run only programs whose name contains this")
    parser.add_argument("steps", nargs="+", choices=["unit", "e2e", "faults", "asan", "fuzz", "lint"])
    args = parser.parse_args()
    total = Sum()
    start = time.time()
    for step in args.steps:
        if step == "unit":
            unit(total, args)
        elif step == "e2e":
            e2e(total, args)
        elif step == "faults":
            faults(total, args)
        elif step == "asan":
            asan(total, args)
        elif step == "fuzz":
            fuzz(total, args)
        else:
            make(total, "lint", "lint")
    if total.bad:
        print("failed: " + ", ".join(total.bad))
    print(f"after {time.time() - start:.0f} s")
    print(f"tests: {total.passed} passed, {total.failed} failed, {total.skipped} skipped")
    return 1 if total.failed else 0


if __name__ == "__main__":
    sys.exit(main())
