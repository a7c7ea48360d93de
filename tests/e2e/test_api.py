"""The HTTP API, over real sockets: curl, the openai client, and raw bytes.

By default the server is fakeserve: the real API over a scripted generator (its directives, [[say ...]] and so on, are
listed in tests/tools/fakeserve.c). With STRATA_API_BASE=http://HOST:PORT the tests that hold for any model run against
that server instead.
"""
import concurrent.futures
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
import unittest
import urllib.parse

import openai

from common import BUILD

FAKESERVE = os.path.join(BUILD, "tools", "fakeserve")
BASE = os.environ.get("STRATA_API_BASE")
MIB = 1 << 20
HELLO = "Hello from the scripted model."
scripted = unittest.skipIf(BASE, "needs the scripted generator")


class Fake:
    """A fakeserve on a free port; what it prints is collected in the background."""

    def __init__(self, *args):
        self.process = subprocess.Popen([FAKESERVE, "--port", "0", *map(str, args)], stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace")
        self.text = {"stdout": "", "stderr": ""}
        self.changed = threading.Condition()
        self.threads = [threading.Thread(target=self._read, args=(name,), daemon=True) for name in self.text]
        for thread in self.threads:
            thread.start()
        self.port = int(self.wait_for("stdout", r"listening (\d+)").group(1))
        self.base = f"http://127.0.0.1:{self.port}"

    def _read(self, name):
        for line in getattr(self.process, name):
            with self.changed:
                self.text[name] += line
                self.changed.notify_all()
        with self.changed:
            self.changed.notify_all()

    def wait_for(self, name, pattern, limit_s=10):
        deadline = time.time() + limit_s
        with self.changed:
            while not (match := re.search(pattern, self.text[name])):
                if time.time() > deadline or self.process.poll() is not None and not self.threads[0].is_alive():
                    raise AssertionError(f"no {pattern!r} in {self.text}")
                self.changed.wait(0.2)
            return match

    def peak_memory(self):
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as f:
            return int(re.search(r"VmHWM:\s+(\d+) kB", f.read()).group(1)) << 10

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        for thread in self.threads:
            thread.join(5)
        self.process.stdout.close()
        self.process.stderr.close()
        return status


def request(base, method, path, body=None, headers=None, timeout=30):
    """One request on a connection of its own: (status, headers, bytes)."""
    where = urllib.parse.urlsplit(base)
    conn = http.client.HTTPConnection(where.hostname, where.port, timeout=timeout)
    try:
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        conn.request(method, path, body, headers or {})
        resp = conn.getresponse()
        return resp.status, resp.headers, resp.read()
    finally:
        conn.close()


def raw(base, data, timeout=15, half_close=False):
    """Sends bytes, returns all that comes back until the server closes."""
    where = urllib.parse.urlsplit(base)
    with socket.create_connection((where.hostname, where.port), timeout) as s:
        try:
            s.sendall(data)
            if half_close:
                s.shutdown(socket.SHUT_WR)
        except (BrokenPipeError, ConnectionResetError):
            pass
        out = b""
        try:
            while chunk := s.recv(65536):
                out += chunk
        except ConnectionResetError:
            pass
        return out


def events(data):
    """The data of each SSE event, in order; comments are left out."""
    out = []
    for block in data.decode().split("\n\n"):
        lines = [line for line in block.split("\n") if line and not line.startswith(":")]
        if not lines:
            continue
        assert len(lines) == 1 and lines[0].startswith("data: "), block
        out.append(lines[0][6:])
    return out


def curl(*args, timeout=60):
    return subprocess.run(["curl", "-sS", "--max-time", str(timeout), *args], capture_output=True, check=False)


class ApiCase(unittest.TestCase):
    args = ()

    @classmethod
    def setUpClass(cls):
        cls.fake = None if BASE else Fake(*cls.args)
        cls.base = (BASE or cls.fake.base).rstrip("/")

    @classmethod
    def tearDownClass(cls):
        if cls.fake:
            status = cls.fake.stop()
            # A sanitizer's report or a crash must not go unseen.
            assert status == 0, (status, cls.fake.text["stderr"][-6000:])
            assert "Sanitizer" not in cls.fake.text["stderr"], cls.fake.text["stderr"][-6000:]

    def client(self, **kwargs):
        return openai.OpenAI(base_url=self.base + "/v1", api_key=kwargs.pop("api_key", "none"), max_retries=0,
                             timeout=60, **kwargs)

    def post(self, path, body, **kwargs):
        status, headers, data = request(self.base, "POST", path, body, **kwargs)
        return status, headers, json.loads(data)

    def chat(self, text, **fields):
        return self.post("/v1/chat/completions", {"messages": [{"role": "user", "content": text}], **fields})

    def check_error(self, status, body, want_status, code, param=None):
        self.assertEqual(status, want_status, body)
        error = body["error"]
        self.assertEqual(set(error), {"message", "type", "param", "code"})
        self.assertEqual(error["code"], code, error)
        self.assertEqual(error["param"], param, error)
        self.assertEqual(error["type"], "server_error" if want_status >= 500 else "invalid_request_error")
        self.assertNotIn("\n", error["message"])
        return error["message"]


class AnyServer(ApiCase):
    """Holds for every model and every generator."""

    def test_health(self):
        status, headers, data = request(self.base, "GET", "/health")
        self.assertEqual(status, 200)
        self.assertEqual(headers["Content-Type"], "application/json")
        self.assertEqual(json.loads(data)["status"], "ok")

    def test_models(self):
        models = list(self.client().models.list())
        self.assertEqual(len(models), 1)
        name = models[0].id
        self.assertEqual(self.client().models.retrieve(name).id, name)
        self.assertEqual(request(self.base, "GET", "/v1/models/" + name)[0], 200)
        with self.assertRaises(openai.NotFoundError) as caught:
            self.client().models.retrieve("no-such-model")
        self.assertEqual(caught.exception.code, "model_not_found")

    def test_chat_with_the_client(self):
        name = list(self.client().models.list())[0].id
        r = self.client().chat.completions.create(model=name, max_tokens=8, temperature=0, seed=1,
                                                  messages=[{"role": "user", "content": "Say something."}])
        self.assertTrue(r.id.startswith("chatcmpl-"))
        self.assertEqual(r.object, "chat.completion")
        self.assertEqual(r.choices[0].message.role, "assistant")
        self.assertIn(r.choices[0].finish_reason, ("stop", "length"))
        self.assertTrue(0 < r.usage.completion_tokens <= 8)
        self.assertEqual(r.usage.total_tokens, r.usage.prompt_tokens + r.usage.completion_tokens)
        self.assertLess(abs(r.created - time.time()), 300)

    def test_stream_says_the_same(self):
        ask = {"messages": [{"role": "user", "content": "Tell me of the sea."}], "max_tokens": 12, "temperature": 0}
        whole = self.client().chat.completions.create(model="", **ask)
        parts = list(self.client().chat.completions.create(model="", stream=True,
                                                           stream_options={"include_usage": True}, **ask))
        self.assertEqual(parts[0].choices[0].delta.role, "assistant")
        text = "".join(p.choices[0].delta.content or "" for p in parts if p.choices)
        self.assertEqual(text, whole.choices[0].message.content)
        self.assertEqual(parts[-2].choices[0].finish_reason, whole.choices[0].finish_reason)
        self.assertEqual(parts[-1].choices, [])
        self.assertEqual(parts[-1].usage, whole.usage)
        self.assertEqual(len({p.id for p in parts}), 1)

    def test_completions(self):
        r = self.client().completions.create(model="", prompt="Once upon a time", max_tokens=5, temperature=0)
        self.assertTrue(r.id.startswith("cmpl-"))
        self.assertEqual(r.object, "text_completion")
        text = "".join(p.choices[0].text for p in self.client().completions.create(
            model="", prompt="Once upon a time", max_tokens=5, temperature=0, stream=True))
        self.assertEqual(text, r.choices[0].text)

    def test_curl_stream(self):
        done = curl("-N", "-i", self.base + "/v1/chat/completions", "-d",
                    '{"stream":true,"max_tokens":3,"messages":[{"role":"user","content":"hi"}]}')
        self.assertEqual(done.returncode, 0, done.stderr)
        head, _, body = done.stdout.partition(b"\r\n\r\n")
        self.assertIn(b"200 OK", head)
        self.assertRegex(head.decode().lower(), r"content-type: text/event-stream")
        got = events(body)
        self.assertEqual(got[-1], "[DONE]")
        self.assertTrue(all(json.loads(e)["object"] == "chat.completion.chunk" for e in got[:-1]))

    def test_seed_repeats(self):
        texts = {self.client().chat.completions.create(
            model="", max_tokens=8, temperature=1.5, seed=-42,
            messages=[{"role": "user", "content": "Pick a word."}]).choices[0].message.content for _ in range(3)}
        self.assertEqual(len(texts), 1)

    def test_wrong_types(self):
        wrong = {"messages": 5, "model": 5, "max_tokens": "5", "max_completion_tokens": [], "temperature": "hot",
                 "top_p": {}, "top_k": "x", "min_p": "x", "repeat_penalty": "x", "stop": 5, "seed": "x",
                 "stream": "yes", "stream_options": 5,
                 "n": "x", "presence_penalty": "x", "frequency_penalty": [], "ignore_eos": 5}
        for field, value in wrong.items():
            with self.subTest(field=field):
                status, _, body = self.chat("hi", **{field: value})
                self.assertIn(field, self.check_error(status, body, 400, "invalid_value", field))

    def test_out_of_range(self):
        for field, value in {"temperature": -1, "top_p": 2, "max_tokens": 0, "top_k": -7, "min_p": 1e9,
                             "repeat_penalty": -1, "max_completion_tokens": -(2 ** 60)}.items():
            with self.subTest(field=field):
                status, _, body = self.chat("hi", **{field: value})
                self.check_error(status, body, 400, "invalid_value", field)

    def test_not_supported_is_said(self):
        for field, value in {"n": 3, "logprobs": True, "logit_bias": {"5": 1}, "presence_penalty": 1,
                             "tools": [{"type": "function"}], "response_format": {"type": "json_object"}}.items():
            with self.subTest(field=field):
                status, _, body = self.chat("hi", **{field: value})
                self.assertIn("not supported yet", self.check_error(status, body, 400, "unsupported_parameter", field))

    def test_not_json(self):
        for body in (b"", b"{", b"nonsense", b"[1,2]", b"\xff\xfe", b'{"messages":[}', b"[" * 100000, b'{"a":1}x'):
            with self.subTest(body=body[:20]):
                status, _, answer = self.post("/v1/chat/completions", body)
                self.check_error(status, answer, 400, "invalid_json")

    def test_unknown_path_and_method(self):
        for path in ("/", "/v1", "/v1/chat", "/v1/models/", "/V1/models", "/v1/completions/x", "/%2e%2e/etc/passwd"):
            status, _, data = request(self.base, "GET", path)
            self.check_error(status, json.loads(data), 404, "not_found")
        for method, path, allow in (("GET", "/v1/chat/completions", "POST"), ("PUT", "/v1/completions", "POST"),
                                    ("POST", "/v1/models", "GET"), ("DELETE", "/health", "GET")):
            status, headers, data = request(self.base, method, path)
            self.check_error(status, json.loads(data), 405, "method_not_allowed")
            self.assertIn(allow, headers["Allow"])

    def test_head_and_options(self):
        status, headers, data = request(self.base, "HEAD", "/v1/models")
        self.assertEqual((status, data), (200, b""))
        self.assertGreater(int(headers["Content-Length"]), 10)
        status, headers, _ = request(self.base, "OPTIONS", "/v1/chat/completions")
        self.assertEqual((status, headers["Allow"]), (204, "POST, OPTIONS"))
        self.assertIsNone(headers["Access-Control-Allow-Origin"])
        self.assertIn(b" 204 ", raw(self.base, b"OPTIONS * HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"))

    def test_wrong_model(self):
        status, _, body = self.chat("hi", model="gpt-9")
        self.assertIn("gpt-9", self.check_error(status, body, 404, "model_not_found", "model"))

    def test_request_id(self):
        headers = request(self.base, "GET", "/v1/models", headers={"x-request-id": "abc-1.2_3"})[1]
        self.assertEqual(headers["x-request-id"], "abc-1.2_3")
        for bad in ("a b", "x" * 64, "\"", "é".encode().decode("latin-1")):
            given = request(self.base, "GET", "/v1/models", headers={"x-request-id": bad})[1]["x-request-id"]
            self.assertRegex(given, r"^req-[0-9a-v]{24}$")

    def test_too_long_for_the_context(self):
        status, _, body = self.post("/v1/completions", {"prompt": [1] * 1_000_000})
        message = self.check_error(status, body, 400, "context_length_exceeded", "prompt")
        self.assertIn("1000000", message)
        self.assertRegex(message.replace("1000000", ""), r"\d+")
        status, _, body = self.post("/v1/completions", {"prompt": [2 ** 31 - 1]})
        self.assertIn("2147483647", self.check_error(status, body, 400, "invalid_value", "prompt"))

    def test_100_mb_body(self):
        path = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"strata-api-{os.getpid()}")
        try:
            with open(path, "wb") as f:
                for _ in range(100):
                    f.write(b"a" * 1_000_000)
            for extra in ([], ["-H", "Expect:"], ["-H", "Transfer-Encoding: chunked"],
                          ["-H", "Transfer-Encoding: chunked", "-H", "Expect:"]):
                with self.subTest(extra=extra):
                    done = curl("-o", "-", "-w", "\n%{http_code}", *extra, "--data-binary", "@" + path,
                                self.base + "/v1/chat/completions")
                    self.assertEqual(done.returncode, 0, done.stderr)
                    body, _, status = done.stdout.rpartition(b"\n")
                    self.check_error(int(status), json.loads(body), 413, "request_too_large")
        finally:
            os.unlink(path)
        with self.assertRaises(openai.APIStatusError) as caught:
            self.client().chat.completions.create(model="", messages=[{"role": "user", "content": "a" * 20_000_000}])
        self.assertEqual(caught.exception.status_code, 413)
        if self.fake and "asan" not in BUILD and "tsan" not in BUILD:
            self.assertLess(self.fake.peak_memory(), 400 * MIB)
        self.test_health()

    def test_body_at_the_limit(self):
        room = 8 * MIB - len(json.dumps({"prompt": ""}))
        status, _, body = self.post("/v1/completions", json.dumps({"prompt": 5, "user": ""}).encode())
        self.check_error(status, body, 400, "invalid_value", "prompt")
        at_limit = json.dumps({"prompt": "b" * room}).encode()
        self.assertEqual(len(at_limit), 8 * MIB)
        status, _, body = self.post("/v1/completions", at_limit + b"")
        self.check_error(status, body, 400, "context_length_exceeded", "prompt")
        status, _, body = self.post("/v1/completions", at_limit + b" ")
        self.check_error(status, body, 413, "request_too_large")

    def test_garbage_on_the_wire(self):
        for data in (b"\x00" * 100, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"r" * 300, b"GET\r\n\r\n",
                     b"GET /health HTTP/9.9\r\n\r\n", b"POST /v1/completions HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
                     b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999999\r\n\r\n",
                     b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
                     b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" + b"\xff" * 50000):
            with self.subTest(data=data[:40]):
                raw(self.base, data, half_close=True)
                self.test_health()

    def test_oversized_headers(self):
        for head in (b"GET /health HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
                     b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"X: a\r\n" * 50_000 + b"\r\n",
                     b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n"):
            answer = raw(self.base, head)
            self.assertRegex(answer[:20], rb"^(HTTP/1.1 4|$)")
            self.test_health()

    def test_pipelining(self):
        one = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"
        last = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        answer = raw(self.base, one * 5 + last)
        self.assertEqual(answer.count(b"HTTP/1.1 200 OK"), 6)
        answer = raw(self.base, one + b"garbage after it\r\n\r\n")
        self.assertTrue(answer.startswith(b"HTTP/1.1 200 OK"))
        self.assertEqual(answer.count(b"200 OK"), 1)

    def test_keep_alive(self):
        where = urllib.parse.urlsplit(self.base)
        conn = http.client.HTTPConnection(where.hostname, where.port, timeout=30)
        for body, want in ((b'{"prompt":"hi","max_tokens":2}', 200), (b"bad", 400),
                           (b'{"prompt":"hi","max_tokens":1}', 200)):
            conn.request("POST", "/v1/completions", body)
            resp = conn.getresponse()
            self.assertEqual(resp.status, want)
            resp.read()
        conn.close()

    def test_many_at_once(self):
        def ask(i):
            r = self.client().chat.completions.create(model="", max_tokens=4, temperature=0, stream=bool(i % 2),
                                                      messages=[{"role": "user", "content": "Name a colour."}])
            return "".join(p.choices[0].delta.content or "" for p in r) if i % 2 else r.choices[0].message.content
        with concurrent.futures.ThreadPoolExecutor(20) as pool:
            self.assertEqual(len(set(pool.map(ask, range(20)))), 1)


@scripted
class Scripted(ApiCase):
    def test_text_and_usage(self):
        status, _, body = self.chat("hi")
        self.assertEqual(status, 200)
        self.assertEqual(body["choices"][0]["message"]["content"], HELLO)
        self.assertEqual(body["choices"][0]["finish_reason"], "stop")
        self.assertEqual(body["usage"]["completion_tokens"], len(HELLO) + 1)  # one a byte, and the end
        _, _, body = self.chat("hi", max_tokens=5)
        self.assertEqual(body["choices"][0]["message"]["content"], HELLO[:5])
        self.assertEqual(body["choices"][0]["finish_reason"], "length")
        self.assertEqual(body["usage"]["completion_tokens"], 5)
        _, _, body = self.chat("hi", max_tokens=10 ** 15)
        self.assertEqual(body["choices"][0]["message"]["content"], HELLO)

    def test_prompt_tokens(self):
        # <s>, then <|im_start|> r o l e \n text <|im_end|> \n for each message, then the answer's beginning.
        _, _, body = self.chat("abc")
        self.assertEqual(body["usage"]["prompt_tokens"], 1 + (1 + 5 + 3 + 2) + (1 + 10))
        for prompt, n in (("ab", 3), (["ab"], 3), ([5, 6, 7], 3), ([[5, 6, 7]], 3), ("<|im_start|>x", 3), ("th", 2)):
            _, _, body = self.post("/v1/completions", {"prompt": prompt})
            self.assertEqual(body["usage"]["prompt_tokens"], n, prompt)

    def test_roles_and_parts(self):
        messages = [{"role": "developer", "content": "a"},
                    {"role": "user", "content": [{"type": "text", "text": "[[say x"}, {"type": "text", "text": "y]]"}]}]
        _, _, body = self.post("/v1/chat/completions", {"messages": messages})
        self.assertEqual(body["choices"][0]["message"]["content"], "x\ny")

    def test_characters_are_whole(self):
        text = "Grüße, 世界 🙂👍🏽 é!"
        status, _, data = request(self.base, "POST", "/v1/chat/completions",
                                  {"stream": True, "messages": [{"role": "user", "content": f"[[say {text}]]"}]})
        self.assertEqual(status, 200)
        parts = [json.loads(e)["choices"][0]["delta"].get("content", "") for e in events(data)[:-1]]
        self.assertEqual("".join(parts), text)
        self.assertNotIn("\ufffd", "".join(parts))
        _, _, body = self.chat(f"[[say {text}]]", max_tokens=3)
        self.assertEqual(body["choices"][0]["message"]["content"], "Gr\ufffd")

    def test_stop_strings(self):
        for stop, want, finish in ((" the", "Hello from", "stop"), ([" the", "from"], "Hello ", "stop"),
                                   (["zzz"], HELLO, "stop"), ("H", "", "stop"), (["model.x", "."], HELLO[:-1], "stop"),
                                   (["model.x"], HELLO, "stop")):
            with self.subTest(stop=stop):
                _, _, body = self.chat("hi", stop=stop)
                self.assertEqual(body["choices"][0]["message"]["content"], want)
                self.assertEqual(body["choices"][0]["finish_reason"], finish)
                r = self.client().chat.completions.create(model="", stop=stop, stream=True,
                                                          messages=[{"role": "user", "content": "hi"}])
                self.assertEqual("".join(p.choices[0].delta.content or "" for p in r), want)
        _, headers, body = self.chat("[[say one ü two]] [[loop]]", stop="ü")
        self.assertEqual(body["choices"][0]["message"]["content"], "one ")
        self.fake.wait_for("stdout", f"end id={headers['x-request-id']} how=cancel")

    def test_ignore_eos(self):
        _, _, body = self.chat("[[say ab]]", ignore_eos=True, max_tokens=8)
        self.assertEqual(body["choices"][0]["message"]["content"], "ababab"[:6])
        self.assertEqual(body["choices"][0]["finish_reason"], "length")

    def test_sampling_arrives(self):
        _, _, body = self.chat("[[params]]", temperature=0.5, top_p=0.25, top_k=7, min_p=0.125, repeat_penalty=1.25,
                               repeat_last_n=3, seed=-1)
        self.assertEqual(json.loads(body["choices"][0]["message"]["content"]),
                         {"temperature": 0.5, "top_k": 7, "top_p": 0.25, "min_p": 0.125, "repeat_penalty": 1.25,
                          "repeat_last_n": 3, "seed": str(2 ** 64 - 1), "stop_ids": 2})
        seeds = {json.loads(self.chat("[[params]]")[2]["choices"][0]["message"]["content"])["seed"] for _ in range(4)}
        self.assertEqual(len(seeds), 4)

    def test_stream_frames(self):
        ask = {"stream": True, "messages": [{"role": "user", "content": "[[say ab]]"}]}
        got = events(request(self.base, "POST", "/v1/chat/completions", ask)[2])
        self.assertEqual([json.loads(e)["choices"][0]["delta"] for e in got[:-1]],
                         [{"role": "assistant", "content": ""}, {"content": "a"}, {"content": "b"}, {}])
        self.assertNotIn("usage", json.loads(got[0]))
        ask["stream_options"] = {"include_usage": True}
        got = events(request(self.base, "POST", "/v1/chat/completions", ask)[2])
        self.assertEqual(json.loads(got[0])["usage"], None)
        self.assertEqual(json.loads(got[-2])["usage"]["completion_tokens"], 3)
        self.assertEqual(got[-1], "[DONE]")

    def test_tokens_come_as_they_are_made(self):
        start, times = time.time(), []
        for part in self.client().chat.completions.create(
                model="", stream=True, messages=[{"role": "user", "content": "[[say abcde]] [[delay 100]]"}]):
            if part.choices and part.choices[0].delta.content:
                times.append(time.time() - start)
        self.assertEqual(len(times), 5)
        for earlier, later in zip(times, times[1:]):
            self.assertGreater(later - earlier, 0.05)

    def test_http_1_0(self):
        body = b'{"stream":true,"prompt":"x"}'
        answer = raw(self.base, b"POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        head, _, data = answer.partition(b"\r\n\r\n")
        self.assertNotIn(b"chunked", head.lower())
        self.assertEqual(events(data)[-1], "[DONE]")

    def test_no_chain(self):
        for why, code in (("peer", "stage_lost"), ("queue", "overloaded")):
            for stream in (False, True):
                status, headers, body = self.chat(f"[[refuse {why}]]", stream=stream)
                self.check_error(status, body, 503, code)
                self.assertGreater(int(headers["Retry-After"]), 0)
        status, _, body = self.chat("[[refuse bug]]")
        self.check_error(status, body, 500, "internal_error")

    def test_stage_lost_before_the_first_token(self):
        for stream in (False, True):
            status, headers, body = self.chat("[[fail 0]] [[first 300]]", stream=stream)
            self.check_error(status, body, 503, "stage_lost")
            self.assertIsNotNone(headers["Retry-After"])

    def test_stage_lost_in_the_middle(self):
        status, _, body = self.chat("[[fail 4]]")
        self.check_error(status, body, 503, "stage_lost")
        status, _, data = request(self.base, "POST", "/v1/chat/completions",
                                  {"stream": True, "messages": [{"role": "user", "content": "[[fail 4]]"}]})
        got = events(data)
        self.assertEqual(status, 200)
        self.check_error(503, json.loads(got[-1]), 503, "stage_lost")
        self.assertEqual(len(got), 1 + 4 + 1)
        with self.assertRaises(openai.APIError) as caught:
            list(self.client().chat.completions.create(model="", stream=True,
                                                       messages=[{"role": "user", "content": "[[fail 4]]"}]))
        self.assertEqual(caught.exception.code, "stage_lost")

    def start_raw(self, body, request_id):
        s = socket.create_connection(("127.0.0.1", self.fake.port), 10)
        data = json.dumps(body).encode()
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nx-request-id: %s\r\nContent-Length: %d\r\n\r\n%s" %
                  (request_id.encode(), len(data), data))
        self.fake.wait_for("stdout", f"submit id={request_id}")
        return s

    def test_client_gone(self):
        endless, waiting = "[[loop]] [[delay 20]]", "[[first 60000]]"
        for name, prompt, stream in (("stream", endless, True), ("whole", endless, False),
                                     ("queued", waiting, True), ("queued-whole", waiting, False)):
            with self.subTest(name=name):
                s = self.start_raw({"prompt": prompt, "stream": stream}, "gone-" + name)
                if name == "stream":
                    s.recv(100)
                start = time.time()
                s.close()
                self.fake.wait_for("stdout", f"end id=gone-{name} how=cancel")
                self.assertLess(time.time() - start, 2.5)
                self.fake.wait_for("stderr", f"request id=gone-{name} .*end=client_gone")

    def test_client_that_closes_the_openai_stream(self):
        stream = self.client().chat.completions.create(
            model="", stream=True, extra_headers={"x-request-id": "closes-stream"},
            messages=[{"role": "user", "content": "[[loop]] [[delay 10]]"}])
        for _, part in zip(range(5), stream):
            self.assertTrue(part.choices)
        stream.close()
        self.fake.wait_for("stdout", "end id=closes-stream how=cancel")

    def test_silence_is_filled(self):
        s = self.start_raw({"prompt": "[[first 7000]]", "stream": True, "max_tokens": 1}, "silence")
        data = b""
        while b"[DONE]" not in data:
            data += s.recv(4096)
        s.close()
        self.assertIn(b": keep-alive\n\n", data)

    def test_logs_tell_no_text(self):
        _, headers, _ = self.chat("secret prompt [[say private answer]]")
        line = self.fake.wait_for("stderr", f"request id={headers['x-request-id']}.*").group(0)
        self.assertRegex(line, r'path="/v1/chat/completions" status=200 .*prompt_tokens=\d+ completion_tokens=15')
        for word in ("secret", "private"):
            self.assertNotIn(word, self.fake.text["stderr"])

    def test_twenty_different_at_once(self):
        def ask(i):
            r = self.client().chat.completions.create(
                model="scripted", stream=bool(i % 2),
                messages=[{"role": "user", "content": f"[[say answer {i}]] [[delay 5]]"}])
            return "".join(p.choices[0].delta.content or "" for p in r) if i % 2 else r.choices[0].message.content
        with concurrent.futures.ThreadPoolExecutor(20) as pool:
            self.assertEqual(list(pool.map(ask, range(20))), [f"answer {i}" for i in range(20)])

    def test_model_names(self):
        for name in ("test/scripted", "scripted", ""):
            self.assertEqual(self.chat("hi", model=name)[0], 200)
        for name in ("test", "test/", "Scripted", "other/scripted"):
            self.assertEqual(self.chat("hi", model=name)[0], 404)


@scripted
class WithKey(ApiCase):
    args = ("--api-key", "s3cret")

    def test_key(self):
        for key in ("", "wrong", "s3cre", "s3crets", "S3CRET"):
            with self.assertRaises(openai.AuthenticationError) as caught:
                self.client(api_key=key or "x").models.list()
            self.assertEqual(caught.exception.code, "invalid_api_key")
        self.assertEqual(len(list(self.client(api_key="s3cret").models.list())), 1)
        for header in ("Basic s3cret", "s3cret", "Bearer", "Bearer "):
            self.assertEqual(request(self.base, "GET", "/v1/models", headers={"Authorization": header})[0], 401)
        self.assertEqual(request(self.base, "GET", "/v1/models", headers={"Authorization": "bearer s3cret"})[0], 200)
        status, headers, _ = request(self.base, "GET", "/nothing")
        self.assertEqual((status, headers["WWW-Authenticate"]), (401, "Bearer"))
        self.assertEqual(request(self.base, "GET", "/health")[0], 200)
        self.assertNotIn("s3cret", self.fake.text["stderr"])

    def test_body_without_key_is_not_kept(self):
        before = self.fake.peak_memory()
        for _ in range(8):
            status, _, body = self.post("/v1/completions", b"x" * (7 * MIB))
            self.check_error(status, body, 401, "invalid_api_key")
        if "san" not in os.path.basename(BUILD):
            self.assertLess(self.fake.peak_memory() - before, 6 * MIB)


@scripted
class Limits(ApiCase):
    args = ("--timeout-s", 2, "--max-connections", 8, "--n-ctx", 64, "--no-chat")

    def closed_after(self, data, drip=None, limit_s=12):
        """Seconds until the server closes, while the client sends a byte of `drip` now and then."""
        start = time.time()
        with socket.create_connection(("127.0.0.1", self.fake.port), 10) as s:
            s.sendall(data)
            s.settimeout(0.3)
            while time.time() - start < limit_s:
                try:
                    if drip:
                        s.sendall(drip)
                    if not s.recv(65536):
                        return time.time() - start
                except TimeoutError:
                    continue
                except (ConnectionResetError, BrokenPipeError):
                    return time.time() - start
        raise AssertionError("the server keeps the connection")

    def test_slow_clients(self):
        for name, data, drip in (
                ("silent", b"", None), ("slow headers", b"GET / HTTP/1.1\r\nHost: x\r\n", b"X: y\r\n"),
                ("slow body", b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 9999\r\n\r\n", b"a"),
                ("slow chunks", b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
                 b"1\r\na\r\n"),
                ("idle", b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n", None)):
            with self.subTest(name=name):
                self.assertTrue(1 < self.closed_after(data, drip) < 6)

    def test_reader_that_does_not_read(self):
        s = socket.socket()
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        s.connect(("127.0.0.1", self.fake.port))
        body = json.dumps({"prompt": [65], "stream": True, "max_tokens": 60, "stop": ["x" * 1024]}).encode()
        # Answers of a stalled pipeline fill every buffer; then the server must let go.
        one = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
        s.settimeout(5)
        start = time.time()
        try:
            for _ in range(20000):
                s.sendall(one)
        except (TimeoutError, ConnectionResetError, BrokenPipeError):
            pass
        self.fake.wait_for("stderr", "end=client_gone", 20)
        self.assertLess(time.time() - start, 25)
        s.close()

    def test_more_connections_than_allowed(self):
        # Silent connections make room for a real client at once, the one that waited longest first.
        held = [socket.create_connection(("127.0.0.1", self.fake.port), 10) for _ in range(30)]
        try:
            start = time.time()
            self.assertEqual(request(self.base, "GET", "/health")[0], 200)
            self.assertLess(time.time() - start, 1.8)
        finally:
            for s in held:
                s.close()

    def test_all_connections_at_work(self):
        body = json.dumps({"prompt": "[[first 3000]]", "max_tokens": 1}).encode()
        ask = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nx-request-id: work-%d\r\nContent-Length: %d\r\n\r\n%s"
        held = []
        try:
            for i in range(8):
                held.append(socket.create_connection(("127.0.0.1", self.fake.port), 10))
                held[i].sendall(ask % (i, len(body), body))
                self.fake.wait_for("stdout", f"submit id=work-{i} ")
            status, headers, data = request(self.base, "GET", "/health")
            self.check_error(status, json.loads(data), 503, "overloaded")
            self.assertEqual(headers["Retry-After"], "1")
            status, _, data = request(self.base, "POST", "/v1/completions", {"prompt": "x"},
                                      headers={"x-request-id": "turned-away"})
            self.check_error(status, json.loads(data), 503, "overloaded")
            self.assertNotIn("turned-away", self.fake.text["stdout"])
            for s in held:
                self.assertIn(b" 200 OK", s.recv(4096))
            self.assertEqual(request(self.base, "GET", "/health")[0], 200)
        finally:
            for s in held:
                s.close()

    def test_context(self):
        status, _, body = self.post("/v1/completions", {"prompt": [65] * 64})
        message = self.check_error(status, body, 400, "context_length_exceeded", "prompt")
        self.assertEqual(message.count("64"), 2)
        status, _, body = self.post("/v1/completions", {"prompt": [65] * 63})
        self.assertEqual((status, body["usage"]["completion_tokens"]), (200, 1))
        self.assertEqual(body["choices"][0]["finish_reason"], "length")
        status, _, body = self.post("/v1/completions", {"prompt": [65] * 60, "max_tokens": 50})
        self.assertEqual(body["usage"]["total_tokens"], 64)

    def test_no_template(self):
        status, _, body = self.chat("hi")
        self.assertIn("/v1/completions", self.check_error(status, body, 400, "no_chat_template"))


@scripted
class Ends(unittest.TestCase):
    def test_down(self):
        fake = Fake("--down")
        try:
            status, _, data = request(fake.base, "GET", "/health")
            self.assertEqual((status, json.loads(data)["status"]), (503, "degraded"))
            status, headers, _ = request(fake.base, "POST", "/v1/completions", {"prompt": "x"})
            self.assertEqual(status, 503)
            self.assertIsNotNone(headers["Retry-After"])
        finally:
            self.assertEqual(fake.stop(), 0)

    def test_port_in_use(self):
        fake = Fake()
        try:
            done = subprocess.run([FAKESERVE, "--port", str(fake.port)], capture_output=True, text=True, timeout=20,
                                  check=False)
            self.assertEqual(done.returncode, 1)
            self.assertIn(f"127.0.0.1:{fake.port}: the port is in use", done.stderr)
        finally:
            self.assertEqual(fake.stop(), 0)
        done = subprocess.run([FAKESERVE, "--host", "no.such.host.invalid"], capture_output=True, text=True, timeout=60,
                              check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("no.such.host.invalid", done.stderr)

    def test_stop_ends_running_answers(self):
        fake = Fake()
        got = []
        waiting = threading.Thread(target=lambda: got.append(request(
            fake.base, "POST", "/v1/completions", {"prompt": "[[first 60000]]"}, headers={"x-request-id": "waits"})))
        waiting.start()
        fake.wait_for("stdout", "submit id=waits")
        body = json.dumps({"prompt": "[[loop]] [[delay 50]]", "stream": True}).encode()
        running = socket.create_connection(("127.0.0.1", fake.port), 10)
        running.sendall(b"POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        data = b""
        while b"data: " not in data:
            data += running.recv(4096)
        idle = socket.create_connection(("127.0.0.1", fake.port), 10)
        start = time.time()
        self.assertEqual(fake.stop(), 0)
        self.assertLess(time.time() - start, 8)
        while chunk := running.recv(4096):
            data += chunk
        waiting.join(10)
        running.close()
        idle.close()
        self.assertEqual(json.loads(events(data.partition(b"\r\n\r\n")[2])[-1])["error"]["code"], "shutting_down")
        self.assertEqual(got[0][0], 503)
        self.assertEqual(json.loads(got[0][2])["error"]["code"], "shutting_down")
        self.assertEqual(fake.text["stdout"].count("how=cancel"), 2)
        self.assertTrue(fake.text["stdout"].endswith("stopped\n"))
        self.assertNotIn("Sanitizer", fake.text["stderr"])


if __name__ == "__main__":
    unittest.main()
