# Two commands are all a newcomer needs: `make demo` and `make test`. Both say what they do and are safe to run twice.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

CARGO ?= cargo
TRIPLE := $(shell rustc -vV | sed -n 's/^host: //p')
TARGET_DIR := $(or $(CARGO_TARGET_DIR),$(CURDIR)/target)
RELEASE := $(TARGET_DIR)/$(TRIPLE)/release/belljar
DEBUG := $(TARGET_DIR)/$(TRIPLE)/debug
# A debug binary with a release's features: a release's link-time optimisation takes longer than all tests together.
PLAIN := $(TARGET_DIR)/plain/belljar
# Lets the tests take single walls away, to show that they matter. A release is built without it.
TEST_FEATURES := --features belljar/mutation,belljar-local/mutation

# The system's Python, which has what makes virtual environments.
PYTHON ?= $(firstword $(wildcard /usr/bin/python3) python3)
# How long each run of schemathesis takes.
SECONDS_EACH ?= 200

# With the features that nextest gives to the crates it tests: `-p belljar` alone would build most of them a second time.
DEBUG_BUILD = $(CARGO) build --quiet --locked --workspace --bin belljar --test store

# Cases that run tools of others are in a directory of their own, as `make test` does not run them.
ONLY_CASES = $(filter-out K23%,$(ONLY))
ONLY_TOOLS = $(filter K K23%,$(ONLY))
HOSTILE_CASES = $(if $(ONLY),$(ONLY_CASES),all)
HOSTILE_TOOLS = $(if $(ONLY),$(ONLY_TOOLS),all)

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
	@$(MAKE) --no-print-directory lint plain
	@echo "== Running the tests"
	@BELLJAR_RELEASE=$(PLAIN) $(CARGO) nextest run --workspace --locked $(TEST_FEATURES)
	@$(MAKE) --no-print-directory kernels
	@$(MAKE) --no-print-directory sdks
	@$(MAKE) --no-print-directory schemathesis SECONDS_EACH=20 SEED=1

plain: # Builds a debug binary with a release's features, for the tests that need one.
	@echo "== Building belljar without its test features"
	@$(DEBUG_BUILD)
	@install -D $(DEBUG)/belljar $(PLAIN)

kernels: ## Runs the tests of the interpreters' kernels, without a sandbox.
	@echo "== Running the tests of the Python kernel (some minutes)"
	@scripts/quietly.sh $(TARGET_DIR)/test-logs/kernel-python.log $(MAKE) -C kernels/python test VENV=$(TARGET_DIR)/kernel-python
	@echo "== Running the tests of the JavaScript kernel (about a minute)"
	@if node -e 'process.exit(parseInt(process.versions.node) < 18 ? 1 : 0)'; then \
	  scripts/quietly.sh $(TARGET_DIR)/test-logs/kernel-javascript.log $(MAKE) -C kernels/javascript test; \
	else echo "SKIPPED the JavaScript kernel: needs Node 18 or later"; fi

# The debug binary is the one that the tests have built.
sdks: ## Runs the tests of both SDKs, each against servers of its own.
	@$(DEBUG_BUILD) $(TEST_FEATURES)
	@echo "== Running the tests of the Python SDK (about a minute)"
	@BELLJAR_BIN=$(DEBUG)/belljar scripts/quietly.sh $(TARGET_DIR)/test-logs/sdk-python.log $(MAKE) -C sdk/python test VENV=$(TARGET_DIR)/sdk-python
	@echo "== Running the tests of the TypeScript SDK (about a minute)"
	@if node -e 'process.exit(parseInt(process.versions.node) < 18 ? 1 : 0)'; then \
	  BELLJAR_BIN=$(DEBUG)/belljar scripts/quietly.sh $(TARGET_DIR)/test-logs/sdk-typescript.log $(MAKE) -C sdk/typescript test; \
	else echo "SKIPPED the TypeScript SDK: needs Node 18 or later"; fi

# Runs of three callers, each of which takes some seconds more than it is given.
schemathesis: $(TARGET_DIR)/schemathesis/made ## Tries all that the OpenAPI document allows and forbids, with keys of two tenants (ten minutes).
	@$(DEBUG_BUILD) $(TEST_FEATURES)
	@echo "== Running schemathesis (three times $(SECONDS_EACH) s)"
	@scripts/quietly.sh $(TARGET_DIR)/test-logs/schemathesis.log $(TARGET_DIR)/schemathesis/bin/python tests/schemathesis/run.py --belljar $(DEBUG)/belljar --seconds-each $(SECONDS_EACH) $(if $(SEED),--seed $(SEED))

$(TARGET_DIR)/schemathesis/made: tests/schemathesis/requirements.txt
	@$(PYTHON) -m venv --clear $(@D)
	@$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	@touch $@

lint: ## Checks format and lints.
	@echo "== Checking format and lints"
	@$(CARGO) fmt --all --check
	@$(CARGO) clippy --workspace --all-targets --locked $(TEST_FEATURES) -- -D warnings

hostile: build ## Attacks the sandbox with every case of tests/hostile; ONLY="K N03" picks groups and cases.
	@scripts/install-deps.sh hostile
	@echo "== Building belljar with the walls that can be taken away"
	@$(CARGO) build --locked -p belljar -p belljar-hostile --features belljar/mutation
	@$(if $(HOSTILE_CASES),echo "== Running the hostile suite"; $(DEBUG)/belljar-hostile --belljar $(RELEASE) --mutated $(DEBUG)/belljar $(ONLY_CASES))
	@$(if $(HOSTILE_TOOLS),echo "== Running tools of others in sandboxes (about a minute)"; $(DEBUG)/belljar-hostile --cases tests/hostile/tools --belljar $(RELEASE) --mutated $(DEBUG)/belljar $(ONLY_TOOLS))

leaks: ## Runs 10,000 sandboxes, and kills 1,000 at a random instant, and looks for what is left behind.
	@scripts/install-deps.sh test
	@echo "== Looking for leaks (takes some minutes)"
	@BELLJAR_LONG_LEAKS=1 $(CARGO) nextest run -p belljar --locked --features belljar/mutation -E 'binary(leaks)'

crash: ## Kills a server under load at 200 random instants (ROUNDS), and looks for what is lost (some minutes).
	@scripts/install-deps.sh test
	@echo "== Killing servers"
	@BELLJAR_LONG_CRASH=$(or $(ROUNDS),200) $(CARGO) nextest run -p belljar --locked $(TEST_FEATURES) --no-capture -E 'binary(service) & test(/^crash::/)'

soak: build ## Loads a server for ten minutes, and looks for failures, growth and leftovers.
	@scripts/install-deps.sh test
	@echo "== Loading a server (ten minutes)"
	@BELLJAR_LONG_SOAK=1 BELLJAR_RELEASE=$(RELEASE) $(CARGO) nextest run -p belljar --locked $(TEST_FEATURES) --no-capture -E 'binary(service) & test(/^soak::/)'

bench: build ## Measures the speed against bare processes and bubblewrap.
	@scripts/install-deps.sh test
	@BELLJAR=$(RELEASE) $(if $(PEERS),bench/peers.sh) /usr/bin/python3 bench/bench.py --write $(BENCH_FLAGS)

bench-peers: ## The same, and against Docker, runc, crun and gVisor (root, Debian).
	@$(MAKE) --no-print-directory bench PEERS=1

bench-service: build ## Measures the service: first command done, bursts, files, executions, idle sandboxes.
	@scripts/install-deps.sh test
	@BELLJAR=$(RELEASE) $(if $(PEERS),bench/peers.sh) /usr/bin/python3 bench/service.py --write $(BENCH_FLAGS)

bench-interpreter: build ## Measures code in contexts: new sandboxes, live cells, pandas, pictures, idle contexts.
	@scripts/install-deps.sh test
	@BELLJAR=$(RELEASE) $(if $(PEERS),BELLJAR_IPYKERNEL=$(TARGET_DIR)/bench-ipykernel/bin/python bench/peers.sh) /usr/bin/python3 bench/interpreter.py --write $(BENCH_FLAGS)

bench-interpreter-peers: $(TARGET_DIR)/bench-ipykernel/made ## The same, and against Docker and a plain ipykernel (root, Debian).
	@$(MAKE) --no-print-directory bench-interpreter PEERS=1

$(TARGET_DIR)/bench-ipykernel/made: bench/requirements.txt
	@$(PYTHON) -m venv --clear $(@D)
	@$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	@touch $@

bench-service-peers: ## The same, and against `docker run` (root, Debian).
	@$(MAKE) --no-print-directory bench-service PEERS=1

fuzz: ## Fuzzes each parser for TIME seconds (60), JOBS (2) at once. Needs cargo-fuzz and g++.
	@TIME=$(or $(TIME),60) JOBS=$(or $(JOBS),2) scripts/fuzz.sh $(TARGETS)

proto: ## Generates the protocol's code anew (needs protoc).
	@$(CARGO) run --locked -p belljar-proto --example generate

.PHONY: help build demo test plain kernels sdks schemathesis lint hostile leaks crash soak bench bench-peers bench-service bench-service-peers bench-interpreter bench-interpreter-peers fuzz proto
