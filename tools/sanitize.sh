#!/bin/bash
# Runs tests under tools that see what a test cannot: unit tests of the crates with unsafe code under Miri,
# AddressSanitizer and ThreadSanitizer, and the program itself, built with either sanitizer, in end-to-end tests (as root).
#
# usage: tools/sanitize.sh [miri|address|thread|e2e-address|e2e-thread ..]    by default all
#        E2E="forward:: moves::" tools/sanitize.sh e2e-thread                 these end-to-end tests
#
# Needs a nightly toolchain with the components miri and rust-src: `rustup toolchain install nightly --component
# miri,rust-src`. NIGHTLY names another one. Random tests run few cases (PROPTEST_CASES), because Miri is some hundred
# times slower.
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
    LSAN_OPTIONS=suppressions=$PWD/tools/leaks.supp RUSTFLAGS="-C target-cpu=x86-64-v2 -Zsanitizer=$kind" RUSTDOCFLAGS= PROPTEST_CASES=${PROPTEST_CASES:-16} \
        CARGO_TARGET_DIR=$target/$kind "$cargo" "+$nightly" "$@"
}
built_so=(--locked -Zbuild-std --target "$host")
# The test program is an ordinary one: it must find its own mistakes, not the program's memory.
end_to_end() {
    local kind=$1
    sanitized "$kind" build "${built_so[@]}" -p bywash --bin bywash || return
    # Within its sandbox the program cannot start a symbolizer: llvm-symbolizer says later where an address is. A report
    # makes the exit status 66, which the tests refuse, and show what was printed.
    local options=symbolize=0:detect_leaks=0:exitcode=66 program
    program=$(realpath "$target/$kind/$host/debug/bywash")
    read -ra tests <<<"${E2E:-forward:: moves::tcp flows:: switch:: memif:: reload:: takeover:: bridges:: macvlans:: capture::}"
    BYWASH_UNDER_TEST=$program BYWASH_TEST_SLOWNESS=${SLOWNESS:-5} ASAN_OPTIONS=$options \
        TSAN_OPTIONS=$options "$cargo" test --locked -p bywash --test e2e -- "${tests[@]}"
}

failed=0
[ $# -gt 0 ] || set -- miri address thread e2e-address e2e-thread
for kind; do
    case $kind in
    miri)
        miri -p bywash-sync --lib -- --skip clock:: || failed=1
        miri -p bywash-frame --lib -- --skip numa:: --skip heap:: --skip heads:: --skip small_pages \
            --skip pages_that_begin || failed=1
        # What calls neither the kernel nor the clock.
        miri -p bywash-port --lib -- abi:: in_flight:: order::tests::is_a ring::tests unreturned:: long:: short:: \
            memif::message waits:: twin:: tap::tests::a_partial tap::tests::names link::tests::garbage allowed:: || failed=1
        ;;
    address | thread)
        # heap:: is about the C library's allocator, which the sanitizers replace. One test at a time: ThreadSanitizer does
        # not see that memory is unmapped and mapped again for another test, as that is done without the C library.
        sanitized "$kind" test "${built_so[@]}" -p bywash-sync -p bywash-frame --lib -- --skip heap:: || failed=1
        sanitized "$kind" test "${built_so[@]}" --no-fail-fast -p bywash-port --lib --test corpus --test pair \
            --test decorators --test pcap --test txq -- --test-threads 1 || failed=1
        ;;
    e2e-*) end_to_end "${kind#e2e-}" || failed=1 ;;
    *) sed -n 's/^# \(usage: .*\)/\1/p' "$0" >&2 && exit 2 ;;
    esac
done
exit "$failed"
