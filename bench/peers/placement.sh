#!/bin/bash
# Compares each level of Bywash on veth with native Linux, a minimal XDP redirect, and dpdk-testpmd (io, over two
# net_af_xdp ports), in alternating rounds, with a full table and traffic to many destinations.
#
# `bywash bench placement` measures all in the same topology (host a - router - host b) with the same source (the
# kernel's live-frame generator on the first CPU), and counts the frames that arrive at b, where the driver drops them.
# The kernel, the redirect and the level `driver` run on the generator's CPU, the level `user` and testpmd on the second
# one. testpmd in io mode does no lookup and rewrites nothing. xdp-forward (from xdp-tools 1.5) is measured if it is
# installed.
#
# Rates are medians of the rounds.
set -euo pipefail

usage() {
    cat <<USAGE
usage: bench/peers/placement.sh [options]
  --bywash PATH     the program to measure                  (target/release/bywash)
  --rounds N        rounds, each measuring all              (5)
  --seconds N       length of one measurement               (2)
  --size BYTES      frame size on the wire                  (64)
  --routes N        IPv4 routes in the kernel's table       (500000)
  --destinations N  destination addresses in the traffic    (4000)
  --out FILE        the JSON result                         (out/bench/placement.json)
USAGE
}

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
bywash="$root/target/release/bywash" rounds=5 seconds=2 size=64 routes=500000 destinations=4000 out="$root/out/bench/placement.json"
# shellcheck source=bench/peers/options.sh
. "$here/options.sh"
options "$@"
prepare_veth placement

peers=(--peer "testpmd=$testpmd")
if command -v xdp-forward >/dev/null; then
    # xdp-forward ends once its programs are loaded. The shell waits, and unloads them on SIGTERM.
    peers+=(--peer "xdp-forward=sh -c 'xdp-forward load r0 r1; trap \"xdp-forward unload r0 r1\" TERM; sleep infinity & wait'")
else
    echo "placement.sh: no xdp-forward here: not measured" >&2
fi

"$bywash" bench placement --json --level driver,user,auto --rounds "$rounds" --seconds "$seconds" --size "$size" \
    --routes "$routes" --destinations "$destinations" "${peers[@]}" >"$scratch"

mkdir -p "$(dirname "$out")"
OUT=$out TESTPMD=$(dpdk-testpmd -v 2>&1 </dev/null | sed -n "s/.*RTE Version: '\(.*\)'.*/\1/p" | head -n 1) python3 - "$scratch" "$root/bench" <<'PYTHON'
import json, os, platform, re, sys, time

sys.path.insert(0, sys.argv[2])
import spread

figures = json.load(open(sys.argv[1]))
model = re.search(r"model name\s*: (.*)", open("/proc/cpuinfo").read())[1]
result = {"cpu_model": model, "kernel": platform.release(), "date": time.strftime("%Y-%m-%d"),
          "peer": os.environ["TESTPMD"] or "dpdk-testpmd", "load": os.getloadavg()[0], **figures}
json.dump(result, open(os.environ["OUT"], "w"), indent=1)
rounds = result["rounds"]
print(f"{model}, Linux {result['kernel']}, CPUs {result['cpus']}, {result['size']} B, {result['destinations']} destinations, "
      f"{result['routes']} routes, {len(rounds)} rounds of {result['seconds']} s")
print(f"{'':12}{'Mpps':>8}   samples; driver to it")
rates = lambda name: [one[name]["mpps"] for one in rounds]
for name, median in sorted(result["median_mpps"].items(), key=lambda one: -one[1]):
    samples = " ".join(f"{one:.3f}" for one in rates(name))
    ratio = f"; {spread.beside(rates('driver'), rates(name))}" if name != "driver" else ""
    print(f"{name:12}{median:8.3f}   {samples}{ratio}")
PYTHON
