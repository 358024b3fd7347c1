#!/bin/bash
# Compares native Linux and Bywash (one worker in user space; the driver) on two, four and six veth ports by frame size,
# in alternating rounds of `bywash bench ports`. Every port receives and sends.
set -euo pipefail

usage() {
    cat <<USAGE
usage: bench/peers/ports.sh [options]
  --bywash PATH     the program to measure                  (target/release/bywash)
  --ports LIST      numbers of ports                        (2,4,6)
  --sizes LIST      frame sizes on the wire                 (64,128,256,512,1024,1518)
  --rounds N        rounds, each measuring all three        (3)
  --seconds N       length of one measurement               (1)
  --out FILE        the JSON result                         (out/bench/ports.json)
USAGE
}

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
bywash="$root/target/release/bywash" ports=2,4,6 sizes=64,128,256,512,1024,1518 rounds=3 seconds=1 out="$root/out/bench/ports.json"
# shellcheck source=bench/peers/options.sh
. "$here/options.sh"
options "$@"
[ "$(id -u)" = 0 ] || die "root needed: it makes network namespaces"
[ -x "$bywash" ] || die "no $bywash: build it (cargo build --release) or give --bywash"
[ "$(nproc)" -ge 2 ] || die "two CPUs needed: one for the generators, one for the worker"

scratch=$(mktemp)
trap 'rm -f "$scratch"' EXIT
trap 'exit 130' INT TERM
"$bywash" bench ports --json --ports "$ports" --sizes "$sizes" --rounds "$rounds" --seconds "$seconds" >"$scratch"
mkdir -p "$(dirname "$out")"
OUT=$out python3 - "$scratch" <<'PYTHON'
import json, os, platform, re, sys, time

figures = json.load(open(sys.argv[1]))
model = re.search(r"model name\s*: (.*)", open("/proc/cpuinfo").read())[1]
result = {"cpu_model": model, "kernel": platform.release(), "date": time.strftime("%Y-%m-%d"), "load": os.getloadavg()[0], **figures}
json.dump(result, open(os.environ["OUT"], "w"), indent=1)
print(f"{model}, Linux {result['kernel']}, {result['rounds']} rounds of {result['seconds']} s, Mpps")
print(f"{'ports':>5}{'bytes':>7}{'kernel':>9}{'user':>9}{'driver':>9}")
for row in result["rows"]:
    print(f"{row['ports']:5}{row['size']:7}{row['kernel_mpps']:9.3f}{row['user_mpps']:9.3f}{row['driver_mpps']:9.3f}")
PYTHON
