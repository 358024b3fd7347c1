#!/usr/bin/env python3
"""Runs the buffer benchmarks, draws docs/img/*.svg, and fills the table of deviations in docs/benchmarks.md.

usage: bench/charts.py [--bywash PATH] [--keep]     --keep uses out/bench/*.json of an earlier run, if they exist

The charts are: memory traffic (`bywash bench memory`, modelled, some minutes each), four charts in the order of the
document that they reproduce; dTLB misses of sdb and tabm, modelled, and throughput, measured, which needs a quiet
machine (`bywash bench tabm`).
"""

import json
import os
import re
import subprocess
import sys
from html import escape

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
OUT = os.path.join(ROOT, "out", "bench")
IMG = os.path.join(ROOT, "docs", "img")
PAGE = os.path.join(ROOT, "docs", "benchmarks.md")
TESTS = [("5", "off"), ("5", "on"), ("6.3", "off"), ("5.5", "on")]
WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 640, 360, 64, 48, 16, 56
COLOURS = ["#3b6ea5", "#9dbfe0", "#d9822b", "#f2c48d"]


def figures(program, name, keep, *args):
    path = os.path.join(OUT, name + ".json")
    if not (keep and os.path.exists(path)):
        done = subprocess.run([program, "bench", *args, "--json"], stdout=subprocess.PIPE, text=True)
        if done.returncode != 0:
            sys.exit(f"{program} bench {' '.join(args)} failed: see above")
        with open(path, "w") as file:
            file.write(done.stdout)
    return json.load(open(path))


def step(most):
    """Returns the smallest of 1, 2, 5 times a power of ten that divides the axis into at most six parts."""
    at = 10.0 ** -6
    while True:
        for factor in (1, 2, 5):
            if most <= 6 * factor * at:
                return factor * at
        at *= 10


def bars(title, unit, groups, axis, series, curves=False):
    """Draws bars side by side, or a curve for each series. `series`: names and values, one value for each of `groups`."""
    most = max([max(values) for _, values in series] + [1e-6])
    by = step(most)
    top = by * -(-most // by)
    high, wide = HEIGHT - TOP - BOTTOM, WIDTH - LEFT - RIGHT
    y = lambda value: TOP + high * (1 - value / top)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="18" font-size="14" font-weight="bold">{escape(title)}</text>',
    ]
    value = 0.0
    while value <= top * 1.001:
        out.append(f'<path d="M{LEFT} {y(value):.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        out.append(f'<text x="{LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value:g}</text>')
        value = round(value + by, 9)
    out.append(f'<text x="14" y="{TOP + high / 2}" transform="rotate(-90 14 {TOP + high / 2})" '
               f'text-anchor="middle">{escape(unit)}</text>')
    each = wide / len(groups)
    bar = each * 0.8 / len(series)
    for at, group in enumerate(groups):
        for n, (name, values) in enumerate(series):
            x = LEFT + each * (at + 0.1) + bar * n
            at_y, tip = y(values[at]), escape(f"{name}, {group}: {values[at]:.3g} {unit}")
            if curves:
                x = LEFT + each * (at + 0.5)
                if at:
                    out.append(f'<path d="M{x - each:.1f} {y(values[at - 1]):.1f}L{x:.1f} {at_y:.1f}" stroke="{COLOURS[n]}" stroke-width="2"/>')
                out.append(f'<circle cx="{x:.1f}" cy="{at_y:.1f}" r="3" fill="{COLOURS[n]}"><title>{tip}</title></circle>')
                continue
            out.append(f'<rect x="{x:.1f}" y="{at_y:.1f}" width="{bar:.1f}" height="{high + TOP - at_y:.1f}" '
                       f'fill="{COLOURS[n]}"><title>{tip}</title></rect>')
        x = LEFT + each * (at + 0.5)
        out.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{escape(str(group))}</text>')
    out.append(f'<text x="{LEFT + wide / 2}" y="{HEIGHT - BOTTOM + 32}" text-anchor="middle">{escape(axis)}</text>')
    for n, (name, _) in enumerate(series):
        x = LEFT + n * wide / len(series)
        out.append(f'<rect x="{x:.1f}" y="{HEIGHT - 16}" width="10" height="10" fill="{COLOURS[n]}"/>')
        out.append(f'<text x="{x + 14:.1f}" y="{HEIGHT - 7}">{escape(name)}</text>')
    return "\n".join(out + ["</svg>"]) + "\n"


def draw(name, *args):
    with open(os.path.join(IMG, name + ".svg"), "w") as file:
        file.write(bars(*args))


def memory(tests):
    rows, drops = [], []
    for (rate, crc), test in zip(TESTS, tests):
        kinds = {kind: [r for r in test["rows"] if r["kind"] == kind] for kind in ("ring", "stack")}
        both = [(kind, what) for kind in kinds for what in ("read", "write")]
        series = [(f"{kind}, {what}s", [r[what + "_gbs"] for r in kinds[kind]]) for kind, what in both]
        draw(f"memory-{rate}-crc-{crc}", f"Memory traffic, {rate} Gbit/s an instance, CRC {crc} (modelled)", "GB/s",
             [r["instances"] for r in kinds["stack"]], "instances", series)
        for r in kinds["stack"]:
            drops.append((r["drop_percent"], r["document_percent"]))
        pairs = [(r["drop_percent"], r["document_percent"]) for r in kinds["stack"]]
        cells = [f"{ours:.0f} / {theirs:.0f} ({ours - theirs:+.0f})" for ours, theirs in pairs]
        rows.append(f"| {rate} Gbit/s, CRC {crc} | " + " | ".join(cells) + " |")
    here, there = (sum(d[n] for d in drops) / len(drops) for n in (0, 1))
    error = sum(abs(ours - theirs) for ours, theirs in drops) / len(drops)
    instances = [str(r["instances"]) for r in tests[0]["rows"] if r["kind"] == "stack"]
    one = tests[0]
    head = [f"Mean absolute error {error:.1f} points; mean {here:.1f} %, the document's {there:.1f} %. Modelled for",
            f"{one['processor']['name']}; pools of {one['frames']:,} frames, {one['in_flight']} packets in flight, rings of "
            f"{one['rx_ring']:,} and {one['tx_ring']:,}.", "",
            "| saved, % / the document's (deviation), by instances | " + " | ".join(instances) + " |", "|---|" + "---|" * len(instances)]
    alone = []
    for what in ("read", "write"):
        for r in one["rows"]:
            there = r.get(f"document_{what}_percent")
            if there is not None:
                alone.append(f"{what}s at {r['instances']}: {r[f'{what}_drop_percent']:.0f} / {there:.0f}")
    apart = "Reads and writes apart, as far as the document gives them (5 Gbit/s, CRC off, by instances): "
    return "\n".join(head + rows + ["", apart + "; ".join(alone) + "."])


def by_case(run, what):
    return {(r["order"], r["kind"], r["threads"], r["size"]): r[what] for r in run["rows"]}


def tlb(run):
    threads = sorted({r["threads"] for r in run["rows"]})
    size = run["rows"][0]["size"]
    misses = by_case(run, "dtlb_misses_per_packet")
    draw("tabm-tlb", f"dTLB misses, {size} B, 4 KiB pages ({run['rows'][0]['dtlb_source']})", "misses a packet", threads, "threads",
         [(f"{kind}, {order}", [misses[order, kind, t, size] for t in threads])
          for order in ("fifo", "lifo") for kind in ("sdb", "tabm")])


def throughput(run):
    """Draws the rates of tabm, as figure 4 of the paper has them: Gbit/s by size, for each number of threads that has
    CPUs of its own."""
    fit = sorted({r["threads"] for r in run["rows"] if not r["crowded"]})
    sizes = sorted({r["size"] for r in run["rows"]})
    carried = by_case(run, "carried_gbps")
    device = "on a CPU of its own" if run["device"] == "own" else "on the threads' CPUs"
    draw("tabm-throughput", f"tabm, {run['rows'][0]['offered_gbps']:g} Gbit/s offered, 4 KiB pages, device {device}", "Gbit/s", sizes,
         "bytes a packet", [(f"{t} thread{'s' * (t > 1)}", [carried["fifo", "tabm", t, size] for size in sizes]) for t in fit])


def main():
    arguments = sys.argv[1:]
    given = "--bywash" in arguments
    program = arguments[arguments.index("--bywash") + 1] if given else os.path.join(ROOT, "target/release/bywash")
    keep = "--keep" in arguments
    os.makedirs(OUT, exist_ok=True)
    os.makedirs(IMG, exist_ok=True)
    tests = [figures(program, f"memory-{rate}-{crc}", keep, "memory", "--rate", rate, "--crc", crc) for rate, crc in TESTS]
    table = memory(tests)
    # The misses are modelled unless the machine counts them; their rates are not drawn.
    tlb(figures(program, "tabm-tlb", keep, "tabm", "--sizes", "64", "--rounds", "1"))
    # The device has a CPU of its own where one is left for threads to share the packets.
    device = "own" if len(os.sched_getaffinity(0)) > 2 else "threads"
    throughput(figures(program, "tabm-throughput", keep, "tabm", "--kinds", "tabm", "--order", "fifo", "--device", device))
    page = open(PAGE).read()
    page = re.sub(r"(<!-- memory -->\n).*?(\n<!-- end -->)", lambda m: m[1] + table + m[2], page, flags=re.S)
    with open(PAGE, "w") as file:
        file.write(page)
    print(table)


if __name__ == "__main__":
    main()
