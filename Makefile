.DEFAULT_GOAL := help
.PHONY: help setup fmt check test behaviour faults turns chaos kills soak fuzz mutants bench count coverage matrix docs ci \
	lock platforms release-tools audit sbom dist release release-check release-files
MINUTES ?= 120
JOBS ?= 1000000
SERVER ?= valkey
SEED ?=
UPGRADE ?=
PYTHONS ?= 3.11 3.12 3.13 3.14
TAG ?=
# Tests without a JVM: pure functions, and promises on real servers.
CORE_TESTS ?= tests/unit tests/wire tests/conformance tests/store tests/behaviour tests/server tests/telemetry

help: ## what there is
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1	\2/p' Makefile | expand -t 24

setup: ## the environment, with the tools of tests and gate
	@./chasqui setup

fmt: setup ## write the formatting
	@.venv/bin/python -m ruff check --fix-only --quiet .
	@.venv/bin/python -m ruff format .

check: ## lint, format, types, rooms, pages
	@./chasqui gate

test: ## the quick rooms, seconds
	@./chasqui test tests/unit tests/wire -n 2

behaviour: ## one file a promise, on real servers
	@./chasqui test tests/behaviour -n 2

faults: ## what is promised while a server or a worker is gone
	@./chasqui test tests/faults

chaos: ## faults of every kind from a seed, for MINUTES on SERVER
	@.venv/bin/python -m tests.chaos --minutes $(MINUTES) --server $(SERVER) $(if $(SEED),--seed $(SEED))

kills: ## two thousand workers killed over a million jobs
	@.venv/bin/python -m tests.chaos --minutes $(MINUTES) --server $(SERVER) $(if $(SEED),--seed $(SEED)) \
		--faults kill --acts 2000 --jobs 1000000

fuzz: ## inputs and histories that no run has seen, for hours
	@CHASQUI_TEST_BIG=1 ./chasqui test tests/fuzz tests/machine -n 2

turns: ## tests whose servers take turns, on every kind of them
	@CHASQUI_TEST_BIG=1 ./chasqui test -m takes_turns -n 2

soak: ## JOBS jobs; memory, keys and connections must stay flat
	@.venv/bin/python -m tests.chaos.soak --jobs $(JOBS) --server $(SERVER)

mutants: ## break a copy in one place at a time; a test must notice each
	@.venv/bin/python -m tests.mutants

bench: ## numbers
	@./chasqui bench

count: setup ## modules, their importers and names, and the files that each path leads through
	@.venv/bin/python tools/count_modules.py
	@.venv/bin/python -P -m pytest tests/rooms/test_paths.py tests/spark/pipeline/test_pipeline_path.py -q -rP -p no:logging

coverage: setup ## branch coverage of CORE_TESTS and of the processes that they start
	@rm -rf build/coverage && mkdir -p build/coverage
	@.venv/bin/python -m coverage run -m pytest $(CORE_TESTS) --ignore tests/unit/spark -n 2 -q; tests=$$?; \
		.venv/bin/python -m coverage combine --quiet && .venv/bin/python -m coverage html --quiet && \
		.venv/bin/python -m coverage report --skip-covered --sort cover && exit $$tests

matrix: release-tools ## the core tests on each of PYTHONS that is on this machine
	@.venv-release/bin/python tools/matrix.py $(PYTHONS)

docs: setup ## the pages as a site in build/site; a broken link fails
	@.venv/bin/python tools/build_site.py

lock: release-tools ## write pins and hashes; UPGRADE=NAME or UPGRADE=all moves versions
	@.venv-release/bin/python tools/lock.py $(if $(UPGRADE),--upgrade $(UPGRADE))

platforms: release-tools ## where a pinned wheel is missing, for each system and Python
	@.venv-release/bin/python tools/lock.py --platforms

audit: release-tools ## known weaknesses of what is pinned
	@.venv-release/bin/python tools/release.py audit

sbom: release-tools ## what a release installs, as CycloneDX in dist/
	@.venv-release/bin/python tools/release.py sbom

dist: release-tools ## wheel and sdist in dist/, the same bytes for the same commit
	@.venv-release/bin/python tools/release.py build

release: release-tools ## all of release-check, then the tag
	@.venv-release/bin/python tools/release.py release

release-check: release-tools ## build, check, install and try what would be released; no tag
	@.venv-release/bin/python tools/release.py check

release-files: release-tools ## the same for a commit that has its TAG
	@.venv-release/bin/python tools/release.py files --tag "$(TAG)"

release-tools:
	@./chasqui setup release

ci: ## all of it
	@./.ci/run
