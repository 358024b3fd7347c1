# shellcheck shell=bash
# Common functions of the scripts here. Source it after defining `usage` and each option variable's default.

# Parses the options listed by `usage`: `--some-name VALUE` sets some_name. An option without a value, which has two
# spaces behind it in `usage`, is set to its own name. Arguments behind `--` are left in rest.
options() {
    local name
    rest=()
    while [ $# -gt 0 ]; do
        case $1 in
        -h | --help) usage && exit 0 ;;
        --) shift && rest=("$@") && return ;;
        --*) name=${1#--} ;;
        *) usage >&2 && exit 2 ;;
        esac
        if [[ $(usage) == *$'\n'"  --$name  "* ]]; then
            printf -v "${name//-/_}" %s "$1"
            shift && continue
        fi
        [[ $(usage) == *$'\n'"  --$name "* ]] && [ $# -ge 2 ] || { usage >&2 && exit 2; }
        printf -v "${name//-/_}" %s "$2"
        shift 2
    done
}

die() { echo "${0##*/}: $*" >&2 && exit 1; }

# Raises the number of 2 MiB pages to $1, of which $2 must be free; `pages_back` restores the setting.
found_pages=$(cat /proc/sys/vm/nr_hugepages)
reserve_pages() {
    [ "$found_pages" -ge "$1" ] || echo "$1" >/proc/sys/vm/nr_hugepages
    local got
    got=$(awk '/^HugePages_Free/ {print $2}' /proc/meminfo)
    [ "$got" -ge "$2" ] || die "only $got free 2 MiB pages: free some memory, or use --pages 4k"
}
pages_back() { echo "$found_pages" >/proc/sys/vm/nr_hugepages; }

# Prepares a comparison with testpmd on the veth interfaces r0 and r1 of `bywash bench $1`: checks what the machine has,
# creates the file $scratch, which is removed when the script ends, and sets testpmd to the command that runs it in io
# mode over two net_af_xdp ports.
prepare_veth() {
    [ "$(id -u)" = 0 ] || die "root needed: it makes network namespaces"
    [ -x "$bywash" ] || die "no $bywash: build it (cargo build --release) or give --bywash"
    command -v dpdk-testpmd >/dev/null || die "no dpdk-testpmd (package dpdk-dev)"
    [ "$(nproc)" -ge 2 ] || die "two CPUs needed: one for the generator, one for the forwarder"

    local prefix=bywash-$1-$$ cpus
    scratch=$(mktemp)
    # shellcheck disable=SC2064 # The names are those of now.
    trap "rm -rf '$scratch' '/run/dpdk/$prefix'" EXIT
    trap 'exit 130' INT TERM

    # The same CPUs as `bywash bench` uses: the first two allowed.
    mapfile -t cpus < <(python3 -c 'import os; print(*sorted(os.sched_getaffinity(0))[:2], sep="\n")')
    # The main lcore only sleeps; with --stats-period testpmd reads no command line.
    testpmd="dpdk-testpmd -l ${cpus[0]},${cpus[1]} --main-lcore ${cpus[0]} --no-huge -m 512 --no-pci"
    testpmd+=" --file-prefix $prefix --vdev net_af_xdp0,iface=r0 --vdev net_af_xdp1,iface=r1 --"
    testpmd+=" --forward-mode=io --nb-cores=1 --auto-start --stats-period=86400 --total-num-mbufs=16384"
}
