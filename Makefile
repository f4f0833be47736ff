# `make` alone prints the targets. Everything lives in .venv; every target sets up what it needs by itself.

SHELL := /bin/bash
.DEFAULT_GOAL := help
BIN := .venv/bin
# One stamp for each set-up, written last, so an interrupted set-up is done again: for programs, for tests, for the site, for Kafka.
STAMP := .venv/.set_up
TEST_STAMP := .venv/.set_up_tests
DOCS_STAMP := .venv/.set_up_docs
KAFKA_STAMP := .venv/.set_up_kafka
# What builds the pages of the console: Node's packages, as the lock file names them.
NODE_STAMP := console/node_modules/.set_up
# Three for two cores: while one waits for a disk or a server, the others work. Others: `make test WORKERS=8`.
WORKERS ?= 3
# How long the demo takes from its first result, and its orders a second: `make demo SECONDS=10`; 0 goes on until Ctrl-C.
SECONDS ?= 120
RATE ?= 2
# Of the console; 0: any that is free.
PORT ?= 8765

.PHONY: help setup test test-fast test-long lint static console format demo demo-kafka pictures tour docs bench bench-quick clean

help: ## print the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

setup: $(TEST_STAMP) $(NODE_STAMP) ## make .venv with all that tests need; `make demo` and `make tour` install less

$(STAMP): pyproject.toml constraints.txt scripts/make_environment
	@scripts/make_environment .venv console,delta,search,spark "Mainstem, Spark and Java (1 GB, about a minute)"
	@touch $(STAMP)

$(TEST_STAMP): $(STAMP) scripts/fetch_jars scripts/system_packages
	@scripts/make_environment .venv console,dev,delta,kafka,postgres,redis,search,spark "linters, test tools, PostgreSQL, Redis and the clients of stores (half a minute)"
	@scripts/fetch_jars .venv
	@scripts/system_packages
	@touch $(TEST_STAMP)

$(KAFKA_STAMP): $(STAMP) scripts/fetch_jars
	@scripts/make_environment .venv kafka "the client of Kafka"
	@scripts/fetch_jars .venv
	@touch $(KAFKA_STAMP)

$(NODE_STAMP): $(TEST_STAMP) console/package.json console/package-lock.json console/.npmrc
	@echo "Installing what builds the pages of the console into console/node_modules"
	@cd console && PATH="$(CURDIR)/$(BIN):$$PATH" npm ci --ignore-scripts --silent
	@touch $(NODE_STAMP)

$(DOCS_STAMP): $(STAMP)
	@scripts/make_environment .venv docs,spark "what builds the site (half a minute)"
	@touch $(DOCS_STAMP)

test: lint ## lint, then every test
	$(BIN)/pytest -n $(WORKERS) --dist worksteal --durations 40 --durations-min 10

test-fast: static ## lint, engines, the log: all that is quick and needs neither Spark nor a server, in 4 minutes
	$(BIN)/pytest --fast -n $(WORKERS) --dist worksteal --durations 10 --durations-min 5

test-long: $(TEST_STAMP) $(NODE_STAMP) ## all points of every fault, before a release
	$(BIN)/pytest -m long --timeout 7200

lint: static ## ruff, mypy, import-linter, the house rules, every docstring example
	$(BIN)/pytest -q tests/test_tidy.py tests/programs/test_docs.py::test_a_docstring_s_examples_give_what_they_say

# What reads the code and runs none of it.
static: $(TEST_STAMP) $(NODE_STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	@cd console && PATH="$(CURDIR)/$(BIN):$$PATH" npm run --silent check

console: $(NODE_STAMP) ## build the pages of the console anew, into the package; only after a change of console/
	@cd console && PATH="$(CURDIR)/$(BIN):$$PATH" npm run --silent build

format: $(TEST_STAMP) ## put the code into the house form
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

demo: $(STAMP) ## a shop, live on one page, for two minutes
	@$(BIN)/python -m examples.demo --seconds $(SECONDS) --rate $(RATE) --port $(PORT)

demo-kafka: $(KAFKA_STAMP) ## the same with the log on Kafka and the flows on a Spark cluster, both started for it
	@$(BIN)/python -m examples.demo --kafka --home data/demo_kafka --seconds $(SECONDS) --rate $(RATE) --port $(PORT)

pictures: $(TEST_STAMP) $(NODE_STAMP) ## the pictures of docs/start.md anew, from a demo in Chromium
	$(BIN)/pytest -q tests/programs/test_demo.py -k next_works
	@mkdir -p docs/pictures && cp build/screenshots/demo-{overview,flow,killed,why}.webp docs/pictures

tour: $(STAMP) ## one short program per idea, each checked against a recomputation
	@$(BIN)/python -m examples.tour

# The pages lie in the site as in the repository, so that one link is right in both.
docs: $(DOCS_STAMP) ## the site, in build/site: every page, the Python reference made anew, links checked
	@$(BIN)/python scripts/python_reference.py
	@scripts/gather_pages build/pages
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "The site is in build/site: $(BIN)/python -m http.server --directory build/site"

bench: $(STAMP) ## the log's speed and memory as ratios to a baseline of the same run
	@$(BIN)/python -m benchmarks.log

bench-quick: $(STAMP) ## Nexmark beside plain Spark in 5 minutes: fails if a stored ratio fell
	@$(BIN)/python -m benchmarks.nexmark --quick

clean: ## remove .venv and everything that was made
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist console/node_modules
	find src tests benchmarks examples scripts -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
