#!/bin/bash
# Collects what `bywash new app` builds against: the sources of the crates that an application uses, and in vendor/ the
# crates of crates.io that these need on Linux, so that building an application needs no network. Cargo must have
# downloaded these crates before, as it does when it builds Bywash.
#
# usage: tools/sources.sh DIRECTORY    replaces DIRECTORY
set -euo pipefail

[ $# = 1 ] || { sed -n 's/^# \(usage: .*\)/\1/p' "$0" >&2 && exit 2; }
root=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$(dirname "$1")"
out=$(mktemp -d "$(realpath "$1").XXXXXX")
trap 'rm -rf "$out"' EXIT
chmod 755 "$out"

# Leaves out the sections of manifests whose heads match $1.
trim() {
    local manifest pattern=$1
    shift
    for manifest; do
        awk -v pattern="$pattern" '/^\[/ { skip = $0 ~ pattern } !skip' "$manifest" >"$out/manifest"
        mv "$out/manifest" "$manifest"
    done
}
# Copies directories, following links.
copy() { tar -ch --no-same-owner --exclude=tests --exclude=benches --exclude=examples "$@"; }

copy -C "$root" Cargo.toml Cargo.lock LICENSE crates/{api,api-server,engine,fib,frame,kit,netlink,nl,port,router,sync,wire} lab/{Cargo.toml,src} |
    tar -xC "$out"
sed -i 's|^members = .*|members = ["crates/*", "lab"]|; /^exclude = /d; /^default-members = /d' "$out/Cargo.toml"
trim 'dev-dependencies|[[]bench[]]|[[]profile|cfg[(]loom[)]' "$out"/Cargo.toml "$out"/crates/*/Cargo.toml "$out/lab/Cargo.toml"

mkdir "$out/vendor"
# Cargo also looks for errno, an optional dependency of rustix that is not built.
{
    (cd "$out" && "${CARGO:-cargo}" tree --offline --workspace -e normal,build --prefix none --format '{p}')
    grep -A1 '^name = "errno"$' "$root/Cargo.lock" | sed 's/.* = "\(.*\)"/\1/' | paste -sd ' ' | sed 's/ / v/'
} | awk '!/^bywash-/ && NF { print $1, substr($2, 2) }' | sort -u | while read -r name version; do
    crate=$name-$version
    set -- "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*/"$crate"
    [ -d "$1" ] || { echo "no source of $crate: build Bywash first" >&2 && exit 1; }
    copy -C "$(dirname "$1")" "$crate" | tar -xC "$out/vendor"
    # Cargo would look for the crates of all systems, and for their features.
    trim 'cfg[(](windows[)]|target_os ?= ?"(wasi|hermit)")' \
        "$out/vendor/$crate/Cargo.toml"
    sed -i 's#"\(dep:windows-[^"]*\|windows-[^"/]*/[^"]*\)",\?##' "$out/vendor/$crate/Cargo.toml"
    checksum=$(awk -v name="name = \"$name\"" -v version="version = \"$version\"" \
        '$0 == "[[package]]" { n = v = 0 } $0 == name { n = 1 } $0 == version { v = 1 }
         n && v && /^checksum/ { print $3 }' "$root/Cargo.lock")
    echo "{\"files\":{},\"package\":$checksum}" >"$out/vendor/$crate/.cargo-checksum.json"
done
# Bywash runs on one architecture; this crate has a directory for each.
find "$out"/vendor/linux-raw-sys-*/src -mindepth 1 -maxdepth 1 -type d ! -name x86_64 -exec rm -r {} +
chmod -R u=rwX,go=rX "$out"
rm -rf "$1"
mv "$out" "$1"
