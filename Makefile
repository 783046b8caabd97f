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
# What schemathesis is told besides, such as `--seconds-each 20 --seed 7`.
SCHEMATHESIS ?=

# With the features that nextest gives to the crates it tests: `-p belljar` alone would build most of them a second time.
DEBUG_BUILD = $(CARGO) build --quiet --locked --workspace --bin belljar --bin belljar-guest --test store

NEXTEST = $(CARGO) nextest run --workspace --locked $(TEST_FEATURES)

# In the gate everything that is drawn by lot is drawn the same way each time.
SEEDS := BELLJAR_SEED=1 PROPTEST_RNG_SEED=1

# With the name of a file in GATE_JUNIT (scripts/gate.py sets it) the results of a stage's tests are left there. Nextest's own place for
# them is in the workspace, wherever the target directory is.
NEXTEST_JUNIT := target/nextest/ci/junit.xml
KEEP_JUNIT = $(if $(GATE_JUNIT),cp $(NEXTEST_JUNIT) $(GATE_JUNIT),:)
PYTEST_FLAGS = $(if $(GATE_JUNIT),--junitxml=$(GATE_JUNIT))

# What needs Node is skipped where there is none that is new enough.
HAS_NODE = node -e 'process.exit(parseInt(process.versions.node) < 18 ? 1 : 0)' 2>/dev/null

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
	@echo "== Built $(RELEASE), and belljar-guest beside it"

demo: ## Installs what is missing, builds, and runs the examples.
	@scripts/install-deps.sh demo
	@$(MAKE) --no-print-directory build
	@BELLJAR=$(RELEASE) scripts/demo.sh

test: ## The gate: runs all its stages, and says at the end how each went; ONLY="lint test-rust" picks some.
	@$(PYTHON) scripts/gate.py --logs $(TARGET_DIR)/gate $(ONLY)

# The stages of the gate, in their order; scripts/gate.py says what each needs.

deps: # Installs what the tests need.
	@scripts/install-deps.sh test

format: # Checks the format.
	@$(CARGO) fmt --all --check

lint: ## Checks lints.
	@$(CARGO) clippy --workspace --all-targets --locked $(TEST_FEATURES) -- -D warnings

# The binary without test features shares nearly all of its crates with the tests.
test-build: # Builds all tests, and a debug binary with a release's features.
	@$(DEBUG_BUILD)
	@install -D --target-directory $(dir $(PLAIN)) $(DEBUG)/belljar $(DEBUG)/belljar-guest
	@$(CARGO) nextest run --no-run --workspace --locked $(TEST_FEATURES)

test-rust: ## Runs the tests in Rust that belong to the gate.
	@rm -f $(NEXTEST_JUNIT)
	@$(SEEDS) BELLJAR_RELEASE=$(PLAIN) $(NEXTEST) --profile ci || status=$$?; $(KEEP_JUNIT) || true; exit $${status:-0}

kernel-python: ## Runs the tests of the Python kernel, without a sandbox.
	@$(MAKE) -C kernels/python test VENV=$(TARGET_DIR)/kernel-python PYTEST_FLAGS="$(PYTEST_FLAGS)"

kernel-javascript: ## Runs the tests of the JavaScript kernel, without a sandbox.
	@if $(HAS_NODE); then $(MAKE) -C kernels/javascript test; else echo "SKIPPED the JavaScript kernel: needs Node 18 or later"; fi

sdk-python: ## Runs the tests of the Python SDK, against servers of their own.
	@$(DEBUG_BUILD) $(TEST_FEATURES)
	@BELLJAR_BIN=$(DEBUG)/belljar $(MAKE) -C sdk/python test VENV=$(TARGET_DIR)/sdk-python PYTEST_FLAGS="$(PYTEST_FLAGS)"

sdk-typescript: ## Runs the tests of the TypeScript SDK, against servers of their own.
	@$(DEBUG_BUILD) $(TEST_FEATURES)
	@if $(HAS_NODE); then BELLJAR_BIN=$(DEBUG)/belljar $(MAKE) -C sdk/typescript test; else echo "SKIPPED the TypeScript SDK: needs Node 18 or later"; fi

openapi: # Makes a fixed number of requests from the OpenAPI document.
	@$(MAKE) --no-print-directory schemathesis SCHEMATHESIS="--examples 4 --seed 1"

# E2B's newest client needs Python 3.11.
HAS_PYTHON_311 = $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null

e2b-python: ## Runs E2B's published Python clients against a server.
	@$(DEBUG_BUILD) $(TEST_FEATURES)
	@if $(HAS_PYTHON_311); then $(MAKE) --no-print-directory e2b-python-clients; else echo "SKIPPED the Python clients of E2B: need Python 3.11 or later"; fi

# The newest clients run the tests; the oldest are there for one program each.
E2B_VENVS = $(patsubst tests/e2b/requirements-%.txt,$(TARGET_DIR)/e2b-python-%/made,$(wildcard tests/e2b/requirements-*.txt))

e2b-python-clients: $(E2B_VENVS)
	@echo "== Running E2B's Python clients"
	@BELLJAR_BIN=$(DEBUG)/belljar E2B_VENVS=$(TARGET_DIR) $(TARGET_DIR)/e2b-python-newest/bin/python -m pytest -q -p no:cacheprovider $(PYTEST_FLAGS) tests/e2b

$(TARGET_DIR)/e2b-python-%/made: tests/e2b/requirements-%.txt
	@$(PYTHON) -m venv --clear $(@D)
	@$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	@touch $@

# E2B's newest client needs Node 20.
HAS_NODE_20 = node -e 'process.exit(parseInt(process.versions.node) < 20 ? 1 : 0)' 2>/dev/null

e2b-javascript: ## Runs E2B's published JavaScript clients against a server.
	@$(DEBUG_BUILD) $(TEST_FEATURES)
	@if $(HAS_NODE_20); then $(MAKE) --no-print-directory e2b-javascript-clients; else echo "SKIPPED the JavaScript clients of E2B: need Node 20 or later"; fi

e2b-javascript-clients: tests/e2b/javascript/node_modules/made tests/e2b/javascript/oldest/node_modules/made
	@echo "== Running E2B's JavaScript clients"
	@BELLJAR_BIN=$(DEBUG)/belljar node tests/e2b/javascript/run.mjs

%/node_modules/made: %/package.json %/package-lock.json
	@npm ci --prefix $(dir $<) --no-audit --no-fund
	@touch $@

# End of the stages.

# Runs of three callers, each of which takes some seconds more than it is given.
schemathesis: $(TARGET_DIR)/schemathesis/made ## Tries all that the OpenAPI document allows and forbids, with keys of two tenants (ten minutes).
	@$(DEBUG_BUILD) $(TEST_FEATURES)
	@echo "== Running schemathesis, three times"
	@$(TARGET_DIR)/schemathesis/bin/python tests/schemathesis/run.py --belljar $(DEBUG)/belljar $(SCHEMATHESIS)

$(TARGET_DIR)/schemathesis/made: tests/schemathesis/requirements.txt
	@$(PYTHON) -m venv --clear $(@D)
	@$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	@touch $@

e2b-frameworks: ## Runs what frameworks have for E2B against a server, with the frameworks' own tests (about a minute; 400 MB from PyPI).
	@$(DEBUG_BUILD) $(TEST_FEATURES)
	@if $(HAS_PYTHON_311); then $(MAKE) --no-print-directory e2b-frameworks-programs; else echo "SKIPPED the frameworks with E2B's clients: need Python 3.11 or later"; fi

e2b-frameworks-programs: $(TARGET_DIR)/e2b-frameworks/made
	@echo "== Running frameworks with E2B's clients"
	@BELLJAR_BIN=$(DEBUG)/belljar $(TARGET_DIR)/e2b-frameworks/bin/python -m pytest -q -p no:cacheprovider $(PYTEST_FLAGS) tests/e2b/frameworks

$(TARGET_DIR)/e2b-frameworks/made: tests/e2b/frameworks/requirements.txt
	@$(PYTHON) -m venv --clear $(@D)
	@$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	@touch $@

hostile: build ## Attacks the sandbox with every case of tests/hostile; ONLY="K N03" picks groups and cases.
	@scripts/install-deps.sh hostile
	@echo "== Building belljar with the walls that can be taken away"
	@$(DEBUG_BUILD) --bin belljar-hostile $(TEST_FEATURES)
	@$(if $(HOSTILE_CASES),echo "== Running the hostile suite"; $(DEBUG)/belljar-hostile --belljar $(RELEASE) --mutated $(DEBUG)/belljar $(ONLY_CASES))
	@$(if $(HOSTILE_TOOLS),echo "== Running tools of others in sandboxes (about a minute)"; $(DEBUG)/belljar-hostile --cases tests/hostile/tools --belljar $(RELEASE) --mutated $(DEBUG)/belljar $(ONLY_TOOLS))

# The parts of `make long` besides `hostile`, `schemathesis`, `fuzz` and the benchmarks. None of them has the gate's seeds or filter.

long: ## Runs everything that needs time, clocks, new seeds or the machine for itself (an hour or more); ONLY="crash soak" picks some.
	@$(PYTHON) scripts/gate.py --long --logs $(TARGET_DIR)/long $(ONLY)

conformance: ## Runs all conformance cases in all set-ups, and through the service.
	@$(NEXTEST) -E 'test(/(^|::)rest::/)'

timing: ## Compares the times of answers that must not tell anything.
	@$(NEXTEST) -E 'package(belljar) & binary(service) & test(/^timing::/)'

release: build ## Checks that the release binary has no way to take a wall away.
	@BELLJAR_RELEASE=$(RELEASE) $(NEXTEST) -E 'package(belljar) & test(/^a_release_/)'

golden: ## Compares the system calls of a launch with those that are checked in.
	@$(NEXTEST) -E 'package(belljar) & binary(launch)'

registries: ## Installs packages with pip, npm, cargo and apt from their registries, in sandboxes.
	@$(NEXTEST) -E 'package(belljar) & binary(registries)'

properties: ## Runs the property tests with new seeds and many more cases.
	@PROPTEST_CASES=$(or $(CASES),5000) BELLJAR_PROPERTY_CASES=$(or $(CASES),5000) $(NEXTEST) -E 'binary(properties) | test(/propert|agree|canonical|chain/) | test(no_request_makes_a_5xx)'

leaks: ## Runs 10,000 sandboxes, and kills 1,000 at a random instant, and looks for what is left behind.
	@BELLJAR_LONG_LEAKS=1 $(NEXTEST) -E 'package(belljar) & binary(leaks)'

crash: ## Kills a server under load at 200 random instants (ROUNDS), and looks for what is lost (some minutes).
	@BELLJAR_LONG_CRASH=$(or $(ROUNDS),200) $(NEXTEST) --no-capture -E 'package(belljar) & binary(service) & test(/^crash::/)'

soak: build ## Loads a server for ten minutes, and looks for failures, growth and leftovers.
	@BELLJAR_LONG_SOAK=1 BELLJAR_RELEASE=$(RELEASE) $(NEXTEST) --no-capture -E 'package(belljar) & binary(service) & test(/^soak::/)'

bench: build ## Measures the speed against bare processes and bubblewrap.
	@scripts/install-deps.sh test
	@BELLJAR=$(RELEASE) $(if $(PEERS),bench/peers.sh) /usr/bin/python3 bench/bench.py --write $(BENCH_FLAGS)

bench-peers: ## The same, and against Docker, runc, crun and gVisor (root, Debian).
	@$(MAKE) --no-print-directory bench PEERS=1

bench-service: build ## Measures the service: first command done, bursts, files, executions, idle sandboxes.
	@scripts/install-deps.sh test
	@BELLJAR=$(RELEASE) $(if $(PEERS),bench/peers.sh) /usr/bin/python3 bench/service.py --write $(BENCH_FLAGS)

bench-network: build ## Measures the network: a download, connections, requests, start, memory (root).
	@scripts/install-deps.sh test
	@BELLJAR=$(RELEASE) $(if $(PEERS),bench/peers.sh) /usr/bin/python3 bench/network.py --write $(BENCH_FLAGS)

bench-network-peers: ## The same, and against pasta and slirp4netns (root, Debian).
	@$(MAKE) --no-print-directory bench-network PEERS=1

bench-interpreter: build ## Measures code in contexts: new sandboxes, live cells, pandas, pictures, idle contexts.
	@scripts/install-deps.sh test
	@BELLJAR=$(RELEASE) $(if $(PEERS),BELLJAR_IPYKERNEL=$(TARGET_DIR)/bench-ipykernel/bin/python bench/peers.sh) /usr/bin/python3 bench/interpreter.py --write $(BENCH_FLAGS)

bench-interpreter-peers: $(TARGET_DIR)/bench-ipykernel/made ## The same, and against Docker and a plain ipykernel (root, Debian).
	@$(MAKE) --no-print-directory bench-interpreter PEERS=1

$(TARGET_DIR)/bench-ipykernel/made: bench/requirements.txt
	@$(PYTHON) -m venv --clear $(@D)
	@$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	@touch $@

bench-e2b: build $(TARGET_DIR)/e2b-python-newest/made ## Measures the service through E2B's Python client: first command, first code, bursts.
	@scripts/install-deps.sh test
	@BELLJAR=$(RELEASE) $(TARGET_DIR)/e2b-python-newest/bin/python bench/e2b_client.py --write $(BENCH_FLAGS)

bench-service-peers: ## The same, and against `docker run` (root, Debian).
	@$(MAKE) --no-print-directory bench-service PEERS=1

fuzz: ## Fuzzes each parser for TIME seconds (60), JOBS (2) at once. Needs cargo-fuzz and g++.
	@TIME=$(or $(TIME),60) JOBS=$(or $(JOBS),2) scripts/fuzz.sh $(TARGETS)

.PHONY: help build demo test deps format lint test-build test-rust kernel-python kernel-javascript sdk-python sdk-typescript openapi e2b-python e2b-python-clients e2b-javascript e2b-javascript-clients e2b-frameworks e2b-frameworks-programs schemathesis long hostile conformance timing release golden registries properties leaks crash soak bench bench-peers bench-service bench-service-peers bench-network bench-network-peers bench-interpreter bench-interpreter-peers bench-e2b fuzz
