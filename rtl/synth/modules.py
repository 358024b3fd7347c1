#!/usr/bin/env python3
"""Measures the clock of each module alone: between registers in front of its inputs and behind its outputs, placed and
routed like the engine. Prints a table. The reports are in build/synth.

usage: modules.py [THREADS-WIDTH]      8-64; as many modules at a time as there are CPUs
"""

import concurrent.futures
import json
import os
import sys

from run import BUILD, SOURCES, route, yosys

FILES = " ".join(map(str, SOURCES))


def modules(t, w):
    """Returns the parameters of each module as npe_engine sets them by default, for t threads of w bit."""
    return {
        "dispatch": {"T": t, "W": w, "PORTS": 16, "BEATS": 4096 * 8 // w, "COUNT": 32, "LONGEST": 1792},
        "convert": {"BLOCKS": 16, "UNITS": 1024},
        "recycle": {"POOLS": t, "BLOCKS": 16, "UNITS": 1024},
        "alloc": {"T": t, "POOLS": t, "UW": 14},
        "write": {"T": t, "W": w, "UW": 14, "UNIT_LOG": 11, "OFFSET": 256},
        "ring": {"T": t, "W": w},
        "command": {"T": t, "DEPTH": 64, "UW": 14, "UNIT_LOG": 11, "PORTS": 16},
        "transmit": {"W": w, "SLOTS": 8, "UNIT_LOG": 11, "REQUEST": 4096, "TAG": 14 + max(1, (t - 1).bit_length())},
        "regs": {"T": t, "PORTS": 16, "SHARED": 0, "BLOCKS_LOG": 4, "UNITS_LOG": 10, "UNIT_LOG": 11, "COMMANDS_LOG": 6,
                 "OFFSET": 256, "UW": 14, "POOLS": t, "BW": 4},
        "pcie": {"W": w, "IDW": 4, "PAYLOAD": 256},
    }


def wrapped(name, parameters):
    """Returns the text of a module `alone` that has `name` between registers."""
    ports = BUILD / f"{name}.ports.json"
    chparam = " ".join(f"-set {k} {v}" for k, v in parameters.items())
    script = f"read_verilog -sv {FILES}; chparam {chparam} npe_{name}; hierarchy -top npe_{name}; proc"
    yosys(f"{script}; write_json {ports}", BUILD / f"{name}.ports.log")
    found = next(m for m in json.loads(ports.read_text())["modules"].values() if "top" in m["attributes"])["ports"]
    width = {port: len(about["bits"]) for port, about in found.items() if port != "clk"}
    sides = {side: [port for port in width if found[port]["direction"] == side] for side in ("input", "output")}
    declared = "".join(f"    logic [{bits - 1}:0] {port}_;\n" for port, bits in width.items())
    given = ", ".join([f".{k}({v})" for k, v in parameters.items()])
    links = ", ".join([".clk(clk)"] + [f".{port}({port}_)" for port in width])
    into = "".join(f"        {port}_ <= {port};\n" for port in sides["input"])
    out = "".join(f"        {port} <= {port}_;\n" for port in sides["output"])
    names = ", ".join(f"{side} logic [{width[port] - 1}:0] {port}" for side in sides for port in sides[side])
    return (f"module alone(input logic clk, {names});\n{declared}    npe_{name} #({given}) it({links});\n"
            f"    always_ff @(posedge clk) begin\n{into}{out}    end\nendmodule\n")


def row(name, parameters, width):
    source, netlist = BUILD / f"{name}-{width}.sv", BUILD / f"{name}-{width}.json"
    source.write_text(wrapped(name, parameters))
    script = f"read_verilog -sv {FILES} {source}; synth_ecp5 -top alone -json {netlist}; stat"
    yosys(script, BUILD / f"{name}-{width}.log")
    placed, mhz = route(netlist)
    return f"| `npe_{name}` | {placed} | {mhz} |"


def main():
    BUILD.mkdir(parents=True, exist_ok=True)
    threads, width = map(int, (sys.argv[1:] or ["8-64"])[0].split("-"))
    print(f"| alone, T = {threads}, {width} bit | LUTs placed | MHz |\n|---|---|---|", flush=True)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for line in pool.map(lambda item: row(*item, width), modules(threads, width).items()):
            print(line, flush=True)


main()
