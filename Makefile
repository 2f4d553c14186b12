# The front door. The logic lives in xtask and tests/testbed.
DIR ?= /var/tmp/topolvm-cluster
ONLY ?=
TIME ?= 600
SEED ?=
SEQUENCES ?=
BURSTS ?=
MODE ?=
CONTROLLERS ?=
LAYERS := lint unit chart guest lvm systemd testbed control-plane cluster conformance

.PHONY: help demo test soak fuzz $(LAYERS:%=test-%) lint docs generate bench build images lvmd deb plugin dist cluster cluster-down prerequisites

help: ## This list
	@grep -hE '^[a-z%-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z%-]+):.*## /  make \1\t/' | expand -t 24

prerequisites:
	@./xtask/prerequisites

demo: prerequisites ## A pod writes to a volume cut from a real LVM volume group; KEEP=1 leaves the cluster up
	cargo build --locked --workspace --bins
	cargo run --locked --quiet --package system-tests --bin demo -- $(if $(KEEP),--keep)

test: prerequisites ## What each change must pass: lint, unit and service tests, real LVM, a real cluster, CSI conformance
	cargo xtask test

$(LAYERS:%=test-%): test-%: prerequisites
	cargo xtask test $*

fuzz: prerequisites ## The fuzz targets, ten minutes each; ONLY=TARGET runs one, TIME=SECONDS
	cargo xtask fuzz --seconds $(TIME) $(if $(ONLY),--only $(ONLY))

lint: prerequisites ## Format, clippy, documentation, licences and dependency rules, generated files
	cargo xtask lint

docs: prerequisites ## The documentation as a book, in target/book/html, with its links checked
	cargo xtask docs

generate: ## Write the files that are generated from the code
	cargo xtask generate

bench: prerequisites build ## Figures against their goals; ONLY=PREFIX runs a part
	cargo run --locked --quiet --release --package bench -- $(if $(ONLY),--only $(ONLY))

soak: prerequisites ## What takes too long for each change: ONLY=lvm|long|csi|scheduling|monitoring|monitoring-faults|restarts|oldest (ONLY=monitoring runs both) SEED=N SEQUENCES=N DISTURB=KIND CONTROLLERS=embedded|sidecars|changing BURSTS=N MODE=capacity|embedded-capacity|extender|extender-without-reservations
	$(if $(filter oldest,$(ONLY)),TESTBED_KUBERNETES=oldest cargo xtask test control-plane cluster conformance)
	$(if $(ONLY),,cargo xtask soak)
	$(if $(filter lvm,$(ONLY)),cargo xtask soak lvm)
	$(if $(filter long,$(ONLY)),cargo xtask soak cluster control-plane conformance chart testbed guest)
	$(if $(filter lvm long oldest,$(ONLY)),,cargo build --locked --workspace --bins)
	$(if $(filter lvm long oldest,$(ONLY)),,cargo run --locked --quiet --package soak -- $(if $(ONLY),--only $(ONLY)) $(if $(SEED),--seed $(SEED)) $(if $(SEQUENCES),--sequences $(SEQUENCES)) $(if $(DISTURB),--disturb $(DISTURB)) $(if $(CONTROLLERS),--controllers $(CONTROLLERS)) $(if $(BURSTS),--bursts $(BURSTS)) $(if $(MODE),--mode $(MODE)))

build: lvmd ## The programs, optimised, in target/release
	cargo build --locked --release -p topolvm-node -p topolvm-controller -p topolvm-scheduler -p kubectl-topolvm

images: prerequisites build ## The container image with its bill of materials, in target/images; no container engine is needed
	cargo xtask images

# With its C library inside, lvmd runs on each Linux of its architecture. The others look up names of hosts, for which
# glibc loads its shared libraries.
lvmd:
	cargo rustc --locked --release -p lvmd --bin lvmd -- -C target-feature=+crt-static

deb: prerequisites lvmd ## The Debian package of lvmd with its systemd unit, in target/debian
	cargo xtask deb

# Runs on each Linux of its architecture, whatever its C library
MUSL := $(shell uname -m)-unknown-linux-musl

plugin: ## The kubectl plugin as a static program, in target/ARCHITECTURE-unknown-linux-musl/release
	./xtask/prerequisites musl
	if command -v rustup >/dev/null; then rustup target add $(MUSL); fi
	CC_$(subst -,_,$(MUSL))=musl-gcc cargo build --locked --release -p kubectl-topolvm --target $(MUSL)

dist: prerequisites build plugin ## A release in target/dist; PROGRAMS_ONLY=1 leaves out what every architecture shares
	cargo xtask dist $(if $(PROGRAMS_ONLY),--programs-only)

cluster: prerequisites ## Start a cluster with the product and leave it up; DIR=... says where
	cargo build --locked --workspace --bins
	cargo run --locked --quiet --package testbed -- up $(DIR) --topolvm

cluster-down: ## Stop it; nothing is left behind
	cargo run --locked --quiet --package testbed -- down $(DIR)
