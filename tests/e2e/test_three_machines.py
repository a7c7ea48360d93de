"""The README's three-machine example, word for word, on three hosts made of network namespaces.

Each box holds only a part of the package, and no key but its own. Needs root and iproute2.
"""
import json
import os
import shutil
import subprocess
import unittest

import common

HOSTS = {"home": "10.77.0.1", "box1": "10.77.0.2", "box2": "10.77.0.3"}


def ip(*args):
    return subprocess.run(["ip", *args], capture_output=True, text=True, timeout=20, check=False)


def namespaces_work():
    if os.geteuid() != 0 or not shutil.which("ip"):
        return False
    name = f"strata-try-{os.getpid()}"
    made = ip("netns", "add", name).returncode == 0
    # What a container or a chroot may forbid although it lets namespaces be made:
    works = made and all(ip(*args).returncode == 0 for args in (
        ("-n", name, "link", "add", "br0", "type", "bridge"),
        ("-n", name, "link", "add", "eth0", "type", "veth", "peer", "name", "eth1"),
        ("netns", "exec", name, "true")))
    ip("netns", "del", name)
    return works


@unittest.skipUnless(namespaces_work(), "no network namespaces here: they need root, iproute2 and the kernel's leave")
class ThreeMachines(unittest.TestCase):
    def setUp(self):
        self.prefix = f"strata{os.getpid()}-"
        self.addCleanup(self.remove_hosts)
        # The bridge lives on a fourth namespace, so that nothing touches the machine's own network.
        self.must("netns", "add", self.prefix + "net")
        self.must("-n", self.prefix + "net", "link", "add", "br0", "type", "bridge")
        self.must("-n", self.prefix + "net", "link", "set", "br0", "up")
        for host, address in HOSTS.items():
            ns = self.prefix + host
            self.must("netns", "add", ns)
            self.must("-n", ns, "link", "add", "eth0", "type", "veth", "peer", "name", "port-" + host, "netns",
                      self.prefix + "net")
            self.must("-n", self.prefix + "net", "link", "set", "port-" + host, "master", "br0", "up")
            self.must("-n", ns, "addr", "add", address + "/24", "dev", "eth0")
            self.must("-n", ns, "link", "set", "eth0", "up")
            self.must("-n", ns, "link", "set", "lo", "up")

    def must(self, *args):
        done = ip(*args)
        self.assertEqual(done.returncode, 0, f"ip {' '.join(args)}: {done.stderr}")

    def remove_hosts(self):
        for host in (*HOSTS, "net"):
            ip("netns", "del", self.prefix + host)

    def env(self, host):
        return {"XDG_CONFIG_HOME": os.path.join(common.WORK, "three-" + host), "STRATA_LOG": "info"}

    def command(self, host):
        return ["ip", "netns", "exec", self.prefix + host, common.STRATA]

    def strata(self, host, *args):
        done = subprocess.run([*self.command(host), *args], capture_output=True, text=True, timeout=60,
                              env={**os.environ, **self.env(host)}, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def start(self, host, *args):
        process = common.Process(*args, env=self.env(host), command=self.command(host))
        self.addCleanup(process.__exit__)
        return process

    def part(self, host, package, layers, shared):
        """A copy of what one box needs of a package."""
        folder = os.path.join(common.WORK, "three-package-" + host)
        os.makedirs(os.path.join(folder, "layers"))
        os.makedirs(os.path.join(folder, "shared"))
        names = ["model-package.json", *(f"shared/{s}.gguf" for s in shared),
                 *(f"layers/layer-{i:05}.gguf" for i in layers)]
        for name in names:
            shutil.copy(os.path.join(package, name), os.path.join(folder, name))
        return folder

    def test_example(self):
        package = common.package_of(common.generated(layers=8, seed=31))
        alone = common.run("run", package, "-p", "Hello there", "-n", "12", "--json")
        self.assertEqual(alone.returncode, 0, alone.stderr)
        keys = {}
        for host in HOSTS:
            self.strata(host, "key", "new")
            keys[host] = json.loads(self.strata(host, "key", "show", "--json"))["public_key"]
        self.strata("home", "key", "trust", keys["box1"], "box1")
        self.strata("home", "key", "trust", keys["box2"], "box2")
        parts = {"box1": self.part("box1", package, range(0, 4), ["metadata", "embeddings"]),
                 "box2": self.part("box2", package, range(4, 8), ["metadata", "output"])}
        stages = []
        for box in ("box1", "box2"):
            self.strata(box, "key", "trust", keys["home"], "coordinator")
            stage = self.start(box, "stage", "--package", parts[box], "--listen", "0.0.0.0:9400")
            stage.wait_for("listening on")
            stages.append(stage)
        serve = self.start("home", "serve", package, "--stage", HOSTS["box1"] + ":9400", "--stage",
                           HOSTS["box2"] + ":9400")
        serve.wait_for(r"listening on http://127\.0\.0\.1:8080")
        body = json.dumps({"prompt": "Hello there", "max_tokens": 12, "temperature": 0})
        answer = subprocess.run(["ip", "netns", "exec", self.prefix + "home", "curl", "-sS", "--max-time", "60", "-d", body,
                                 "http://127.0.0.1:8080/v1/completions"], capture_output=True, text=True, timeout=90,
                                check=True)
        self.assertEqual(json.loads(answer.stdout)["choices"][0]["text"], json.loads(alone.stdout)["text"])
        # The machines reach each other through their own links: no third one can join in.
        self.assertIn("0..4", serve.text)
        self.assertIn("4..8", serve.text)
        self.assertEqual(serve.stop(), 0)
        for stage in stages:
            self.assertEqual(stage.stop(), 0)


if __name__ == "__main__":
    unittest.main()
