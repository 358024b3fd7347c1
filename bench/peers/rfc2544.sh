#!/bin/bash
# Measures the throughput by RFC 2544 (highest rate without loss) of native Linux and of Bywash on six veth ports: three
# pairs, both directions of each at once.
#
#     tester t0, t2, t4 ---- r0, r2, r4 router r1, r3, r5 ---- t1, t3, t5 tester
#
# Bywash runs at level `driver`, and at level `user` with two workers: one for four of the ports, one for the other two.
# Then, at 64 bytes, it is measured with each of section 11's modifiers: broadcast frames (11.1, 1 % of the frames),
# management frames (11.2, a ping to the router's address each second; answers are counted, since trials above the
# throughput may lose them), updates of routes (11.3, 100 routes each second) and filters (11.4, 25 nftables rules that
# match no frame of the test).
#
# Tester and router share the machine's CPUs. A throughput with `*` is a lower bound: the generator was the limit.
set -euo pipefail

usage() {
    cat <<USAGE
usage: bench/peers/rfc2544.sh [options]
  --bywash PATH       the program to measure                       (target/release/bywash)
  --sizes LIST        frame sizes in bytes, with FCS               (64,128,256,512,1024,1280,1518)
  --rounds N          searches of each throughput, by turns        (1)
  --seconds N         length of one trial; RFC 2544 asks for 60    (1)
  --max-rate RATE     highest rate tried, each way of a pair       (500kpps)
  --html DIRECTORY    also write the tester's reports there        (none)
  --out FILE          the JSON result                              (out/bench/rfc2544.json)
USAGE
}

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
bywash="$root/target/release/bywash" sizes=64,128,256,512,1024,1280,1518 rounds=1 seconds=1 max_rate=500kpps html=''
out="$root/out/bench/rfc2544.json"
# shellcheck source=bench/peers/options.sh
. "$here/options.sh"
options "$@"
[ "$(id -u)" = 0 ] || die "root needed: it makes network namespaces"
[ -x "$bywash" ] || die "no $bywash: build it (cargo build --release) or give --bywash"
for tool in ip nft ping python3; do command -v $tool >/dev/null || die "no $tool"; done

n=bwrfc-$$ scratch=$(mktemp -d)
cleanup() {
    for ns in t r; do ip netns del $n-$ns 2>/dev/null || true; done
    rm -rf "$scratch"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

for ns in t r; do ip netns add $n-$ns && ip -n $n-$ns link set lo up; done
for i in 0 1 2 3 4 5; do
    ip -n $n-t link add t$i type veth peer name r$i netns $n-r
    ip -n $n-t addr add 10.0.$i.2/24 dev t$i && ip -n $n-t link set t$i up
    ip -n $n-r addr add 10.0.$i.1/24 dev r$i && ip -n $n-r link set r$i up
    ip -n $n-r route add 198.18.$i.0/24 via 10.0.$i.2
done
ip netns exec $n-r sysctl -qw net.ipv4.ip_forward=1
[ -z "$html" ] || mkdir -p "$html"
mkdir -p "$(dirname "$out")"

NS=$n OUT=$out SCRATCH=$scratch HTML=$html PYTHONPATH=$here python3 -B - "$bywash" "$sizes" "$rounds" "$seconds" "$max_rate" <<'PYTHON'
import contextlib, json, os, platform, re, statistics, subprocess, sys, threading, time
from router import running

bywash, sizes = sys.argv[1], [int(size) for size in sys.argv[2].split(",")]
rounds, seconds, max_rate = int(sys.argv[3]), float(sys.argv[4]), sys.argv[5]
lab, scratch, html = os.environ["NS"], os.environ["SCRATCH"], os.environ["HTML"]
# Two workers: one polls four ports, the other two.
USER = "[workers]\ncount = 2\n" + "".join(
    f'[[port]]\ninterface = "r{n}"\nlevel = "user"\nxdp = "native"\nworker = {int(n > 3)}\n' for n in range(6))
DRIVER = "".join(f'[[port]]\ninterface = "r{n}"\nlevel = "driver"\nxdp = "native"\n' for n in range(6))
DEVICES = {"kernel": None, "user": USER, "driver": DRIVER}
RULES = "table ip bwrfc { chain forward { type filter hook forward priority 0; policy accept;\n" + "".join(
    f"ip saddr 192.0.2.{n} ip daddr 203.0.113.{n} drop\n" for n in range(1, 26)) + "}\n}\n"


def within(ns, *argv):
    return ["ip", "netns", "exec", f"{lab}-{ns}", *argv]


def quietly(argv, text=None):
    subprocess.run(argv, input=text, text=True, check=True, stdout=subprocess.DEVNULL)


def device(config):
    """Returns a context with the router under test: the kernel alone for None, or Bywash with a configuration."""
    if config is None:
        return contextlib.nullcontext()
    file = f"{scratch}/bywash.toml"
    open(file, "w").write(config)
    argv = [bywash, "run", "--config", file, "--socket", f"{scratch}/socket"]
    return running(within("r", *argv), f"{scratch}/bywash.log")


class Modifier:
    """What goes on beside a test, by RFC 2544 section 11."""

    def __init__(self, name, pps):
        self.name, self.stop, self.processes, self.asked, self.answered = name, threading.Event(), [], 0, 0
        self.failed = None
        if name == "broadcast":
            # Frames to the router's broadcast addresses, 1 % of those of all six ports.
            rate = max(1, round(6 * pps / 100))
            loop = f"import socket,time\ns=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)\n" \
                   f"s.setsockopt(socket.SOL_SOCKET,socket.SO_BROADCAST,1)\nt=time.monotonic()\ni=0\nwhile True:\n" \
                   f" due=int((time.monotonic()-t)*{rate})\n" \
                   f" while i<due:\n  s.sendto(bytes(18),('10.0.%d.255'%(i%6),9)); i+=1\n time.sleep(.002)\n"
            self.processes.append(subprocess.Popen(within("t", sys.executable, "-c", loop)))
        if name == "filters":
            quietly(within("r", "nft", "-f", "-"), RULES)
        self.thread = threading.Thread(target=self.each_second)
        self.thread.start()

    def each_second(self):
        try:
            self.work()
        except Exception as why:
            self.failed = why

    def work(self):
        number = 0
        while not self.stop.wait(1):
            number += 1
            if self.name == "management":
                self.asked += 1
                argv = within("t", "ping", "-c1", "-W2", "-q", "10.0.0.1")
                self.answered += subprocess.run(argv, stdout=subprocess.DEVNULL).returncode == 0
            if self.name == "routes":
                verb = "add" if number % 2 else "del"
                lines = "".join(f"route {verb} 198.51.100.{at}/32 via 10.0.{at % 6}.2\n" for at in range(100))
                quietly(["ip", "-n", f"{lab}-r", "-batch", "-"], lines)

    def end(self):
        self.stop.set()
        self.thread.join()
        for process in self.processes:
            if process.poll() is not None:
                self.failed = f"the sender ended with status {process.returncode}"
            process.kill()
            process.wait()
        if self.name == "filters":
            quietly(within("r", "nft", "delete", "table", "ip", "bwrfc"))
        if self.name == "routes":
            quietly(["ip", "-n", f"{lab}-r", "route", "flush", "root", "198.51.100.0/24"])


def throughput(of, name):
    plan = f'title = "{name}"\nmax_rate = "{max_rate}"\nline_rate = "10gbps"\n[plan]\nsizes = {of}\n' \
           f'tests = ["throughput"]\nseconds = {seconds}\ndrain = 0.2\nresolution = 5\naccepted_loss = 0\n'
    for pair in range(3):
        a, b = 2 * pair, 2 * pair + 1
        plan += f'[[pair]]\nfrom = "t{a}"\nto = "t{b}"\nbidirectional = true\ngateway = "10.0.{a}.1"\n' \
                f'reverse_gateway = "10.0.{b}.1"\nsrc = "198.18.{a}.1"\ndst = "198.18.{b}.1"\n'
    file = f"{scratch}/plan.toml"
    open(file, "w").write(plan)
    argv = [bywash, "rfc2544", "--config", file, "--json"]
    if html:
        argv += ["--html", f"{html}/{name.replace(' ', '-').replace(',', '')}.html"]
    done = subprocess.run(within("t", *argv), capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"rfc2544.sh: {name}: {done.stderr}")
    report = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    # Rates are those of each direction of each pair: all six ports send.
    return {row["size"]: (6 * row["throughput"]["pps"], row["throughput"]["generator_was_the_limit"])
            for row in report["sizes"]}


rows = {}


def measure(name, size_list, modifier=None):
    with device(DEVICES[name]):
        beside = modifier and Modifier(modifier, statistics.median(rows[name, 64, None]["pps"]) / 6)
        try:
            found = throughput(size_list, f"{name}, {modifier or 'plain'}")
        finally:
            if beside:
                beside.end()
    if beside and beside.failed:
        sys.exit(f"rfc2544.sh: {name}, {modifier}: {beside.failed}")
    for size, (pps, limit) in found.items():
        row = rows.setdefault((name, size, modifier), {"device": name, "size": size, "modifier": modifier, "pps": [],
                                                       "generator_was_the_limit": False})
        row["pps"].append(pps)
        row["generator_was_the_limit"] |= limit
        if beside and modifier == "management":
            row["asked"], row["answered"] = beside.asked, beside.answered
    print(f"  {name}, {modifier or 'plain'}: done", file=sys.stderr)


for _ in range(rounds):
    for name in DEVICES:
        measure(name, sizes)
MODIFIERS = ["broadcast", "management", "routes", "filters"] if 64 in sizes else []
for _ in range(rounds):
    for modifier in MODIFIERS:
        for name in DEVICES:
            measure(name, [64], modifier)

model = re.search(r"model name\s*: (.*)", open("/proc/cpuinfo").read())[1]
print(f"{model}, Linux {platform.release()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}; throughput of all "
      f"six ports in kpps, trials of {seconds:g} s, medians of {rounds}")
print(f"{'bytes':>5}  {'beside it':12}" + "".join(f"{name:>10}" for name in DEVICES))
for size, modifier in [(size, None) for size in sizes] + [(64, modifier) for modifier in MODIFIERS]:
    cells = [rows[name, size, modifier] for name in DEVICES]
    text = [f"{statistics.median(cell['pps']) / 1e3:.0f}{'*' if cell['generator_was_the_limit'] else ''}" for cell in cells]
    print(f"{size:5}  {modifier or '':12}" + "".join(f"{cell:>10}" for cell in text))
result = {"cpu_model": model, "kernel": platform.release(), "date": time.strftime("%Y-%m-%d"), "load": os.getloadavg()[0],
          "seconds": seconds, "rounds": rounds, "max_rate": max_rate, "rows": list(rows.values())}
json.dump(result, open(os.environ["OUT"], "w"), indent=1)
PYTHON
