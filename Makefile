# Every target sets up what it needs: a virtual environment with pinned versions, and the package in it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: setup demo test test-browser test-flower test-slow lint rooms api tour example bench ci clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,tensorboard,flower]'
	touch $(READY)

demo: setup
	$(BIN)/prifedsync train

test: setup
	$(BIN)/python -m pytest -n 2 --dist worksteal -q

test-flower: setup
	PRIFEDSYNC_FLOWER=1 $(BIN)/python -m pytest -n 2 --dist loadfile -q tests/flower

test-slow: setup
	PRIFEDSYNC_EXAMPLES=300 PRIFEDSYNC_CRASH_STRIDE=1 PRIFEDSYNC_FLIPS=300 PRIFEDSYNC_HELPERS=100000 PRIFEDSYNC_KILLS=1000 \
		$(BIN)/python -m pytest -n 2 --dist worksteal -q \
		tests/fdp/test_properties.py tests/attacks/test_crashes.py tests/attacks/test_bit_flips.py \
		tests/attacks/test_hostile_helper.py tests/attacks/test_owner_kills.py
	PRIFEDSYNC_FLOWER=1 PRIFEDSYNC_KILLS=50 $(BIN)/python -m pytest -q tests/flower/test_kills.py

# Debian's Chromium, and axe-core at the version of the lock file. A new machine gets both here.
test-browser: setup
	command -v chromium >/dev/null || { apt-get update --quiet && apt-get install --yes --quiet --no-install-recommends chromium; }
	command -v npm >/dev/null || { apt-get update --quiet && apt-get install --yes --quiet --no-install-recommends npm; }
	npm ci --prefix tests/browser --ignore-scripts --no-fund --no-audit
	PRIFEDSYNC_BROWSER=1 $(BIN)/python -m pytest -q tests/browser

lint: setup
	$(BIN)/ruff check src tests benchmarks scripts
	$(BIN)/ruff format --check src tests benchmarks scripts
	$(BIN)/mypy

rooms: setup
	$(BIN)/python scripts/rooms.py

api: setup
	$(BIN)/python scripts/api.py

tour: setup
	$(BIN)/python scripts/tour.py

example: setup
	PYTHONPATH=. $(BIN)/python scripts/example_report.py

bench: setup
	$(BIN)/python benchmarks/accounting.py
	$(BIN)/prifedsync bench

ci: lint demo test-browser test-flower test

clean:
	rm -rf $(VENV) build dist
