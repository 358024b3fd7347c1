#!/bin/bash
# Compares Bywash with native Linux behind a stateful firewall with masquerade, on established UDP connections: in
# alternating rounds, for each number of connections.
#
# `bywash bench nat` opens the connections through the kernel, and measures all in the same topology (host a - router -
# host b) with the same source (the kernel's live-frame generator on the first CPU): the kernel with the rules, the
# kernel with a flow table for them in addition (`flowtable`, where it has nf_flowtable), a minimal XDP redirect, Bywash
# in the driver without regard to the rules (`routed`), Bywash with the rules in the driver and in user space, and the
# generator alone (`source`, and `idle` without sending). The kernel's table of connections has a bucket for each of
# them during the run.
#
# Rates are medians of the rounds.
set -euo pipefail

usage() {
    cat <<USAGE
usage: bench/peers/nat.sh [options]
  --bywash PATH     the program to measure                  (target/release/bywash)
  --rounds N        rounds, each measuring all              (5)
  --seconds N       length of one measurement               (2)
  --size BYTES      frame size on the wire                  (64)
  --flows LIST      numbers of connections                  (1000,100000,1000000)
  --out FILE        the JSON result                         (out/bench/nat.json)
USAGE
}

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
bywash="$root/target/release/bywash" rounds=5 seconds=2 size=64 flows=1000,100000,1000000 out="$root/out/bench/nat.json"
# shellcheck source=bench/peers/options.sh
. "$here/options.sh"
options "$@"
[ "$(id -u)" = 0 ] || die "root needed: it makes network namespaces"
[ -x "$bywash" ] || die "no $bywash: build it (cargo build --release) or give --bywash"
command -v nft >/dev/null && command -v conntrack >/dev/null || die "nft and conntrack needed"
[ "$(nproc)" -ge 2 ] || die "two CPUs needed: one for the generator, one for the forwarder"

settings=/proc/sys/net/netfilter
# Not in each namespace: the limits are the machine's.
[ -e $settings/nf_conntrack_max ] || die "no connection tracking here: modprobe nf_conntrack"
found_max=$(cat $settings/nf_conntrack_max) found_buckets=$(cat $settings/nf_conntrack_buckets)
scratch=$(mktemp)
restore() {
    echo "$found_buckets" >$settings/nf_conntrack_buckets
    echo "$found_max" >$settings/nf_conntrack_max
    rm -f "$scratch"
}
trap restore EXIT
trap 'exit 130' INT TERM

for n in ${flows//,/ }; do
    # The kernel looks up both directions.
    [ "$found_buckets" -ge $((2 * n)) ] || echo $((2 * n)) >$settings/nf_conntrack_buckets
    [ "$found_max" -ge $((2 * n)) ] || echo $((2 * n)) >$settings/nf_conntrack_max
    "$bywash" bench nat --json --flows "$n" --rounds "$rounds" --seconds "$seconds" --size "$size" >>"$scratch"
done

mkdir -p "$(dirname "$out")"
OUT=$out python3 - "$scratch" "$root/bench" <<'PYTHON'
import json, os, platform, re, sys, time

sys.path.insert(0, sys.argv[2])
import spread

runs = [json.loads(line) for line in open(sys.argv[1])]
model = re.search(r"model name\s*: (.*)", open("/proc/cpuinfo").read())[1]
result = {"cpu_model": model, "kernel": platform.release(), "date": time.strftime("%Y-%m-%d"), "load": os.getloadavg()[0],
          "runs": runs}
json.dump(result, open(os.environ["OUT"], "w"), indent=1)
print(f"{model}, Linux {result['kernel']}, CPUs {runs[0]['cpus']}, {runs[0]['size']} B, {len(runs[0]['rounds'])} rounds of "
      f"{runs[0]['seconds']} s")
for run in runs:
    median = run["median_mpps"]
    print(f"{run['flows']} connections")
    if run["no_flow_table"]:
        print(f"  no flowtable: {run['no_flow_table']}")
    rates = lambda name: [one[name]["mpps"] for one in run["rounds"]]
    for name, mpps in sorted(median.items(), key=lambda one: -one[1]):
        samples = " ".join(f"{one:.3f}" for one in rates(name))
        others = "; ".join(f"to {other} {spread.beside(rates(name), rates(other))}" for other in ("kernel", "redirect") if name != other)
        print(f"  {name:10}{mpps:8.3f} Mpps   {samples}   {others}")
PYTHON
