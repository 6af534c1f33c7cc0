# make demo    creates .venv, installs Foretrain, predicts GPT-3 175B on 1,024 A100s, writes report.html
# make test    creates .venv if needed, installs test extras, runs everything CI runs
# make lint    the checks of `make test` without the tests
# make bench   speed, with another predictor beside it, into docs/benchmarks.md
# make testbed real training on shaped links beside its prediction, into docs/testbed.md (root, about 15 minutes)
# make stalls  stalls of real runs with a known cause, and what-if beside real runs, into docs/measured-stalls.md
#              (20 minutes on a quiet machine; root for the network and a disk of a fixed rate)
# make study  how communication stalls scale with a model on this machine, into build/study.html (torch, 10 minutes)
# make fuzz    ten thousand hostile inputs to every reader (about ten minutes on one core)
# make coverage  branches of the packages that answers are computed in, as far as the tests near to them reach
# make faults faults planted by hand, one by one: do the nearest tests notice? (about ten minutes on one core)
# make mutants  small changes of the source that no near test notices: MODULES="planning cost", else what differs
#              from the branch main; SAMPLE=100 of each package by lot, BUDGET=60 seconds of tests for each
# make clean   removes .venv and everything that was built
#
# PYTHON=python3.12 chooses the interpreter .venv is made from (3.11 or later).

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check
SOURCES := $(shell find src -type f -not -name '*.pyc' 2>/dev/null)
# What an editable install does not pick up by itself.
BUILT := pyproject.toml CMakeLists.txt $(wildcard src/foretrain/engine/native/*)

.PHONY: demo test lint pytest bench testbed stalls study fuzz coverage faults mutants clean
.DELETE_ON_ERROR:

demo: $(VENV)/.installed
	@$(BIN)/foretrain doctor --json | $(BIN)/python -c "import json, sys; \
	  found = {c['name']: c['found'] for c in json.load(sys.stdin)['checks']}; \
	  print('Engine:', found['engine'])"
	$(BIN)/foretrain predict gpt3-175b --on "128 x dgx-a100-80gb" \
	  --plan "tp8 pp16 dp8 recompute=full" --batch 1536 --seq 2048 --micro-batch 1 -o report.html

test: lint
	$(BIN)/python -m pytest -n 2

lint: $(VENV)/.testing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict src testbed studies
	$(BIN)/lint-imports --no-cache

pytest: $(VENV)/.testing
	$(BIN)/python -m pytest -n 2

bench: $(VENV)/.testing
	@mkdir -p build
	@$(BIN)/python -m compileall -q src/foretrain  # as an install does
	$(BIN)/python bench/run.py --json build/bench.json --report docs/benchmarks.md

testbed: $(VENV)/.testing
	@command -v tc >/dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends iproute2; } >/dev/null || true
	$(BIN)/python -m testbed.main --json docs/testbed.json --page docs/testbed.md

stalls: $(VENV)/.testing
	$(BIN)/python tools/measured_stalls.py --json docs/measured-stalls.json --page docs/measured-stalls.md

study: $(VENV)/.testing
	@mkdir -p build
	$(BIN)/python -m studies.stall_scaling -o build/study.html

fuzz: $(VENV)/.testing
	$(BIN)/python tools/fuzz.py --inputs 10000

coverage: $(VENV)/.testing
	$(BIN)/python tools/near_coverage.py --jobs 2

faults: $(VENV)/.testing
	$(BIN)/python tools/planted_faults.py

mutants: $(VENV)/.testing
	nice $(BIN)/python tools/mutants.py $(MODULES) $(if $(SAMPLE),--sample $(SAMPLE)) $(if $(BUDGET),--budget $(BUDGET))

clean:
	rm -rf $(VENV) .venv-peers build dist report.html .import_linter_cache
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests bench examples -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/pyvenv.cfg:
	@$(PYTHON) -c "import sys; sys.exit(0 if sys.version_info >= (3, 11) else \
	  'Foretrain needs Python 3.11 or later; $(PYTHON) is ' + sys.version.split()[0] + '. Try: make PYTHON=python3.12')"
	@echo "Creating $(VENV) …"
	@$(PYTHON) -m venv $(VENV)

# A plain install, as a user has it. Where the tests' editable install is already there it does as well.
$(VENV)/.installed: $(VENV)/pyvenv.cfg $(SOURCES) $(BUILT)
	@if [ -e $(VENV)/.testing ] && [ -z "$$(find $(BUILT) -newer $(VENV)/.testing)" ]; then :; else \
	  echo "Installing Foretrain (under a minute, longer on a slow connection) …"; \
	  rm -f $(VENV)/.testing; $(PIP) .; fi
	@touch $@

$(VENV)/.testing: $(VENV)/pyvenv.cfg $(BUILT)
	@echo "Installing Foretrain with what its tests need (torch among it, so this takes minutes) …"
	@$(PIP) -e '.[test]'
	@$(BIN)/python -m compileall -q src/foretrain  # as an install that is not editable does
	@touch $@
