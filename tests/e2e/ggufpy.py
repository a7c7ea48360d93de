"""A small GGUF reader and writer of the tests' own, so that what Strata writes is judged by code that Strata does not share.

Reads versions 2 and 3, little-endian. Everything is kept as bytes: a pair is its key and the raw bytes of kind and
value, a tensor's payload is a view into a map of the file. The reader believes nothing: a file whose numbers lead
outside of it raises Bad.
"""
import mmap
import random
import struct

KINDS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)

# Tensor types by number: elements and bytes of a block.
TYPES = {0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 9: (32, 36), 10: (256, 84),
         11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292), 16: (256, 66), 17: (256, 74),
         18: (256, 98), 19: (256, 50), 20: (32, 18), 21: (256, 110), 22: (256, 82), 23: (256, 136), 24: (1, 1), 25: (1, 2),
         26: (1, 4), 27: (1, 8), 28: (1, 8), 29: (256, 56), 30: (1, 2), 34: (256, 54), 35: (256, 66), 39: (32, 17),
         40: (64, 36), 41: (128, 18), 42: (64, 18)}
DEFAULT_ALIGNMENT = 32


class Bad(Exception):
    pass


def tensor_bytes(kind, dims):
    elems, size = TYPES[kind]
    n = 1
    for d in dims:
        n *= d
    if dims[0] % elems:
        raise Bad(f"rows of {dims[0]} are no whole blocks of type {kind}")
    return n // elems * size


class Tensor:
    def __init__(self, name, dims, kind, offset, source):
        self.name, self.dims, self.kind, self.offset = name, dims, kind, offset
        self.size = tensor_bytes(kind, dims)
        self._source = source

    @property
    def data(self):
        start = self._source.data_start + self.offset
        return self._source.view[start:start + self.size]

    @property
    def facts(self):
        """All but the payload and where it lies."""
        return self.name, self.dims, self.kind


class File:
    """One GGUF file. pairs is a list of (key, kind and value as bytes), in order; tensors likewise, in order."""

    def __init__(self, path):
        self.path = path
        with open(path, "rb") as f:
            self._map = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
        self.view = memoryview(self._map)
        self._at = 0
        if self._take(4) != b"GGUF":
            raise Bad(f"{path}: no magic")
        self.version, n_tensors, n_pairs = self._unpack("<IQQ")
        if self.version not in (2, 3):
            raise Bad(f"{path}: version {self.version}")
        self.pairs = [self._pair() for _ in range(n_pairs)]
        infos = [self._info() for _ in range(n_tensors)]
        self.alignment = self.value("general.alignment", DEFAULT_ALIGNMENT)
        self.data_start = -(-self._at // self.alignment) * self.alignment
        self.tensors = [Tensor(*info, self) for info in infos]
        self.by_name = {t.name: t for t in self.tensors}
        self._check(n_pairs, n_tensors)

    def _check(self, n_pairs, n_tensors):
        if len(self.by_name) != n_tensors or len(dict(self.pairs)) != n_pairs:
            raise Bad(f"{self.path}: a name stands twice")
        end = 0
        for t in sorted(self.tensors, key=lambda t: t.offset):
            if t.offset % self.alignment or t.offset < end:
                raise Bad(f"{self.path}: {t.name} is misplaced")
            end = t.offset + t.size
        if self.tensors and self.data_start + end > len(self.view):
            raise Bad(f"{self.path}: tensors go beyond the end")

    def close(self):
        self.view.release()
        self._map.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _take(self, n):
        if n > len(self.view) - self._at:
            raise Bad(f"{self.path}: truncated at {self._at}")
        self._at += n
        return bytes(self.view[self._at - n:self._at])

    def _unpack(self, fmt):
        return struct.unpack(fmt, self._take(struct.calcsize(fmt)))

    def _string(self):
        return self._take(self._unpack("<Q")[0])

    def _skip(self, kind):
        if kind == STRING:
            self._string()
        elif kind == ARRAY:
            elem, count = self._unpack("<IQ")
            if elem == ARRAY:
                raise Bad(f"{self.path}: array of arrays")
            if elem == STRING:
                for _ in range(count):
                    self._string()
            else:
                self._take(count * struct.calcsize("<" + KINDS[elem]))
        else:
            self._take(struct.calcsize("<" + KINDS[kind]))

    def _pair(self):
        key = self._string().decode()
        start = self._at
        self._skip(self._unpack("<I")[0])
        return key, bytes(self.view[start:self._at])

    def _info(self):
        name = self._string().decode()
        n_dims, = self._unpack("<I")
        if not 1 <= n_dims <= 4:
            raise Bad(f"{self.path}: {name} has {n_dims} dimensions")
        dims = self._unpack(f"<{n_dims}Q")
        kind, offset = self._unpack("<IQ")
        if kind not in TYPES:
            raise Bad(f"{self.path}: {name} has type {kind}")
        return name, dims, kind, offset

    def value(self, key, default=None):
        """A pair's value as Python has it; strings are bytes."""
        for k, raw in self.pairs:
            if k == key:
                return decode(raw)
        return default


def decode(raw):
    """The value of a pair's raw bytes."""
    kind, = struct.unpack_from("<I", raw)
    if kind == STRING:
        return raw[12:]
    if kind != ARRAY:
        return struct.unpack_from("<" + KINDS[kind], raw, 4)[0]
    elem, count = struct.unpack_from("<IQ", raw, 4)
    if elem != STRING:
        return list(struct.unpack_from(f"<{count}{KINDS[elem]}", raw, 16))
    out, at = [], 16
    for _ in range(count):
        n, = struct.unpack_from("<Q", raw, at)
        out.append(raw[at + 8:at + 8 + n])
        at += 8 + n
    return out


def elem_kind(raw):
    """Element kind of an array's raw bytes, None for anything else."""
    return struct.unpack_from("<I", raw, 4)[0] if struct.unpack_from("<I", raw)[0] == ARRAY else None


def string(s):
    raw = s if isinstance(s, bytes) else s.encode()
    return struct.pack("<Q", len(raw)) + raw


def encode(kind, value, elem=None):
    """Raw bytes of a value, as File.pairs holds them."""
    head = struct.pack("<I", kind)
    if kind == STRING:
        return head + string(value)
    if kind != ARRAY:
        return head + struct.pack("<" + KINDS[kind], value)
    head += struct.pack("<IQ", elem, len(value))
    if elem == STRING:
        return head + b"".join(map(string, value))
    return head + struct.pack(f"<{len(value)}{KINDS[elem]}", *value)


class Random:
    """Payload bytes that depend on the seed alone."""

    def __init__(self, seed):
        self._random = random.Random(seed)

    def __call__(self, n):
        return self._random.randbytes(n)


def write(path, pairs, tensors, alignment=DEFAULT_ALIGNMENT, version=3):
    """Writes a file of raw pairs and (name, dims, kind, payload) tensors. A payload of None is a hole of zeros."""
    infos, offset, spans = b"", 0, []
    for name, dims, kind, payload in tensors:
        size = tensor_bytes(kind, dims)
        assert payload is None or len(payload) == size, name
        infos += string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)
        spans.append((offset, payload, size))
        offset = -(-(offset + size) // alignment) * alignment
    head = b"GGUF" + struct.pack("<IQQ", version, len(spans), len(pairs))
    head += b"".join(string(k) + raw for k, raw in pairs) + infos
    start = -(-len(head) // alignment) * alignment
    with open(path, "wb") as f:
        f.write(head)
        for at, payload, _ in spans:
            if payload is not None:
                f.seek(start + at)
                f.write(payload)
        if spans:
            f.truncate(start + offset)


def split(path, first, pairs, tensors, parts, tensor_first=True):
    """Cuts the same content into a split set <path>-00001-of-0000N.gguf; the first part may hold metadata alone.

    `first` names the pairs (by key) that every part repeats; all others stand in the first part alone.
    """
    names = [f"{path}-{i + 1:05d}-of-{parts:05d}.gguf" for i in range(parts)]
    holders = parts if tensor_first else parts - 1
    cuts = [len(tensors) * i // holders for i in range(holders + 1)]
    groups = [tensors[a:b] for a, b in zip(cuts, cuts[1:])]
    if not tensor_first:
        groups.insert(0, [])
    for no, (name, group) in enumerate(zip(names, groups)):
        keys = [("split.no", encode(U16, no)), ("split.count", encode(U16, parts)),
                ("split.tensors.count", encode(I32, len(tensors)))]
        own = list(pairs) if no == 0 else [p for p in pairs if p[0] in first]
        write(name, own + keys, group)
    return names
