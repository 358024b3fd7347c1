#!/bin/bash
# Compares the flow switch of one worker with OVS-DPDK, in alternating rounds on one core.
#
# Both replay the same pcap from memory (64-byte frames on the wire) into port 1, have the same 512 flows (dec_ttl,
# mod_dl_dst, output:2), and discard the frames sent. The peer is Debian's openvswitch-switch-dpdk with one polling
# thread: it receives from net_pcap with infinite_rx and sends to net_null. It has its own database, run directory and
# network namespace: its taps are persistent, and end with the namespace. No service is started or stopped.
#
# Rates are medians of the rounds. The peer's come from its own port counters (telemetry.py).
set -euo pipefail

usage() {
    cat <<USAGE
usage: bench/peers/switch.sh [options]
  --bywash PATH     the program to measure                  (target/release/bywash)
  --vswitchd PATH   ovs-vswitchd built with DPDK            (/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk)
  --flows N         source flows in the traffic             (1024)
  --rounds N        rounds, each measuring both             (5)
  --seconds N       length of one measurement               (3)
  --cpu N           the core that switches                  (1)
  --pages 2m|4k     2m: 768 hugetlb pages are reserved while this runs, for both; 4k: none, and DPDK gets --no-huge (2m)
  --emc-insert N    one in N flows goes into the exact-match cache, of both (100); 0: neither has one
  --smc on|off      the peer's signature-match cache, made for flows too many for the exact-match cache (off, as by default)
  --instructions    count Bywash's instructions a packet as well (bench/instructions.py)
  --out FILE        the JSON result                         (out/bench/switch.json)
  --min-ratio X     fail when the ratio of medians is lower
USAGE
}

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
bywash="$root/target/release/bywash" vswitchd=/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk
instructions='' flows=1024 rounds=5 seconds=3 cpu=1 pages=2m emc_insert=100 smc=off out="$root/out/bench/switch.json" min_ratio=0
# shellcheck source=bench/peers/options.sh
. "$here/options.sh"
options "$@"
case $pages in 2m | 4k) ;; *) die "--pages is 2m or 4k" ;; esac
case $smc in on) smc_enable=true ;; off) smc_enable=false ;; *) die "--smc is on or off" ;; esac
if [ "$emc_insert" -gt 0 ]; then emc=(--emc-insert "$emc_insert"); else emc=(--emc off); fi
[ "$(id -u)" = 0 ] || die "root needed: the hugetlb pages are root's"
[ -x "$bywash" ] || die "no $bywash: build it (cargo build --release) or give --bywash"
[ -x "$vswitchd" ] || die "no $vswitchd: apt-get install openvswitch-switch-dpdk, or give --vswitchd"
for tool in ip ovsdb-server ovsdb-tool ovs-vsctl ovs-ofctl ovs-appctl; do
    command -v $tool >/dev/null || die "no $tool: apt-get install openvswitch-switch"
done
[ "$cpu" -lt "$(nproc)" ] || die "this machine has no CPU $cpu"

scratch=$(mktemp -d)
namespace=bywash-ovs-$$
pids=()
leave() {
    for pid in "${pids[@]}"; do
        kill -KILL "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
    done
    ip netns del "$namespace" 2>/dev/null || true
    pages_back
    rm -rf "$scratch" "/run/dpdk/bywash-switch-$$"
}
trap leave EXIT
trap 'exit 130' INT TERM

if [ "$pages" = 2m ]; then
    reserve_pages 768 640
    memory="--in-memory"
else
    memory="--no-huge -m 1024"
fi

"$bywash" bench switch --flows "$flows" --write "$scratch"
export OVS_RUNDIR=$scratch OVS_LOGDIR=$scratch
schema=/usr/share/openvswitch/vswitch.ovsschema
ip netns add "$namespace"
vsctl() { ovs-vsctl --timeout=30 "--db=unix:$scratch/db.sock" "$@"; }
other=$((cpu == 0 ? 1 : 0))

start_peer() {
    rm -f "$scratch"/conf.db "$scratch"/*.ctl
    ovsdb-tool create "$scratch/conf.db" $schema
    ip netns exec "$namespace" ovsdb-server "$scratch/conf.db" "--remote=punix:$scratch/db.sock" "--unixctl=$scratch/db.ctl" >/dev/null 2>&1 &
    pids=($!)
    for _ in $(seq 100); do [ -S "$scratch/db.sock" ] && break || sleep 0.05; done
    vsctl --no-wait set Open_vSwitch . other_config:dpdk-init=true "other_config:dpdk-extra=\"$memory --no-pci --file-prefix bywash-switch-$$\"" \
        "other_config:pmd-cpu-mask=$(printf '0x%x' $((1 << cpu)))" "other_config:dpdk-lcore-mask=$(printf '0x%x' $((1 << other)))" \
        "other_config:emc-insert-inv-prob=$emc_insert" "other_config:smc-enable=$smc_enable"
    ip netns exec "$namespace" "$vswitchd" "--unixctl=$scratch/vs.ctl" "unix:$scratch/db.sock" --pidfile="$scratch/vs.pid" >"$scratch/peer.log" 2>&1 &
    pids+=($!)
    vsctl add-br br0 -- set bridge br0 datapath_type=netdev fail-mode=secure \
        -- add-port br0 p1 -- set interface p1 type=dpdk ofport_request=1 "options:dpdk-devargs=net_pcap1,rx_pcap=$scratch/traffic.pcap,infinite_rx=1" options:n_rxq=1 \
        -- add-port br0 p2 -- set interface p2 type=dpdk ofport_request=2 options:dpdk-devargs=net_null2,no-rx=1 options:n_rxq=1 \
        || { tail -n 15 "$scratch/peer.log" >&2 && die "OVS took none of it; its last words are above"; }
    ovs-ofctl add-flows "unix:$scratch/br0.mgmt" "$scratch/flows.txt"
}
stop_peer() {
    ovs-appctl -t "$scratch/vs.ctl" exit --cleanup >/dev/null 2>&1 || true
    for _ in $(seq 50); do kill -0 "${pids[1]}" 2>/dev/null && sleep 0.1 || break; done
    kill -KILL "${pids[1]}" 2>/dev/null || true
    wait "${pids[1]}" 2>/dev/null || true
    kill "${pids[0]}" 2>/dev/null || true
    wait "${pids[0]}" 2>/dev/null || true
    pids=()
}

prefix=bywash-switch-$$
for round in $(seq "$rounds"); do
    taskset -c "$cpu" "$bywash" bench switch --json --pages "$pages" --flows "$flows" "${emc[@]}" --seconds "$seconds" >"$scratch/bywash.$round.json"
    start_peer
    if ! "$here/telemetry.py" "$prefix" "$seconds" 0 1 >"$scratch/peer.$round.json"; then
        tail -n 15 "$scratch/peer.log" >&2
        die "OVS did not forward; its last words are above"
    fi
    ovs-appctl -t "$scratch/vs.ctl" dpif-netdev/pmd-stats-show >"$scratch/peer.$round.stats" 2>/dev/null || true
    stop_peer
    echo "round $round of $rounds done" >&2
done

if [ -n "$instructions" ]; then
    "$root/bench/instructions.py" bench "$bywash" bench switch --pages "$pages" --flows "$flows" "${emc[@]}" >"$scratch/instructions" ||
        echo "switch.sh: instructions not counted" >&2
fi

mkdir -p "$(dirname "$out")"
PAGES=$pages CPU=$cpu OUT=$out MIN=$min_ratio FLOWS=$flows INSERT=$emc_insert SMC=$smc python3 - "$scratch" "$rounds" "$root/bench" <<'PYTHON'
import json, os, re, statistics, sys

scratch, rounds = sys.argv[1], int(sys.argv[2])
sys.path.insert(0, sys.argv[3])
import spread

load = lambda who: [json.load(open(f"{scratch}/{who}.{n}.json")) for n in range(1, rounds + 1)]
ours, theirs = load("bywash"), load("peer")
model = re.search(r"model name\s*: (.*)", open("/proc/cpuinfo").read())[1]
hz = statistics.median(one["mpps"] * 1e6 * one["cycles_per_packet"] for one in ours)
median = lambda samples: statistics.median(one["mpps"] for one in samples)
ratio = median(ours) / median(theirs)
summary = lambda samples: {
    "median_mpps": round(median(samples), 3),
    "cycles_per_packet": round(hz / median(samples) / 1e6, 1),
    "mpps": [round(one["mpps"], 3) for one in samples],
    "samples": samples,
}
result = {"cpu_model": model, "cpu": int(os.environ["CPU"]), "tsc_mhz": round(hz / 1e6), "peer_pages": os.environ["PAGES"],
          "flows": int(os.environ["FLOWS"]), "emc_insert": int(os.environ["INSERT"]), "peer_smc": os.environ["SMC"], "ratio": round(ratio, 3), "bywash": summary(ours), "ovs-dpdk": summary(theirs),
          "peer_stats": open(f"{scratch}/peer.{rounds}.stats").read()}
try:
    result["bywash"]["instructions_per_packet"] = float(open(f"{scratch}/instructions").read())
except (OSError, ValueError):
    pass
json.dump(result, open(os.environ["OUT"], "w"), indent=1)
print(f"{model}, CPU {result['cpu']}, {rounds} rounds, {result['flows']} source flows, pages {result['peer_pages']}")
print(f"{'':10}{'Mpps':>9}{'cycles':>9}   samples")
for name in ("bywash", "ovs-dpdk"):
    one = result[name]
    print(f"{name:10}{one['median_mpps']:9.2f}{one['cycles_per_packet']:9.1f}   " + " ".join(f"{mpps:.2f}" for mpps in one["mpps"]))
if "instructions_per_packet" in result["bywash"]:
    print(f"bywash: {result['bywash']['instructions_per_packet']} instructions a packet")
print(f"ratio of medians {spread.beside(result['bywash']['mpps'], result['ovs-dpdk']['mpps'])}   ({os.environ['OUT']})")
if ratio < float(os.environ["MIN"]):
    sys.exit(f"below the wanted {os.environ['MIN']}")
PYTHON
