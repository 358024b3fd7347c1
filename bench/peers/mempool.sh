#!/bin/bash
# Compares DPDK's buffer policies with Bywash's in testpmd: a pipeline that frees on another lcore than it allocates.
#
# net_null0 generates frames of 1,520 bytes, each copied into a new mbuf; lcore 1 swaps their addresses and sends them
# to net_ring0; lcore 2 receives them there and swaps again, and net_null1 frees them. Frames that the ring refuses are
# sent again, so that none is freed by the lcore that allocated it. There are 131,072 mbufs; net_null1 counts the
# frames.
#
# DPDK's policies are ring_mp_mc (its default), stack, lf_stack and bucket. Bywash's are bywash_stack, bywash_sdb and
# bywash_tabm, with the code of its own pools, from the plugin that `make dpdk-plugin` builds. Each round measures all
# in turn, and begins with another policy than the previous round. Rates are medians.
set -euo pipefail

usage() {
    cat <<USAGE
usage: bench/peers/mempool.sh [options]
  --plugin PATH     librte_mempool_bywash.so                (target/release/librte_mempool_bywash.so)
  --rounds N        rounds, each measuring every policy     (5)
  --seconds N       length of one measurement               (1)
  --cache N         mbufs in each lcore's cache             (0: every burst goes to the pool)
  --cpus A,B        cores of the two forwarding lcores      (0,1)
  --pages 2m|4k     2m: 256 hugetlb pages are reserved while this runs; 4k: DPDK gets --no-huge (2m)
  --only LIST       policies, with commas between           (all)
  --out FILE        the JSON result                         (out/bench/mempool.json)
  --min-ratio X     fail when our best by DPDK's best is less
USAGE
}

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
plugin=${CARGO_TARGET_DIR:-$root/target}/release/librte_mempool_bywash.so
rounds=5 seconds=1 cache=0 cpus=0,1 pages=2m out=$root/out/bench/mempool.json min_ratio=0
only=ring_mp_mc,stack,lf_stack,bucket,bywash_stack,bywash_sdb,bywash_tabm
# shellcheck source=bench/peers/options.sh
. "$here/options.sh"
options "$@"
case $pages in 2m | 4k) ;; *) die "--pages is 2m or 4k" ;; esac
[ "$(id -u)" = 0 ] || die "root needed: DPDK's directories and the hugetlb pages are root's"
command -v dpdk-testpmd >/dev/null || die "no dpdk-testpmd (package dpdk-dev)"
[ -e "$plugin" ] || die "no $plugin: make dpdk-plugin, or give --plugin"
first=${cpus%,*} second=${cpus#*,}
[ "$(nproc)" -ge 2 ] || die "two cores are needed"

scratch=$(mktemp -d) held=$(mktemp -d /run/bywash-mempool-XXXXXX)
leave() {
    pages_back
    rm -rf "$scratch" "$held" "/run/dpdk/bywash-mempool-$$"
}
trap leave EXIT
trap 'exit 130' INT TERM
# The EAL loads no library from a world-writable directory, or from below one.
cp "$plugin" "$held/librte_mempool_bywash.so"
if [ "$pages" = 2m ]; then
    reserve_pages 256 224
    memory=(--in-memory -m 448)
else
    memory=(--no-huge -m 1024)
fi

# Prints the commands for testpmd with pauses, in which its lcores forward.
commands() {
    # testpmd is ready when it has checked its links.
    for _ in $(seq 300); do
        grep -q '^Done' "$scratch/log" && break
        sleep 0.1
    done
    echo 'set fwd macswap retry'
    echo 'set burst tx delay 1'
    echo 'set burst tx retry 100000'
    echo start
    sleep 0.5
    echo 'clear port stats all'
    sleep "$seconds"
    echo 'show port stats 2'
    echo stop
    echo quit
}

measure() {
    local load=()
    case $1 in bywash_*) load=(-d "$held/librte_mempool_bywash.so") ;; esac
    : >"$scratch/log"
    commands | timeout -k 5 60 stdbuf -oL dpdk-testpmd --lcores "0@$first,1@$first,2@$second" "${memory[@]}" --no-pci --no-shconf \
        --file-prefix "bywash-mempool-$$" "${load[@]}" --mbuf-pool-ops-name "$1" \
        --vdev net_null0,size=1520,copy=1 --vdev net_ring0 --vdev net_null1,no-rx=1 -- -i --nb-cores=2 \
        --port-topology=chained --total-num-mbufs=131072 --mbuf-size=1904 --mbcache="$cache" >"$scratch/log" 2>&1 || true
    grep -q "preferred mempool ops selected: $1" "$scratch/log" || die "testpmd did not use $1: $(tail -n 3 "$scratch/log")"
    local sent
    sent=$(sed -n 's/^ *TX-packets: \([0-9]*\).*/\1/p' "$scratch/log" | head -n 1)
    [ "${sent:-0}" -gt 0 ] || die "testpmd forwarded nothing with $1: $(tail -n 3 "$scratch/log")"
    echo "$1 $sent" >>"$scratch/samples"
}

IFS=, read -ra policies <<<"$only"
for round in $(seq "$rounds"); do
    for i in "${!policies[@]}"; do
        measure "${policies[$(((i + round) % ${#policies[@]}))]}"
    done
    echo "round $round of $rounds done" >&2
done

mkdir -p "$(dirname "$out")"
SECONDS_EACH=$seconds CACHE=$cache PAGES=$pages OUT=$out MIN=$min_ratio python3 - "$scratch/samples" "$root/bench" <<'PYTHON'
import collections, json, os, statistics, sys

sys.path.insert(0, sys.argv[2])
import spread

samples = collections.defaultdict(list)
for line in open(sys.argv[1]):
    who, packets = line.split()
    samples[who].append(int(packets) / float(os.environ["SECONDS_EACH"]) / 1e6)
median = {who: statistics.median(rates) for who, rates in samples.items()}
theirs = {who: rate for who, rate in median.items() if not who.startswith("bywash_")}
ours = {who: rate for who, rate in median.items() if who.startswith("bywash_")}
print(f"cache {os.environ['CACHE']}, {os.environ['PAGES']} pages; median of {len(next(iter(samples.values())))}, Mpps")
base = max(theirs, key=theirs.get, default=None)
for who, rate in sorted(median.items(), key=lambda one: -one[1]):
    low, high = min(samples[who]), max(samples[who])
    ratio = f"to DPDK's best {spread.beside(samples[who], samples[base])}" if base and who != base else ""
    print(f"  {who:14} {rate:7.3f}  ({low:.3f} to {high:.3f}) {ratio}")
result = {"cache": int(os.environ["CACHE"]), "pages": os.environ["PAGES"], "mpps": samples}
if theirs and ours:
    result["ratio"] = round(max(ours.values()) / theirs[base], 3)
    print(f"our best by DPDK's best: {spread.beside(samples[max(ours, key=ours.get)], samples[base])}")
json.dump(result, open(os.environ["OUT"], "w"), indent=1)
if result.get("ratio", 1e9) < float(os.environ["MIN"]):
    sys.exit(f"mempool.sh: {result['ratio']} is less than {os.environ['MIN']}")
PYTHON
