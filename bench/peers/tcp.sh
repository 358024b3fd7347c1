#!/bin/bash
# TCP between two hosts through a router on veth: Linux forwarding, and Bywash as it is by default, by turns.
#
#     host a (iperf3 client) ---- r0 router r1 ---- host b (iperf3 server)
#
# In each round, for IPv4 and IPv6, each way: first the kernel alone, then Bywash on the same interfaces (the order changes
# from round to round). Segmentation and checksum offloads of veth stay as the kernel sets them. Rates are what the receiver
# got; the ratio is that of the medians.
set -euo pipefail

usage() {
    cat <<USAGE
usage: bench/peers/tcp.sh [options] [-- OPTIONS OF bywash run]
  --bywash PATH   the program to measure                  (target/release/bywash)
  --rounds N      rounds, each measuring all              (5)
  --seconds N     length of one transfer                  (2)
  --out FILE      the JSON result                         (out/bench/tcp.json)
USAGE
}

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
bywash="$root/target/release/bywash" rounds=5 seconds=2 out="$root/out/bench/tcp.json"
# shellcheck source=bench/peers/options.sh
. "$here/options.sh"
options "$@"
[ "$(id -u)" = 0 ] || die "root needed: it makes network namespaces"
[ -x "$bywash" ] || die "no $bywash: build it (cargo build --release) or give --bywash"
for tool in ip iperf3 jq; do command -v $tool >/dev/null || die "no $tool"; done

n=bwtcp-$$ scratch=$(mktemp -d) server='' router=''
cleanup() {
    for pid in $router $server; do kill "$pid" 2>/dev/null && wait "$pid" 2>/dev/null || true; done
    for ns in a r b; do ip netns del $n-$ns 2>/dev/null || true; done
    rm -rf "$scratch"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

for ns in a r b; do ip netns add $n-$ns && ip -n $n-$ns link set lo up; done
ip -n $n-r link add r0 type veth peer name a0 netns $n-a
ip -n $n-r link add r1 type veth peer name b0 netns $n-b
side() { # namespace, its interface, the router's, subnet, the far one
    ip -n $n-$1 addr add 10.$4.0.1/24 dev $2 && ip -n $n-$1 addr add fd00:$4::1/64 dev $2 nodad && ip -n $n-$1 link set $2 up
    ip -n $n-r addr add 10.$4.0.254/24 dev $3 && ip -n $n-r addr add fd00:$4::fe/64 dev $3 nodad && ip -n $n-r link set $3 up
    ip -n $n-$1 route add 10.$5.0.0/24 via 10.$4.0.254 && ip -n $n-$1 route add fd00:$5::/64 via fd00:$4::fe
}
side a a0 r0 1 2
side b b0 r1 2 1
ip netns exec $n-r sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
ip netns exec $n-b iperf3 -s >"$scratch/server.log" 2>&1 &
server=$!
reachable() { for _ in $(seq 100); do ip netns exec $n-a ping -c1 -W1 -q "$1" >/dev/null && return; sleep 0.1; done; die "no way to $1"; }
reachable 10.2.0.1 && reachable fd00:2::1

transfer() { # name, family, direction: one line of the samples
    local to=10.2.0.1 way=()
    [ "$2" = 4 ] || to=fd00:2::1
    [ "$3" = there ] || way=(-R)
    local rate
    rate=$(ip netns exec $n-a iperf3 -J -c $to -t "$seconds" -O 0.3 "${way[@]}" | jq .end.sum_received.bits_per_second)
    jq -nc --arg by "$1" --arg of "IPv$2 $3" --argjson gbps "$rate" '{by: $by, of: $of, gbps: ($gbps / 1e9)}' >>"$scratch/samples"
}
all_of() {
    if [ "$1" = bywash ]; then
        ip netns exec $n-r "$bywash" run r0 r1 "${@:2}" >"$scratch/bywash.log" 2>&1 &
        router=$!
        sleep 1 && kill -0 $router 2>/dev/null || { cat "$scratch/bywash.log" >&2 && die "bywash did not start"; }
        reachable 10.2.0.1 && reachable fd00:2::1
    fi
    for family in 4 6; do for way in there back; do transfer "$1" $family $way; done; done
    [ -z "$router" ] || { kill -INT $router && wait $router || true; router=''; }
}
for round in $(seq "$rounds"); do
    if [ $((round % 2)) = 1 ]; then order="kernel bywash"; else order="bywash kernel"; fi
    for who in $order; do all_of $who "${rest[@]}"; done
done

mkdir -p "$(dirname "$out")"
OUT=$out python3 - "$scratch/samples" <<'PYTHON'
import collections, json, os, platform, re, statistics, sys, time
samples = collections.defaultdict(lambda: collections.defaultdict(list))
for line in open(sys.argv[1]):
    one = json.loads(line)
    samples[one["of"]][one["by"]].append(one["gbps"])
model = re.search(r"model name\s*: (.*)", open("/proc/cpuinfo").read())[1]
print(f"{model}, Linux {platform.release()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}")
print(f"{'':12}{'kernel':>8}{'bywash':>8}   ratio   Gbit/s, medians")
rows = []
for of, by in samples.items():
    kernel, bywash = (statistics.median(by[who]) for who in ("kernel", "bywash"))
    rows.append({"of": of, "kernel_gbps": kernel, "bywash_gbps": bywash, "ratio": bywash / kernel, "samples": by})
    print(f"{of:12}{kernel:8.2f}{bywash:8.2f}{bywash / kernel:8.3f}")
together = statistics.geometric_mean(row["ratio"] for row in rows)
print(f"{'all':12}{'':16}{together:8.3f}")
json.dump({"cpu_model": model, "kernel": platform.release(), "date": time.strftime("%Y-%m-%d"),
           "load": os.getloadavg()[0], "ratio": together, "rows": rows}, open(os.environ["OUT"], "w"), indent=1)
PYTHON
