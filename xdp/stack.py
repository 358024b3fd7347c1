#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Checks that no chain of calls in BPF objects needs more stack than Linux 6.1 allows.

usage: stack.py OBJECT ...

check_max_stack_depth() of Linux 6.1 rounds the stack of each function up to a multiple of 32, later kernels with a JIT
compiler only to 16, so that these accept what 6.1 refuses."""
import struct
import sys

LIMIT = 512  # MAX_BPF_STACK
ROUND = 32
SYMBOLS, RELOCATIONS, FUNCTION = 2, 9, 2  # SHT_SYMTAB, SHT_REL, STT_FUNC
STACK = 10  # the frame pointer


class Object:
    """Functions of an ELF file, by section and offset: name, stack in bytes, and the functions that each calls."""

    def __init__(self, data):
        self.data = data
        start, = struct.unpack_from("<Q", data, 40)
        number, = struct.unpack_from("<H", data, 60)
        header = "name type flags addr offset size link info align entry"
        self.sections = [
            dict(zip(header.split(), struct.unpack_from("<IIQQQQIIQQ", data, start + 64 * at))) for at in range(number)
        ]
        symbols = [self.symbol(at) for at in self.entries(SYMBOLS, 24)]
        starts = {(section, value): (name, size) for name, kind, section, value, size in symbols if kind == FUNCTION}
        calls = {}
        for section in self.sections:
            if section["type"] == RELOCATIONS:
                for at in range(section["offset"], section["offset"] + section["size"], 16):
                    offset, info = struct.unpack_from("<QQ", data, at)
                    calls[section["info"], offset] = symbols[info >> 32]
        self.functions = {start: self.function(start, *of, calls) for start, of in starts.items()}

    def entries(self, kind, size):
        for section in self.sections:
            if section["type"] == kind:
                self.names = self.sections[section["link"]]["offset"]
                yield from range(section["offset"], section["offset"] + section["size"], size)

    def symbol(self, at):
        name, info, _, section, value, size = struct.unpack_from("<IBBHQQ", self.data, at)
        name = self.names + name
        return self.data[name : self.data.index(b"\0", name)].decode(), info & 15, section, value, size

    def function(self, start, name, size, calls):
        section, value = start
        stack, called, pointers = 0, set(), set()
        for at in range(value, value + size, 8):
            code, registers, offset, number = struct.unpack_from("<BBhi", self.data, self.sections[section]["offset"] + at)
            to, of, kind = registers & 15, registers >> 4, code & 7
            # A load from the stack, or a store to it.
            if (kind == 1 and of == STACK) or (kind in (2, 3) and to == STACK):
                stack = max(stack, -offset)
            # Its address: `to = r10`, then `to += number`.
            if code == 0xBF and of == STACK:
                pointers.add(to)
            elif code == 0x07 and to in pointers:
                pointers.remove(to)
                stack = max(stack, -number)
            if code == 0x85 and of == 1:
                # Without a symbol of its own, a function is so many instructions behind the start of its section, or
                # behind this one, less one.
                _, kind, of, target, _ = calls.get((section, at), ("", 0, section, at, 0))
                called.add((of, target if kind == FUNCTION else target + 8 * (number + 1)))
        return name, stack, called

    def deepest(self, start):
        """Returns the stack that a function needs with those that it calls, and their names."""
        name, stack, called = self.functions[start]
        own = max(ROUND, (stack + ROUND - 1) // ROUND * ROUND)
        below = max((self.deepest(to) for to in called), default=(0, []))
        return own + below[0], [f"{name} ({stack})"] + below[1]


def main(paths):
    status = 0
    for path in paths:
        with open(path, "rb") as file:
            read = Object(file.read())
        for start in read.functions:
            depth, names = read.deepest(start)
            if depth > LIMIT:
                print(f"{path}: {depth} bytes of stack instead of {LIMIT}: {', '.join(names)}", file=sys.stderr)
                status = 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
