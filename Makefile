# Bywash: build, demo, tests. `make help` lists the targets. Everything works as root and as a user with sudo.

SHELL := /bin/bash
PREFIX ?= /usr/local
DESTDIR ?=

# A toolchain of rustup's goes before the distribution's, which is too old.
export PATH := $(HOME)/.cargo/bin:$(PATH):/usr/sbin:/sbin

CARGO ?= cargo
SUDO := $(if $(filter 0,$(shell id -u)),,sudo)
TARGET := $(or $(CARGO_TARGET_DIR),target)
BYWASH := $(TARGET)/release/bywash

# As a user, cargo builds as that user and only the test programs run as root.
ifneq ($(SUDO),)
# Found out in the recipe: before 4.4, make's own shell function does not see the PATH above.
RUN_AS_ROOT = env "CARGO_TARGET_$$(rustc -vV | sed -n 's/^host: //p' | tr 'a-z-' 'A-Z_')_RUNNER=sudo -E"
endif

# The test runner keeps a passing test's output to itself, and a skipped test passes: CI wants to see it.
TEST_FLAGS := $(if $(CI),--show-output)

.PHONY: build demo test test-workspace differential test-loom test-vm bpf bpf-check rtl rtl-quick rtl-synth dpdk-plugin lint bench bench-programs soak install deb test-deb uninstall clean help
.DEFAULT_GOAL := build

build: ## build the program (target/release/bywash)
	@tools/setup.sh build
	$(CARGO) build --release --locked -p bywash

demo: ## host - router - host on this machine: the kernel and Bywash in turn, then everything is removed
	@tools/setup.sh demo
	$(CARGO) build --release --locked -p bywash
	$(SUDO) $(BYWASH) demo

test: ## everything: unit, property, end-to-end (as root), model checking, the BPF object
	@tools/setup.sh test
	@$(MAKE) --no-print-directory test-workspace
	@$(MAKE) --no-print-directory test-loom
	@$(MAKE) --no-print-directory bpf-check
	@$(MAKE) --no-print-directory rtl-quick

# The plugin's tests find it beside themselves, and say SKIP where DPDK is missing.
test-workspace:
	@! pkg-config --exists libdpdk 2>/dev/null || $(MAKE) --no-print-directory dpdk-plugin DPDK_PROFILE=dev
	$(RUN_AS_ROOT) $(CARGO) test --workspace --locked -- $(TEST_FLAGS)
	@if pkg-config --exists libdpdk 2>/dev/null; then \
		$(RUN_AS_ROOT) $(CARGO) test --locked -p bywash-dpdk --features dpdk -- $(TEST_FLAGS) && \
		$(RUN_AS_ROOT) $(CARGO) test --locked -p bywash --features dpdk --test e2e dpdk -- $(TEST_FLAGS); \
	else echo "SKIP: no libdpdk: its ports are not tested"; fi

# A directory of its own: the flag changes every crate. Doc tests cannot run inside a model.
test-loom: ## the concurrent parts under every interleaving (loom)
	RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=$(TARGET)/loom $(CARGO) test --release --locked --lib -p bywash-sync -p bywash-frame

KERNEL ?= 6.1 6.12 6.18
test-vm: ## what depends on the kernel or on a NIC, in emulated machines (KERNEL="6.1 6.12 6.18"; about half an hour each)
	@tools/setup.sh vm
	lab/vm/run $(KERNEL)

bpf: ## rebuild the XDP object from its C source (needs clang)
	@tools/setup.sh bpf
	$(MAKE) -C xdp

bpf-check: ## is the committed XDP object what its source gives? (with the compiler it was built with)
	@$(MAKE) --no-print-directory -C xdp check

# The host driver on the simulated engine: blocks of 64 cells.
RTL_TEST = BYWASH_RTL_ENGINE=$(CURDIR)/rtl/build/cosim64$(1)/cosim $(CARGO) test --locked -p bywash-port --features rtl \
	--test npe_rtl -- $(TEST_FLAGS)
rtl-quick: ## the hardware engine: lint, benches, the host driver on the simulation (docs/rtl.md)
	@if command -v verilator >/dev/null; then $(MAKE) --no-print-directory -j2 -C rtl quick && $(call RTL_TEST,); \
	else echo "SKIP: no verilator: the hardware engine is not tested"; fi

rtl: ## all of the hardware engine's checks: random traffic at length, proofs, mutations
	@tools/setup.sh rtl
	@$(MAKE) --no-print-directory -j2 -C rtl all build/cosim64/cosim build/cosim64sdb/cosim build/cosim1024/cosim
	$(call RTL_TEST,)
	BYWASH_RTL_POOL=sdb $(call RTL_TEST,sdb)

rtl-synth: ## what the hardware engine takes of a chip, and its clock (tens of minutes)
	@tools/setup.sh rtl
	@$(MAKE) --no-print-directory -C rtl synth

lint: ## formatting and clippy, warnings are errors
	@tools/setup.sh lint
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	$(CARGO) clippy --locked -p bywash-port --features rtl --lib --test npe_rtl -- -D warnings
	@if pkg-config --exists libdpdk 2>/dev/null; then \
		$(CARGO) clippy --locked -p bywash-dpdk -p bywash --features bywash/dpdk --all-targets -- -D warnings; \
	else echo "no libdpdk: what the feature dpdk adds is not linted"; fi

# Objects for another program's process: the C part knows DPDK, the Rust part is the pools. A profile of the tests' is
# built quicker (DPDK_PROFILE=dev).
DPDK_PROFILE ?= release
DPDK_LIB = $(TARGET)/$(if $(filter dev,$(DPDK_PROFILE)),debug,$(DPDK_PROFILE))
dpdk-plugin: ## librte_mempool_bywash.so: the buffer policies for DPDK's programs (needs libdpdk-dev)
	@pkg-config --exists libdpdk || { echo "no libdpdk for pkg-config: install libdpdk-dev, or build DPDK" >&2; exit 1; }
	$(CARGO) rustc --profile $(DPDK_PROFILE) --locked -p bywash-dpdk-mempool --crate-type staticlib
	$(CC) -shared -fPIC -O3 -Wall -Wextra -Werror $(shell pkg-config --cflags libdpdk 2>/dev/null) \
		-o $(DPDK_LIB)/librte_mempool_bywash.so crates/dpdk-mempool/shim/mempool.c \
		-Wl,--version-script=crates/dpdk-mempool/shim/exports.map -Wl,--gc-sections \
		$(DPDK_LIB)/libbywash_dpdk_mempool.a \
		-Wl,--as-needed $(shell pkg-config --libs-only-L libdpdk 2>/dev/null) -lrte_mempool -lrte_eal
	@echo "$(DPDK_LIB)/librte_mempool_bywash.so: load it with the EAL option -d"

# SEED, FEATURES, FINDINGS, PACKETS, SETTLE_MS, LATENCY: see the head of crates/bywash/tests/differential/main.rs.
SECONDS_EACH = $(or $(SECONDS),60)
differential: ## random configurations and packets: does Bywash what a kernel alone does? (SECONDS=N SEED=N LEVEL=user|driver|auto)
	@tools/setup.sh test
	$(foreach name,SEED LEVEL FEATURES FINDINGS PACKETS SETTLE_MS LATENCY,DIFFERENTIAL_$(name)=$($(name))) \
		DIFFERENTIAL_SECONDS=$(SECONDS_EACH) $(RUN_AS_ROOT) $(CARGO) test --workspace --locked --test differential -- \
		--nocapture --test-threads 1

soak: ## ten minutes of traffic, route churn, interface flaps and garbage at once: nothing may leak or grow
	@tools/setup.sh test
	BYWASH_SOAK_SECONDS=600 $(RUN_AS_ROOT) $(CARGO) test --release --locked -p bywash --test e2e -- soak --show-output

bench: ## the benchmarks, and the peers in the same run (L3FWD=path of a DPDK l3fwd; testpmd without)
	@tools/setup.sh bench
	$(CARGO) build --release --locked -p bywash
	$(SUDO) bench/peers/forward.sh --bywash $(abspath $(BYWASH)) $(if $(L3FWD),--l3fwd $(L3FWD))

# The last build is the program as it is.
bench-programs: ## what bench/peers/run measures: the program, one without prefetching, one with DPDK's ports, the plugin
	@tools/setup.sh bench
	$(CARGO) build --release --locked -p bywash --features no-prefetch && cp $(BYWASH) $(BYWASH)-no-prefetch
	@! pkg-config --exists libdpdk 2>/dev/null || { $(MAKE) --no-print-directory dpdk-plugin && \
		$(CARGO) build --release --locked -p bywash --features dpdk && cp $(BYWASH) $(BYWASH)-dpdk; }
	$(CARGO) build --release --locked -p bywash

install: ## install program, manual page and completions (DESTDIR, PREFIX); run `make` first
	@test -x $(BYWASH) || { echo "no $(BYWASH): run 'make' first, as yourself" >&2; exit 1; }
	install -D -m 755 $(BYWASH) $(DESTDIR)$(PREFIX)/bin/bywash
	install -d $(DESTDIR)$(PREFIX)/share/man/man1 $(DESTDIR)$(PREFIX)/share/bash-completion/completions
	install -d $(DESTDIR)$(PREFIX)/share/zsh/site-functions $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d
	$(BYWASH) man > $(DESTDIR)$(PREFIX)/share/man/man1/bywash.1
	$(BYWASH) completion bash > $(DESTDIR)$(PREFIX)/share/bash-completion/completions/bywash
	$(BYWASH) completion zsh > $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_bywash
	$(BYWASH) completion fish > $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/bywash.fish

deb: build ## a Debian package of the program, in this directory
	contrib/debian/build $(BYWASH) .

# Not part of `make test`: it fetches a Debian, and takes minutes.
test-deb: deb ## install, upgrade, run and purge the package in a bare Debian root (BASE=FILE.tar keeps that root)
	$(SUDO) BASE=$(BASE) contrib/debian/test ./bywash_*_$$(dpkg --print-architecture).deb

uninstall: ## remove what install put there
	rm -f $(DESTDIR)$(PREFIX)/bin/bywash $(DESTDIR)$(PREFIX)/share/man/man1/bywash.1
	rm -f $(DESTDIR)$(PREFIX)/share/bash-completion/completions/bywash $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_bywash
	rm -f $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/bywash.fish

clean: ## remove what was built and measured
	rm -rf $(TARGET) out

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 14
