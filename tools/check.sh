#!/bin/bash
# Runs the unit tests and clippy of the crates that changed: committed since the base, uncommitted and untracked. Compiles
# the fuzz targets.
#
# usage: tools/check.sh [REVISION]
#
# The base is the last commit in common with REVISION, or else with origin/main, or else HEAD. Crates that use a changed
# crate are not checked; `make test` tests all.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}

base=$(git merge-base HEAD "${1:-origin/main}" 2>/dev/null || git rev-parse --verify "${1:-HEAD}")
changed() { git diff --name-only "$base" && git ls-files --others --exclude-standard; }

packages=() lib='' bins=''
for directory in $(changed | sed -n -E 's,^(crates/[^/]+|lab|examples)/.*,\1,p' | sort -u); do
    [ -e "$directory/Cargo.toml" ] || continue
    packages+=(-p "$(sed -n 's/^name = "\(.*\)"/\1/p' "$directory/Cargo.toml" | head -n1)")
    # Cargo fails if it is told to test a library where there is none.
    if [ -e "$directory/src/main.rs" ]; then bins=--bins; else lib=--lib; fi
done
[ ${#packages[@]} -gt 0 ] || { echo "check: no crate differs from ${base:0:12}" && exit; }

echo "check: ${packages[*]}"
$cargo test --locked "${packages[@]}" $lib $bins
$cargo clippy --locked "${packages[@]}" --all-targets -- -D warnings
# Code that only these compile has names of all crates.
RUSTC_WORKSPACE_WRAPPER=$PWD/fuzz/rustc $cargo check --locked -p bywash-fuzz --features targets --bins
