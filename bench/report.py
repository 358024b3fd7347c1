#!/usr/bin/env python3
"""Fills the tables in docs/benchmarks.md from one run of every benchmark on this machine, and draws its chart of peers.

usage: bench/report.py [--bywash PATH] [--keep] [--kept] [--short]      as root

  --keep    take out/bench/*.json of earlier runs where there are any
  --kept    the same, and measure no peer that is not there (bench/peers/run has)
  --short   one round of a second each, printed and not written to the page: does all of it still run?

What cannot be measured here (no root, no peer) keeps its row and says so.
"""

import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time

import charts

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
OUT = os.path.join(ROOT, "out", "bench")
PAGE = os.path.join(ROOT, "docs", "benchmarks.md")


# Each technique alone: what is measured, with it and without it.
ABLATIONS = [
    ("polling", "AF_XDP on veth, l2fwd", ["afxdp", "--app", "l2fwd"], ["--mode", "rtc"], ["--mode", "poll"]),
    ("batching", "AF_XDP on veth, l2fwd", ["afxdp", "--app", "l2fwd"], ["--batch", "64"], ["--batch", "1"]),
    ("in-order completion", "AF_XDP on veth, txpush", ["afxdp", "--app", "txpush"], ["--in-order", "on"], ["--in-order", "off"]),
    ("huge pages", "forward, 131,072 buffers", ["forward", "--frames", "131072"], ["--pages", "auto"], ["--pages", "4k"]),
    ("core affinity", "forward", ["forward"], ["--cpu", "1"], []),
]
NO_SWITCH = {
    "coalescing": "no switch: the port decides when it makes a system call",
    "prefetch": "no switch: compiled in",
    "zero-copy": "needs a driver that has it: `bywash bench afxdp --zero-copy require`",
}


def bywash(program, *args):
    done = subprocess.run([program, "bench", *args, "--json"], capture_output=True, text=True)
    return json.loads(done.stdout) if done.returncode == 0 else None


def ablations(program, short):
    """Each by turns, medians; a row says what the technique is worth, or why nobody knows."""
    lines = ["| technique | measured by | with | without | without it |", "|---|---|---|---|---|"]
    rounds, seconds = (1, "1") if short else (5, "2")
    for name, what, base, on, off in ABLATIONS:
        samples = {"on": [], "off": []}
        for _ in range(rounds):
            for which, args in (("on", on), ("off", off)):
                alone = ["--rounds", "1"] if base[0] == "afxdp" else []
                one = bywash(program, *base, *args, *alone, "--seconds", seconds)
                if one:
                    samples[which].append(one["mpps"])
        if all(samples.values()):
            with_it, without = (statistics.median(samples[which]) for which in ("on", "off"))
            lines.append(f"| {name} | {what} | {with_it:.2f} | {without:.2f} | {without / with_it:.2f} x |")
        else:
            lines.append(f"| {name} | {what} | | | not measured |")
    lines += [f"| {name} | {why} | | | not measured |" for name, why in NO_SWITCH.items()]
    return "\n".join(lines)


def draw(ratios):
    """The chart, and the line that says what its bars are."""
    numbers = [str(at + 1) for at in range(len(ratios))]
    values = [("Bywash to its peer", [ratio for _, ratio in ratios])]
    with open(os.path.join(charts.IMG, "peers.svg"), "w") as file:
        file.write(charts.bars("Bywash beside its peers", "ratio of medians", numbers, "numbered as below", values))
    legend = "; ".join(f"{number} {name}: {ratio:.2f}" for number, (name, ratio) in zip(numbers, ratios))
    return f"![Ratios to peers](img/peers.svg)\n\n{legend}."


def replace(page, mark, text):
    return re.sub(rf"(<!-- {mark} -->\n).*?(<!-- end -->)", lambda m: f"{m[1]}{text}\n{m[2]}", page, flags=re.S)


def peers(program, script, keep, short):
    path = os.path.join(OUT, f"{script}.short.json" if short else f"{script}.json")
    if "--kept" in sys.argv and not os.path.exists(path):
        return None
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
    keep, short = "--keep" in arguments or "--kept" in arguments, "--short" in arguments
    if not os.access(program, os.X_OK):
        sys.exit(f"{program} is no program: cargo build --release -p bywash, or --bywash PATH")
    os.makedirs(OUT, exist_ok=True)
    rows, ratios = [], []

    def row(what, command, figure):
        rows.append(f"| {what} | {figure or 'not measured'} | `{command}` |")

    forward = peers(program, "forward", keep, short)
    if forward:
        peer, ours = forward["peer"], forward["bywash"]
        ratios.append((f"forward, {peer}", forward["ratio"]))
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
    if veth:
        ratios.append(("veth, testpmd", veth["peer_ratio"]))
    afxdp = peers(program, "afxdp", keep, short)
    for one in afxdp["rows"] if afxdp else []:
        ratios.append((f"{one['app']}, testpmd", one["peer_ratio"]))
        row(f"AF_XDP alone on veth, {one['app']}, {one['mode']}", "bench/peers/afxdp.sh",
            f"{one['mpps']:.2f} Mpps; testpmd {one['peer_mpps']:.2f}: {one['peer_ratio']:.2f} x")
    memif = peers(program, "memif", keep, short)
    for one in memif["pairs"] if memif else []:
        pair = f"{one['sender']} to {one['receiver']}"
        if pair != "testpmd to testpmd":
            ratios.append((f"memif, {pair}, {one['client']} client", one["ratio"]))
        row(f"memif, 64 B, {pair}, the {one['client']} the client", "bench/peers/memif.sh",
            f"{one['mpps']:.1f} Mpps: {one['ratio']:.2f} x testpmd to testpmd")
    switch = peers(program, "switch", keep, short)
    if switch:
        ratios.append(("flow switch, OVS-DPDK", switch["ratio"]))
    row("flow switch, 512 flows, one core", "bench/peers/switch.sh", switch and f"{switch['ratio']:.2f} x OVS-DPDK")
    cmts = peers(program, "cmts", keep, short)
    row("cable downstream, two cores, to its crypto library alone", "bench/peers/cmts.sh", cmts and f"{cmts['ratio']:.2f} x")
    one = bywash(program, "generator", *(["--rounds", "1", "--seconds", "1"] if short else []))
    row("generator with numbers and times, to the barest frames", "bywash bench generator",
        one and f"{one['stamped_mpps']:.2f} and {one['bare_mpps']:.2f} Mpps: {one['ratio']:.2f} x")
    row("start to first forwarded packet", "bywash bench veth", veth and f"{veth['start_ms']:.0f} ms")
    row("resident memory of `bywash run`, two veth", "bywash bench veth",
        veth and f"{veth['resident_mib']:.0f} MiB, {veth['arena_mib']:.0f} of them the arena")

    model = re.search(r"model name\s*: (.*)", open("/proc/cpuinfo").read())[1]
    version = subprocess.run([program, "version"], capture_output=True, text=True).stdout.strip()
    head = f"{time.strftime('%Y-%m-%d')}, {model}, {os.cpu_count()} CPUs, Linux {platform.release()}, {version}, load {os.getloadavg()[0]:.1f}."
    table = "\n".join([head, "", "| what | figure | command |", "|---|---|---|", *rows])
    techniques = ablations(program, short)
    print(table, techniques, sep="\n\n")
    if short:
        return
    page = replace(replace(open(PAGE).read(), "report", table), "ablation", techniques)
    if ratios:
        page = replace(page, "peers", draw(ratios))
    open(PAGE, "w").write(page)


if __name__ == "__main__":
    main()
