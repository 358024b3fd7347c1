#!/bin/bash
# AF_XDP alone on veth: Bywash and dpdk-testpmd (over net_af_xdp) receive, send and forward, in one alternating run.
#
# `bywash bench afxdp` measures both on the same interfaces with the application on the second CPU. The source is the
# kernel's live-frame generator on the first CPU, except for txpush, which generates its own frames; the kernel's
# counters give the rates. rxdrop corresponds to testpmd's rxonly, txpush to txonly, and l2fwd to io, or with --touch to
# macswap.
#
# Rates are medians of the rounds, and ratios those of medians.
set -euo pipefail

usage() {
    cat <<USAGE
usage: bench/peers/afxdp.sh [options] [-- OPTIONS of bywash bench afxdp]
  --bywash PATH     the program to measure                  (target/release/bywash)
  --apps LIST       of rxdrop,txpush,l2fwd                  (all)
  --modes LIST      of rtc,poll,busy-poll; testpmd's is rtc, or with busy-poll its own busy polling   (rtc)
  --rounds N        rounds, each measuring both             (5)
  --seconds N       length of one measurement               (3)
  --size BYTES      frame size on the wire                  (64)
  --touch           data is read and written
  --out FILE        the JSON result                         (out/bench/afxdp.json)
  --min-ratios LIST APP=X,...: fail when Bywash has less than X times testpmd's rate
USAGE
}

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
bywash="$root/target/release/bywash" apps=rxdrop,txpush,l2fwd modes=rtc rounds=5 seconds=3 size=64 touch='' min_ratios=''
out="$root/out/bench/afxdp.json"
# shellcheck source=bench/peers/options.sh
. "$here/options.sh"
options "$@"
[ "$(id -u)" = 0 ] || die "root needed: it makes network namespaces"
[ -x "$bywash" ] || die "no $bywash: build it (cargo build --release) or give --bywash"
command -v dpdk-testpmd >/dev/null || die "no dpdk-testpmd (package dpdk-dev)"
command -v ethtool >/dev/null || die "no ethtool"
[ "$(nproc)" -ge 2 ] || die "two CPUs needed: one for the source, one for the application"

prefix=bywash-afxdp-$$
scratch=$(mktemp -d)
trap 'rm -rf "$scratch" "/run/dpdk/$prefix"' EXIT
trap 'exit 130' INT TERM

# The same CPUs as `bywash bench afxdp` uses: the first two allowed.
mapfile -t cpus < <(python3 -c 'import os; print(*sorted(os.sched_getaffinity(0))[:2], sep="\n")')

# Prints the testpmd command for application $1 in mode $2. The main lcore only sleeps; with --stats-period it reads no
# command line.
testpmd() {
    local interfaces forward number=0 budget=0 command
    case $1 in
    rxdrop) interfaces=r0 forward=rxonly ;;
    txpush) interfaces=r1 forward="txonly --txpkts=$((size - 4))" ;;
    l2fwd) interfaces="r0 r1" forward=${touch:+macswap} forward=${forward:-io} ;;
    esac
    [ "$2" != busy-poll ] || budget=64
    command="dpdk-testpmd -l ${cpus[0]},${cpus[1]} --main-lcore ${cpus[0]} --no-huge -m 512 --no-pci --file-prefix $prefix"
    for interface in $interfaces; do
        command+=" --vdev net_af_xdp$number,iface=$interface,busy_budget=$budget"
        number=$((number + 1))
    done
    echo "$command -- --nb-cores=1 --auto-start --stats-period=86400 --total-num-mbufs=16384 --forward-mode=$forward"
}

for app in ${apps//,/ }; do
    for mode in ${modes//,/ }; do
        "$bywash" bench afxdp --json --app "$app" --mode "$mode" $touch --rounds "$rounds" --seconds "$seconds" \
            --size "$size" --peer "$(testpmd "$app" "$mode")" "${rest[@]}" >"$scratch/$app.$mode.json"
        echo "$app, $mode: done" >&2
    done
done

mkdir -p "$(dirname "$out")"
# testpmd fails, since it gets no port, but prints its version first.
version=$(timeout 10 dpdk-testpmd --no-huge --no-pci -v 2>&1 </dev/null || true)
version=$(sed -n "s/.*RTE Version: '\(.*\)'.*/\1/p" <<<"$version" | head -n 1)
OUT=$out MIN=$min_ratios TESTPMD=$version OPTIONS="${rest[*]}" python3 - "$scratch" "$apps" "$modes" "$root/bench" <<'PYTHON'
import json, os, platform, re, sys, time

scratch, apps, modes = sys.argv[1], sys.argv[2].split(","), sys.argv[3].split(",")
sys.path.insert(0, sys.argv[4])
import spread, tables

rows = [json.load(open(f"{scratch}/{app}.{mode}.json")) for app in apps for mode in modes]
model = re.search(r"model name\s*: (.*)", open("/proc/cpuinfo").read())[1]
result = {"cpu_model": model, "kernel": platform.release(), "date": time.strftime("%Y-%m-%d"), "load": os.getloadavg()[0],
          "peer": os.environ["TESTPMD"] or "dpdk-testpmd", "options": os.environ["OPTIONS"], "rows": rows}
json.dump(result, open(os.environ["OUT"], "w"), indent=1)
first = rows[0]
print(f"{model}, Linux {result['kernel']}, {result['peer']}, CPUs {first['cpus']}, {first['size']} B, "
      f"{len(first['rounds'])} rounds of {first['seconds']} s")
print(f"{'app':8}{'mode':10}{'Mpps':>8}{'testpmd':>9}{'cycles':>8}  ratio; system calls a packet")
low = []
bars = dict(bar.split("=") for bar in os.environ["MIN"].split(",") if bar)
for row in rows:
    calls = ", ".join(f"{name} {n:.4f}" for name, n in row["system_calls_per_packet"].items() if n)
    print(f"{row['app']:8}{row['mode']:10}{row['mpps']:8.3f}{row['peer_mpps']:9.3f}{row['cycles_per_packet']:8.0f}"
          f"  {spread.beside(*tables.both(row))}; {calls or 'none'}")
    if row["peer_ratio"] < float(bars.get(row["app"], 0)):
        low.append(f"{row['app']} {row['mode']}: {row['peer_ratio']:.2f}, wanted {bars[row['app']]}")
print(os.environ["OUT"])
if low:
    sys.exit("below what is wanted: " + "; ".join(low))
PYTHON
