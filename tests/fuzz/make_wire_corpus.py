#!/usr/bin/env python3
"""Writes the seeds of fuzz_wire: tests/fuzz/corpus/wire. The seeds are committed; run this again after changing it."""
import json
import os
import struct

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "corpus", "wire")
DIGEST = "0123456789abcdef" * 4
KEY = "A" * 43 + "="
HELLO, WELCOME, REFUSED, ASSIGN, LOADING, LOADED, CONNECT, READY, ERROR = range(1, 10)
BEGIN, TOKENS, HIDDEN, TOKEN, CANCEL, PING, PONG = range(32, 39)


def frame(kind, payload=b"", flags=0, seq=0, pos=0, rows=0):
    if not isinstance(payload, bytes):
        payload = json.dumps(payload).encode()
    return b"STR1" + struct.pack("<BBHIIII", kind, flags, 0, seq, pos, rows, len(payload)) + payload


def begin(n_prompt, history=()):
    return {"temperature": 0.7, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "repeat_penalty": 1.1, "repeat_last_n": 64,
            "seed": "18446744073709551615", "max_tokens": 5, "n_prompt": n_prompt, "stop_ids": [2], "history": list(history)}


def tokens(ids, **fields):
    return frame(TOKENS, struct.pack("<%di" % len(ids), *ids), rows=len(ids), **fields)


SESSION = DIGEST[:32]
ASSIGNMENT = {"session": SESSION, "index": 1, "count": 2, "first": 2, "end": 4, "n_ctx": 64, "n_batch": 8, "kv_type": "f16",
              "manifest_sha256": DIGEST, "next_addr": "box:9400", "next_key": KEY, "prev_key": KEY}
SIZES = {"weight_bytes": 1, "copied_bytes": 0, "kv_bytes": 2, "scratch_bytes": 3, "rss_bytes": 4, "n_embd": 4,
         "n_vocab": 100, "n_ctx": 64, "n_batch": 8, "n_threads": 1}
seeds = {
    "hello": b"\x00" + frame(HELLO, {"protocol": 1, "version": "0.1.0", "role": "control"}),
    "forward": b"\x00" + frame(HELLO, {"protocol": 1, "version": "0.1.0", "role": "forward", "session": SESSION, "index": 1}),
    "welcome": b"\x00" + frame(WELCOME, {"protocol": 1, "version": "0.1.0", "model_id": "m", "manifest_sha256": DIGEST,
                                         "layer_count": 4}),
    "assign": b"\x00" + frame(ASSIGN, ASSIGNMENT) + frame(CONNECT, {}) + frame(PING),
    "sizes": b"\x00" + frame(LOADING, {"elapsed_ms": 5}) + frame(LOADED, SIZES) + frame(READY, {}) + frame(PONG),
    "fault": b"\x00" + frame(ERROR, {"code": "peer_lost", "message": "gone"}, seq=3)
             + frame(REFUSED, {"code": "busy", "message": "busy"}),
    "first-stage": b"\x14" + frame(BEGIN, begin(10, [1, 2]), seq=1) + tokens(range(8), seq=1)
                   + tokens([8, 9], seq=1, pos=8, flags=1)
                   + frame(TOKEN, struct.pack("<i", 7), seq=1, pos=10, rows=1)
                   + frame(TOKEN, struct.pack("<i", 2), seq=1, pos=11, rows=1, flags=6)
                   + frame(BEGIN, begin(1), seq=2) + frame(CANCEL, seq=2) + tokens([1], seq=2, flags=1),
    "later-stage": b"\x1c" + frame(BEGIN, begin(2), seq=1) + frame(HIDDEN, bytes(32), seq=1, rows=2, flags=1)
                   + frame(HIDDEN, bytes(16), seq=1, pos=2, rows=1, flags=1)
                   + frame(HIDDEN, bytes(16), seq=1, pos=9, rows=1, flags=1),
    "json-alone": b"\x00" + json.dumps(ASSIGNMENT).encode(),
}
os.makedirs(OUT, exist_ok=True)
for name, data in seeds.items():
    with open(os.path.join(OUT, name), "wb") as f:
        f.write(data)
