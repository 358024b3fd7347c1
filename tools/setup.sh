#!/bin/bash
# Installs the packages and the Rust toolchain that a task needs; does nothing if all are present.
#
# usage: tools/setup.sh build|package|lint|demo|test|fuzz|vm|bench|bpf|rtl
#
# Uses apt (Debian 12 and later, Ubuntu 24.04 and later); elsewhere it prints what to install. Uses sudo when not root.
# Distributions' own cargo is older than Cargo.toml's rust-version. Exactly that version, the tested one, is installed by
# rustup, from the distribution or else the official installer. A cargo of that version or newer is used as it is.
set -euo pipefail

task=${1:-}
case $task in build | package | lint | demo | test | fuzz | vm | bench | bpf | rtl) ;; *) sed -n 's/^# \(usage: .*\)/\1/p' "$0" >&2 && exit 2 ;; esac
root=$(cd "$(dirname "$0")/.." && pwd)
export PATH="$HOME/.cargo/bin:$PATH:/usr/sbin:/sbin"

say() { echo "setup: $*" >&2; }
die() { say "$*" && exit 1; }
as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        die "needs root for: $* (no sudo here; run this as root)"
    fi
}

# Each entry is tool:package or file:package.
build=(cc:build-essential make:build-essential)
network=(ip:iproute2 ping:iputils-ping ethtool:ethtool iperf3:iperf3)
bpf=(make:make clang-14:clang-14 llvm-strip-14:llvm-14 /usr/include/bpf/bpf_helpers.h:libbpf-dev /usr/include/stdio.h:libc6-dev)
testing=(tc:iproute2 tcpdump:tcpdump tshark:tshark openssl:openssl python3:python3 valgrind:valgrind chromium:chromium
    prometheus:prometheus promtool:prometheus systemd-analyze:systemd
    ovs-vswitchd:openvswitch-switch ovsdb-server:openvswitch-switch /usr/lib/frr/zebra:frr vtysh:frr
    bird:bird2 keepalived:keepalived ipvsadm:ipvsadm nft:nftables iptables:iptables conntrack:conntrack
    ufw:ufw firewalld:firewalld dbus-daemon:dbus-daemon dockerd:docker.io shorewall:shorewall
    dpdk-testpmd:dpdk-dev dpdk-test:dpdk-dev pkg-config:pkg-config /usr/include/dpdk/rte_mempool.h:libdpdk-dev
    /usr/include/intel-ipsec-mb.h:libipsec-mb-dev verilator:verilator "${bpf[@]}")
case $task in
build | lint) wanted=("${build[@]}") ;;
package) wanted=("${build[@]}" python3:python3) ;;
fuzz) wanted=("${build[@]}" c++:build-essential clang-14:clang-14) ;;
demo) wanted=("${build[@]}" "${network[@]}") ;;
test) wanted=("${build[@]}" "${network[@]}" "${testing[@]}") ;;
vm) wanted=("${build[@]}" "${network[@]}" "${testing[@]}" qemu-system-x86_64:qemu-system-x86 busybox:busybox-static
    cpio:cpio modprobe:kmod xz:xz-utils zstd:zstd
    /usr/share/keyrings/debian-archive-keyring.gpg:debian-archive-keyring) ;;
bench) wanted=("${build[@]}" "${network[@]}" python3:python3 valgrind:valgrind dpdk-testpmd:dpdk-dev
    pkg-config:pkg-config /usr/include/dpdk/rte_mempool.h:libdpdk-dev ovs-vsctl:openvswitch-switch
    /usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk:openvswitch-switch-dpdk) ;;
rtl)
    wanted=("${build[@]}" python3:python3 verilator:verilator yosys:yosys berkeley-abc:berkeley-abc)
    # Debian's python3 has no ensurepip, so that `python3 -m venv` fails; there is no command to look for.
    python3 -c 'import ensurepip' 2>/dev/null || wanted+=(python3-venv:python3-venv)
    ;;
bpf) wanted=("${bpf[@]}") ;;
esac

missing() {
    local pair
    for pair in "${wanted[@]}"; do
        command -v "${pair%%:*}" >/dev/null || [ -e "${pair%%:*}" ] || echo "${pair#*:}"
    done | sort -u
}

install_packages() {
    command -v apt-get >/dev/null || { say "no apt-get here; please install: $*" && return 1; }
    say "installing $*"
    # Another program may be installing packages at this moment.
    local patient=(-o DPkg::Lock::Timeout=300 -o Acquire::Retries=5)
    as_root apt-get "${patient[@]}" update -q >&2 ||
        say "apt-get update failed; trying with the existing package lists"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get "${patient[@]}" install -y -q --no-install-recommends "$@" >&2
}

readarray -t packages < <(missing)
had_frr=$(command -v /usr/lib/frr/zebra || true)
had_bird=$(command -v bird || true)
had_keepalived=$(command -v keepalived || true)
had_ovs=$(command -v ovs-vswitchd || true)
had_prometheus=$(command -v prometheus || true)
# These must not load their rules even for a moment: units that are masked are not started when they are installed.
masked=()
command -v firewalld >/dev/null || masked+=(firewalld.service)
command -v dockerd >/dev/null || masked+=(docker.service docker.socket containerd.service)
on_masked() {
    if [ "$task" != test ] && [ "$task" != vm ] || [ ! -d /run/systemd/system ] || [ ${#masked[@]} = 0 ]; then return; fi
    as_root systemctl "$@" "${masked[@]}" >/dev/null 2>&1 || true
}
on_masked mask --runtime
if [ ${#packages[@]} -gt 0 ] && ! install_packages "${packages[@]}"; then
    # A test without its tool prints SKIP; no other task can do without its tools.
    if [ "$task" != test ] || ! command -v cc >/dev/null; then die "could not install ${packages[*]}"; fi
    say "going on without ${packages[*]}: tests that need them are skipped"
fi
on_masked disable
on_masked unmask --runtime
# The tests start their own routing daemons, Open vSwitch and Prometheus; stop and disable those that the packages start.
unwanted() {
    as_root service "$1" stop >/dev/null 2>&1 || true
    if [ -d /run/systemd/system ]; then as_root systemctl disable "$1" >/dev/null 2>&1 || true; fi
}
if [ -z "$had_frr" ] && [ -e /usr/lib/frr/zebra ]; then unwanted frr; fi
if [ -z "$had_bird" ] && command -v bird >/dev/null; then unwanted bird; fi
if [ -z "$had_keepalived" ] && command -v keepalived >/dev/null; then unwanted keepalived; fi
if [ -z "$had_ovs" ] && command -v ovs-vswitchd >/dev/null; then unwanted openvswitch-switch; fi
if [ -z "$had_prometheus" ] && command -v prometheus >/dev/null; then
    unwanted prometheus
    unwanted prometheus-node-exporter
fi
[ "$task" != bpf ] || exit 0

needed=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$root/Cargo.toml")
rust_is_new_enough() {
    local have
    have=$(cargo --version 2>/dev/null | cut -d' ' -f2) && [ -n "$have" ] || return 1
    [ "$(printf '%s\n' "$needed" "$have" | sort -V | head -n1)" = "$needed" ]
}
has_lints() { cargo fmt --version >/dev/null 2>&1 && cargo clippy --version >/dev/null 2>&1; }

if rust_is_new_enough; then
    if [ "$task" != lint ] || has_lints; then exit 0; fi
    say "adding rustfmt and clippy"
    command -v rustup >/dev/null || die "no rustfmt or clippy for this cargo: install them from where cargo was installed"
    exec rustup component add rustfmt clippy >&2
fi

by_hand="install Rust $needed or later so that 'cargo' is on PATH, and run make again"
found=$(cargo --version 2>/dev/null || echo none)
say "Rust $needed or later is needed (found: $found)"
if ! command -v rustup >/dev/null && [ -n "$(apt-cache --quiet=2 search --names-only '^rustup$' 2>/dev/null)" ]; then
    # The package conflicts with the distribution's own cargo and replaces it; a failure leaves the installer.
    install_packages rustup || say "no rustup from the distribution"
    hash -r
fi
if command -v rustup >/dev/null; then
    say "installing Rust $needed with rustup"
    rustup toolchain install "$needed" --profile minimal --component rustfmt --component clippy >&2 ||
        die "rustup failed; $by_hand"
    # For this directory: other projects keep their toolchain.
    rustup override set "$needed" --path "$root" >&2
    rustup default >/dev/null 2>&1 || rustup default "$needed" >&2
else
    # The installer that https://sh.rustup.rs downloads and runs.
    installer=https://static.rust-lang.org/rustup/dist/$(uname -m)-unknown-linux-gnu/rustup-init
    say "installing rustup with its official installer ($installer) into $HOME/.cargo"
    command -v curl >/dev/null || install_packages curl ca-certificates
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    fetch() { curl --proto '=https' --tlsv1.2 -sSf --retry 5 --retry-connrefused -o "$scratch/$1" "$installer$2"; }
    if ! { fetch rustup-init '' && fetch sum .sha256; }; then die "could not download the rustup installer; $by_hand"; fi
    [ "$(sha256sum <"$scratch/rustup-init" | cut -d' ' -f1)" = "$(cut -d' ' -f1 "$scratch/sum")" ] ||
        die "the installer's checksum is wrong; $by_hand"
    chmod +x "$scratch/rustup-init"
    "$scratch/rustup-init" -y --quiet --profile minimal --default-toolchain "$needed" --component rustfmt \
        --component clippy --no-modify-path >&2 || die "the installer failed; $by_hand"
fi
hash -r
rust_is_new_enough || die "still no cargo $needed or later on PATH (found: $(cargo --version 2>/dev/null || echo none))"
say "$(cargo --version) is ready"
