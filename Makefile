# Every target sets up what it needs; the second time that is a check of one time stamp.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# of two cores; a quarter of the time of a test is waiting
JOBS ?= 3

.PHONY: demo test test-long lint docs clean
.DEFAULT_GOAL := demo

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet torch==2.13.0 -c constraints.txt
	$(BIN)/python -m pip install --quiet -e '.[train,dev]' -c constraints.txt
	@touch $@

demo: $(VENV)/.ready ## train a small model through two real kills, then show the report
	@$(BIN)/python examples/demo.py

test: $(VENV)/.ready ## what CI runs
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal

test-long: $(VENV)/.ready ## the same and the thousands of kills
	$(BIN)/python -m pytest -m 'long or not long'

lint: $(VENV)/.ready
	$(BIN)/ruff check src tests examples benchmarks scripts
	$(BIN)/ruff format --check src tests examples benchmarks scripts
	$(BIN)/mypy

docs: $(VENV)/.ready ## the site, in build/site; a dead link is an error
	$(BIN)/python -m pip install --quiet -e '.[docs]' -c constraints.txt
	$(BIN)/python scripts/site_source.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --config-file build/mkdocs.yml

clean:
	rm -rf $(VENV) build dist runs
