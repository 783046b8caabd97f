# The two main commands are `make demo` and `make test`. Both print what they do and are safe to repeat.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

CARGO ?= cargo
TRIPLE := $(shell rustc -vV | sed -n 's/^host: //p')
TARGET_DIR := $(or $(CARGO_TARGET_DIR),$(CURDIR)/target)
RELEASE := $(TARGET_DIR)/$(TRIPLE)/release/belljar
DEMO := $(TARGET_DIR)/$(TRIPLE)/demo/belljar
DEBUG := $(TARGET_DIR)/$(TRIPLE)/debug
# A debug binary with a release's features: the link-time optimisation of a release takes longer than all tests together.
PLAIN := $(TARGET_DIR)/plain/belljar
PACKAGES := $(TARGET_DIR)/packages
# Lets the tests remove single walls, to show that they matter. A release is built without it.
TEST_FEATURES := --features belljar/mutation,belljar-local/mutation

# Data that an earlier commit's incremental compilation left made rustc 1.95 fail ("encountered incremental compilation error"), and
# only for whoever had that data. What these targets build is built once a commit, so it costs nothing.
export CARGO_INCREMENTAL ?= 0

# The system's Python, which can create virtual environments.
PYTHON ?= $(firstword $(wildcard /usr/bin/python3) python3)
# Additional arguments of schemathesis, such as `--seconds-each 20 --seed 7`.
SCHEMATHESIS ?=

# With the same features as nextest: `-p belljar` alone would build most crates a second time.
DEBUG_BUILD = $(CARGO) build --quiet --locked --workspace --bin belljar --bin belljar-service --bin belljar-guest --test store

NEXTEST = $(CARGO) nextest run --workspace --locked $(TEST_FEATURES)

# The gate uses fixed random seeds.
SEEDS := BELLJAR_SEED=1 PROPTEST_RNG_SEED=1

# If GATE_JUNIT names a file (set by scripts/gate.py), the test results of a stage are written there. Nextest itself writes them to the
# workspace, wherever the target directory is.
NEXTEST_JUNIT := target/nextest/ci/junit.xml
KEEP_JUNIT = $(if $(GATE_JUNIT),cp $(NEXTEST_JUNIT) $(GATE_JUNIT),:)
PYTEST_FLAGS = $(if $(GATE_JUNIT),--junitxml=$(GATE_JUNIT))

# Targets that need Node are skipped if none or only an older one is installed.
HAS_NODE = node -e 'process.exit(parseInt(process.versions.node) < 18 ? 1 : 0)' 2>/dev/null

# Cases that run third-party tools are in a separate directory, because `make test` does not run them.
ONLY_CASES = $(filter-out K23%,$(ONLY))
ONLY_TOOLS = $(filter K K23%,$(ONLY))
HOSTILE_CASES = $(if $(ONLY),$(ONLY_CASES),all)
HOSTILE_TOOLS = $(if $(ONLY),$(ONLY_TOOLS),all)

help: ## Lists the targets.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

# The commit in `belljar --version`. A source without git can set it.
build build-demo: export BELLJAR_COMMIT ?= $(shell git describe --always --dirty --abbrev=12 --exclude '*' 2>/dev/null)

build: ## Builds the release binary.
	@echo "== Building belljar (release; a first build takes some minutes)"
	@$(CARGO) build --release --locked -p belljar
	@echo "== Built $(RELEASE), and belljar-service and belljar-guest beside it"

build-demo: # Builds the program fast: see the profile `demo` in Cargo.toml.
	@$(CARGO) build --profile demo --locked -p belljar

demo: ## Installs missing dependencies, builds, and runs the examples.
	@echo "== 1 of 3: installing what is missing, with apt-get"
	@scripts/install-deps.sh demo
	@echo "== 2 of 3: building belljar, the first time some 340 crates: about 6 minutes with 2 idle processors"
	@$(MAKE) --no-print-directory build-demo
	@echo "== 3 of 3: running the examples"
	@BELLJAR=$(DEMO) scripts/demo.sh
	@echo "== The program is $(DEMO), to use it: export PATH=\"$(dir $(DEMO)):\$$PATH\""

test: ## The gate: runs all stages and prints a summary; ONLY="lint test-rust" selects stages.
	@$(PYTHON) scripts/gate.py --logs $(TARGET_DIR)/gate $(ONLY)

# The stages of the gate, in order; scripts/gate.py lists their dependencies.

deps: # Installs the dependencies of the tests.
	@scripts/install-deps.sh test

format: # Checks the format.
	@$(CARGO) fmt --all --check

lint: ## Checks lints, and the structure of the crates.
	@$(PYTHON) scripts/structure.py
	@$(CARGO) clippy --workspace --all-targets --locked $(TEST_FEATURES) -- -D warnings

# The binary without test features shares nearly all of its crates with the tests.
test-build: # Builds all tests, and a debug binary with a release's features.
	@$(DEBUG_BUILD)
	@install -D --target-directory $(dir $(PLAIN)) $(DEBUG)/belljar $(DEBUG)/belljar-service $(DEBUG)/belljar-guest
	@$(CARGO) nextest run --no-run --workspace --locked $(TEST_FEATURES)

test-rust: ## Runs the Rust tests of the gate.
	@rm -f $(NEXTEST_JUNIT)
	@$(SEEDS) BELLJAR_RELEASE=$(PLAIN) $(NEXTEST) --profile ci || status=$$?; $(KEEP_JUNIT) || true; exit $${status:-0}

DOCKER_TESTS = (package(belljar-docker) & binary(conformance)) + (package(belljar) & (binary(service_cli) + binary(network) + binary(hostile)) & test(/^docker::/))

docker: ## Runs the tests of the engine docker in the gate, with a daemon of their own.
	@$(DEBUG_BUILD) $(TEST_FEATURES)
	@rm -f $(NEXTEST_JUNIT)
	@tests/docker/with-daemon.sh $(NEXTEST) --profile ci --ignore-default-filter -E '($(DOCKER_TESTS)) - test(/(^|::)rest::/)' || status=$$?; $(KEEP_JUNIT) || true; exit $${status:-0}

GVISOR_TESTS = (package(belljar-gvisor) & binary(conformance)) + (package(belljar) & (binary(service_cli) + binary(network) + binary(hostile)) & test(/^gvisor::/))

gvisor: ## Runs the tests of the engine gvisor in the gate, where there is a runsc.
	@$(DEBUG_BUILD) $(TEST_FEATURES)
	@rm -f $(NEXTEST_JUNIT)
	@$(NEXTEST) --profile ci --ignore-default-filter -E '($(GVISOR_TESTS)) - test(/(^|::)rest::/)' || status=$$?; $(KEEP_JUNIT) || true; exit $${status:-0}

kernel-python: ## Runs the tests of the Python kernel, without a sandbox.
	@$(MAKE) -C kernels/python test VENV=$(TARGET_DIR)/kernel-python PYTEST_FLAGS="$(PYTEST_FLAGS)"

kernel-javascript: ## Runs the tests of the JavaScript kernel, without a sandbox.
	@if $(HAS_NODE); then $(MAKE) -C kernels/javascript test; else echo "SKIPPED the JavaScript kernel: needs Node 18 or later"; fi

sdk-python: ## Runs the tests of the Python SDK, against their own servers.
	@$(DEBUG_BUILD) $(TEST_FEATURES)
	@BELLJAR_BIN=$(DEBUG)/belljar $(MAKE) -C sdk/python test VENV=$(TARGET_DIR)/sdk-python PYTEST_FLAGS="$(PYTEST_FLAGS)"

sdk-typescript: ## Runs the tests of the TypeScript SDK, against their own servers.
	@$(DEBUG_BUILD) $(TEST_FEATURES)
	@if $(HAS_NODE); then BELLJAR_BIN=$(DEBUG)/belljar $(MAKE) -C sdk/typescript test; else echo "SKIPPED the TypeScript SDK: needs Node 18 or later"; fi

openapi: # Sends a fixed number of requests generated from the OpenAPI document.
	@$(MAKE) --no-print-directory schemathesis SCHEMATHESIS="--examples 4 --seed 1"

# E2B's newest client needs Python 3.11.
HAS_PYTHON_311 = $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null

e2b-python: ## Runs E2B's published Python clients against a server.
	@$(DEBUG_BUILD) $(TEST_FEATURES)
	@if $(HAS_PYTHON_311); then $(MAKE) --no-print-directory e2b-python-clients; else echo "SKIPPED the Python clients of E2B: need Python 3.11 or later"; fi

# The newest clients run the tests; the oldest run one program each.
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

# The suite needs Node 22, which its packages bring along.
mcp: ## Runs the conformance suite and the Python SDK of the Model Context Protocol against a server.
	@$(DEBUG_BUILD) $(TEST_FEATURES)
	@if $(HAS_PYTHON_311); then $(MAKE) --no-print-directory mcp-python; else echo "SKIPPED the Python SDK of MCP: needs Python 3.11 or later"; fi
	@if $(HAS_NODE_20); then $(MAKE) --no-print-directory mcp-conformance; else echo "SKIPPED the conformance suite of MCP: needs Node 20 or later"; fi

mcp-python: $(TARGET_DIR)/mcp/made
	@echo "== Running the Python SDK of MCP"
	@BELLJAR_BIN=$(DEBUG)/belljar $(TARGET_DIR)/mcp/bin/python -m pytest -q -p no:cacheprovider $(PYTEST_FLAGS) tests/mcp

$(TARGET_DIR)/mcp/made: tests/mcp/requirements.txt
	@$(PYTHON) -m venv --clear $(@D)
	@$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	@touch $@

mcp-conformance: tests/mcp/node_modules/made
	@echo "== Running the conformance suite of MCP"
	@BELLJAR_BIN=$(DEBUG)/belljar tests/mcp/node_modules/.bin/node tests/mcp/conformance.mjs

# The files of the console are in the repository, so that a build of the program needs no Node.
console: ## Builds the console again and compares it, checks its types, and uses it in a browser.
	@$(DEBUG_BUILD) $(TEST_FEATURES)
	@if $(HAS_NODE_20); then $(MAKE) --no-print-directory console-check; else echo "SKIPPED the console: needs Node 20 or later"; fi

console-check: console/node_modules/made
	@npm run --silent --prefix console types
	@npm run --silent --prefix console check
	@npm run --silent --prefix console build -- --outDir $(TARGET_DIR)/console --emptyOutDir --logLevel warn
	@mv $(TARGET_DIR)/console/NOTICES.txt $(TARGET_DIR)/console-notices.txt
	@diff --brief $(TARGET_DIR)/console-notices.txt console/NOTICES.txt && diff --recursive --brief $(TARGET_DIR)/console console/dist || { echo "console/dist is not what its sources are built to: run make console-build"; exit 1; }
	@BELLJAR_BIN=$(DEBUG)/belljar node console/test/run.mjs

console-build: console/node_modules/made ## Builds console/dist, which is in the repository.
	@npm run --silent --prefix console types
	@npm run --silent --prefix console build
	@mv console/dist/NOTICES.txt console/NOTICES.txt

# Built from the debug binary: the packages of a release differ from these in the programs alone.
packages: ## Builds packages of the debug binary, installs them as people do, and removes them.
	@if $(HAS_NODE) && $(HAS_PYTHON_311); then $(MAKE) --no-print-directory debug-packages; else echo "SKIPPED the packages: need Node 18 and Python 3.11 or later"; fi

debug-packages: sdk-typescript-build
	@mkdir -p $(PACKAGES)/bin
	@for name in belljar belljar-service belljar-guest; do strip -o $(PACKAGES)/bin/$$name $(dir $(PLAIN))$$name; done
	@rm -rf $(PACKAGES)/dist
	@$(PYTHON) scripts/dist.py --fast --belljar $(PACKAGES)/bin/belljar --sdk-typescript sdk/typescript --out $(PACKAGES)/dist
	@$(PYTHON) tests/packages/test_packages.py $(PACKAGES)/dist $(PACKAGES)/bin/belljar Files Wheel Npm

# End of the stages.

sdk-typescript-build:
	@$(MAKE) --no-print-directory -C sdk/typescript build

dist: build sdk-typescript-build ## Builds the packages into dist/: wheels, npm packages, a deb, a tarball, checksums, SBOM, notices.
	@rm -rf dist
	@$(PYTHON) scripts/dist.py --belljar $(RELEASE) --sdk-typescript sdk/typescript --out dist

install-packages: dist ## Installs the packages of dist/ as people do, also in new trees of Debian, and removes them.
	@$(PYTHON) tests/packages/test_packages.py dist $(RELEASE)

# Three callers, each of which takes a few seconds longer than configured.
schemathesis: $(TARGET_DIR)/schemathesis/made ## Sends valid and invalid requests generated from the OpenAPI document, with keys of two tenants (ten minutes).
	@$(DEBUG_BUILD) $(TEST_FEATURES)
	@echo "== Running schemathesis, three times"
	@$(TARGET_DIR)/schemathesis/bin/python tests/schemathesis/run.py --belljar $(DEBUG)/belljar $(SCHEMATHESIS)

$(TARGET_DIR)/schemathesis/made: tests/schemathesis/requirements.txt
	@$(PYTHON) -m venv --clear $(@D)
	@$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	@touch $@

e2b-frameworks: ## Runs the E2B integrations of frameworks against a server, with the frameworks' own tests (two minutes; 700 MB from PyPI).
	@$(DEBUG_BUILD) $(TEST_FEATURES)
	@if $(HAS_PYTHON_311); then $(MAKE) --no-print-directory e2b-frameworks-programs; else echo "SKIPPED the frameworks with E2B's clients: need Python 3.11 or later"; fi

e2b-frameworks-programs: $(TARGET_DIR)/e2b-frameworks/made
	@echo "== Running frameworks with E2B's clients"
	@BELLJAR_BIN=$(DEBUG)/belljar $(TARGET_DIR)/e2b-frameworks/bin/python -m pytest -q -p no:cacheprovider $(PYTEST_FLAGS) tests/e2b/frameworks

$(TARGET_DIR)/e2b-frameworks/made: tests/e2b/frameworks/requirements.txt
	@$(PYTHON) -m venv --clear $(@D)
	@$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	@touch $@

hostile: build ## Attacks the sandbox with every case of tests/hostile; ONLY="K N03" selects groups and cases.
	@scripts/install-deps.sh hostile
	@echo "== Building belljar with removable walls"
	@$(DEBUG_BUILD) --bin belljar-hostile $(TEST_FEATURES)
	@$(if $(HOSTILE_CASES),echo "== Running the hostile suite"; $(DEBUG)/belljar-hostile --belljar $(RELEASE) --mutated $(DEBUG)/belljar $(ONLY_CASES))
	@$(if $(HOSTILE_TOOLS),echo "== Running third-party tools in sandboxes (about a minute)"; $(DEBUG)/belljar-hostile --cases tests/hostile/tools --belljar $(RELEASE) --mutated $(DEBUG)/belljar $(ONLY_TOOLS))

# The parts of `make long` besides `hostile`, `schemathesis`, `fuzz` and the benchmarks. None of them uses the gate's seeds or filter.

long: ## Runs everything that needs much time, real clocks, new seeds or an idle machine (an hour or more); ONLY="crash soak" selects parts.
	@$(PYTHON) scripts/gate.py --long --logs $(TARGET_DIR)/long $(ONLY)

conformance: ## Runs all conformance cases in all configurations, and through the service.
	@$(NEXTEST) -E 'test(/(^|::)rest::/) - package(belljar-docker) - package(belljar-gvisor) - test(/^(docker|gvisor)::/)'

docker-all: ## Runs all conformance cases with a Docker daemon, directly and through the daemon.
	@$(DEBUG_BUILD) $(TEST_FEATURES)
	@rm -f $(NEXTEST_JUNIT)
	@tests/docker/with-daemon.sh $(NEXTEST) --profile ci --ignore-default-filter -E '$(DOCKER_TESTS)' || status=$$?; $(KEEP_JUNIT) || true; exit $${status:-0}

gvisor-all: ## Runs all conformance cases under gVisor, with both of its platforms.
	@$(DEBUG_BUILD) $(TEST_FEATURES)
	@rm -f $(NEXTEST_JUNIT)
	@$(NEXTEST) --profile ci --ignore-default-filter -E '$(GVISOR_TESTS)' || status=$$?; $(KEEP_JUNIT) || true; exit $${status:-0}

timing: ## Compares response times that must not reveal anything.
	@$(NEXTEST) -E 'package(belljar) & binary(service) & test(/^timing::/)'

release: build ## Checks that the release binary cannot remove a wall.
	@BELLJAR_RELEASE=$(RELEASE) $(NEXTEST) -E 'package(belljar) & test(/^release_/)'

golden: ## Compares the system calls of a launch with the checked-in list.
	@$(NEXTEST) -E 'package(belljar) & binary(launch)'

registries: ## Installs packages with pip, npm, cargo and apt from their registries, in sandboxes.
	@$(NEXTEST) -E 'package(belljar) & binary(registries)'

properties: ## Runs the property tests with new seeds and many more cases.
	@PROPTEST_CASES=$(or $(CASES),5000) BELLJAR_PROPERTY_CASES=$(or $(CASES),5000) $(NEXTEST) -E 'binary(properties) | test(/propert|agree|canonical|chain/) | test(no_request_makes_a_5xx)'

leaks: ## Runs 10,000 sandboxes, kills 1,000 at a random instant, and checks for leftovers.
	@BELLJAR_LONG_LEAKS=1 $(NEXTEST) -E 'package(belljar) & binary(leaks)'

crash: ## Kills a server under load at 200 random instants (ROUNDS), and checks for lost data (some minutes).
	@BELLJAR_LONG_CRASH=$(or $(ROUNDS),200) $(NEXTEST) --no-capture -E 'package(belljar) & binary(service) & test(/^crash::/)'

transfers: ## Aborts 5,000 transfers of each kind, completes 50,000, and breaks connections under load.
	@BELLJAR_LONG_TRANSFERS=1 $(NEXTEST) --no-capture -E 'package(belljar) & binary(service) & test(/^transfers::/)'

soak: build ## Loads a server for ten minutes, and checks for failures, growth and leftovers.
	@BELLJAR_LONG_SOAK=1 BELLJAR_RELEASE=$(RELEASE) $(NEXTEST) --no-capture -E 'package(belljar) & binary(service) & test(/^soak::/)'

bench: build ## Measures the speed against bare processes and bubblewrap.
	@scripts/install-deps.sh test
	@BELLJAR=$(RELEASE) $(if $(PEERS),bench/peers.sh) /usr/bin/python3 bench/bench.py --write $(BENCH_FLAGS)

bench-peers: ## Runs `bench`, also against Docker, runc, crun and gVisor (root, Debian).
	@$(MAKE) --no-print-directory bench PEERS=1

bench-service: build $(TARGET_DIR)/bench-sdk/made ## Measures the service: first command done, bursts, files, executions, idle sandboxes.
	@scripts/install-deps.sh test
	@BELLJAR=$(RELEASE) BELLJAR_SDK_PYTHON=$(TARGET_DIR)/bench-sdk/bin/python $(if $(PEERS),bench/peers.sh) /usr/bin/python3 bench/service.py --write $(BENCH_FLAGS)

$(TARGET_DIR)/bench-sdk/made: $(wildcard sdk/python/src/belljar/*.py sdk/python/src/belljar/*/*.py) sdk/python/pyproject.toml
	@$(PYTHON) -m venv --clear $(@D)
	@$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --constraint sdk/python/constraints.txt sdk/python
	@touch $@

bench-network: build ## Measures the network: a download, connections, requests, start, memory (root).
	@scripts/install-deps.sh test
	@BELLJAR=$(RELEASE) $(if $(PEERS),bench/peers.sh) /usr/bin/python3 bench/network.py --write $(BENCH_FLAGS)

bench-network-peers: ## Runs `bench-network`, also against pasta and slirp4netns (root, Debian).
	@$(MAKE) --no-print-directory bench-network PEERS=1

bench-interpreter: build ## Measures code in contexts: new sandboxes, running cells, pandas, pictures, idle contexts.
	@scripts/install-deps.sh test
	@BELLJAR=$(RELEASE) $(if $(PEERS),BELLJAR_IPYKERNEL=$(TARGET_DIR)/bench-ipykernel/bin/python bench/peers.sh) /usr/bin/python3 bench/interpreter.py --write $(BENCH_FLAGS)

bench-interpreter-peers: $(TARGET_DIR)/bench-ipykernel/made ## Runs `bench-interpreter`, also against Docker and a plain ipykernel (root, Debian).
	@$(MAKE) --no-print-directory bench-interpreter PEERS=1

$(TARGET_DIR)/bench-ipykernel/made: bench/requirements.txt
	@$(PYTHON) -m venv --clear $(@D)
	@$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	@touch $@

bench-e2b: build $(TARGET_DIR)/e2b-python-newest/made ## Measures the service through E2B's Python client: first command, first code, bursts.
	@scripts/install-deps.sh test
	@BELLJAR=$(RELEASE) $(TARGET_DIR)/e2b-python-newest/bin/python bench/e2b_client.py --write $(BENCH_FLAGS)

bench-agents: build ## Measures MCP against REST, screening, and approval rules that allow a call.
	@scripts/install-deps.sh test
	@BELLJAR=$(RELEASE) /usr/bin/python3 bench/agents.py --write $(BENCH_FLAGS)

bench-growth: build ## Measures how cost grows with sandboxes, keys, snapshots and subscribers (root).
	@scripts/install-deps.sh test
	@BELLJAR=$(RELEASE) /usr/bin/python3 bench/growth.py --write $(BENCH_FLAGS)

bench-service-peers: ## Runs `bench-service`, also against `docker run` (root, Debian).
	@$(MAKE) --no-print-directory bench-service PEERS=1

fuzz: ## Fuzzes each parser for TIME seconds (60), JOBS (2) in parallel. Needs cargo-fuzz and g++.
	@TIME=$(or $(TIME),60) JOBS=$(or $(JOBS),2) scripts/fuzz.sh $(TARGETS)

.PHONY: help build build-demo demo dist install-packages packages debug-packages sdk-typescript-build test deps format lint test-build test-rust docker docker-all gvisor gvisor-all kernel-python kernel-javascript sdk-python sdk-typescript openapi e2b-python e2b-python-clients e2b-javascript e2b-javascript-clients mcp mcp-python mcp-conformance console console-check console-build e2b-frameworks e2b-frameworks-programs schemathesis long hostile conformance timing release golden registries properties leaks crash soak transfers bench bench-peers bench-service bench-service-peers bench-network bench-network-peers bench-interpreter bench-interpreter-peers bench-e2b bench-agents fuzz bench-growth
