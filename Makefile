# make up starts the platform on this machine, make test checks the project; both need Python 3.11, 3.12 or 3.13 alone.
SHELL := /bin/sh
# Bytecode is written when a module is first used: without it, every process compiles for seconds what it imports.
unexport PYTHONDONTWRITEBYTECODE
.DEFAULT_GOAL := help
.PHONY: help env test-env up status logs down clean doctor check test test-all docs chaos mutants lint types bench pins env-clean

# The newest Python that will do; where there is none, any Python, which says what is missing. As in bootstrap.py.
FIND = for p in python3.13 python3.12 python3.11 python3 python; do \
	$$p -c 'import ensurepip, sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null && \
	{ echo $$p; exit; }; done; command -v python3 || command -v python
PYTHON ?= $(shell $(FIND))
# One that somebody named is used, or the environment of another one refused; else an environment keeps its own.
BOOTSTRAP = $(PYTHON) penstock/bootstrap.py$(if $(filter command environment,$(origin PYTHON)), --this-python)
PENSTOCK = .venv/bin/penstock
SERVER ?=
STORES ?=
REGISTRY ?=
# Apps that share a JVM, to save memory: all, names, or nothing.
TOGETHER ?= all
CLUSTER ?=
TESTS ?=
MARKS ?= not long
# More than cores, because most tests wait for servers. 4 need 8 GiB of memory.
WORKERS ?= 4
CHAOS ?= --kills 300 --outages 30 --hours 8
HISTORIES ?= --histories 200 --kills 100 --outages 20
SINKS ?= --kills 50 --outages 20
BENCH ?= emission recovery checkpoint_recovery faults distribution idle small_batch throughput walk_ins capture sinks sinks_mongodb rebuild replacement release_pause archives backfill lag agents views traces page rows registry_formats expectations masks scale
SOURCES = penstock jobs dags plugins tests

help: ## what there is to make
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

env:
	@test -n "$(PYTHON)" || { echo "error: there is no Python here; Penstock needs Python 3.11, 3.12 or 3.13" >&2; exit 1; }
	@$(BOOTSTRAP)

test-env:
	@test -n "$(PYTHON)" || { echo "error: there is no Python here; Penstock needs Python 3.11, 3.12 or 3.13" >&2; exit 1; }
	@$(BOOTSTRAP) --tests

up: env ## start the platform, or adopt what runs of it; more of it: STORES="elasticsearch influxdb", REGISTRY=1, CLUSTER=1
	@PENSTOCK_TOGETHER="$${PENSTOCK_TOGETHER-$(TOGETHER)}" $(if $(STORES),PENSTOCK_STORES="$(STORES)") $(if $(REGISTRY),PENSTOCK_REGISTRY="$(REGISTRY)") $(if $(CLUSTER),PENSTOCK_CLUSTER="$(CLUSTER)") $(PENSTOCK) up

status: env ## what runs: pids, ports, CPU, memory, streams
	@$(PENSTOCK) status

logs: env ## follow the logs; of one part: make logs SERVER=broker
	@$(PENSTOCK) logs $(SERVER) --follow

down: env ## stop everything, keep the data
	@$(PENSTOCK) down

clean: env ## stop everything and remove the data
	@$(PENSTOCK) clean --yes

doctor: env ## check Java, ports, versions, broker, database
	@$(PENSTOCK) doctor

check: lint ## ruff, mypy and the unit tests that start no process
	@.venv/bin/mypy $(SOURCES) & types=$$!; \
	.venv/bin/python -m pytest -q -n 2 --dist worksteal -m 'not processes and not long' tests/unit; tests=$$?; \
	wait $$types && exit $$tests

docs: test-env ## the documentation site, written to docs/_build
	.venv/bin/sphinx-build -q -W --keep-going -b html docs docs/_build

# Files run in one worker each, in their order (tests/conftest.py): they share servers. Long ones come first, by name.
# Types are checked beside the tests, most of which wait for servers.
test: lint ## ruff, mypy and all tests but the long ones; one folder: make test TESTS=tests/unit
	@.venv/bin/mypy $(SOURCES) & types=$$!; \
	.venv/bin/python -m pytest -n $(WORKERS) --no-loadscope-reorder --durations 20 -m '$(MARKS)' $(TESTS); tests=$$?; \
	wait $$types && exit $$tests

# FUZZ: the number of random cases of a test (tests/support/random_cases.py).
test-all: export FUZZ = 10000
test-all: MARKS = not (long and chaos)
test-all: test ## make test with all random cases, and the long tests (hours)

chaos: test-env ## kill and cut parts of the platform in tests, then a whole platform for hours, and compare all it wrote; goes on where it was
	KILLS=10 REPLACEMENTS=300 .venv/bin/python -m pytest -m 'chaos or long' tests/chaos
	.venv/bin/python -m tests.chaos.histories $(HISTORIES)
	.venv/bin/python -m tests.chaos.sinks $(SINKS)
	.venv/bin/python -m tests.chaos.long $(CHAOS)

mutants: test-env ## break the platform on purpose: the checker of make chaos must see each change (an hour)
	.venv/bin/python -m tests.chaos.mutants

lint: test-env
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .

types: test-env
	.venv/bin/mypy $(SOURCES)

bench: test-env ## measure all that docs/benchmarks.md has, in several hours; one: make bench BENCH=emission
	@for bench in $(BENCH); do \
		test $$bench != idle || $(PENSTOCK) up --wait || exit 1; \
		.venv/bin/python -m tests.bench.$$bench || exit 1; \
	done

pins: ## write requirements.txt anew from requirements.in
	rm -rf .venv-pins
	$(PYTHON) -m venv .venv-pins
	.venv-pins/bin/pip install -r requirements.in
	{ echo "# Written by make pins from requirements.in, which says what each is for."; \
	  .venv-pins/bin/pip freeze --all --exclude pip --exclude pyyaml-ft; grep '; python_version' requirements.in; } > requirements.txt
	rm -rf .venv-pins

env-clean: ## remove the environment
	rm -rf .venv
