# Two commands are all a newcomer needs: `make demo` and `make test`. Both say what they do and are safe to run twice.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

CARGO ?= cargo
TRIPLE := $(shell rustc -vV | sed -n 's/^host: //p')
TARGET_DIR := $(or $(CARGO_TARGET_DIR),$(CURDIR)/target)
RELEASE := $(TARGET_DIR)/$(TRIPLE)/release/belljar
# Lets the tests take single walls away, to show that they matter. A release is built without it.
TEST_FEATURES := --features belljar/mutation,belljar-local/mutation

help: ## Says what can be made.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

build: ## Builds the release binary.
	@echo "== Building belljar (release; a first build takes some minutes)"
	@$(CARGO) build --release --locked -p belljar
	@echo "== Built $(RELEASE)"

demo: ## Installs what is missing, builds, and runs the examples.
	@scripts/install-deps.sh demo
	@$(MAKE) --no-print-directory build
	@BELLJAR=$(RELEASE) scripts/demo.sh

test: ## Installs what the tests need, and runs all of them.
	@scripts/install-deps.sh test
	@$(MAKE) --no-print-directory lint build
	@echo "== Running the tests"
	@BELLJAR_RELEASE=$(RELEASE) $(CARGO) nextest run --workspace --locked $(TEST_FEATURES)

lint: ## Checks format and lints.
	@echo "== Checking format and lints"
	@$(CARGO) fmt --all --check
	@$(CARGO) clippy --workspace --all-targets --locked $(TEST_FEATURES) -- -D warnings

bench: build ## Measures the speed against bare processes and bubblewrap.
	@scripts/install-deps.sh test
	@BELLJAR=$(RELEASE) /usr/bin/python3 bench/bench.py --write

fuzz: ## Fuzzes each parser for TIME seconds (60), JOBS (2) at once. Needs cargo-fuzz and g++.
	@TIME=$(or $(TIME),60) JOBS=$(or $(JOBS),2) scripts/fuzz.sh $(TARGETS)

proto: ## Generates the protocol's code anew (needs protoc).
	@$(CARGO) run --locked -p belljar-proto --example generate

.PHONY: help build demo test lint bench fuzz proto
