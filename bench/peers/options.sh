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
