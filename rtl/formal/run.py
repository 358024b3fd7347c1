#!/usr/bin/env python3
"""Proves the properties of formal/f_*.sv, one by one: for any number of clocks (property-directed reachability, in ABC), or
for as many as it says (bounded model checking).

usage: run.py [--list] [NAME...]        all, or those whose names begin so
       run.py --mutations               breaks the logic, in a dozen ways and more; each must be caught
"""

import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

RTL = pathlib.Path(__file__).resolve().parents[1]
ABC = shutil.which("berkeley-abc") or shutil.which("yosys-abc") or sys.exit("no ABC: install yosys")
LIMIT = 100  # seconds a property

# For each proof: the top module, its parameters, its sources.
PROOFS = {
    "fifo": ("f_fifo", {}, ["npe_fifo"]),
    "convert": ("f_convert", {}, ["npe_convert"]),
    "recycle": ("f_recycle", {}, ["npe_recycle", "npe_fifo"]),
    "pool": ("f_pool", {}, ["npe_recycle", "npe_convert", "npe_alloc", "npe_select", "npe_pick", "npe_fifo"]),
    "threads": ("f_pool", {"T": 2, "POOLS": 2}, ["npe_recycle", "npe_convert", "npe_alloc", "npe_select", "npe_pick", "npe_fifo"]),
    "shared": ("f_pool", {"T": 2, "POOLS": 1}, ["npe_recycle", "npe_convert", "npe_alloc", "npe_select", "npe_pick", "npe_fifo"]),
    "command": ("f_command", {}, ["npe_command", "npe_pick"]),
    "ring": ("f_ring", {}, ["npe_ring", "npe_pick"]),
}

# Proofs that PDR does not finish in time: bounded model checking of this many clocks from reset.
DEPTH = {"threads": 16, "shared": 16, "command/command_order": 12, "ring": 20, "pool/pool_no_deadlock": 30}
# Properties of those proofs that PDR does finish.
UNBOUNDED = {"threads": ["pool_next_differs", "pool_threads_differ", "pool_chain"], "shared": ["pool_chain"],
             "ring": ["ring_none_lost", "ring_bell", "ring_one_burst"]}

# Mutations: the source, its text, the replacement, the proof, and the property that must fail.
MUTATIONS = [
    ("npe_recycle", "count[at_release] == CW'(UNITS - 1)", "count[at_release] == '0", "recycle", "recycle_exact"),
    ("npe_recycle", "count[at_release] == CW'(UNITS - 1)", "count[at_release] == CW'(UNITS - 2)", "pool", "pool_not_twice"),
    ("npe_recycle", ": count[at_release] + 1'b1", ": count[at_release]", "pool", "pool_no_deadlock"),
    ("npe_recycle", "&& out[at_release];", ";", "recycle", "recycle_refused"),
    ("npe_recycle", "if (returned && at_release == AW'(n)) out[n] <= 1'b0;", "", "recycle", "recycle_counted"),
    ("npe_recycle", "assign put_pool   = returned ? release_pool : post_pool;", "assign put_pool   = post_pool;", "recycle",
     "recycle_free_only"),
    ("npe_recycle", "assign post_ready = !counted;", "assign post_ready = 1'b1;", "recycle", "recycle_exact"),
    ("npe_convert", "(&next[UW-BW-1:0])", "(&next[UW-BW-1:1])", "convert", "convert_exact"),
    ("npe_convert", "assign block_ready = !open || last;", "assign block_ready = 1'b1;", "convert", "convert_whole"),
    ("npe_fifo", "(tail - head) != (A + 1)'(DEPTH)", "1'b1", "fifo", "fifo_room"),
    ("npe_alloc", "assign take = any && !fill &&", "assign take = any &&", "shared", "pool_not_twice"),
    ("npe_alloc", "grant_this   <= this_unit;", "grant_this   <= popped;", "pool", "pool_next_differs"),
    ("npe_command", "used == (DW + 1)'(DEPTH)", "used == '1", "command", "command_told"),
    ("npe_command", "assign offer_ready = !write && !full;", "assign offer_ready = !full;", "command", "command_offer_waits"),
    ("npe_ring", "? ahead[5:0] : to_end;", "? ahead[5:0] : 6'd32;", "ring", "ring_within"),
    ("npe_ring", "place <= from[4:0];", "place <= '0;", "ring", "ring_order"),
]


def run(*command, cwd=None, limit=None):
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=limit)
    return done.returncode, done.stdout + done.stderr


def properties(proof):
    text = (RTL / "formal" / f"{PROOFS[proof][0]}.sv").read_text()
    return re.findall(r"^\s*(\w+): assert property", text, re.M)


def prove(proof, name, sources=RTL / "src"):
    """Returns "proved", "FAILED", or why neither."""
    top, parameters, modules = PROOFS[proof]
    files = " ".join(str(sources / f"{m}.sv") for m in modules)
    chparam = " ".join(f"-set {k} {v}" for k, v in parameters.items())
    with tempfile.TemporaryDirectory() as scratch:
        script = f"""read_verilog -sv -formal {files} {RTL}/formal/{top}.sv
            {f"chparam {chparam} {top}" if chparam else ""}
            prep -flatten -top {top}
            select -assert-count 1 {top}/{name}
            delete t:$assert {top}/{name} %d
            memory_map
            setundef -undriven -anyseq
            opt -full
            techmap
            opt -fast
            dffunmap
            abc -g AND -fast
            opt_clean
            write_aiger -I -B -zinit {scratch}/p.aig"""
        code, out = run("yosys", "-q", "-p", script)
        if code != 0:
            return f"yosys: {out.strip().splitlines()[-1] if out.strip() else code}"
        depth = DEPTH.get(f"{proof}/{name}") or DEPTH.get(proof)
        if name in UNBOUNDED.get(proof, []):
            depth = None
        how = f"bmc3 -F {depth} -T {LIMIT}" if depth else f"pdr -T {LIMIT}"
        try:
            code, out = run(ABC, "-c", f"read_aiger {scratch}/p.aig; fold; strash; scorr; dc2; {how}",
                            cwd=scratch, limit=LIMIT + 60)
        except subprocess.TimeoutExpired:
            return "no answer in time"
    if "Property proved" in out or "Networks are equivalent" in out:
        return "proved"
    if depth and re.search(rf"No output (asserted|failed) in {depth} frames", out):
        return f"proved to {depth} clocks"
    if "was asserted in frame" in out:
        frame = re.search(r"was asserted in frame (\d+)", out)
        return f"FAILED at clock {frame.group(1)}"
    return f"no answer: {out.strip().splitlines()[-1]}"


def mutate(n):
    source, old, new, proof, name = MUTATIONS[n]
    with tempfile.TemporaryDirectory() as scratch:
        copy = pathlib.Path(scratch) / "src"
        shutil.copytree(RTL / "src", copy)
        path = copy / f"{source}.sv"
        text = path.read_text()
        if text.count(old) != 1:
            return f"mutation {n}: '{old}' stands {text.count(old)} times in {source}"
        path.write_text(text.replace(old, new))
        return prove(proof, name, copy)


def main():
    arguments = [a for a in sys.argv[1:] if not a.startswith("--")]
    work = [(p, n) for p in PROOFS for n in properties(p) if not arguments or any(n.startswith(a) or p == a for a in arguments)]
    if "--list" in sys.argv:
        print("\n".join(f"{p}: {n}" for p, n in work))
        return
    bad = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        if "--mutations" in sys.argv:
            for n, said in enumerate(pool.map(mutate, range(len(MUTATIONS)))):
                source, old, new, proof, name = MUTATIONS[n]
                caught = said.startswith("FAILED")
                bad += not caught
                print(f"{'caught' if caught else 'MISSED'}: {source}: `{old}` -> `{new}`: {proof}/{name}: {said}", flush=True)
            print(f"{len(MUTATIONS) - bad} passed, {bad} failed")
        else:
            for (proof, name), said in zip(work, pool.map(lambda w: prove(*w), work)):
                bad += not said.startswith("proved")
                print(f"{proof}/{name}: {said}", flush=True)
            print(f"{len(work) - bad} passed, {bad} failed")
    sys.exit(bad != 0)


main()
