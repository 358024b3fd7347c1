#!/usr/bin/env python3
"""Fills the table in docs/benchmarks.md from one run of every benchmark on this machine.

usage: bench/report.py [--bywash PATH] [--keep] [--short]      as root

  --keep    take out/bench/*.json of earlier runs where there are any
  --short   one round of a second each, printed and not written to the page: does all of it still run?

What cannot be measured here (no root, no peer) keeps its row and says so.
"""

import json
import os
import platform
import re
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
OUT = os.path.join(ROOT, "out", "bench")
PAGE = os.path.join(ROOT, "docs", "benchmarks.md")


def bywash(program, *args):
    done = subprocess.run([program, "bench", *args, "--json"], capture_output=True, text=True)
    return json.loads(done.stdout) if done.returncode == 0 else None


def peers(program, script, keep, short):
    path = os.path.join(OUT, f"{script}.short.json" if short else f"{script}.json")
    if not (keep and os.path.exists(path)):
        command = [os.path.join(ROOT, "bench", "peers", f"{script}.sh"), "--bywash", program, "--out", path]
        if short:
            command += ["--rounds", "1", "--seconds", "1"]
        if script == "forward" and os.environ.get("L3FWD"):
            command += ["--l3fwd", os.environ["L3FWD"]]
        if subprocess.run(command).returncode != 0:
            return None
    return json.load(open(path))


def main():
    arguments = sys.argv[1:]
    program = arguments[arguments.index("--bywash") + 1] if "--bywash" in arguments else os.path.join(ROOT, "target/release/bywash")
    keep, short = "--keep" in arguments, "--short" in arguments
    if not os.access(program, os.X_OK):
        sys.exit(f"{program} is no program: cargo build --release -p bywash, or --bywash PATH")
    os.makedirs(OUT, exist_ok=True)
    rows = []

    def row(what, command, figure):
        rows.append(f"| {what} | {figure or 'not measured'} | `{command}` |")

    forward = peers(program, "forward", keep, short)
    if forward:
        peer, ours = forward["peer"], forward["bywash"]
        row("forward, full router path, one core", "bench/peers/forward.sh",
            f"{ours['median_mpps']:.1f} Mpps; {peer} {forward[peer]['median_mpps']:.1f}: {forward['ratio']:.2f} x")
    else:
        row("forward, full router path, one core", "bench/peers/forward.sh", None)
    pools = {kind: bywash(program, "forward", "--pool", kind, "--frames", "131072") for kind in ("stack", "ring")}
    if all(pools.values()):
        stack, ring = pools["stack"]["mpps"], pools["ring"]["mpps"]
        row("forward, 131,072 buffers, stack to ring", "bywash bench forward --frames 131072 --pool stack, then ring",
            f"{stack:.1f} and {ring:.1f} Mpps: {stack / ring:.2f} x")
    for family in ("4", "6"):
        one = bywash(program, "lookup", "--family", family)
        row(f"lookup, IPv{family}, random addresses", f"bywash bench lookup --family {family}",
            one and f"{one['cycles_per_lookup']:.1f} cycles, {one['bytes'] / 2**20:.1f} MiB, built in {one['build_ms']:.0f} ms")
    one = bywash(program, "pair")
    row("pair, two workers", "bywash bench pair", one and f"{one['mpps']:.1f} Mpps")
    one = bywash(program, "pool", "--alternate", "--kinds", "ring,stack,tabm")
    of = {r["kind"]: r["mpps"] for r in one["rows"]} if one else {}
    row("pool between two threads, 131,072 buffers, 1,520 B touched", "bywash bench pool --alternate --kinds ring,stack,tabm",
        one and f"ring {of['ring']:.1f}, stack {of['stack']:.1f}, tabm {of['tabm']:.1f} Mpps: stack {of['stack'] / of['ring']:.2f} x")
    one = bywash(program, "tabm", "--threads", "1,2", "--sizes", "64")
    of = {(r["kind"], r["threads"]): r["mpps"] for r in one["rows"]} if one else {}
    row("tabm to sdb, 64 B, 4 KiB pages", "bywash bench tabm --threads 1,2 --sizes 64",
        one and ", ".join(f"{t} threads {of['tabm', t] / of['sdb', t]:.2f} x" for t in (1, 2)))
    veth = peers(program, "veth", keep, short)
    row("veth, 64 B, one worker", "bench/peers/veth.sh",
        veth and f"{veth['mpps']:.2f} Mpps; testpmd io {veth['peer_mpps']:.2f}: {veth['peer_ratio']:.2f} x; kernel {veth['kernel_mpps']:.2f}")
    row("start to first forwarded packet", "bywash bench veth", veth and f"{veth['start_ms']:.0f} ms")
    row("resident memory of `bywash run`, two veth", "bywash bench veth",
        veth and f"{veth['resident_mib']:.0f} MiB, {veth['arena_mib']:.0f} of them the arena")

    model = re.search(r"model name\s*: (.*)", open("/proc/cpuinfo").read())[1]
    version = subprocess.run([program, "version"], capture_output=True, text=True).stdout.strip()
    head = f"{time.strftime('%Y-%m-%d')}, {model}, {os.cpu_count()} CPUs, Linux {platform.release()}, {version}, load {os.getloadavg()[0]:.1f}."
    table = "\n".join([head, "", "| what | figure | command |", "|---|---|---|", *rows])
    print(table)
    if short:
        return
    page = open(PAGE).read()
    page = re.sub(r"(<!-- report -->\n).*?(\n<!-- end -->)", lambda m: m[1] + table + m[2], page, flags=re.S)
    open(PAGE, "w").write(page)


main()
