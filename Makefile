.DEFAULT_GOAL := help
.PHONY: help setup fmt check test behaviour faults bench ci

help: ## what there is
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1	\2/p' Makefile | expand -t 20

setup: ## the environment, with the tools of tests and gate
	@./chasqui setup

fmt: setup ## write the formatting
	@.venv/bin/python -m ruff check --fix-only --quiet .
	@.venv/bin/python -m ruff format .

check: ## lint, format, types, rooms
	@./chasqui gate

test: ## the quick rooms, seconds
	@./chasqui test tests/unit tests/wire -n 2

behaviour: ## one file a promise, on real servers
	@./chasqui test tests/behaviour -n 2

faults: ## what is promised while a server or a worker is gone
	@./chasqui test tests/faults

bench: ## numbers
	@./chasqui bench

ci: ## all of it
	@./.ci/run
