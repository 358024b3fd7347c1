#!/usr/bin/env python3
"""Counts the instructions a packet takes, by callgrind: they depend neither on the machine's speed nor on what else runs
there. A program is run twice, for different times; the difference of its instructions by that of its packets leaves out
its start and end.

usage: instructions.py bench PROGRAM ARGUMENT...             a benchmark of ours, without --seconds and --json

Prints one number. Valgrind has no AVX-512: of code that has several variants for a processor, the one for AVX2 is counted.
Where a thread waits for another by polling, its turns are counted too, so that such figures mean nothing.
"""

import json
import re
import subprocess
import sys

VALGRIND = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
# Lengths of the two runs in seconds. A program runs at about a hundredth of its speed.
SHORT, LONG = 1, 3


def collected(errors):
    found = re.findall(r"Collected : (\d+)", errors)
    if not found:
        raise RuntimeError("valgrind counted nothing: " + " ".join(errors.split()[-30:]))
    return int(found[-1])


def bench(command):
    """Returns the instructions and packets of one run of a benchmark, by its length."""
    def run(seconds):
        done = subprocess.run([*VALGRIND, *command, "--json", "--seconds", str(seconds)], capture_output=True, text=True, timeout=300)
        if done.returncode:
            raise RuntimeError(done.stderr.strip().splitlines()[-1])
        return collected(done.stderr), json.loads(done.stdout)["packets_in_all"]
    return run


def a_packet(run):
    """Returns the instructions a packet."""
    (few, few_packets), (many, many_packets) = run(SHORT), run(LONG)
    return (many - few) / (many_packets - few_packets)


def main():
    kind, *rest = sys.argv[1:] or ["--help"]
    if kind == "bench" and rest:
        run = bench(rest)
    else:
        raise SystemExit(__doc__)
    print(f"{a_packet(run):.1f}")


if __name__ == "__main__":
    main()
