#!/bin/bash
# Runs unit tests of the crates with unsafe code under tools that see what a test cannot: Miri, AddressSanitizer and
# ThreadSanitizer.
#
# usage: tools/sanitize.sh [miri|address|thread ..]    by default all three
#
# Needs a nightly toolchain with the components miri and rust-src: `rustup toolchain install nightly --component
# miri,rust-src`. NIGHTLY names another one. Random tests run few cases (PROPTEST_CASES), because Miri is some hundred
# times slower. Not run to the end so far: see docs/testing.md.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
cargo=${CARGO:-cargo}
nightly=${NIGHTLY:-nightly}
target=${CARGO_TARGET_DIR:-target}
host=$(rustc -vV | sed -n 's/^host: //p')
"$cargo" "+$nightly" miri --version >/dev/null 2>&1 || {
    echo "sanitize: no toolchain $nightly with Miri: rustup toolchain install nightly --component miri,rust-src" >&2
    exit 1
}

# Miri knows neither memory with huge pages nor the calls that pin it, and no vector instructions; such tests are left
# out by name.
miri() {
    MIRIFLAGS="-Zmiri-disable-isolation -Zmiri-permissive-provenance" PROPTEST_CASES=${PROPTEST_CASES:-2} \
        CARGO_TARGET_DIR=$target/miri "$cargo" "+$nightly" miri test --locked "$@"
}
sanitized() {
    local kind=$1
    shift
    RUSTFLAGS="-C target-cpu=x86-64-v2 -Zsanitizer=$kind" RUSTDOCFLAGS= PROPTEST_CASES=${PROPTEST_CASES:-16} \
        CARGO_TARGET_DIR=$target/$kind "$cargo" "+$nightly" test --locked -Zbuild-std --target "$host" "$@"
}

failed=0
[ $# -gt 0 ] || set -- miri address thread
for kind; do
    case $kind in
    miri)
        miri -p bywash-sync --lib -- --skip clock:: || failed=1
        miri -p bywash-frame --lib -- --skip numa:: --skip heap:: --skip heads:: --skip small_pages \
            --skip pages_that_begin || failed=1
        ;;
    address | thread)
        # heap:: is about the C library's allocator, which the sanitizers replace.
        sanitized "$kind" -p bywash-sync -p bywash-frame --lib -- --skip heap:: || failed=1
        sanitized "$kind" -p bywash-port --lib --test corpus --test pair --test decorators --test pcap --test txq || failed=1
        ;;
    *) sed -n 's/^# \(usage: .*\)/\1/p' "$0" >&2 && exit 2 ;;
    esac
done
exit "$failed"
