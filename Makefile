# Bywash: build, demo, tests. `make help` lists the targets. Everything works as root and as a user with sudo.

SHELL := /bin/bash
PREFIX ?= /usr/local
DESTDIR ?=

# A rustup toolchain comes first on PATH: distributions' cargo is too old.
export PATH := $(HOME)/.cargo/bin:$(PATH):/usr/sbin:/sbin

CARGO ?= cargo
SUDO := $(if $(filter 0,$(shell id -u)),,sudo)
TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)
BYWASH := $(TARGET_DIR)/release/bywash
# `bywash new app` finds this from the program's place, as it does when both are installed.
SOURCES := $(TARGET_DIR)/share/bywash/src

# When run as a user, cargo builds as that user, and only the test programs run as root.
ifneq ($(SUDO),)
# Evaluated in the recipe: before make 4.4, $(shell) does not see the PATH above.
RUN_AS_ROOT = env "CARGO_TARGET_$$(rustc -vV | sed -n 's/^host: //p' | tr 'a-z-' 'A-Z_')_RUNNER=sudo -E"
endif

# Asked when a recipe runs: tools/setup.sh may have installed it.
HAS_DPDK := pkg-config --exists libdpdk 2>/dev/null

# A skipped test passes, and the test runner hides the output of passing tests: CI needs it to see the reason.
TEST_FLAGS := $(if $(CI),--show-output)

.PHONY: build demo check test test-build test-e2e test-others test-doc test-dpdk differential test-loom test-vm fuzz sanitize deny dist bpf bpf-check rtl rtl-quick rtl-synth dpdk-plugin dpdk-plugin-link lint book bench bench-programs soak install c-library install-c-library deb test-deb uninstall clean help
.DEFAULT_GOAL := build

build: ## build the program (target/release/bywash), and collect the sources for `bywash new app`
	@tools/setup.sh build
	$(CARGO) build --release --locked -p bywash
	CARGO=$(CARGO) tools/sources.sh $(SOURCES)

demo: ## host - router - host on this machine, with the kernel and Bywash in turn; removes everything afterwards
	@tools/setup.sh demo
	$(CARGO) build --release --locked -p bywash
	$(SUDO) $(BYWASH) demo

check: ## unit tests and clippy of the crates that differ from the main branch (BASE=REVISION); needs no root
	@tools/setup.sh lint
	@tools/check.sh $(BASE)

# The checks compute while the other tests wait, at low priority; their output is shown at the end.
test: ## all tests: unit, property, end-to-end (as root), model checking, the BPF objects
	@tools/setup.sh test
	@$(MAKE) --no-print-directory test-build
	@log=$$(mktemp); trap 'rm -f $$log' EXIT; \
		$(MAKE) --no-print-directory test-e2e; e2e=$$?; \
		nice -n 10 $(MAKE) --no-print-directory test-loom bpf-check test-doc rtl-quick >$$log 2>&1 & beside=$$!; \
		$(MAKE) --no-print-directory test-others; others=$$?; \
		wait $$beside; beside=$$?; cat $$log; \
		$(MAKE) --no-print-directory test-dpdk; dpdk=$$?; \
		exit $$((e2e | others | beside | dpdk))

# One set of features for all packages, so that nothing is built twice. The plugin's tests look for it in their own
# directory, and print SKIP where DPDK is missing.
TESTED := --workspace --locked --features bywash-port/rtl
test-build:
	$(CARGO) test $(TESTED) --no-run
	@! $(HAS_DPDK) || $(MAKE) --no-print-directory dpdk-plugin-link DPDK_PROFILE=dev

# End-to-end tests mostly wait, so that more of them run at a time than there are CPUs; those that measure exclude each
# other.
E2E_THREADS ?= 6
test-e2e: test-build
	$(RUN_AS_ROOT) $(CARGO) test $(TESTED) --test e2e -- $(TEST_FLAGS) --test-threads $(E2E_THREADS)

# All programs but e2e and those on the simulated engine, which rtl-quick and rtl run: cargo has no option to leave one
# out.
OTHERS := --lib --bins --test '[!en]*' --test 'e[!2]*' --test 'n[!p]*' --test npe
test-others: test-build
	$(RUN_AS_ROOT) $(CARGO) test $(TESTED) $(OTHERS) -- $(TEST_FLAGS)

# Where DPDK is, this builds the libraries that test-dpdk needs, and leaves the program under test as it is.
test-doc:
	$(RUN_AS_ROOT) $(CARGO) test $(TESTED)$$($(HAS_DPDK) && echo ,bywash/dpdk) --doc -- $(TEST_FLAGS)

# Not while other tests run: it replaces the program.
test-dpdk:
	@if $(HAS_DPDK); then \
		$(RUN_AS_ROOT) $(CARGO) test $(TESTED),bywash/dpdk --test ports -- $(TEST_FLAGS) && \
		$(RUN_AS_ROOT) $(CARGO) test $(TESTED),bywash/dpdk --test e2e dpdk -- $(TEST_FLAGS); \
	else echo "SKIP: no libdpdk: its ports are not tested"; fi

# Uses a separate target directory, because the flag changes every crate. Doc tests cannot run inside a model.
test-loom: ## check concurrent code under every interleaving (loom)
	RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=$(TARGET_DIR)/loom $(CARGO) test --release --locked --lib -p bywash-sync -p bywash-frame

KERNEL ?= $(if $(QUICK),6.18,6.1 6.12 6.18)
test-vm: ## tests that depend on the kernel or a NIC, in emulated machines (KERNEL="6.1 6.12 6.18"; half an hour each; QUICK=1)
	@tools/setup.sh vm
	lab/vm/run $(if $(QUICK),--quick) $(KERNEL)

# BASE, RUNS, SEED: see the head of fuzz/run.
fuzz: ## give random input to the parsers, those that changed first (SECONDS=N in all, TARGET="NAME ..")
	@tools/setup.sh fuzz
	@CARGO=$(CARGO) BASE=$(BASE) RUNS=$(RUNS) SEED=$(SEED) fuzz/run $(or $(SECONDS),60) $(TARGET)

# NIGHTLY: name of the toolchain; see the head of tools/sanitize.sh.
sanitize: ## unit tests of the crates with unsafe code under Miri, AddressSanitizer and ThreadSanitizer (needs a nightly toolchain)
	@CARGO=$(CARGO) tools/sanitize.sh $(RUN)

deny: ## check advisories, licences, versions and sources of all dependencies (needs cargo-deny and the network)
	@$(CARGO) deny --version >/dev/null 2>&1 || { echo "no cargo-deny: cargo install --locked cargo-deny" >&2; exit 1; }
	$(CARGO) deny --locked check

# The paths of this machine are left out of the program, so that another one makes the same.
DIST_FLAGS = target-cpu=x86-64-v2 --remap-path-prefix=$(CURDIR)=. --remap-path-prefix=$(or $(CARGO_HOME),$(HOME)/.cargo)=cargo
dist: ## build an archive for any distribution, with its parts and checksums, the same on every machine (target/dist)
	@tools/setup.sh package
	RUSTFLAGS="-C $(DIST_FLAGS)" CARGO_TARGET_DIR=$(TARGET_DIR)/dist/build $(CARGO) build --release --locked -p bywash
	CARGO=$(CARGO) tools/dist.sh $(TARGET_DIR)/dist/build/release/bywash $(TARGET_DIR)/dist

bpf: ## rebuild the XDP objects from their C sources (needs clang 14)
	@tools/setup.sh bpf
	$(MAKE) -C xdp

bpf-check: ## check that the committed XDP objects match their sources (needs the compiler they were built with)
	@$(MAKE) --no-print-directory -C xdp check

# Tests on the simulated engine $(1): of the host driver (npe_rtl), with blocks of 64 cells; of the program (npe_bench),
# with blocks of 1,024.
RTL_TEST = BYWASH_RTL_ENGINE=$(CURDIR)/rtl/build/$(1)/cosim $(CARGO) test $(TESTED) --test $(2) -- $(TEST_FLAGS)
rtl-quick: ## check the hardware engine: lint, benches, the host driver on the simulation (docs/rtl.md)
	@if command -v verilator >/dev/null; then \
		$(MAKE) --no-print-directory -j2 -C rtl quick && $(call RTL_TEST,cosim64,npe_rtl); \
	else echo "SKIP: no verilator: the hardware engine is not tested"; fi

rtl: ## all checks of the hardware engine but place and route: long random traffic, proofs, mutations, synthesis
	@tools/setup.sh rtl
	@$(MAKE) --no-print-directory -j2 -C rtl all build/cosim64/cosim build/cosim64sdb/cosim build/cosim1024/cosim
	$(call RTL_TEST,cosim64,npe_rtl)
	BYWASH_RTL_POOL=sdb $(call RTL_TEST,cosim64sdb,npe_rtl)
	$(call RTL_TEST,cosim1024,npe_bench)

rtl-synth: ## place and route the hardware engine, and its modules alone: chip area and clock (about an hour)
	@tools/setup.sh rtl
	@$(MAKE) --no-print-directory -C rtl synth

lint: ## formatting, clippy and documentation, warnings are errors
	@tools/setup.sh lint
	$(CARGO) fmt --all --check
	@git ls-files '*.rs' | xargs awk 'length > 120 && /^ *\/\/[\/!]* [^|]/ { print FILENAME ":" FNR ": wrap this comment" \
		" at 120 characters, as rustfmt does not"; found = 1 } END { exit found }'
	$(CARGO) clippy $(TESTED) --all-targets -- -D warnings
	@if $(HAS_DPDK); then $(CARGO) clippy $(TESTED),bywash/dpdk --all-targets -- -D warnings; \
	else echo "no libdpdk: code of the feature dpdk is not linted"; fi
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --locked --no-deps

book: ## make a book of docs/, with search (target/book/index.html; needs mdbook)
	@command -v mdbook >/dev/null || { echo "no mdbook: install it with 'cargo install mdbook'" >&2; exit 1; }
	mdbook build --dest-dir $(abspath $(TARGET_DIR))/book

# A plugin for DPDK programs: the C part is the DPDK interface, the Rust part the pools. Tests use the dev profile, which
# builds faster (DPDK_PROFILE=dev).
DPDK_PROFILE ?= release
DPDK_LIB = $(TARGET_DIR)/$(if $(filter dev,$(DPDK_PROFILE)),debug,$(DPDK_PROFILE))
dpdk-plugin: ## build librte_mempool_bywash.so, the buffer policies for DPDK programs (needs libdpdk-dev)
	@$(HAS_DPDK) || { echo "no libdpdk for pkg-config: install libdpdk-dev, or build DPDK" >&2; exit 1; }
	$(CARGO) build --profile $(DPDK_PROFILE) --locked -p bywash-dpdk-mempool
	@$(MAKE) --no-print-directory dpdk-plugin-link DPDK_PROFILE=$(DPDK_PROFILE)

# `cargo test` leaves the library among its dependencies, `cargo build` beside them: the newest is taken.
dpdk-plugin-link:
	$(CC) -shared -fPIC -O3 -Wall -Wextra -Werror $(shell pkg-config --cflags libdpdk 2>/dev/null) \
		-o $(DPDK_LIB)/librte_mempool_bywash.so crates/dpdk-mempool/shim/mempool.c \
		-Wl,--version-script=crates/dpdk-mempool/shim/exports.map -Wl,--gc-sections \
		"$$(ls -t $(DPDK_LIB)/{,deps/}libbywash_dpdk_mempool*.a 2>/dev/null | head -n1)" \
		-Wl,--as-needed $(shell pkg-config --libs-only-L libdpdk 2>/dev/null) -lrte_mempool -lrte_eal
	@echo "$(DPDK_LIB)/librte_mempool_bywash.so: load it with the EAL option -d"

# SEED, FEATURES, FINDINGS, PACKETS, SETTLE_MS, LATENCY: see the head of crates/bywash/tests/differential/main.rs.
SECONDS_EACH = $(or $(SECONDS),60)
differential: ## compare Bywash with a kernel alone on random configurations and packets (SECONDS=N SEED=N LEVEL=user|driver|auto)
	@tools/setup.sh test
	$(foreach name,SEED LEVEL FEATURES FINDINGS PACKETS SETTLE_MS LATENCY,DIFFERENTIAL_$(name)=$($(name))) \
		DIFFERENTIAL_SECONDS=$(SECONDS_EACH) $(RUN_AS_ROOT) $(CARGO) test --workspace --locked --test differential -- \
		--nocapture --test-threads 1

soak: ## traffic, floods, garbage, hostile clients and changes of everything for MINUTES (10); checks for leaks and growth
	@tools/setup.sh test
	BYWASH_SOAK_SECONDS=$$(($(or $(MINUTES),10) * 60)) $(RUN_AS_ROOT) $(CARGO) test --release --locked -p bywash --test e2e -- soak --show-output

bench: ## benchmark forwarding and its DPDK peer in the same run (L3FWD=path of DPDK's l3fwd; default: testpmd)
	@tools/setup.sh bench
	$(CARGO) build --release --locked -p bywash
	$(SUDO) bench/peers/forward.sh --bywash $(abspath $(BYWASH)) $(if $(L3FWD),--l3fwd $(L3FWD))

# The default build comes last, so that it is the one left at $(BYWASH).
bench-programs: ## build what bench/peers/run measures: the program, variants without prefetching and with DPDK ports, the plugin
	@tools/setup.sh bench
	$(CARGO) build --release --locked -p bywash --features no-prefetch && cp $(BYWASH) $(BYWASH)-no-prefetch
	@! $(HAS_DPDK) || { $(MAKE) --no-print-directory dpdk-plugin && \
		$(CARGO) build --release --locked -p bywash --features dpdk && cp $(BYWASH) $(BYWASH)-dpdk; }
	$(CARGO) build --release --locked -p bywash

install: ## install program, man page, completions and sources (DESTDIR, PREFIX); run `make` first
	@test -x $(BYWASH) || { echo "no $(BYWASH): run 'make' first, as yourself" >&2; exit 1; }
	@test -d $(SOURCES) || { echo "no $(SOURCES): run 'make' first, as yourself" >&2; exit 1; }
	install -D -m 755 $(BYWASH) $(DESTDIR)$(PREFIX)/bin/bywash
	install -d $(DESTDIR)$(PREFIX)/share/man/man1 $(DESTDIR)$(PREFIX)/share/bash-completion/completions
	install -d $(DESTDIR)$(PREFIX)/share/zsh/site-functions $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d
	$(BYWASH) man --out $(DESTDIR)$(PREFIX)/share/man/man1
	$(BYWASH) completion bash > $(DESTDIR)$(PREFIX)/share/bash-completion/completions/bywash
	$(BYWASH) completion zsh > $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_bywash
	$(BYWASH) completion fish > $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/bywash.fish
	install -d $(DESTDIR)$(PREFIX)/share/bywash
	rm -rf $(DESTDIR)$(PREFIX)/share/bywash/src
	cp -R $(SOURCES) $(DESTDIR)$(PREFIX)/share/bywash/src

c-library: ## build the C library of the dispatching device (docs/guide.md, target/release/libbywash_npe.*)
	@tools/setup.sh build
	$(CARGO) build --release --locked -p bywash-npe-c

install-c-library: ## install it with its header (DESTDIR, PREFIX); run `make c-library` first
	@test -e $(TARGET_DIR)/release/libbywash_npe.a || { echo "run 'make c-library' first, as yourself" >&2; exit 1; }
	install -D -m 644 crates/npe-c/include/bywash_npe.h $(DESTDIR)$(PREFIX)/include/bywash_npe.h
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/lib $(TARGET_DIR)/release/libbywash_npe.a $(TARGET_DIR)/release/libbywash_npe.so

deb: build ## build a Debian package in this directory
	@tools/setup.sh package
	contrib/debian/build $(BYWASH) .

# Not part of `make test`: it downloads a Debian root, and takes minutes.
test-deb: deb ## install, upgrade, run and purge the package in a bare Debian root (BASE=FILE.tar keeps that root)
	$(SUDO) BASE=$(BASE) contrib/debian/test ./bywash_*_$$(dpkg --print-architecture).deb

uninstall: ## remove the installed files
	rm -f $(DESTDIR)$(PREFIX)/bin/bywash $(DESTDIR)$(PREFIX)/share/man/man1/bywash.1
	rm -f $(DESTDIR)$(PREFIX)/share/man/man1/bywash-*.1
	rm -f $(DESTDIR)$(PREFIX)/share/bash-completion/completions/bywash $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_bywash
	rm -f $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/bywash.fish
	rm -rf $(DESTDIR)$(PREFIX)/share/bywash
	rm -f $(DESTDIR)$(PREFIX)/include/bywash_npe.h $(DESTDIR)$(PREFIX)/lib/libbywash_npe.a
	rm -f $(DESTDIR)$(PREFIX)/lib/libbywash_npe.so

clean: ## remove build and benchmark outputs
	rm -rf $(TARGET_DIR) out

help: ## print this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 20
