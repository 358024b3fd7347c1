#!/bin/bash
# Packs a program that `make` has already built into an archive for any distribution, with its list of parts and their
# checksums. The same program and sources give the same bytes, whatever the directory, user and time.
#
# usage: tools/dist.sh PROGRAM DIRECTORY    the archive, its list of parts and SHA256SUMS go into DIRECTORY
set -euo pipefail

[ $# = 2 ] || { sed -n 's/^# \(usage: .*\)/\1/p' "$0" >&2 && exit 2; }
root=$(cd "$(dirname "$0")/.." && pwd)
program=$(realpath "$1")
mkdir -p "$2"
out=$(realpath "$2")
export LC_ALL=C
# The time of the last commit; of an archive without one, that of the change log.
: "${SOURCE_DATE_EPOCH:=$(git -C "$root" log -1 --format=%ct 2>/dev/null || stat -c %Y "$root/CHANGELOG.md")}"
export SOURCE_DATE_EPOCH
name=bywash-$("$program" version | cut -d' ' -f2)-$(uname -m)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
top=$work/$name
install -D -m 755 "$program" "$top/bin/bywash"
strip --strip-unneeded "$top/bin/bywash"
mkdir -p "$top/share/man/man1"
"$program" man --out "$top/share/man/man1"
gzip -9n "$top"/share/man/man1/*
for shell in bash:bash-completion/completions/bywash zsh:zsh/site-functions/_bywash \
    fish:fish/vendor_completions.d/bywash.fish; do
    install -d "$(dirname "$top/share/${shell#*:}")"
    "$program" completion "${shell%%:*}" >"$top/share/${shell#*:}"
done
install -d "$top/share/bywash"
"$program" config schema >"$top/share/bywash/config.schema.json"
install -D -m 644 "$root/contrib/systemd/bywash.service" "$top/lib/systemd/system/bywash.service"
install -m 644 "$root/LICENSE" "$root/README.md" "$root/CHANGELOG.md" "$root/SECURITY.md" "$top/"
"$root/tools/sbom.py" >"$top/bywash.cdx.json"
install -m 644 "$top/bywash.cdx.json" "$out/$name.cdx.json"

find "$top" -type d -exec chmod 755 {} +
find "$top" -type f ! -path '*/bin/*' -exec chmod 644 {} +
tar -C "$work" --format=gnu --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner -c "$name" |
    gzip -9n >"$out/$name.tar.gz"
(cd "$out" && sha256sum "$name.cdx.json" "$name.tar.gz" >SHA256SUMS)
echo "dist: $out/$name.tar.gz" >&2
