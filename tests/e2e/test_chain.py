"""Real coordinators and stages: trust, packages, loss of a stage in the middle of an answer, and nothing left behind."""
import json
import os
import re
import signal
import socket
import subprocess
import time
import unittest
import urllib.error
import urllib.request

import common

# Slow enough that an answer is still running when something is done to a stage, small enough to be made in a second.
SLOW = {"layers": 8, "embd": 256, "heads": 8, "ff": 1024, "ctx": 32768}
LOST_S = 2.0


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def post(url, body, limit_s=60):
    request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    return urllib.request.urlopen(request, timeout=limit_s)


def complete(url, max_tokens=8, limit_s=60):
    with post(url, {"prompt": "hello", "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True},
              limit_s) as answer:
        return json.load(answer)["choices"][0]["text"]


def alive(pid):
    """Whether a process exists and is more than a zombie."""
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def wait_gone(pids, limit_s=6):
    deadline = time.time() + limit_s
    while any(alive(p) for p in pids):
        if time.time() > deadline:
            return False
        time.sleep(0.02)
    return True


class Stream:
    """A streamed answer whose events are read one by one."""

    def __init__(self, url, max_tokens=8000):
        self.response = post(url, {"prompt": "hello", "max_tokens": max_tokens, "temperature": 0, "stream": True,
                                   "ignore_eos": True})

    def event(self):
        """The next event as an object; None at the end."""
        for line in self.response:
            if line.startswith(b"data:"):
                data = line[5:].strip()
                return None if data == b"[DONE]" else json.loads(data)
        return None

    def close(self):
        self.response.close()

    def error(self):
        """Reads on until an error event."""
        while (event := self.event()) is not None:
            if "error" in event:
                return event["error"]
        return None


class Keys:
    """Key folders of a coordinator and of stages, made with `strata key`."""

    def __init__(self, n):
        self.dirs = [os.path.join(common.WORK, f"keys-{time.time_ns()}-{i}") for i in range(n + 1)]
        self.public = []
        for d in self.dirs:
            done = common.run("key", "new", "--key-dir", d)
            assert done.returncode == 0, done.stderr
            self.public.append(done.stdout.decode().strip())

    def trust(self, here, there, name):
        done = common.run("key", "trust", self.public[there], name, "--key-dir", self.dirs[here])
        assert done.returncode == 0, done.stderr

    def trust_all(self):
        for i in range(1, len(self.dirs)):
            self.trust(0, i, f"stage-{i}")
            self.trust(i, 0, "coordinator")


class KeyCommand(unittest.TestCase):
    def test_life_of_a_key(self):
        keys = Keys(1)
        a, b = keys.dirs
        self.assertRegex(keys.public[0], r"^[A-Za-z0-9+/]{43}=$")
        self.assertEqual(os.stat(a).st_mode & 0o777, 0o700)
        self.assertEqual(os.stat(os.path.join(a, "key.pem")).st_mode & 0o777, 0o600)
        shown = json.loads(common.run("key", "show", "--json", "--key-dir", a).stdout)
        self.assertEqual(shown["public_key"], keys.public[0])
        again = common.run("key", "new", "--key-dir", a)
        self.assertEqual(again.returncode, 1)
        self.assertIn(b"exists already", again.stderr)
        keys.trust(0, 1, "box-2")
        listed = json.loads(common.run("key", "list", "--json", "--key-dir", a).stdout)
        self.assertEqual(listed["trusted"], [{"public_key": keys.public[1], "name": "box-2"}])
        self.assertEqual(common.run("key", "untrust", "box-2", "--key-dir", a).returncode, 0)
        self.assertEqual(common.run("key", "list", "--key-dir", a).stdout, b"")
        self.assertEqual(common.run("key", "untrust", "box-2", "--key-dir", a).returncode, 1)
        os.chmod(os.path.join(b, "key.pem"), 0o644)
        loose = common.run("key", "show", "--key-dir", b)
        self.assertEqual(loose.returncode, 1)
        self.assertIn(b"chmod 600", loose.stderr)

    def test_usage(self):
        for args in ([], ["fly"], ["trust"], ["trust", "a", "b", "c"], ["new", "x"], ["show", "--frob"]):
            self.assertEqual(common.run("key", *args).returncode, 2, args)
        bad = common.run("key", "trust", "not-a-key", "--key-dir", common.WORK)
        self.assertEqual(bad.returncode, 1)
        self.assertIn(b"44 characters", bad.stderr)
        nothing = common.run("key", "show", "--key-dir", os.path.join(common.WORK, "nothing"))
        self.assertEqual(nothing.returncode, 1)
        self.assertIn(b"strata key new", nothing.stderr)


class Chain(unittest.TestCase):
    """Two stages set up by hand, as on two machines."""

    def setUp(self):
        self.package = common.package_of(common.generated(**SLOW))
        self.keys = Keys(2)
        self.processes = []

    def tearDown(self):
        for p in self.processes:
            p.__exit__()

    def stage(self, i, package=None, port=0):
        p = common.Process("stage", "--package", package or self.package, "--listen", f"127.0.0.1:{port}", "--key-dir",
                           self.keys.dirs[i], "--threads", "1")
        self.processes.append(p)
        p.addr = p.wait_for(r"listening on (\S+), key").group(1)
        return p

    def serve_args(self, *stages):
        args = ["serve", self.package, "--listen", "127.0.0.1:0", "--key-dir", self.keys.dirs[0], "--ctx", "16384"]
        for s in stages:
            args += ["--stage", s.addr if hasattr(s, "addr") else s]
        return args

    def serve(self, *stages):
        p = common.Process(*self.serve_args(*stages))
        self.processes.append(p)
        return p, p.wait_for(r"listening on (http://\S+)").group(1)

    def refused(self, *stages):
        done = common.run(*self.serve_args(*stages))
        self.assertEqual(done.returncode, 1, done.stderr.decode())
        lines = [l for l in done.stderr.decode().splitlines() if l.startswith("strata serve:")]
        self.assertEqual(len(lines), 1, done.stderr.decode())
        return lines[0]

    def test_answers_like_one_process(self):
        self.keys.trust_all()
        one, url = common.serve(self.package, "--local-stages", "1", "--ctx", "16384", "--threads", "1")
        self.processes.append(one)
        whole = complete(url, 40)
        one.stop()
        coordinator, url = self.serve(self.stage(1), self.stage(2))
        self.assertRegex(coordinator.text, r"1 +127\.0\.0\.1:\d+ +0\.\.4 ")
        self.assertRegex(coordinator.text, r"2 +127\.0\.0\.1:\d+ +4\.\.8 ")
        self.assertEqual(complete(url, 40), whole)
        self.assertEqual(coordinator.stop(), 0)

    def test_untrusted(self):
        one = self.stage(1)
        # Neither trusts the other: each says so on its own machine, and nothing is read from the other.
        line = self.refused(one)
        self.assertIn("run here: strata key trust " + self.keys.public[1], line)
        one.wait_for(re.escape("run here: strata key trust " + self.keys.public[0]))
        # The coordinator does not trust the stage: both say so. A running stage takes notice of a new key.
        self.keys.trust(1, 0, "boss")
        line = self.refused(one)
        self.assertIn("run here: strata key trust " + self.keys.public[1], line)
        one.wait_for(r"the coordinator at \S+ does not trust this machine's key")
        # The stage does not trust the coordinator: both say so.
        common.run("key", "untrust", "boss", "--key-dir", self.keys.dirs[1])
        self.keys.trust(0, 1, "one")
        line = self.refused(one)
        self.assertIn(f"the stage at {one.addr} does not trust this machine's key {self.keys.public[0]}", line)
        self.assertIn("on that machine run: strata key trust " + self.keys.public[0], line)
        self.assertEqual(one.text.count("run here: strata key trust " + self.keys.public[0]), 2)
        self.keys.trust(1, 0, "boss")
        _, url = self.serve(one)
        self.assertTrue(complete(url))

    def test_another_package(self):
        self.keys.trust_all()
        other = common.package_of(common.generated(seed=7, **SLOW))
        line = self.refused(self.stage(1), self.stage(2, package=other))
        self.assertIn("stage 2 of 2", line)
        self.assertIn("another package", line)
        self.assertEqual(len(set(re.findall(r"[0-9a-f]{64}", line))), 2, line)

    def test_altered_part(self):
        self.keys.trust_all()
        path = os.path.join(common.WORK, f"altered-{time.time_ns()}")
        subprocess.run(["cp", "-r", self.package, path], check=True)
        part = os.path.join(path, "layers", sorted(os.listdir(os.path.join(path, "layers")))[5])
        with open(part, "r+b") as f:
            f.seek(-100, os.SEEK_END)
            byte = f.read(1)
            f.seek(-100, os.SEEK_END)
            f.write(bytes([byte[0] ^ 1]))
        second = self.stage(2, package=path)
        line = self.refused(self.stage(1), second)
        self.assertIn("stage 2 of 2", line)
        self.assertIn(os.path.basename(part), line)
        self.assertTrue(alive(second.pid))

    def test_nobody_there(self):
        self.keys.trust_all()
        line = self.refused(f"127.0.0.1:{free_port()}")
        self.assertIn("is 'strata stage' running there?", line)

    def test_not_a_stage(self):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            s.listen()
            line = self.refused("127.0.0.1:%d" % s.getsockname()[1])
        self.assertIn("stage 1 of 1", line)

    def test_busy(self):
        self.keys.trust_all()
        one = self.stage(1)
        first, url = self.serve(one)
        line = self.refused(one)
        self.assertIn("busy with a session of coordinator at 127.0.0.1", line)
        self.assertTrue(complete(url))
        # When the first coordinator dies without a word, the stage is free for the next.
        first.process.kill()
        one.wait_for("the coordinator went away")
        _, url = self.serve(one)
        self.assertTrue(complete(url))

    def lose(self, sig):
        self.keys.trust_all()
        one, two = self.stage(1), self.stage(2)
        coordinator, url = self.serve(one, two)
        expected = complete(url)
        stream = Stream(url)
        self.addCleanup(stream.close)
        for _ in range(3):
            self.assertNotIn("error", stream.event())
        start = time.time()
        os.kill(two.pid, sig)
        error = stream.error()
        took = time.time() - start
        self.assertIsNotNone(error, "the stream ended without an error")
        self.assertLess(took, LOST_S)
        self.assertIn(f"stage 2 of 2 ({two.addr}, layers 4..8)", error["message"])
        self.assertTrue(alive(coordinator.pid) and alive(one.pid))
        with self.assertRaises(urllib.error.HTTPError) as refused:
            complete(url)
        self.assertEqual(refused.exception.code, 503)
        refused.exception.close()
        if sig == signal.SIGSTOP:
            os.kill(two.pid, signal.SIGCONT)
        else:
            two.process.wait()
            self.stage(2, port=int(two.addr.rsplit(":", 1)[1]))
        for _ in range(200):
            try:
                text = complete(url)
                break
            except urllib.error.HTTPError as e:
                e.close()
                time.sleep(0.1)
        else:
            self.fail("did not serve again:\n" + coordinator.text)
        self.assertEqual(text, expected)
        self.assertEqual(coordinator.stop(), 0)

    def test_stage_killed(self):
        self.lose(signal.SIGKILL)

    def test_stage_frozen(self):
        self.lose(signal.SIGSTOP)

    def test_stage_port_in_use(self):
        one = self.stage(1)
        done = common.run("stage", "--package", self.package, "--listen", one.addr, "--key-dir", self.keys.dirs[2])
        self.assertEqual(done.returncode, 1)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        self.assertIn(b"the port is in use", done.stderr)

    def test_stage_stops(self):
        one = self.stage(1)
        self.assertEqual(one.stop(signal.SIGTERM), 0)
        two = self.stage(2)
        self.assertEqual(two.stop(signal.SIGINT), 0)


class Local(unittest.TestCase):
    """`--local-stages`: no keys to set up, no process and no file left."""

    def setUp(self):
        self.package = common.package_of(common.generated(**SLOW))
        self.tmp = os.path.join(common.WORK, f"tmp-{time.time_ns()}")
        os.mkdir(self.tmp)

    def serve(self, *args):
        process, url = common.serve(self.package, "--threads", "1", "--ctx", "16384", *args, env={"TMPDIR": self.tmp})
        self.addCleanup(process.__exit__)
        stages = common.children(process.pid)
        return process, url, stages

    def test_stop_while_generating(self):
        for sig in (signal.SIGINT, signal.SIGTERM):
            process, url, stages = self.serve("--local-stages", "3")
            self.assertEqual(len(stages), 3)
            self.assertEqual(os.listdir(self.tmp), [])
            stream = Stream(url)
            self.addCleanup(stream.close)
            self.assertNotIn("error", stream.event())
            self.assertEqual(process.stop(sig), 0)
            self.assertTrue(wait_gone(stages, 0.5))

    def test_coordinator_killed(self):
        process, url, stages = self.serve("--local-stages", "2")
        stream = Stream(url)
        self.addCleanup(stream.close)
        stream.event()
        process.process.kill()
        process.process.wait()
        self.assertTrue(wait_gone(stages))
        self.assertEqual(os.listdir(self.tmp), [])

    def test_default_is_one_stage(self):
        process, url, stages = self.serve()
        self.assertEqual(len(stages), 1)
        self.assertIn("starting one stage on this machine", process.text)
        self.assertTrue(complete(url))
        process.stop()

    def test_cache_types(self):
        """Each type reaches the stages, which compute with it: as one process does, and unlike other types do."""
        model = common.generated(**SLOW, seed=2)  # heads of 32 numbers: whole blocks
        package, texts = common.package_of(model), set()
        for kv in ("f32", "q8_0", "q4_0"):
            with self.subTest(kv):
                process, url = common.serve(package, "--local-stages", "2", "--threads", "1", "--kv-type", kv,
                                            env={"TMPDIR": self.tmp})
                self.addCleanup(process.__exit__)
                text = complete(url, 60)
                process.stop()
                one = common.run("run", package, "--kv-type", kv, "-p", "hello", "-n", 60, "--ignore-eos", "--threads", 1,
                                 "--temp", 0)
                self.assertEqual(one.returncode, 0, one.stderr)
                self.assertEqual(one.stdout.decode().rstrip("\n"), text.rstrip("\n"))
                texts.add(text)
        self.assertEqual(len(texts), 3)

    def test_narrow_heads(self):
        """A cache that a model cannot have is refused by its stages, and the coordinator says why."""
        package = common.package_of(common.generated())
        done = common.run("serve", package, "--local-stages", "2", "--listen", "127.0.0.1:0", "--kv-type", "q8_0")
        self.assertEqual(done.returncode, 1)
        self.assertIn("holds blocks of 32 numbers", done.stderr.decode())

    def lose(self, sig):
        process, url, stages = self.serve("--local-stages", "2")
        expected = complete(url)
        stream = Stream(url)
        self.addCleanup(stream.close)
        stream.event()
        start = time.time()
        os.kill(stages[1], sig)
        self.assertIsNotNone(stream.error())
        self.assertLess(time.time() - start, LOST_S)
        for _ in range(200):
            try:
                text = complete(url)
                break
            except urllib.error.HTTPError as e:
                e.close()
                time.sleep(0.1)
        else:
            self.fail("did not serve again:\n" + process.text)
        self.assertEqual(text, expected)
        stages += common.children(process.pid)
        self.assertEqual(process.stop(), 0)
        self.assertTrue(wait_gone(stages, 0.5))

    def test_stage_killed(self):
        self.lose(signal.SIGKILL)

    def test_stage_frozen(self):
        self.lose(signal.SIGSTOP)

    def test_stop_while_loading(self):
        process = common.Process("serve", self.package, "--local-stages", "2", "--listen", "127.0.0.1:0",
                                 env={"TMPDIR": self.tmp})
        self.addCleanup(process.__exit__)
        deadline = time.time() + 10
        while not (stages := common.children(process.pid)) and time.time() < deadline:
            time.sleep(0.005)
        self.assertTrue(stages)
        process.stop(signal.SIGINT)
        self.assertTrue(wait_gone(stages))
        self.assertEqual(os.listdir(self.tmp), [])


class Usage(unittest.TestCase):
    def fails(self, *args, status, says):
        done = common.run(*args)
        text = done.stderr.decode()
        self.assertEqual(done.returncode, status, text)
        self.assertIn(says, text)
        self.assertEqual(len([l for l in text.splitlines() if l.startswith("strata ")]), 1, text)

    def test_serve(self):
        model = common.generated()
        package = common.package_of(model)
        self.fails("serve", status=2, says="package is missing")
        self.fails("serve", package, "--stage", "a:1", "--local-stages", "2", status=2, says="not both")
        self.fails("serve", package, "--stage", "nowhere", status=2, says="HOST:PORT")
        self.fails("serve", package, "--stage", "a:1", "--stage", "a:1", status=2, says="given twice")
        self.fails("serve", package, "--listen", "0.0.0.0:8080", status=2, says="--api-key-file")
        self.fails("serve", package, "--local-stages", "0", status=2, says="--local-stages")
        self.fails("serve", package, "--kv-type", "q9", status=2, says="q8_0 or q4_0")
        self.fails("serve", package, "--parallel", "65", status=2, says="--parallel must be from 1 to 64")
        self.fails("serve", package, "--parallel", "8", "--batch", "4", status=1, says="batches of as many tokens")
        self.fails("serve", package, "--ctx", "512", "--pool", "511", status=1, says="context length of 512")
        self.fails("serve", package, "--frob", status=2, says="--frob")
        self.fails("serve", package, "--local-stages", "5", status=1, says="4 layers")
        self.fails("serve", model, status=1, says="write-package")
        self.fails("serve", "/nonexistent", status=1, says="/nonexistent")
        empty = os.path.join(common.WORK, "no-keys")
        self.fails("serve", package, "--stage", "127.0.0.1:9", "--key-dir", empty, status=1, says="strata key new")
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            s.listen()
            self.fails("serve", package, "--listen", "127.0.0.1:%d" % s.getsockname()[1], status=1, says="in use")

    def test_stage(self):
        model = common.generated()
        keys = Keys(0).dirs[0]
        self.fails("stage", status=2, says="--package")
        self.fails("stage", "--package", "x", status=2, says="--listen")
        self.fails("stage", "--package", "x", "--listen", "y", "--key-dir", keys, status=1, says="HOST:PORT")
        self.fails("stage", "--package", model, "--listen", "127.0.0.1:0", "--key-dir", keys, status=1,
                   says="write-package")
        self.fails("stage", "--package", "/nonexistent", "--listen", "127.0.0.1:0", "--key-dir", keys, status=1,
                   says="/nonexistent")


if __name__ == "__main__":
    unittest.main()
