#!/bin/bash
# Measures memif between two processes: dpdk-testpmd and Bywash as sender and as receiver, all four pairs, in
# alternating rounds.
#
# The sender runs on the first CPU, the receiver on the second. testpmd sends by txonly and receives by rxonly; `bywash
# bench memif` does the same work: it writes headers, and frees frames unread. The client of each pair does not copy:
# testpmd gets zero-copy=yes, and Bywash as a client never copies. Both sides are the client in turn, or only the one
# given by --client.
#
# Rates are medians of the rounds, counted by the receiver.
set -euo pipefail

usage() {
    cat <<USAGE
usage: bench/peers/memif.sh [options]
  --bywash PATH     the program to measure                  (target/release/bywash)
  --rounds N        rounds, each measuring all four pairs   (5)
  --seconds N       length of one measurement               (2)
  --size BYTES      packet size, without FCS                (64)
  --client SIDE     sender, receiver, or both in turn       (both)
  --zero-copy on|off  of testpmd's clients                  (on)
  --pages 2m|4k     2m: 512 hugetlb pages are reserved while this runs, for both; 4k: none, and DPDK gets --no-huge (2m)
  --out FILE        the JSON result                         (out/bench/memif.json)
  --min-ratio X     fail when a pair with Bywash has less than X times what two testpmd have
USAGE
}

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
bywash="$root/target/release/bywash" rounds=5 seconds=2 size=64 client=both zero_copy=on pages=2m
out="$root/out/bench/memif.json" min_ratio=0
# shellcheck source=bench/peers/options.sh
. "$here/options.sh"
options "$@"
[ "$(id -u)" = 0 ] || die "root needed: DPDK's telemetry socket and the hugetlb pages are root's"
[ -x "$bywash" ] || die "no $bywash: build it (cargo build --release) or give --bywash"
command -v dpdk-testpmd >/dev/null || die "no dpdk-testpmd (package dpdk-dev)"
[ "$(nproc)" -ge 2 ] || die "two CPUs needed: one for the sender, one for the receiver"
case $client in
both) clients="sender receiver" ;;
sender | receiver) clients=$client ;;
*) die "--client is sender, receiver or both" ;;
esac

scratch=$(mktemp -d)
prefix=bywash-memif-$$ pids=()
stop() {
    [ ${#pids[@]} = 0 ] || kill -INT "${pids[@]}" 2>/dev/null || true
    wait "${pids[@]}" 2>/dev/null || true
    pids=()
}
leave() {
    stop
    pages_back
    rm -rf "$scratch" "/run/dpdk/$prefix"-*
}
trap leave EXIT
trap 'exit 130' INT TERM
case $pages in
2m) reserve_pages 512 384 && memory="--in-memory -m 256" ;;
4k) memory="--no-huge -m 1024" ;;
*) die "--pages is 2m or 4k" ;;
esac
mapfile -t cpus < <(python3 -c 'import os; print(*sorted(os.sched_getaffinity(0))[:2], sep="\n")')

# Starts testpmd as one side. Its main lcore, on the other side's CPU, only sleeps; with --stats-period it reads no
# commands.
testpmd() {
    local side=$1 role=$2 mode=rxonly main=${cpus[0]} device
    [ "$side" = receiver ] || { mode=txonly && main=${cpus[1]}; }
    device="net_memif0,id=0,socket=$scratch/socket,socket-abstract=no,rsize=10,role=$role"
    [ "$role" = server ] || [ "$zero_copy" = off ] || device+=",zero-copy=yes"
    # shellcheck disable=SC2086
    dpdk-testpmd -l "${cpus[0]},${cpus[1]}" --main-lcore "$main" $memory --single-file-segments --no-pci \
        --file-prefix "$prefix-$side" --vdev "$device" -- --forward-mode=$mode --nb-cores=1 --auto-start --no-flush-rx \
        --disable-link-check --txpkts="$size" --stats-period=86400 >"$scratch/$side.log" 2>&1 </dev/null &
    pids+=($!)
}

# Runs Bywash as one side, and prints its result.
ours() {
    local side=$1 role=$2 way=receive cpu=${cpus[1]}
    [ "$side" = receiver ] || { way=send && cpu=${cpus[0]}; }
    "$bywash" bench memif --json --socket "$scratch/socket" --role "$role" --way $way --cpu "$cpu" --size "$size" \
        --seconds "$3"
}

role_of() { [ "$1" = "$2" ] && echo client || echo server; }

# Measures one pair. The server is started first, because testpmd's client tries only once.
measure() {
    local sender=$1 receiver=$2 who=$3 first=receiver second=sender
    rm -f "$scratch/socket"
    [ "$who" = sender ] || { first=sender && second=receiver; }
    for side in $first $second; do
        local role
        role=$(role_of "$side" "$who")
        if [ "${!side}" = testpmd ]; then
            testpmd "$side" "$role"
        elif [ "$side" = receiver ]; then
            ours "$side" "$role" "$seconds" >"$scratch/counted" 2>"$scratch/$side.log" &
            counting=$!
        else
            ours "$side" "$role" $((seconds + 3)) >/dev/null 2>"$scratch/$side.log" &
            pids+=($!)
        fi
        # The socket file exists before the server listens, and testpmd's client tries only once.
        for _ in $(seq 100); do [ -S "$scratch/socket" ] && sleep 0.5 && break || sleep 0.1; done
    done
    # The receiver counts.
    if [ "$receiver" = testpmd ]; then
        "$here/telemetry.py" --received "$prefix-receiver" "$seconds" 0 >"$scratch/counted" ||
            die "$sender to $receiver, client $who: no packet came: $(tail -n 5 "$scratch/sender.log" "$scratch/receiver.log")"
    else
        wait "$counting" || die "$sender to $receiver, client $who: $(tail -n 5 "$scratch/sender.log" "$scratch/receiver.log")"
    fi
    stop
    python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["mpps"])' "$scratch/counted" \
        >>"$scratch/$who.$sender.$receiver"
}

for round in $(seq "$rounds"); do
    for who in $clients; do
        for pair in "testpmd testpmd" "bywash testpmd" "testpmd bywash" "bywash bywash"; do
            # shellcheck disable=SC2086
            measure $pair "$who"
        done
    done
    echo "round $round of $rounds done" >&2
done

mkdir -p "$(dirname "$out")"
OUT=$out MIN=$min_ratio SIZE=$size PAGES=$pages ZERO_COPY=$zero_copy CLIENTS=$clients \
    TESTPMD=$(dpdk-testpmd -v 2>&1 </dev/null | sed -n "s/.*RTE Version: '\(.*\)'.*/\1/p" | head -n 1) python3 - "$scratch" "$root/bench" <<'PYTHON'
import json, os, platform, re, statistics, sys, time

sys.path.insert(0, sys.argv[2])
import spread

scratch, env = sys.argv[1], os.environ
model = re.search(r"model name\s*: (.*)", open("/proc/cpuinfo").read())[1]
result = {"cpu_model": model, "kernel": platform.release(), "date": time.strftime("%Y-%m-%d"), "peer": env["TESTPMD"],
          "load": os.getloadavg()[0], "size": int(env["SIZE"]), "pages": env["PAGES"], "zero_copy": env["ZERO_COPY"], "pairs": []}
print(f"{model}, Linux {result['kernel']}, {result['size']} B, pages {result['pages']}")
print(f"{'client':10}{'sender':10}{'receiver':10}{'Mpps':>8}   samples; to testpmd to testpmd")
low = []
for client in env["CLIENTS"].split():
    base = None
    for sender, receiver in (("testpmd", "testpmd"), ("bywash", "testpmd"), ("testpmd", "bywash"), ("bywash", "bywash")):
        samples = [float(line) for line in open(f"{scratch}/{client}.{sender}.{receiver}")]
        mpps = statistics.median(samples)
        base = base or samples
        ratio, low_ratio, high_ratio = spread.ratio(samples, base)
        result["pairs"].append({"client": client, "sender": sender, "receiver": receiver, "mpps": round(mpps, 3),
                                "ratio": round(ratio, 3), "samples": [round(one, 3) for one in samples]})
        print(f"{client:10}{sender:10}{receiver:10}{mpps:8.2f}   " + " ".join(f"{one:.2f}" for one in samples)
              + ("" if samples is base else f"; {spread.text(ratio, low_ratio, high_ratio)}"))
        if ratio < float(env["MIN"]):
            low.append(f"{sender} to {receiver}, client {client}")
json.dump(result, open(env["OUT"], "w"), indent=1)
print(f"({env['OUT']})")
if low:
    sys.exit(f"below the wanted {env['MIN']}: " + "; ".join(low))
PYTHON
