# The few verbs of this project.  CI runs .ci/run and nothing from here.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: help setup demo test near check format mutants docs lock image

help: ## Say what there is.
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

setup: ## Make .venv with everything to work on the project.
	@$(PYTHON) -c 'import sys; sys.exit("toolrelay needs Python 3.11 or newer, and this is %d.%d: run make setup PYTHON=python3.11" % sys.version_info[:2] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --editable '.[dev,docs]'

demo: ## Serve recorded conversations on port 8080.
	$(BIN)/toolrelay demo

test: ## Run the tests.
	$(BIN)/python -m pytest -n auto

near: ## Run the tests that are near to what differs from main.
	$(BIN)/python tests/support/project/near.py

check: ## Format, lint and types, as CI checks them.
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy

format: ## Format, and correct what can be corrected.
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

mutants: ## List small changes of the most delicate code that no test notices; PART=policy for one part.
	$(BIN)/pip install --quiet 'mutmut>=3.8,<4'
	$(BIN)/python tests/support/project/mutants.py $(PART)

docs: ## Write the parts of docs/ that are made from the code, and the picture of the demo.
	$(BIN)/python -m docgen

lock: ## Lock the versions of the dependencies anew.
	$(BIN)/pip install --quiet uv
	$(BIN)/uv pip compile --quiet --upgrade --universal --generate-hashes --no-emit-index-url \
		--python-version 3.11 --custom-compile-command 'make lock' --extra mcp --extra oidc --extra openapi --extra otel --extra postgres --extra programs --extra redis --extra web pyproject.toml -o requirements.lock

image: ## Build the container image.
	docker build --tag toolrelay .
