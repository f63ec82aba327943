# Each target does its own set-up: scripts/setup installs missing packages through apt if it runs as root. Otherwise it
# prints the exact command and stops.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
CARGO ?= cargo
OUT ?=
# Where cargo puts the programs and libraries that it builds.
RELEASE := $(or $(CARGO_TARGET_DIR),target)/release
# The environment of scripts: the path of this program, unless POLLUX names another one.
program = POLLUX='$(or $(POLLUX),$(RELEASE)/pollux)'

.PHONY: help
help: ## this list
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 26

.PHONY: demo
demo: ## build, then measure what idle connections cost under four mechanisms (90 s after the build)
	@scripts/setup build
	$(CARGO) build --release --locked --bin pollux
	@'$(RELEASE)/pollux' lab run idle --quick $(if $(OUT),--out '$(OUT)')
	@printf '\nServe a directory of your own:\n  %s/pollux serve DIR --listen 127.0.0.1:8080\n' '$(RELEASE)'

.PHONY: demo-frontend
demo-frontend: ## Pollux in front of Debian's Apache, which is stopped under load: every request is still answered (half a minute)
	@scripts/setup build peers
	$(CARGO) build --release --locked --bin pollux
	@$(program) OUT='$(OUT)' scripts/demo-frontend

.PHONY: demo-push
demo-push: ## 50,000 subscribers, or as many as the limits allow, get updates from the hub and from a bare loop of send(2) (under a minute); SUBSCRIBERS=N
	@scripts/setup build test
	$(CARGO) build --release --locked --bin pollux
	@$(program) OUT='$(OUT)' scripts/demo-push $(SUBSCRIBERS)

.PHONY: push-figures
push-figures: ## memory, CPU and latency of the hub beside nchan, Pushpin and Centrifugo (where installed); OUT=FOLDER
	@scripts/setup build test push-peers
	$(CARGO) build --release --locked --bin pollux
	@$(program) scripts/push-figures $(if $(OUT),--out '$(OUT)')

.PHONY: push-churn
push-churn: ## memory of the same servers while subscribers come and go for an hour; OUT=FOLDER
	@scripts/setup build test push-peers
	$(CARGO) build --release --locked --bin pollux
	@$(program) scripts/push-churn $(if $(OUT),--out '$(OUT)')

.PHONY: tls-figures
tls-figures: ## what TLS costs Pollux, the floor, nginx, h2o and HAProxy: memory, requests, bytes, handshakes; OUT=FOLDER
	@scripts/setup build peers
	$(CARGO) build --release --locked --bin pollux
	@$(program) scripts/tls-figures $(if $(OUT),--out '$(OUT)')

.PHONY: upgrade-figures
upgrade-figures: ## failed requests and lost connections while Pollux, nginx and HAProxy are reloaded and replaced; OUT=FOLDER
	@scripts/setup build peers
	$(CARGO) build --release --locked --bin pollux
	@$(program) scripts/upgrade-figures $(if $(OUT),--out '$(OUT)')

.PHONY: check
check: ## format, lints, unit tests of the crates that changed (BASE=COMMIT: since then); no root
	@scripts/setup build
	@CARGO='$(CARGO)' scripts/check

.PHONY: test
test: ## every crate's tests, a real Redis, /dev/poll in a guest; ends with one line
	@CARGO='$(CARGO)' scripts/test usual

.PHONY: test-all
test-all: ## what CI runs after `make test`: lints, documentation, slow tests, MPI, a hub's clients, all guest kernels, fuzz targets
	@CARGO='$(CARGO)' scripts/test more

# Seconds for each fuzz target.
TIME ?= 60
TARGET ?= all

.PHONY: fuzz
fuzz: ## fuzz TARGET=all for TIME=60 seconds each, from the kept corpus; failing inputs are kept in fuzz/artifacts
	@scripts/setup build fuzz
	@CARGO='$(CARGO)' scripts/fuzz '$(TARGET)' '$(TIME)'

.PHONY: test-fresh
test-fresh: ## `make test` and `make demo` on bare Debian 12 and 13 (as root; an hour or more); OUT=FOLDER keeps their output
	@OUT='$(OUT)' scripts/test-fresh

.PHONY: test-install
test-install: ## `cargo install` of the program, into a separate folder
	@scripts/setup build
	$(CARGO) install --locked --debug --force --path crates/cli --root target/installed
	target/installed/bin/pollux --version

.PHONY: test-kmod
test-kmod: ## the long tests of /dev/poll, also on the newest kernel: all combinations of options, races widened
	@scripts/setup build guest selftests
	kmod/test
	kmod/test newest

.PHONY: test-kmod-debug
test-kmod-debug: ## selftests under KASAN, lockdep, kmemleak; then KCSAN; static checkers (builds two kernels, once)
	@scripts/setup build guest selftests debug-kernel
	kmod/test debug
	kmod/test kcsan

.PHONY: test-kmod-arm64
test-kmod-arm64: ## /dev/poll cross-built for arm64, selftests in an emulated arm64 guest
	@scripts/setup build guest arm64
	kmod/arm64

.PHONY: book
book: ## the documentation as a book: target/book/index.html (builds mdBook once if it is not installed)
	@scripts/setup build
	@scripts/book

.PHONY: release
release: ## the optimised binary, target/release/pollux
	@scripts/setup build
	$(CARGO) build --release --locked --bin pollux

.PHONY: static
static: ## one file that runs on any Linux, without symbols: target/ARCHITECTURE-unknown-linux-musl/release/pollux
	@scripts/setup build static
	CARGO='$(CARGO)' scripts/static

# With BINARY, make installs that program and builds nothing. It then installs the C interface only with LIBRARIES, the
# folder that contains libpollux.a and libpollux.so.
PREFIX ?= /usr/local
DESTDIR ?=
BINARY ?=
LIBRARIES ?=
share = $(DESTDIR)$(PREFIX)/share

.PHONY: install
install: ## program, completions, man pages, C interface; PREFIX=/usr/local DESTDIR= BINARY= LIBRARIES=
	$(if $(BINARY),,$(MAKE) release)
	install -D -m 755 '$(or $(BINARY),$(RELEASE)/pollux)' '$(DESTDIR)$(PREFIX)/bin/pollux'
	install -d '$(share)/bash-completion/completions' '$(share)/zsh/site-functions' '$(share)/fish/vendor_completions.d'
	'$(DESTDIR)$(PREFIX)/bin/pollux' generate completions bash > '$(share)/bash-completion/completions/pollux'
	'$(DESTDIR)$(PREFIX)/bin/pollux' generate completions zsh > '$(share)/zsh/site-functions/_pollux'
	'$(DESTDIR)$(PREFIX)/bin/pollux' generate completions fish > '$(share)/fish/vendor_completions.d/pollux.fish'
	'$(DESTDIR)$(PREFIX)/bin/pollux' generate man '$(share)/man/man1'
	$(if $(or $(LIBRARIES),$(if $(BINARY),,built)),$(MAKE) install-c)

.PHONY: install-c
install-c: ## the C interface alone: pollux.h, libpollux.a and .so, pkg-config file, pollux_event(3)
	$(if $(LIBRARIES),,@scripts/setup build)
	$(if $(LIBRARIES),,$(CARGO) build --release --locked --package pollux-event-c)
	DESTDIR='$(DESTDIR)' scripts/install-c '$(PREFIX)' '$(or $(LIBRARIES),$(RELEASE))'

.PHONY: deb
deb: ## Debian packages in target/deb: pollux, libpollux-dev, pollux-devpoll-dkms
	$(if $(BINARY),,@scripts/setup build)
	$(if $(BINARY),,$(CARGO) build --release --locked --package pollux-event-c --package pollux)
	rm -rf target/deb
	scripts/deb '$(or $(BINARY),$(RELEASE)/pollux)' '$(or $(LIBRARIES),$(RELEASE))' target/deb $(VERSION)

.PHONY: test-deb
test-deb: ## the packages on bare Debian 12 and 13: installed, upgraded, removed, purged (as root; 10 minutes after `make deb`); OUT=FOLDER keeps their output
	[ -e target/deb ] || $(MAKE) deb
	@OUT='$(OUT)' scripts/test-deb

.PHONY: test-metrics
test-metrics: ## promtool checks the alert rules and the metrics of a running server (Debian's package prometheus)
	$(if $(BINARY),,$(MAKE) release)
	scripts/test-metrics '$(or $(BINARY),$(RELEASE)/pollux)'

.PHONY: test-push-clients
test-push-clients: ## clients of PyPI and npm, curl and headless Chromium at the hub, over TLS, while it is killed and started again; the demo page
	@scripts/setup build push-clients
	$(if $(BINARY),,$(MAKE) release)
	scripts/test-push-clients '$(or $(BINARY),$(RELEASE)/pollux)'

.PHONY: test-tls
test-tls: ## sslyze, testssl.sh, eight clients and hundreds of hostile conversations over TLS (six minutes)
	@scripts/setup build tls-suites
	$(if $(BINARY),,$(MAKE) release)
	scripts/test-tls '$(or $(BINARY),$(RELEASE)/pollux)'

.PHONY: dist
dist: static ## the static binary, packed, with checksums: target/dist
	scripts/dist

.PHONY: test-image
test-image: ## builds the image of packaging/Containerfile with buildah and serves from it (as root)
	@scripts/setup build static image
	$(MAKE) static
	scripts/test-image "$(or $(CARGO_TARGET_DIR),target)/$$(uname -m)-unknown-linux-musl/release/pollux"

.PHONY: bench
bench: ## Pollux beside the floor, nginx, h2o, lighttpd and wrk; ends with each goal, met or missed
	@scripts/setup build peers
	$(CARGO) build --release --locked --bin pollux --bin pollux-bench
	'$(RELEASE)/pollux-bench' $(if $(OUT),--out '$(OUT)')

.PHONY: bench-event
bench-event: ## the cost of one wait, one change and one event for each mechanism; OUT=FOLDER for the data
	@scripts/setup build
	$(CARGO) build --release --locked --bin pollux-bench
	'$(RELEASE)/pollux-bench' mechanisms $(if $(OUT),--out '$(OUT)')

.PHONY: cross-check
cross-check: ## the generator beside httperf, wrk, h2load, hey (and wrk2, oha if installed); OUT=FOLDER for the data
	@scripts/setup build cross-check
	$(CARGO) build --release --locked --bin pollux
	@scripts/cross-check --pollux '$(RELEASE)/pollux' $(if $(OUT),--out '$(OUT)')

.PHONY: bench-kmod
bench-kmod: ## instructions per wait of /dev/poll and epoll, in deterministic guests; each goal, met or missed
	@scripts/setup build guest
	OUT='$(OUT)' kmod/bench

.PHONY: publish
publish: ## run every experiment's quick form and keep it under docs/runs, with docs/papers.md (an hour, on a quiet machine)
	@scripts/setup build test guest peers
	$(CARGO) build --release --locked --bin pollux
	$(program) scripts/publish host
	$(program) scripts/publish deterministic

.PHONY: clean
clean: ## remove all build results
	$(CARGO) clean
