# Each target does its own set-up: scripts/setup installs what is missing through apt when root,
# else prints the exact command and stops.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
CARGO ?= cargo
OUT ?=

.PHONY: help
help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 24

.PHONY: demo
demo: ## build, then measure what idle connections cost under every mechanism (90 s after the build)
	@scripts/setup build
	$(CARGO) build --release --locked --bin pollux
	@./target/release/pollux lab run idle --quick $(if $(OUT),--out $(OUT))
	@printf '\nServe a directory of your own:\n  ./target/release/pollux serve DIR --listen 127.0.0.1:8080\n'

.PHONY: test
test: ## everything that CI runs: format, lints, documentation, all tests, test-kmod
	@scripts/setup build guest
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --locked --workspace --no-deps --document-private-items
	POLLUX_VM_REQUIRED=1 $(CARGO) test --locked --workspace --no-fail-fast
	kmod/test

.PHONY: test-kmod
test-kmod: ## /dev/poll in guests, both stock kernels: selftests, contract suite, races widened
	@scripts/setup build guest
	kmod/test

.PHONY: test-kmod-debug
test-kmod-debug: ## selftests under KASAN, lockdep and kmemleak; builds that kernel first (10 minutes, once)
	@scripts/setup build guest debug-kernel
	kmod/test debug

.PHONY: release
release: ## the optimised binary, target/release/pollux
	@scripts/setup build
	$(CARGO) build --release --locked --bin pollux

.PHONY: bench
bench: ## Pollux beside the floor, nginx, h2o, lighttpd and wrk; ends with each goal, met or missed
	@scripts/setup build peers
	$(CARGO) build --release --locked --bin pollux --bin pollux-bench
	$(CARGO) build --release --locked --package pollux-event --example floor
	./target/release/pollux-bench $(if $(OUT),--out $(OUT))

.PHONY: bench-event
bench-event: ## what one wait, one change and one event cost, mechanism by mechanism; OUT=FOLDER for the data
	@scripts/setup build
	$(CARGO) bench --locked --package pollux-event -- --out $(abspath $(or $(OUT),results/bench-event-$(shell date +%s)))

.PHONY: bench-kmod
bench-kmod: ## instructions per wait of /dev/poll beside epoll, in deterministic guests; each goal, met or missed
	@scripts/setup build guest
	OUT='$(OUT)' kmod/bench

.PHONY: clean
clean: ## remove what was built
	$(CARGO) clean
