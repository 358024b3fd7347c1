#!/bin/bash
# Compares the cable downstream of one instance with its crypto library alone, in alternating rounds.
#
# Each round runs `bywash bench cmts` (two workers on two CPUs, cable iMix, 300 modems with a key each, CRC and cipher
# on, no loss because the source waits), then dpdk-test-crypto-perf on one CPU: the same library (libipsec-mb by DPDK's
# crypto_aesni_mb), DOCSIS with CRC, 1518 bytes, one key, no other work.
#
# The source copies every byte of a packet on the upper MAC's CPU; a device would write them without using the
# processor. dpdk-test-crypto-perf seals the same buffers repeatedly and never writes new frames: so each round also
# measures the instance with a source that writes only headers.
#
# Rates are medians of the rounds; the ratio is that of Bywash's rate to the library's.
set -euo pipefail

usage() {
    cat <<USAGE
usage: bench/peers/cmts.sh [options]
  --bywash PATH     the program to measure                  (target/release/bywash)
  --peer PATH       dpdk-test-crypto-perf                   (the one in PATH)
  --rounds N        rounds, each measuring both             (5)
  --seconds N       length of one measurement               (2)
  --cpu N           the core that the library alone runs on (1)
  --kind KIND       pool of the instance: stack or ring     (stack)
  --size N          PDUs of one size instead of the iMix
  --crc on|off      CRC of the instance; the library's is on (on)
  --out FILE        the JSON result                         (out/bench/cmts.json)
  --min-ratio X     fail when the ratio of medians is lower
USAGE
}

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
bywash="$root/target/release/bywash" peer=dpdk-test-crypto-perf
rounds=5 seconds=2 cpu=1 kind=stack crc=on out="$root/out/bench/cmts.json" min_ratio=0 size=''
# shellcheck source=bench/peers/options.sh
. "$here/options.sh"
options "$@"
[ -x "$bywash" ] || die "no $bywash: build it (cargo build --release) or give --bywash"
command -v "$peer" >/dev/null || die "no $peer: apt-get install dpdk-dev, or give --peer"
[ "$(nproc)" -ge 2 ] || die "two CPUs are needed: one for each worker"
[ "$cpu" -lt "$(nproc)" ] || die "this machine has no CPU $cpu"

scratch=$(mktemp -d)
# DPDK keeps files there as root, and there as a user.
trap 'rm -rf "$scratch" {/run,"${XDG_RUNTIME_DIR:-/tmp}"}"/dpdk/bywash-cmts-$$"' EXIT
main=$((cpu == 0 ? 1 : 0))

# Measures the library alone, for about $seconds: a packet takes some 200 ns.
library() {
    "$peer" -l "$main,$cpu" --main-lcore "$main" --no-huge -m 512 --no-pci --file-prefix "bywash-cmts-$$" \
        --vdev crypto_aesni_mb -- --ptest throughput --devtype crypto_aesni_mb --optype docsis --docsis-hdr-sz 17 \
        --cipher-algo aes-docsisbpi --cipher-op encrypt --cipher-key-sz 16 --cipher-iv-sz 16 --burst-sz 32 \
        --total-ops $((seconds * 5000000)) --buffer-sz 1518 --silent >"$scratch/peer" 2>&1 ||
        die "$peer failed: $(tail -3 "$scratch/peer")"
    # Columns: lcore, size, burst, enqueued, dequeued, two of failures, Mops, Gbps, cycles.
    awk '$2 == 1518 && NF == 10 {print $9, $10}' "$scratch/peer"
}

for round in $(seq "$rounds"); do
    for writes in all headers; do
        "$bywash" bench cmts --kinds "$kind" ${size:+--size "$size"} --crc "$crc" --writes $writes --search off --library \
            --seconds "$seconds" --json >"$scratch/$writes.$round"
    done
    library >"$scratch/theirs.$round"
    [ -s "$scratch/theirs.$round" ] || die "$peer printed no rate: $(tail -3 "$scratch/peer")"
done

mkdir -p "$(dirname "$out")"
python3 - "$scratch" "$rounds" "$out" "$min_ratio" "$root/bench" <<'PYTHON'
import json, statistics, sys

sys.path.insert(0, sys.argv[5])
import spread

scratch, rounds, out, least = sys.argv[1], int(sys.argv[2]), sys.argv[3], float(sys.argv[4])
ours, headers = ([json.load(open(f"{scratch}/{of}.{n + 1}")) for n in range(rounds)] for of in ("all", "headers"))
theirs = [open(f"{scratch}/theirs.{n + 1}").read().split() for n in range(rounds)]
rates = {
    "instance": [run["rows"][0]["gbps"] for run in ours],
    "instance, headers written only": [run["rows"][0]["gbps"] for run in headers],
    "library (dpdk-test-crypto-perf)": [float(rate) for rate, _ in theirs],
    "library (bywash, a key each)": [run["library"]["gbps"] for run in ours],
}
median = {name: statistics.median(of) for name, of in rates.items()}
library = median["library (dpdk-test-crypto-perf)"]
ratio, ratio_headers = median["instance"] / library, median["instance, headers written only"] / library
for name, of in rates.items():
    print(f"{name:34} {median[name]:7.2f} Gbit/s  ({min(of):.2f} to {max(of):.2f})")
beside = lambda name: spread.beside(rates[name], rates["library (dpdk-test-crypto-perf)"])
print(f"{beside('instance')}, headers written only {beside('instance, headers written only')}; {ours[0]['crypto']}, {ours[0]['cpus']}")
stages = ours[0]["rows"][0]["stages"]
for worker in ("upper", "lower"):
    of = [stage for stage in stages if stage["worker"] == worker]
    print(f"  {worker}: " + ", ".join(f"{s['stage']} {s['percent']:.0f} %" for s in of))
json.dump({"ratio": ratio, "ratio_headers": ratio_headers, "median_gbps": median, "gbps": rates, "ours": ours}, open(out, "w"), indent=1)
if ratio < least:
    sys.exit(f"cmts.sh: {ratio:.3f} is less than {least}")
PYTHON
