"""Measures the effect of each technique: runs with one technique off alternate with runs with all on."""

import contextlib
import os
import statistics

import spread

PAGES = "/proc/sys/vm/nr_hugepages"
# Huge pages for 131,072 buffers, with some reserve.
WANTED_PAGES = 192

L2FWD = ["afxdp", "--rounds", "1", "--app", "l2fwd"]
TXPUSH = ["afxdp", "--rounds", "1", "--app", "txpush", "--transmit", "socket"]
LARGE = ["forward", "--frames", "131072"]
# Working set beyond the caches, so that prefetching matters.
COLD = [*LARGE, "--pool", "ring", "--routes", "500000", "--flows", "65536"]
TXQ = ["txq", "--rounds", "1", "--flows", "64"]

# A technique gains if the rate without it is less than this share of the rate with it, as rates vary by as much, and
# less than it in each round.
GAIN = 0.95

# For each technique: the measurement, with it and without it. Prefetching needs a separate program.
TECHNIQUES = [
    ("huge pages", "forward, 131,072 buffers: 2 MiB, or 4 KiB", LARGE, ["--pages", "2m"], ["--pages", "4k"]),
    ("zero copy", "pair: frames handed over, or 1,514 B copied by the receiver", ["pair"], [], ["--copy", "1514"]),
    ("polling", "AF_XDP on veth, rxdrop: rings polled, or poll(2) as soon as they are empty", ["afxdp", "--rounds", "1", "--app", "rxdrop"],
     ["--mode", "rtc"], ["--mode", "poll", "--spin-us", "0"]),
    ("batching", "AF_XDP on veth, l2fwd: 64 frames a turn, or 1", L2FWD, ["--batch", "64"], ["--batch", "1"]),
    ("core affinity", "forward: pinned, or where the kernel puts it", ["forward"], ["--cpu", "1"], []),
    ("prefetch", "forward, 131,072 buffers in a ring, 65,536 flows, 500,000 routes", COLD, [], None),
    ("coalescing", "flow switch, 64 flows, to a pair: a burst's packets together, or each flow's", [*TXQ, "--port", "pair"],
     ["--coalesce", "on"], ["--coalesce", "off"]),
    ("coalescing", "flow switch, 64 flows, to memif: together, or each flow's", [*TXQ, "--port", "memif"], ["--coalesce", "on"], ["--coalesce", "off"]),
    ("coalescing", "flow switch, 64 flows, to AF_XDP on veth: together, or each flow's", [*TXQ, "--port", "veth"], ["--coalesce", "on"], ["--coalesce", "off"]),
    ("in-order completion", "AF_XDP on veth, txpush by the socket", TXPUSH, ["--in-order", "on"], ["--in-order", "off"]),
]


@contextlib.contextmanager
def huge_pages():
    """Reserves WANTED_PAGES huge pages for the duration, if permitted."""
    found = open(PAGES).read()
    more = int(found) < WANTED_PAGES and os.access(PAGES, os.W_OK)
    if more:
        open(PAGES, "w").write(str(WANTED_PAGES))
    try:
        yield
    finally:
        if more:
            open(PAGES, "w").write(found)


def rate(figures):
    return figures["mpps"] if "mpps" in figures else figures["rows"][0]["mpps"]


def table(bench, plain, rounds, seconds):
    """Returns the table, and the list of those that gain nothing. `bench` runs a benchmark and returns its figures, or the reason why there are none; `plain` is
    the program without prefetching."""
    rows = []
    with huge_pages():
        for name, what, base, on, off in TECHNIQUES:
            print(f"== {name}: {what}", flush=True)
            samples, why = {"with": [], "without": []}, None
            time = ["--milliseconds", str(1000 * seconds)] if base[0] == "txq" else ["--seconds", str(seconds)]
            for _ in range(rounds):
                for which, args in (("with", on), ("without", off)):
                    if args is None and not plain:
                        why = "no program without it: `make bench-programs`"
                        continue
                    figures, wrong = bench([*base, *(args or []), *time], plain if args is None else None)
                    why = why or wrong
                    if figures:
                        samples[which].append(rate(figures))
            if all(len(of) == rounds and min(of) > 0 for of in samples.values()):
                rows.append((name, what, samples["with"], samples["without"]))
            else:
                rows.append((name, what, None, why or "nothing moved"))
    return text(rows)


def text(rows):
    """Returns the table of rows (name, what, rates with, rates without), or (name, what, None, reason)."""
    lines, useless = ["| technique | measured by | with | without | without it |", "|---|---|---|---|---|"], []
    for name, what, on, off in rows:
        if on is None:
            lines.append(f"| {name} | {what} | | | not measured: {off} |")
            continue
        median, low, high = spread.ratio(off, on)
        ratio, rates = spread.text(median, low, high), [f"{statistics.median(of):.2f}" for of in (on, off)]
        if median < GAIN and not spread.refused(low, high):
            lines.append(f"| {name} | {what} | {rates[0]} | {rates[1]} | {ratio} |")
        else:
            useless.append(f"- {name} ({what}): without it {ratio} ({', '.join(rates)})")
    return "\n".join(lines + (["", "No gain here:", "", *useless] if useless else []))
