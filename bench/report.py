#!/usr/bin/env python3
"""Runs every benchmark on this machine, fills the tables in docs/benchmarks.md, and draws its charts.

usage: bench/report.py [--bywash PATH] [--plain PATH] [--rounds N] [--seconds N] [--out DIR] [--page FILE]      as root

  --plain PATH  the program without prefetching, for the table of techniques  (built by `make bench-programs`)
  --rounds N    rounds for each technique (5)
  --seconds N   length of a measurement   (1)
  --out DIR     where bench/peers/run left its results   (out/bench)
  --page FILE   the page to fill                         (docs/benchmarks.md)

Comparisons without a result of bench/peers/run are not measured; their rows give the reason. A ratio whose rounds lie on
both sides of 1 is no ratio: its row gives their range, and the chart leaves it out. The first row is what the same
program differs by from run to run. Rows and tables of earlier results have their own date, and their machine where it
is another.
"""

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import time

import ablation
import charts
import curves
import instructions
import spread
import tables

# Runs of the same program from which the machine's noise is told.
NOISE_RUNS = 5
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def arguments():
    release = os.path.join(ROOT, "target", "release")
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("--bywash", default=os.path.join(release, "bywash"))
    parser.add_argument("--plain", default=os.path.join(release, "bywash-no-prefetch"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=1)
    parser.add_argument("--out", default=os.path.join(ROOT, "out", "bench"))
    parser.add_argument("--page", default=os.path.join(ROOT, "docs", "benchmarks.md"))
    return parser.parse_args()


class Report:
    def __init__(self, args):
        self.args, self.rows, self.ratios = args, [], []
        self.here = {"date": time.strftime("%Y-%m-%d"), "cpu_model": processor(), "kernel": platform.release()}

    def bench(self, command, program=None):
        """Returns the figures of one benchmark, or the reason why there are none."""
        try:
            done = subprocess.run([program or self.args.bywash, "bench", *command, "--json"], capture_output=True, text=True,
                                  timeout=600 * max(1, self.args.seconds))
        except subprocess.TimeoutExpired:
            return None, "it came to no end"
        return (json.loads(done.stdout), None) if done.returncode == 0 else (None, reason(done.stderr))

    def peers(self, script):
        path = os.path.join(self.args.out, script)
        if os.path.exists(path + ".json"):
            return json.load(open(path + ".json")), None
        if os.path.exists(path + ".log"):
            return None, reason(open(path + ".log").read())
        return None, "left out of this run"

    def apart(self, script):
        """Returns when and where a comparison was measured, as far as that differs from now and here, as text."""
        path = os.path.join(self.args.out, script + ".json")
        if not os.path.exists(path):
            return ""
        # Not all results have these: the file is as old as they are.
        found = {"date": time.strftime("%Y-%m-%d", time.localtime(os.path.getmtime(path))), **json.load(open(path))}
        words = {"date": "{}", "cpu_model": "{}", "kernel": "Linux {}"}
        return ", ".join(words[name].format(found[name]) for name in words if name in found and found[name] != self.here[name])

    def text(self, one, figure, why):
        """Returns a row's figure, or the reason why there is none: a ratio may be undefined on a loaded machine."""
        try:
            return one and figure(one), why
        except (ArithmeticError, LookupError, TypeError) as wrong:
            return None, f"its figures are unusable: {type(wrong).__name__} {wrong}"

    def row(self, what, command, figure, why, script=None):
        """Adds a row. `script` is the comparison whose result the figure is."""
        apart = self.apart(script) if script and figure else ""
        self.rows.append(f"| {what}{f' ({apart})' if apart else ''} | {figure or f'not measured: {why}'} | `{command}` |")

    def own(self, what, command, figure):
        print(f"== bywash bench {command}", flush=True)
        one, why = self.bench(command.split())
        self.row(what, f"bywash bench {command}", *self.text(one, figure, why))

    def beside(self, script, what, figure, ratio=None):
        """Adds a row for a comparison. `ratio` is its name in the chart of ratios."""
        one, why = self.peers(script)
        self.row(what, f"bench/peers/{script}.sh", *self.text(one, figure, why), script)
        if one and ratio:
            self.compare(ratio, *sides(script, one))
        return one

    def compare(self, name, ours, theirs):
        """Adds a ratio to the chart, unless it is refused."""
        median, low, high = spread.ratio(ours, theirs)
        if not spread.refused(low, high):
            self.ratios.append((name, median))

    def counted(self, command):
        """Returns the instructions a packet of one of our benchmarks as text; nothing if they cannot be counted."""
        print(f"== instructions of bywash bench {command}", flush=True)
        try:
            return f"; {instructions.a_packet(instructions.bench([self.args.bywash, 'bench', *command.split()])):.1f} instructions a packet"
        except (OSError, RuntimeError, KeyError, ZeroDivisionError, subprocess.SubprocessError) as why:
            print(f"not counted: {why}")
            return ""

    def noise(self):
        """Adds the row that says what the machine makes of the same program."""
        command = f"forward --seconds {self.args.seconds}"
        print(f"== bywash bench {command}, {NOISE_RUNS} times", flush=True)
        runs = [self.bench(command.split()) for _ in range(NOISE_RUNS)]
        rates, why = [one["mpps"] for one, _ in runs if one], next((why for _, why in runs if why), None)
        figure = f"{min(rates):.1f} to {max(rates):.1f} Mpps: {100 * spread.noise(rates):.0f} %" if not why else None
        self.row(f"noise: the same program {NOISE_RUNS} times, forward in memory", f"bywash bench {command}", figure, why)


def reason(text):
    lines = [line for line in text.splitlines() if line.strip()]
    told = [line for line in lines if line.startswith("error: ")] or lines[-1:]
    return re.sub(r"[|`\x1b]", " ", told[0])[:160] if told else "it said nothing"


def sides(script, run):
    """Returns the rates of Bywash and of its peer in each round of a comparison."""
    if script in ("forward", "dpdk"):
        return run["bywash"]["mpps"], run[run["peer"]]["mpps"]
    if script == "switch":
        return run["bywash"]["mpps"], run["ovs-dpdk"]["mpps"]
    if script == "cmts":
        return run["gbps"]["instance"], run["gbps"]["library (dpdk-test-crypto-perf)"]
    if script == "mempool":
        median = {name: sorted(rates)[len(rates) // 2] for name, rates in run["mpps"].items()}
        best = lambda names: run["mpps"][max(names, key=median.get)]
        return best([name for name in median if name.startswith("bywash_")]), best([name for name in median if not name.startswith("bywash_")])
    if script == "tcp":
        # A round's rate is the geometric mean of the directions: they differ, but count alike.
        by_round = lambda who: [statistics.geometric_mean(rates) for rates in zip(*(row["samples"][who] for row in run["rows"]))]
        return by_round("bywash"), by_round("kernel")
    if script == "nat":
        return [one["driver"]["mpps"] for one in run["rounds"]], [one["kernel"]["mpps"] for one in run["rounds"]]
    if script == "generator":
        return [stamped for _, stamped in run["rounds"]], [bare for bare, _ in run["rounds"]]
    return [one["bywash"]["mpps"] for one in run["rounds"]], [one["peer"]["mpps"] for one in run["rounds"]]


def ratio_of(script, run):
    return spread.beside(*sides(script, run))


def affine(run):
    """Returns the ratios of pool tabm to sdb, by order and number of threads."""
    of = {(row["order"], row["kind"], row["threads"]): row["rounds_mpps"] for row in run["rows"]}
    ratio = lambda order, t: f"{t} thread{'s' * (t > 1)} {spread.beside(of[order, 'tabm', t], of[order, 'sdb', t])}"
    return "; ".join(f"both {order}: " + ", ".join(ratio(order, t) for t in (1, 2)) for order in ("fifo", "lifo"))


def instructions_of(one):
    n = one.get("instructions_per_packet")
    return f" ({n:.0f} instructions a packet)" if n else ""


def forwarded(run):
    peer, least = run["peer"], run.get("swap")
    least = f"; least work on the same source {least['median_mpps']:.1f}{instructions_of(least)}" if least else ""
    return (f"{run['bywash']['median_mpps']:.1f} Mpps{instructions_of(run['bywash'])}; {peer} {run[peer]['median_mpps']:.1f}"
            f"{instructions_of(run[peer])}: {ratio_of('forward', run)}{least}")


def placed(run):
    of = sorted(run["median_mpps"].items(), key=lambda one: -one[1])
    return ", ".join(f"{name} {mpps:.2f}" for name, mpps in of if name not in ("source", "idle")) + " Mpps"


def policies(run):
    median = {name: sorted(rates)[len(rates) // 2] for name, rates in run["mpps"].items()}
    best = sorted(median.items(), key=lambda one: -one[1])
    return ", ".join(f"{name} {mpps:.1f}" for name, mpps in best) + f" Mpps: Bywash's best to DPDK's best {ratio_of('mempool', run)}"


def summary(report):
    r = report
    r.noise()
    r.beside("dpdk", "forward, full router path, one core, both on DPDK's net_pcap devices", forwarded, "forward on the same devices")
    r.beside("forward", "the same in memory: Bywash's own ports replay and discard, l3fwd's are net_pcap", forwarded, "forward in memory, devices differ")
    for kind in ("stack", "ring"):
        command = f"forward --frames 131072 --pool {kind}"
        counted = r.counted(command)
        r.own(f"forward in memory, 131,072 buffers in a {kind}", command, lambda one: f"{one['mpps']:.1f} Mpps{counted}")
    for family, routes in (("4", 500_000), ("6", 200_000)):
        r.own(f"lookup, IPv{family}, {routes:,} routes, uniformly random addresses", f"lookup --family {family}",
              lambda one: f"{one['cycles_per_lookup']:.1f} cycles, {one['bytes'] / 2**20:.1f} MiB, built in {one['build_ms']:.0f} ms")
    r.own("frames from one worker to another, in memory (pair)", "pair", lambda one: f"{one['mpps']:.1f} Mpps")
    r.own("pool between two threads, 131,072 buffers, 1,520 B touched", "pool --alternate --kinds ring,stack,tabm",
          lambda one: ", ".join(f"{row['kind']} {row['mpps']:.1f}" for row in one["rows"]) + " Mpps")
    r.own("rate of pool tabm to that of sdb, 64 B, 4 KiB pages", "tabm --threads 1,2 --sizes 64", affine)
    r.beside("mempool", "buffer policies in testpmd, 131,072 mbufs between two lcores, no cache", policies, "buffer policies in testpmd")
    veth = r.beside("veth", "veth, 64 B, one worker in user space", lambda one: f"{one['mpps']:.2f} Mpps; testpmd io {one['peer_mpps']:.2f}: "
                    f"{ratio_of('veth', one)}; kernel {one['kernel_mpps']:.2f}", "veth")
    r.beside("placement", "veth, 500,000 routes, 4,000 destinations, by level", placed)
    nat, why = r.peers("nat")
    for one in nat["runs"] if nat else []:
        r.row(f"veth, stateful firewall and masquerade, {one['flows']:,} UDP connections", "bench/peers/nat.sh",
              f"{placed(one)}: driver to kernel {ratio_of('nat', one)}", None, "nat")
    if not nat:
        r.row("veth, stateful firewall and masquerade", "bench/peers/nat.sh", None, why)
    r.beside("tcp", "TCP over veth, default settings, to the kernel's rate",
             lambda one: f"{ratio_of('tcp', one)}: "
             + "; ".join(f"{row['of']} {row['bywash_gbps']:.1f}, kernel {row['kernel_gbps']:.1f} Gbit/s" for row in one["rows"]))
    memif, why = r.peers("memif")
    theirs = {}
    for one in memif["pairs"] if memif else []:
        pair = f"{one['sender']} to {one['receiver']}"
        figure = f"{one['mpps']:.1f} Mpps"
        if pair == "testpmd to testpmd":
            theirs[one["client"]] = one["samples"]
        else:
            both = one["samples"], theirs[one["client"]]
            r.compare(f"memif, {pair}, {one['client']} client", *both)
            figure += f"; to testpmd to testpmd {spread.beside(*both)}"
        r.row(f"memif, 64 B, {pair}, the {one['client']} the client", "bench/peers/memif.sh", figure, None, "memif")
    if not memif:
        r.row("memif, 64 B", "bench/peers/memif.sh", None, why)
    r.beside("switch", "flow switch, 512 flow rules, one core, in memory: devices differ", lambda one: f"{one['bywash']['median_mpps']:.1f} Mpps"
             f"{instructions_of(one['bywash'])}; OVS-DPDK {one['ovs-dpdk']['median_mpps']:.1f}: {ratio_of('switch', one)}", "flow switch in memory, devices differ")
    r.beside("cmts", "cable downstream, two cores, to the rate of its crypto library alone on one", lambda one: ratio_of("cmts", one), "cable downstream")
    r.own("generator: frames with sequence numbers and times, to bare frames", f"generator --seconds {r.args.seconds}",
          lambda one: f"{one['stamped_mpps']:.2f}; bare {one['bare_mpps']:.2f} Mpps: {ratio_of('generator', one)}")
    if veth:
        r.row("start to first forwarded packet, two veth, in user space", "bywash bench veth", f"{veth['start_ms']:.0f} ms", None, "veth")
        r.row("resident memory of `bywash run`, two veth", "bywash bench veth",
              f"{veth['resident_mib']:.0f} MiB, {veth['arena_mib']:.0f} of them the arena", None, "veth")


def said(command, pattern):
    """Returns a program's version, if it is installed."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(pattern, done.stdout + done.stderr)
    return found and found[1]


def processor():
    return re.search(r"model name\s*: (.*)", open("/proc/cpuinfo").read())[1]


def head(program, here):
    versions = [
        said([program, "version"], r"(.+)"),
        said(["dpdk-testpmd", "--no-huge", "--no-pci", "-v"], r"RTE Version: '(.*)'"),
        said(["ovs-vswitchd", "--version"], r"(Open vSwitch.*|.*\(Open vSwitch\) \S+)"),
        said(["iperf3", "--version"], r"(iperf \S+)"),
    ]
    known = ", ".join(version for version in versions if version)
    return (f"{here['date']}, {here['cpu_model']}, {os.cpu_count()} CPUs, Linux {here['kernel']}, {known}; "
            f"load {os.getloadavg()[0]:.1f}.")


def chart(ratios):
    """Draws the chart of ratios, and returns its legend."""
    numbers = [str(at + 1) for at in range(len(ratios))]
    tables.draw("peers", "Bywash beside its peers", "ratio of medians", numbers, "numbered as below",
                [("Bywash to its peer", [ratio for _, ratio in ratios])])
    legend = "; ".join(f"{number} {name}: {ratio:.2f}" for number, (name, ratio) in zip(numbers, ratios))
    return f"![Ratios to peers](img/peers.svg)\n\n{legend}."


def replace(page, mark, text):
    return re.sub(rf"(<!-- {mark} -->\n).*?(<!-- end -->)", lambda m: f"{m[1]}{text}\n{m[2]}", page, flags=re.S)


def main():
    args = arguments()
    if args.help:
        return print(__doc__)
    if not os.access(args.bywash, os.X_OK):
        raise SystemExit(f"{args.bywash} is no program: cargo build --release -p bywash, or --bywash PATH")
    charts.IMG = os.path.join(os.path.dirname(os.path.abspath(args.page)), "img")
    os.makedirs(charts.IMG, exist_ok=True)
    report = Report(args)
    summary(report)
    parts = {"report": "\n".join([head(args.bywash, report.here), "", "| what | figure | command |", "|---|---|---|", *report.rows])}
    for mark, table in (("afxdp", tables.modes), ("ports", tables.ports), ("rfc2544", tables.rfc2544)):
        run, why = report.peers(mark)
        more = [report.peers(f"afxdp-{way}")[0] for way in ("touch", "socket")] if mark == "afxdp" else []
        apart = f"{report.apart(mark)}.\n\n" if report.apart(mark) else ""
        parts[mark] = apart + table(run, *more) if run else f"Not here: {why}."
        for one in run["rows"] if run and mark == "afxdp" else []:
            if one["mode"] == "rtc":
                report.compare(f"{one['app']}, testpmd", *tables.both(one))
    parts["ablation"] = ablation.table(report.bench, os.access(args.plain, os.X_OK) and args.plain, args.rounds, args.seconds)
    parts["curves"] = curves.table(report.bench, tables.draw, (args.rounds + 1) // 2, args.seconds)
    if report.ratios:
        parts["peers"] = chart(report.ratios)
    page = open(args.page).read()
    for mark, text in parts.items():
        print(text, end="\n\n")
        page = replace(page, mark, text)
    open(args.page, "w").write(page)


if __name__ == "__main__":
    main()
