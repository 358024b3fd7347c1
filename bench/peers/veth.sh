#!/bin/bash
# Compares one worker between two veth interfaces: native Linux, Bywash and dpdk-testpmd (io, over two net_af_xdp
# ports), in alternating rounds.
#
# `bywash bench veth` measures all three in the same topology (host a - router - host b), with the same source (the
# kernel's live-frame generator on the first CPU) and the forwarder on the second CPU, and counts the frames that arrive
# at b. testpmd in io mode does no lookup and rewrites nothing; Bywash and Linux route every frame.
#
# Rates are medians of the rounds.
set -euo pipefail

usage() {
    cat <<USAGE
usage: bench/peers/veth.sh [options]
  --bywash PATH     the program to measure                  (target/release/bywash)
  --rounds N        rounds, each measuring all three        (5)
  --seconds N       length of one measurement               (3)
  --size BYTES      frame size on the wire                  (64)
  --out FILE        the JSON result                         (out/bench/veth.json)
  --min-ratio X     fail when Bywash has less than X times testpmd's rate
USAGE
}

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
bywash="$root/target/release/bywash" rounds=5 seconds=3 size=64 out="$root/out/bench/veth.json" min_ratio=0
# shellcheck source=bench/peers/options.sh
. "$here/options.sh"
options "$@"
prepare_veth veth

"$bywash" bench veth --json --rounds "$rounds" --seconds "$seconds" --size "$size" --peer "$testpmd" >"$scratch"

mkdir -p "$(dirname "$out")"
OUT=$out MIN=$min_ratio TESTPMD=$(dpdk-testpmd -v 2>&1 </dev/null | sed -n "s/.*RTE Version: '\(.*\)'.*/\1/p" | head -n 1) python3 - "$scratch" "$root/bench" <<'PYTHON'
import json, os, platform, re, sys, time

sys.path.insert(0, sys.argv[2])
import spread

figures = json.load(open(sys.argv[1]))
model = re.search(r"model name\s*: (.*)", open("/proc/cpuinfo").read())[1]
result = {"cpu_model": model, "kernel": platform.release(), "date": time.strftime("%Y-%m-%d"),
          "peer": os.environ["TESTPMD"] or "dpdk-testpmd", "load": os.getloadavg()[0], **figures}
json.dump(result, open(os.environ["OUT"], "w"), indent=1)
print(f"{model}, Linux {result['kernel']}, CPUs {result['cpus']}, {result['size']} B, {len(result['rounds'])} rounds of {result['seconds']} s")
print(f"{'':10}{'Mpps':>8}   samples")
for name, median in (("kernel", "kernel_mpps"), ("bywash", "mpps"), ("peer", "peer_mpps")):
    samples = " ".join(f"{one[name]['mpps']:.3f}" for one in result["rounds"])
    print(f"{'testpmd' if name == 'peer' else name:10}{result[median]:8.3f}   {samples}")
print("bywash, cycles per packet: " + ", ".join(f"{name} {cycles:.0f}" for name, cycles in result["stages"]))
ratio = result["peer_ratio"]
rates = {who: [one[who]["mpps"] for one in result["rounds"]] for who in ("bywash", "peer", "kernel")}
beside = lambda who: spread.beside(rates["bywash"], rates[who])
print(f"bywash to testpmd: {beside('peer')}; to the kernel: {beside('kernel')}   ({os.environ['OUT']})")
if ratio < float(os.environ["MIN"]):
    sys.exit(f"below the wanted {os.environ['MIN']}")
PYTHON
