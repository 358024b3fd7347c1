#!/bin/bash
# Compares the full router path of one worker with a DPDK forwarder, in alternating rounds on one core.
#
# Both replay the same pcap from memory into two ports (64-byte frames on the wire and 1,024 flows, unless the arguments
# for `bywash bench forward` say otherwise), use the same routes and pages, and discard the frames sent. The peer is the
# binary given by --l3fwd (LPM), by default Debian's dpdk-testpmd (macswap), which does no lookup. This repository
# neither contains nor builds an l3fwd.
#
#   l3fwd before 23.11 refuses net_pcap ports because they cannot check IP checksums in hardware: use one built with
#   `.offloads = 0` in its port_conf. Since 23.11 --relax-rx-offload, which this script passes, suffices. l3fwd verifies
#   no header checksum in software and accepts at most 1,024 routes, with at most 256 groups longer than /24.
#
# With --net-pcap both forward between the same DPDK devices (net_pcap, infinite_rx), Bywash by its ports of kind dpdk.
# If dpdk-testpmd is installed, a third row shows the devices alone: in io mode it moves mbufs without reading them. The
# difference to that row is the cost of a forwarder. It should not exceed that of Bywash's stages, as measured in memory
# in the same round, by more than 6 cycles (`within`). Both programs' io modes are also measured on net_null, devices that
# cost nothing, and on the two ends of one net_memif link, between which packets go round.
#
# The row `swap` is `bywash bench forward --app swap` on the same source: it swaps MAC addresses, without a lookup, and
# shows what Bywash's ports, buffers and worker cost without the router.
#
# Rates are medians of the rounds, and the ratio's range is that of single rounds. The peer's come from its own port
# counters (telemetry.py). With --instructions Bywash also runs under callgrind, after the rounds.
set -euo pipefail

usage() {
    cat <<USAGE
usage: bench/peers/forward.sh [options]
  --l3fwd PATH      compare with this l3fwd; with dpdk-testpmd when not given
  --net-pcap        bywash, too, on DPDK's net_pcap devices; for a build with the feature dpdk
  --bywash PATH     the program to measure                  (target/release/bywash)
  --rounds N        rounds, each measuring both             (5)
  --seconds N       length of one measurement               (3)
  --cpu N           the core that forwards                  (1)
  --pages 2m|4k     2m: 512 hugetlb pages are reserved while this runs, for both; 4k: none, and DPDK gets --no-huge (2m)
  --instructions    count Bywash's instructions a packet as well (bench/instructions.py)
  --out FILE        the JSON result                         (out/bench/forward.json)
  --min-ratio X     fail when the ratio of medians is lower
  --hold            with --net-pcap: fail when the bound does not hold, or a ratio of io modes is less than 0.95
  -- ARGS           further arguments for \`bywash bench forward\`: the peer's frames and routes are those they make
USAGE
}

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
l3fwd='' net_pcap='' instructions='' bywash="$root/target/release/bywash" rounds=5 seconds=3 cpu=1 pages=2m out="$root/out/bench/forward.json"
min_ratio=0 hold=''
# shellcheck source=bench/peers/options.sh
. "$here/options.sh"
options "$@"
case $pages in 2m | 4k) ;; *) die "--pages is 2m or 4k" ;; esac
[ "$(id -u)" = 0 ] || die "root needed: DPDK's telemetry socket and the hugetlb pages are root's"
[ -x "$bywash" ] || die "no $bywash: build it (cargo build --release) or give --bywash"
if [ -n "$l3fwd" ]; then
    [ -x "$l3fwd" ] || die "$l3fwd is not a program"
    peer=l3fwd
else
    command -v dpdk-testpmd >/dev/null || die "no dpdk-testpmd (package dpdk-dev), and no --l3fwd"
    peer=testpmd
fi
[ "$cpu" -lt "$(nproc)" ] || die "this machine has no CPU $cpu"

scratch=$(mktemp -d)
peer_pid='' prefix=bywash-bench-$$
leave() {
    [ -z "$peer_pid" ] || kill -KILL "$peer_pid" 2>/dev/null || true
    pages_back
    rm -rf "$scratch" "/run/dpdk/$prefix"
}
trap leave EXIT
trap 'exit 130' INT TERM

if [ "$pages" = 2m ]; then
    reserve_pages 512 384
    memory=(--in-memory -m 512)
else
    memory=(--no-huge -m 1024)
fi

rest=(--pages "$pages" "${rest[@]}")
"$bywash" bench forward "${rest[@]}" --write-pcap "$scratch"
for file in port0.pcap port1.pcap; do
    [ -s "$scratch/$file" ] || die "no frames for one of the ports: give more flows or routes"
done
ours=("${rest[@]}")
[ -z "$net_pcap" ] || ours+=(--net-pcap "$scratch")
# l3fwd requires a file of IPv6 routes if it gets one of IPv4 routes.
echo 'R2001:db8::/32 0' >"$scratch/routes_v6.txt"

ports=(--vdev "net_pcap0,rx_pcap=$scratch/port0.pcap,infinite_rx=1" --vdev "net_pcap1,rx_pcap=$scratch/port1.pcap,infinite_rx=1")
eal=("${memory[@]}" --no-pci --file-prefix "$prefix" "${ports[@]}")
if [ "$peer" = l3fwd ]; then
    command=("$l3fwd" -l "$cpu" "${eal[@]}" -- -p 3 -P --config "(0,0,$cpu),(1,0,$cpu)" --lookup lpm --parse-ptype
        --rule_ipv4 "$scratch/routes_v4.txt" --rule_ipv6 "$scratch/routes_v6.txt")
    if grep -q relax-rx-offload "$l3fwd"; then command+=(--relax-rx-offload); fi
fi
# testpmd's main lcore needs a core of its own; with --stats-period it reads no command line.
main=$((cpu == 0 ? 1 : 0))
testpmd=(dpdk-testpmd -l "$main,$cpu" --main-lcore "$main" "${eal[@]}" -- --nb-cores=1 --auto-start --stats-period=86400)
[ "$peer" = l3fwd ] || command=("${testpmd[@]}" --forward-mode=macswap)
alone=''
if [ -n "$net_pcap" ] && command -v dpdk-testpmd >/dev/null; then alone=1; fi

# Devices for the io modes, by name; frames that each port sends at the start.
link="id=0,socket-abstract=no,socket=$scratch/memif"
declare -A devices=([null]="net_null0 net_null1" [memif]="net_memif0,role=server,$link net_memif1,role=client,$link")
declare -A first=([null]=0 [memif]=256)

# Measures both programs' io mode on the devices of that name.
measure_io() {
    local name=$1 ours=() theirs=() device
    for device in ${devices[$name]}; do
        ours+=(--device "$device") theirs+=(--vdev "$device")
    done
    taskset -c "$cpu" "$bywash" bench forward --app io --pages "$pages" --json --seconds "$seconds" --first "${first[$name]}" "${ours[@]}" >"$scratch/$name.$round.json"
    # Bursts of 32 frames, as sent at the start.
    local start=(start)
    [ "${first[$name]}" = 0 ] || start+=(tx_first $((first[$name] / 32)))
    commands="${start[*]}" measure_peer dpdk-testpmd -l "$main,$cpu" --main-lcore "$main" "${memory[@]}" --no-pci --file-prefix "$prefix" \
        "${theirs[@]}" -- --nb-cores=1 -i --forward-mode=io >"$scratch/$name-testpmd.$round.json"
}

# Runs the peer given by the arguments, and prints its rate. It gets the lines in `commands`, and no end of its input.
commands=''
measure_peer() {
    local name=$1
    [ -p "$scratch/input" ] || mkfifo "$scratch/input"
    "$@" >"$scratch/peer.log" 2>&1 <"$scratch/input" &
    peer_pid=$!
    exec 9>"$scratch/input"
    [ -z "$commands" ] || echo "$commands" >&9
    if ! "$here/telemetry.py" "$prefix" "$seconds" 0 1; then
        grep -v '^LPM: Adding' "$scratch/peer.log" | tail -n 15 >&2
        die "$name did not forward; its last words are above"
    fi
    kill -INT "$peer_pid" 2>/dev/null || true
    exec 9>&-
    wait "$peer_pid" || true
    peer_pid=''
}

for round in $(seq "$rounds"); do
    taskset -c "$cpu" "$bywash" bench forward --json --seconds "$seconds" "${ours[@]}" >"$scratch/bywash.$round.json"
    taskset -c "$cpu" "$bywash" bench forward --app swap --json --seconds "$seconds" "${ours[@]}" >"$scratch/swap.$round.json"
    measure_peer "${command[@]}" >"$scratch/peer.$round.json"
    if [ -n "$alone" ]; then
        measure_peer "${testpmd[@]}" --forward-mode=io >"$scratch/alone.$round.json"
        taskset -c "$cpu" "$bywash" bench forward --json --seconds "$seconds" "${rest[@]}" >"$scratch/memory.$round.json"
        measure_io null
        measure_io memif
    fi
    echo "round $round of $rounds done" >&2
done

if [ -n "$instructions" ]; then
    count() {
        local name=$1
        shift
        "$root/bench/instructions.py" "$@" >"$scratch/$name.instructions" || echo "forward.sh: not counted: $name" >&2
    }
    count bywash bench "$bywash" bench forward "${ours[@]}"
    count swap bench "$bywash" bench forward --app swap "${ours[@]}"
fi

mkdir -p "$(dirname "$out")"
PEER=$peer ALONE=$alone HOLD=$hold PAGES=$pages CPU=$cpu OUT=$out MIN=$min_ratio python3 - "$scratch" "$rounds" "$root/bench" <<'PYTHON'
import json, os, re, statistics, sys

scratch, rounds = sys.argv[1], int(sys.argv[2])
sys.path.insert(0, sys.argv[3])
import spread

load = lambda who: [json.load(open(f"{scratch}/{who}.{n}.json")) for n in range(1, rounds + 1)]
ours, theirs, peer = load("bywash"), load("peer"), os.environ["PEER"]
alone = os.environ["ALONE"]
rows = {"bywash": ours, "swap": load("swap"), peer: theirs} | ({"driver": load("alone")} if alone else {})
cpuinfo = open("/proc/cpuinfo").read()
model = re.search(r"model name\s*: (.*)", cpuinfo)[1]
# Frequency of the time-stamp counter, in whose cycles Bywash reports.
hz = statistics.median(one["mpps"] * 1e6 * one["cycles_per_packet"] for one in ours)
median = lambda samples: statistics.median(one["mpps"] for one in samples)
ratio = median(ours) / median(theirs)
summary = lambda samples: {
    "median_mpps": round(median(samples), 3),
    "cycles_per_packet": round(hz / median(samples) / 1e6, 1),
    "mpps": [round(one["mpps"], 3) for one in samples],
    "drops": sum(one["drops"] for one in samples),
    "samples": samples,
}
result = {"cpu_model": model, "cpu": int(os.environ["CPU"]), "tsc_mhz": round(hz / 1e6), "peer_pages": os.environ["PAGES"],
          "peer": peer, "ratio": round(ratio, 3)} | {name: summary(samples) for name, samples in rows.items()}
for name in rows:
    try:
        result[name]["instructions_per_packet"] = float(open(f"{scratch}/{name}.instructions").read())
    except (OSError, ValueError):
        pass
unmet = []
if alone:
    # Cycles of the router's stages without devices: all but those of the ports.
    stages = [sum(s["cycles_per_packet"] for s in one["stages"] if s["stage"] not in ("rx", "tx")) for one in load("memory")]
    stages, driver = round(statistics.median(stages), 1), result["driver"]["cycles_per_packet"]
    result["bound"] = {"driver": driver, "stages": stages, "cycles": round(driver + stages + 6, 1),
                       "within": result["bywash"]["cycles_per_packet"] <= driver + stages + 6}
    if not result["bound"]["within"]:
        unmet.append("the bound")
    result["io"] = {}
    for device in ("null", "memif"):
        io = {"bywash": summary(load(device)), "testpmd": summary(load(f"{device}-testpmd"))}
        io["ratio"] = round(io["bywash"]["median_mpps"] / io["testpmd"]["median_mpps"], 3)
        result["io"][device] = io
        if io["ratio"] < 0.95:
            unmet.append(f"io on net_{device}")
json.dump(result, open(os.environ["OUT"], "w"), indent=1)
print(f"{model}, CPU {result['cpu']}, {rounds} rounds, pages {result['peer_pages']}")
print(f"{'':10}{'Mpps':>9}{'cycles':>9}{'instr.':>9}{'drops':>8}   samples")
for name in rows:
    one = result[name]
    print(f"{name:10}{one['median_mpps']:9.2f}{one['cycles_per_packet']:9.1f}{one.get('instructions_per_packet', ''):>9}{one['drops']:8}   " + " ".join(f"{mpps:.2f}" for mpps in one["mpps"]))
if alone:
    bound, cycles = result["bound"], result["bywash"]["cycles_per_packet"]
    print(f"cycles a packet: bywash {cycles}, testpmd io {bound['driver']}, {peer} {result[peer]['cycles_per_packet']}; our stages {bound['stages']}; "
          f"testpmd io + our stages + 6 = {bound['cycles']}: {'within' if bound['within'] else 'not within'}")
    for device, io in result["io"].items():
        both = ", ".join(f"{name} {io[name]['median_mpps']:.2f} Mpps, {io[name]['cycles_per_packet']} cycles" for name in ("bywash", "testpmd"))
        print(f"io on net_{device}: {both}: {spread.beside(io['bywash']['mpps'], io['testpmd']['mpps'])}   " + " | ".join(" ".join(f"{m:.2f}" for m in io[name]["mpps"]) for name in ("bywash", "testpmd")))
print(f"ratio of medians {spread.beside(result['bywash']['mpps'], result[peer]['mpps'])}   ({os.environ['OUT']})")
if os.environ["HOLD"] and unmet:
    sys.exit("not met: " + ", ".join(unmet))
if ratio < float(os.environ["MIN"]):
    sys.exit(f"below the wanted {os.environ['MIN']}")
PYTHON
