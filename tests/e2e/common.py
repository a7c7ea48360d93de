"""What the process tests share: where things are, running strata, small models and packages made once a run."""
import atexit
import hashlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("STRATA_BUILD", os.path.join(ROOT, "build"))
STRATA = os.environ.get("STRATA_BIN", os.path.join(BUILD, "strata"))
MKMODEL = os.path.join(BUILD, "tools", "mkmodel")
MODEL = os.environ.get("STRATA_MODEL")    # the real model, or None
GEMMA3 = os.environ.get("STRATA_GEMMA3")  # the second one (scripts/fetch-model gemma3), or None
WORK = tempfile.mkdtemp(prefix="strata-test-")
atexit.register(shutil.rmtree, WORK, ignore_errors=True)

needs_model = unittest.skipUnless(MODEL, "STRATA_MODEL names no real model")
needs_gemma3 = unittest.skipUnless(GEMMA3, "STRATA_GEMMA3 names no model")


def run(*args, limit_s=120, stdin=b"", env=None, cwd=None):
    """Runs strata; returns CompletedProcess with bytes. A hang is a failure."""
    return subprocess.run([STRATA, *map(str, args)], input=stdin, capture_output=True, timeout=limit_s,
                          env={**os.environ, **(env or {})}, cwd=cwd, check=False)


def sha256(path):
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


_made = {}


def generated(**options):
    """A small model of random weights; options are mkmodel's, e.g. generated(seed=2, layers=3, bias=True)."""
    key = tuple(sorted(options.items()))
    if key not in _made:
        path = os.path.join(WORK, f"generated-{len(_made)}.gguf")
        args = []
        for name, value in options.items():
            flag = "--" + name.replace("_", "-")
            args += [flag] if value is True else [flag, str(value)]
        subprocess.run([MKMODEL, "--out", path, *args], check=True, capture_output=True, timeout=60)
        _made[key] = path
    return _made[key]


def package_of(model):
    """A layer package of a model, made once a run."""
    key = ("package", model)
    if key not in _made:
        path = os.path.join(WORK, f"package-{len(_made)}")
        done = run("write-package", model, "--local", "--out-dir", path)
        assert done.returncode == 0, done.stderr.decode()
        _made[key] = path
    return _made[key]


def children(pid):
    """Processes whose parent is pid. (A list kept by thread would be missing entries when a thread just ended.)"""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/stat") as f:
                parent = f.read().rsplit(")", 1)[1].split()[1]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(parent) == pid:
            found.append(int(entry))
    return found


class Process:
    """A long-running strata process whose stderr and stdout are read in the background."""

    def __init__(self, *args, env=None, command=(STRATA,)):
        self.process = subprocess.Popen([*command, *map(str, args)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, env={**os.environ, **(env or {})},
                                        start_new_session=True)
        self.pid = self.process.pid
        self._text = ""
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        with self.process.stdout as out:
            while chunk := out.read1(65536):
                with self._changed:
                    self._text += chunk.decode("utf-8", "replace")
                    self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    @property
    def text(self):
        with self._changed:
            return self._text

    def wait_for(self, pattern, limit_s=60):
        """The first match of a regular expression in the output; fails when the process ends or time is up first."""
        deadline = time.time() + limit_s
        with self._changed:
            while True:
                if match := re.search(pattern, self._text, re.M):
                    return match
                if not self._reader.is_alive() or not self._changed.wait(max(0, deadline - time.time())):
                    raise AssertionError(f"no {pattern!r} in:\n{self._text}")

    def stop(self, sig=signal.SIGINT, limit_s=10):
        """Sends a signal and waits; returns the exit status. Ends the process for good when it does not react."""
        if self.process.poll() is None:
            self.process.send_signal(sig)
        try:
            return self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"did not end within {limit_s} s of {sig}:\n{self.text}") from None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def serve(package, *args, **kwargs):
    """A `strata serve` that has opened its API on a free port; returns (Process, base URL)."""
    process = Process("serve", package, "--listen", "127.0.0.1:0", *args, **kwargs)
    try:
        url = process.wait_for(r"listening on (http://\S+)").group(1)
    except BaseException:
        process.__exit__()
        raise
    return process, url
