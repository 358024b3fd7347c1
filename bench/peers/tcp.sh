#!/bin/bash
# Compares TCP between two hosts through a router on veth, forwarded by Linux and by Bywash with its defaults in turn; with
# --nat, through a stateful firewall and masquerade, of both families.
#
#     host a (iperf3 client) ---- r0 router r1 ---- host b (iperf3 server)
#
# For IPv4 and IPv6 there is one connection in each direction. While it lasts, Bywash is started and stopped (by
# SIGINT), and the bytes that arrive are counted with and without it, in changing order. With a new connection for each
# sample, the results would vary more between connections than between the two; so they would without fixed CPUs: the
# client has CPU 0, the server CPU 1. Segmentation and checksum offloads of veth stay at the kernel's defaults. Ratios
# are geometric means of the rounds' ratios, with their standard errors; below them is that of the medians of all
# directions together, with its range, as for every other comparison.
set -euo pipefail

usage() {
    cat <<USAGE
usage: bench/peers/tcp.sh [options] [-- OPTIONS OF bywash run]
  --bywash PATH   the program to measure                  (target/release/bywash)
  --rounds N      pairs of samples of each direction      (8)
  --seconds N     length of one sample                    (1)
  --nat           with a firewall and masquerade
  --out FILE      the JSON result                         (out/bench/tcp.json)
USAGE
}

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
bywash="$root/target/release/bywash" rounds=8 seconds=1 nat='' out="$root/out/bench/tcp.json"
# shellcheck source=bench/peers/options.sh
. "$here/options.sh"
options "$@"
[ "$(id -u)" = 0 ] || die "root needed: it makes network namespaces"
[ -x "$bywash" ] || die "no $bywash: build it (cargo build --release) or give --bywash"
for tool in ip iperf3 python3 nft; do command -v $tool >/dev/null || die "no $tool"; done

n=bwtcp-$$ scratch=$(mktemp -d) server=''
cleanup() {
    for pid in $server; do kill "$pid" 2>/dev/null && wait "$pid" 2>/dev/null || true; done
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
if [ -n "$nat" ]; then
    ip netns exec $n-r nft -f - <<'RULES'
table inet filter {
 chain forward {
  type filter hook forward priority 0; policy drop;
  ct state established,related accept
  iifname r0 accept
 }
 chain from { type nat hook postrouting priority 100; oifname r1 masquerade; }
}
RULES
    # Each connection is there before Bywash is started: the kernel must announce it all the same.
    ip netns exec $n-r sysctl -qw net.netfilter.nf_conntrack_events=1
    printf '[router]\nflows = 1000\n[[port]]\ninterface = "r0"\n[[port]]\ninterface = "r1"\n' >"$scratch/bywash.toml"
    set -- --config "$scratch/bywash.toml"
else
    set -- r0 r1
fi

mkdir -p "$(dirname "$out")"
NS=$n OUT=$out SCRATCH=$scratch BYWASH_SOCKET=$scratch/socket PYTHONPATH=$here:$root/bench python3 -B - "$rounds" "$seconds" "$bywash" "$@" "${rest[@]}" <<'PYTHON'
import contextlib, json, math, os, platform, re, statistics, subprocess, sys, time
import spread
from router import running

rounds, seconds, bywash, options = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3], sys.argv[4:]
lab, scratch = os.environ["NS"], os.environ["SCRATCH"]
SETTLE = 0.5  # seconds to wait after a change, until memory is freed and the connection has reached its rate


def within(ns, *argv):
    return ["ip", "netns", "exec", f"{lab}-{ns}", *argv]


def arrived(ns, device):
    link = subprocess.run(["ip", "-n", f"{lab}-{ns}", "-s", "-j", "link", "show", device], capture_output=True, check=True)
    return json.loads(link.stdout)[0]["stats64"]["rx"]["bytes"]


def by_flows():
    table = subprocess.run([bywash, "show", "flow-table", "--json"], capture_output=True, check=True)
    return json.loads(table.stdout)["packets"]


def sample(to, with_it):
    router = running(within("r", bywash, "run", *options), f"{scratch}/bywash.log") if with_it else contextlib.nullcontext()
    with router:
        time.sleep(SETTLE)
        began, before = time.monotonic(), arrived(*to)
        time.sleep(seconds)
        after, ended = arrived(*to), time.monotonic()
        if with_it and "--config" in options and not by_flows():
            sys.exit("tcp.sh: the connection is left to the kernel")
    return (after - before) * 8 / 1e9 / (ended - began)


samples = {}
for family, address in (4, "10.2.0.1"), (6, "fd00:2::1"):
    for way, to, reverse in ("there", ("b", "b0"), []), ("back", ("a", "a0"), ["-R"]):
        client = subprocess.Popen(within("a", "iperf3", "-c", address, "-t", "86400", *reverse), stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL)
        try:
            time.sleep(SETTLE)
            by = samples[f"IPv{family} {way}"] = {"kernel": [], "bywash": []}
            for number in range(rounds):
                for with_it in (False, True) if number % 2 else (True, False):
                    by["bywash" if with_it else "kernel"].append(sample(to, with_it))
            if client.poll() is not None:
                sys.exit("tcp.sh: the connection broke")
        finally:
            client.terminate()
            client.wait()
            time.sleep(SETTLE)

model = re.search(r"model name\s*: (.*)", open("/proc/cpuinfo").read())[1]
print(f"{model}, Linux {platform.release()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}")
print(f"{'':12}{'kernel':>8}{'bywash':>8}   ratio           Gbit/s, medians")


def ratio(pairs):
    logs = [math.log(bywash / kernel) for kernel, bywash in pairs]
    error = statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else float("nan")
    return math.exp(statistics.mean(logs)), error


rows, every = [], []
for of, by in samples.items():
    pairs = list(zip(by["kernel"], by["bywash"]))
    every += pairs
    mean, error = ratio(pairs)
    kernel, bywash = (statistics.median(by[who]) for who in ("kernel", "bywash"))
    rows.append({"of": of, "kernel_gbps": kernel, "bywash_gbps": bywash, "ratio": mean, "error": error, "samples": by})
    print(f"{of:12}{kernel:8.2f}{bywash:8.2f}{mean:8.3f} +- {error:.3f}")
together, error = ratio(every)
print(f"{'all':12}{'':16}{together:8.3f} +- {error:.3f}")
by_round = lambda who: [statistics.geometric_mean(rates) for rates in zip(*(by[who] for by in samples.values()))]
print(f"ratio of medians {spread.beside(by_round('bywash'), by_round('kernel'))}")
json.dump({"cpu_model": model, "kernel": platform.release(), "date": time.strftime("%Y-%m-%d"), "load": os.getloadavg()[0],
           "ratio": together, "error": error, "rows": rows}, open(os.environ["OUT"], "w"), indent=1)
PYTHON
