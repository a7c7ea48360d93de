#!/usr/bin/env python3
"""Writes src/text/vocab_class_data.c: the class of every Unicode code point, as the tokenizers need it.

usage: mkclass.py > src/text/vocab_class_data.c      (with a Python whose unicodedata has Unicode 15.1, such as 3.13)
"""
import sys
import unicodedata

WANTED = "15.1.0"
FLAGS = {"L": 1, "M": 2, "N": 4, "P": 8, "S": 16}
SPACE = 32
SPACES = {*range(0x09, 0x0E), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000}


def flags(cp):
    kind = unicodedata.category(chr(cp))
    return FLAGS.get(kind[0], 0) | (SPACE if cp in SPACES else 0)


def main():
    if unicodedata.unidata_version != WANTED:
        sys.exit(f"mkclass.py: this Python has Unicode {unicodedata.unidata_version}, not {WANTED}")
    entries, last = [], None
    for cp in range(0x110000):
        f = flags(cp)
        if f != last:
            entries.append(f"0x{cp << 8 | f:X}")
            last = f
    print("/* Written by tests/tools/mkclass.py from Unicode", WANTED + ": where the classes of code points change. See vocab_class.h. */")
    print('#include "text/vocab_class.h"\n\n// clang-format off')
    print("const uint32_t vocab_class_changes[] = {")
    line = "   "
    for e in entries:
        if len(line) + len(e) + 2 > 118:
            print(line)
            line = "   "
        line += f" {e},"
    print(line)
    print("};\n")
    print("const unsigned vocab_class_n_changes = sizeof vocab_class_changes / sizeof vocab_class_changes[0];")


if __name__ == "__main__":
    main()
