# The front door. The logic lives in xtask and tests/testbed.
DIR ?= /var/tmp/topolvm-cluster
ONLY ?=
TIME ?= 600
SEED ?=
SEQUENCES ?=
comma := ,
LAYERS := lint unit chart guest lvm systemd bed control-plane cluster conformance

.PHONY: help demo test soak fuzz $(LAYERS:%=test-%) lint generate bench build images lvmd deb dist cluster cluster-down prerequisites

help: ## This list
	@grep -hE '^[a-z%-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z%-]+):.*## /  make \1\t/' | expand -t 24

prerequisites:
	@./xtask/prerequisites

demo: prerequisites ## A pod writes to a volume cut from a real LVM volume group; KEEP=1 leaves the cluster up
	cargo build --locked --workspace --bins
	cargo run --locked --quiet --package system-tests --bin demo -- $(if $(KEEP),--keep)

test: prerequisites ## All tests: lint, unit and service tests, real LVM, a real cluster, CSI conformance
	cargo xtask test

$(LAYERS:%=test-%): test-%: prerequisites
	cargo xtask test $*

fuzz: prerequisites ## The fuzz targets, ten minutes each; ONLY=TARGET runs one, TIME=SECONDS
	cargo xtask fuzz --seconds $(TIME) $(if $(ONLY),--only $(ONLY))

lint: prerequisites ## Format, clippy, documentation, licences and dependency rules, generated files
	cargo xtask lint

generate: ## Write the files that are generated from the code
	cargo xtask generate

bench: prerequisites build ## Figures against their goals; ONLY=PREFIX runs a part
	cargo run --locked --quiet --release --package system-tests --bin bench -- $(if $(ONLY),--only $(ONLY))

soak: prerequisites ## Everything is killed at random moments: real LVM for half an hour, then a cluster; ONLY=lvm|csi SEED=N SEQUENCES=N DISTURB=KIND
	$(if $(filter csi,$(ONLY)),,cargo xtask soak)
	$(if $(filter lvm,$(ONLY)),,cargo build --locked --workspace --bins)
	$(if $(filter lvm,$(ONLY)),,cargo run --locked --quiet --package system-tests --bin soak -- $(if $(SEED),--seed $(SEED)) $(if $(SEQUENCES),--sequences $(SEQUENCES)) $(if $(DISTURB),--disturb $(DISTURB)))

# Cargo does not know of files that the linker reads: a flag that changes with them makes it link again
linked_anew_with = -C metadata=$(firstword $(shell cksum $1))

# The linker that comes with Rust, whose options these are, is what Rust uses by itself on x86-64
lld = $(if $(filter x86_64,$(shell uname -m)),$1)

# lvmd alone has everything in it, so that it runs on each Linux of its architecture, and as little of it as can be is resident. The others look up
# names of hosts, for which a static C library would need its shared one. ICF folds functions with the same code.
LVMD_LINK := -C target-feature=+crt-static $(patsubst %,-C link-arg=-Wl$(comma)%,$(call lld,-z$(comma)pack-relative-relocs --icf=all \
	--symbol-ordering-file=$(CURDIR)/crates/lvmd/c-functions --no-warn-symbol-ordering)) $(call linked_anew_with,crates/lvmd/c-functions)

# What the others do not come to while they run is not resident
LINK := $(patsubst %,-C link-arg=-Wl$(comma)%,$(call lld,--icf=all -T$(comma)$(CURDIR)/linker/idle-code.ld)) $(call linked_anew_with,linker/idle-code.ld)

# One by one: built together, each would get the features of libraries that any of them needs, the Kubernetes client first
build: lvmd ## The programs, optimised, in target/release
	for program in topolvm-node topolvm-controller topolvm-scheduler; \
		do cargo rustc --locked --release -p $$program --bin $$program -- $(LINK) || exit; done
	cargo rustc --locked --release -p kubectl-topolvm --bin kubectl-topolvm

images: prerequisites build ## The container image with its bill of materials, in target/images; no container engine is needed
	cargo xtask images

lvmd:
	cargo rustc --locked --release -p lvmd --bin lvmd -- $(LVMD_LINK)

deb: prerequisites lvmd ## The Debian package of lvmd with its systemd unit, in target/debian
	cargo xtask deb

dist: prerequisites build ## A release in target/dist; PROGRAMS_ONLY=1 leaves out what every architecture shares
	cargo xtask dist $(if $(PROGRAMS_ONLY),--programs-only)

cluster: prerequisites ## Start a cluster with the product and leave it up; DIR=... says where
	cargo build --locked --workspace --bins
	cargo run --locked --quiet --package testbed -- up $(DIR) --topolvm

cluster-down: ## Stop it; nothing is left behind
	cargo run --locked --quiet --package testbed -- down $(DIR)
