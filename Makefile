# Two commands set everything up from a fresh clone: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PROFILE := examples/zero-bubble/gpt-6.2b-m24.yaml

# Bytecode is kept even where the environment says no: every process of a test, and every worker,
# would compile the same files again.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help demo test quick laws explore browser lint lock format fuzz figures docs bench packages clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(BIN)/debubble: pyproject.toml
	@echo 'Installing debubble and its playground into $(VENV), with numba and OR-Tools: about a minute.'
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[serve]'
	@touch $@

# Bytecode of all that is installed takes longer to make than that of what tests import.
$(VENV)/.dev: $(BIN)/debubble pyproject.toml constraints.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt \
	--editable '.[dev]'
	@touch $@

demo: $(BIN)/debubble  ## which schedule wins on a real profile, with a picture
	@echo 'Comparing three schedules on the measured costs of a model with 6.2 billion parameters:'
	@echo
	@$(BIN)/debubble compare 1f1b zb-h1 zb-v --costs $(PROFILE) -m 16 --memory 8 -o demo.png \
	--height 7.9in --dpi 150 --caption short --no-notes --no-transfers
	@echo
	@echo 'Open demo.png: it shows the three steps on one time axis. Next, in a browser:'
	@echo '  $(BIN)/debubble serve'
	@# Machine code for large schedules is made while the picture is looked at.
	@$(BIN)/debubble doctor >/dev/null 2>&1 &

# Pages are tested in a real browser; without one these tests are skipped.
browser:  ## Chromium for the tests of pages, where apt has it
	@for name in chromium chromium-browser google-chrome; do command -v $$name >/dev/null && exit 0; done; \
	command -v apt-get >/dev/null || { echo "no Chromium here: tests of pages are skipped"; exit 0; }; \
	sudo=$$([ "$$(id -u)" = 0 ] || echo "sudo -n"); \
	$$sudo apt-get -qq update; \
	$$sudo env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y chromium >/dev/null \
	|| echo "Chromium could not be installed: tests of pages are skipped"

# Tests of processes and pages wait much of their time: a third worker uses it on two cores.
test: $(VENV)/.dev browser  ## run every test, laws on some of their cases
	SOME_CASES=1 $(BIN)/python -m pytest -n 3 --dist loadgroup

D ?=
quick: $(VENV)/.dev  ## the tests for every edit, of one folder with make quick D=engine
	HYPOTHESIS_PROFILE=quick $(BIN)/python -m pytest -n 2 --dist loadgroup \
	-m "not browser and not processes and not slow and not law" $(if $(D),tests/$(D))

laws: $(VENV)/.dev  ## the laws over all commands, options, costs, schedules and kinds: all cases
	$(BIN)/python -m pytest -n 2 --dist loadgroup tests/laws

MINUTES ?= 10
explore: $(VENV)/.dev  ## property tests with new random cases, six times as many, over and over: make explore MINUTES=60
	@end=$$(( $$(date +%s) + 60 * $(MINUTES) )); while [ $$(date +%s) -lt $$end ]; do \
	HYPOTHESIS_PROFILE=explore $(BIN)/python -m pytest -n 2 -x -m "not browser and not processes" || exit 1; done

lock: $(VENV)/.dev  ## write the versions in .venv to constraints.txt, which development installs
	$(BIN)/pip freeze --exclude-editable | sed 's/+cpu$$//' > constraints.txt

lint: $(VENV)/.dev  ## ruff, mypy --strict and the import layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev  ## format and sort imports
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

TARGETS ?=
ENGINE ?= random
fuzz: $(VENV)/.dev  ## random inputs, judged or read: make fuzz MINUTES=60 TARGETS=readers ENGINE=atheris
	$(BIN)/python -m tests.fuzz --minutes $(MINUTES) --engine $(ENGINE) $(TARGETS)

figures: $(BIN)/debubble  ## redraw the figures of the founding papers in docs/figures
	$(BIN)/python docs/figures/draw.py

docs: $(BIN)/debubble  ## build the documentation, with a page for every schedule: build/site/index.html
	@$(BIN)/python -c "import zensical, mkdocstrings, playwright" 2>/dev/null \
	|| $(BIN)/pip install --quiet --disable-pip-version-check --editable '.[docs]'
	$(BIN)/python docs/build.py
	@echo 'build/site/index.html; with search: $(BIN)/python -m http.server -d build/site'

bench: $(VENV)/.dev  ## measure speed and memory, see benchmarks/README.md
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/timeline.py
	$(BIN)/python benchmarks/serve.py

packages:  ## wheel and sdist in dist, installed into empty environments, each extra alone
	$(PYTHON) -m tests.packages
	$(PYTHON) -m tests.packages --lowest --extra '' --extra serve --extra sweep

clean:  ## remove the environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
