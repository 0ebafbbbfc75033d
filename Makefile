# `make quickstart` and `make test` work on a bare machine: Linux, Python 3.11 with venv, a C compiler, the package registries.
#
# DEVICE   which environment: cpu, cuda, tpu (default: the one that .venv was made for, or else cpu); ipu lives in its own image
# PYTHON   the Python 3.11 that makes it
# RELM_ENVS   where environments are cached, one per lock hash (default ~/.cache/relm/environments)

# The first line of .venv/made-from is the cached environment's folder: .../DEVICE-HASH.
MADE_FOR := $(shell sed -n '1s|.*/\([a-z]*\)-[0-9a-f]*$$|\1|p' .venv/made-from 2>/dev/null)
DEVICE ?= $(or $(MADE_FOR),cpu)
PYTHON ?= $(shell command -v python3.11 || command -v python3)
SHELL := bash
BIN := .venv/bin
LOCKS := $(wildcard envs/*.txt) pyproject.toml envs/make_environment.py $(wildcard src/relm/corpus/*.c)
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(or $(WORKERS),2) --dist worksteal

# Each step is a separate process: without the compiled modules of an earlier one it compiles all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: chaos soak coverage language test-gpu test-py38 licences wheel compile-all compile-check help environment harness quickstart test test-quickstart test-containers images check check-full format types workflow lock schema clean

help:            ## what there is to make
	@grep -hE '^[a-z/%-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 20

environment: .venv/made-from   ## the locked environment, for DEVICE

# Another DEVICE than before makes it again.
.venv/made-from: $(LOCKS) $(if $(filter-out $(DEVICE),$(MADE_FOR)),FORCE)
	@$(PYTHON) envs/make_environment.py --device $(DEVICE)
	@touch $@

harness: environment   ## the reference harness (lm_eval) on top of it, in a separate environment
	@$(PYTHON) envs/make_environment.py --device $(DEVICE) --harness

# In addition to the environment of DEVICE: torch_xla belongs to another torch.
.venv-tpu/made-from: $(LOCKS)
	@$(PYTHON) envs/make_environment.py --device tpu --folder .venv-tpu
	@touch $@

quickstart: results/quickstart   ## a small GPT-2 on real Wikipedia text, in minutes, on two cores

# Snakemake decides what is to be done, so the target is never up to date for make.
results/%: environment FORCE   ## any recipe: make results/NAME
	@$(BIN)/snakemake results/$*

FORCE:

test: environment harness   ## the tests
	$(PYTEST) -m "not full and not quickstart and not containers and not gpu"

coverage: export COVERAGE_FILE := $(CURDIR)/work/coverage/data
coverage: environment harness   ## the lines and branches of src/relm that the tests take, in subprocesses too; TESTS: only of these
	$(BIN)/python -m coverage erase
	-OMP_NUM_THREADS=1 $(BIN)/python -m coverage run -m $(subst OMP_NUM_THREADS=1 $(BIN)/python -m,,$(PYTEST)) \
	  -m "not full and not quickstart and not containers and not gpu" $(TESTS)
	$(BIN)/python -m coverage combine --quiet
	$(BIN)/python -m coverage report --skip-covered

test-gpu: environment   ## training on this machine's GPU: steps, kills, switches; after make DEVICE=cuda environment
	$(PYTEST) -m gpu

test-quickstart: environment harness   ## what results/quickstart must show, after make quickstart
	$(PYTEST) -m quickstart $$(grep -rl --include='*.py' mark.quickstart tests)

# FORCE=1: even when nothing they depend on changed since they were last green.
test-containers: environment   ## images built for real, and steps in them, by podman (installed where it is missing)
	@$(BIN)/python tests/containers/when_changed.py $(if $(FORCE),--always) -- \
	  $(BIN)/python -m pytest -q -p no:xdist -m "containers and not full" tests/containers

images: environment   ## build the images of ROLES (default: cpu) here; BASE=IMAGE replaces the Dockerfile's base, LOGGERS=1 adds the loggers
	@set -e; for role in $(or $(ROLES),cpu); do \
	  $(BIN)/relm images build $$role $(if $(BASE),--base BASE=$(BASE)) $(if $(PYTHON_BASE),--base PYTHON=$(PYTHON_BASE)) \
	    $(if $(LOGGERS),--loggers); \
	done

# SEED=N: the faults of an earlier run, in its order. What failed commands printed lies in work/chaos.
chaos: environment   ## whole runs while faults strike at random, for MINUTES (default: 5): the same bytes, or the exit status is 1
	PYTHONPATH=tests:tests/chaos $(BIN)/python tests/chaos/chaos.py --minutes $(or $(MINUTES),5) $(if $(SEED),--seed $(SEED))

soak: environment   ## the steps of a run again and again in one process, for MINUTES: are files, threads or memory left behind?
	OMP_NUM_THREADS=1 PYTHONPATH=tests:tests/chaos $(BIN)/python tests/chaos/soak.py --minutes $(or $(MINUTES),5)

# Ranks of torchrun and IPUs are tested in the environments that train with them: one process drives all devices of a TPU.
test-xla: .venv-tpu/made-from   ## what needs the TPU's packages: training on PyTorch/XLA, a CPU standing for eight devices; gs://
	PJRT_DEVICE=CPU $(subst $(BIN),.venv-tpu/bin,$(PYTEST)) -m "not full" --ignore tests/devices/test_ranks.py --ignore tests/devices/ipu \
	  tests/training/xla tests/forecast/compilation/xla tests/devices tests/cluster/bucket/test_google_storage.py

# POPTORCH=FOLDER: a copy of PopTorch's source, branch sdk-release-3.4, whose front-end is tested over a stand-in for its compiler.
test-py38: environment   ## the worker of IPU runs in Python 3.8 with torch 2.0.1 (4.5 GB): a twin's training
	python38=$$($(PYTHON) envs/make_python38.py) && RELM_TEST_PYTHON38=$$python38 $(if $(POPTORCH),RELM_TEST_POPTORCH=$(POPTORCH)) \
	  OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -p no:xdist -m full tests/devices/ipu/test_python_38.py

compile-all: environment .venv-tpu/made-from   ## TPU recipes through the TPU's compiler, those that changed: docs/compiled.json
	$(BIN)/python -m relm.forecast.compilation.shipped_programs
	$(BIN)/python docs/generate.py

compile-check: environment .venv-tpu/made-from   ## does docs/compiled.json hold the recipes' programs?
	$(BIN)/python -m relm.forecast.compilation.shipped_programs --check

check: environment format language types workflow   ## format, lint, language, types

format:
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

language:   ## docstrings, names, habits of words and subjects of commits, as far as a program can judge them
	$(BIN)/python tests/language.py

# The cache outlives the clone: mypy compares the content of files whose times differ.
types:
	$(BIN)/mypy --cache-dir $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/relm/mypy

workflow:
	$(BIN)/snakefmt --check Snakefile src/rules
	$(BIN)/snakemake --lint

check-full: environment harness   ## the heavy matrices too: stages, seconds
	@bash tests/check-full

# The options by which uv leaves out of a lock what another lock has.
list_locked = sed -n 's/^\([A-Za-z0-9._-]*\)==.*/--no-emit-package \1/p' $(1)

lock:   ## write envs/*.txt from envs/*.in (needs uv); make licences afterwards
	cd envs && for set in cpu loggers test; do uv pip compile --quiet --generate-hashes --no-header --no-annotate \
	  --python-version 3.11 --python-platform x86_64-manylinux_2_28 \
	  $$([ $$set != loggers ] || $(call list_locked,cpu.txt)) $$set.in --output-file $$set.txt; done
	cd envs && uv pip compile --quiet --generate-hashes --no-header --no-annotate --constraint cpu.txt \
	  --python-version 3.11 --python-platform x86_64-manylinux_2_28 torch-cuda.in --output-file torch-cuda.txt
	cd envs && uv pip compile --quiet --generate-hashes --no-header --no-annotate --excludes <(echo torch) \
	  --python-version 3.11 --python-platform x86_64-manylinux_2_28 \
	  $$($(call list_locked,cpu.txt loggers.txt test.txt)) harness.in --output-file harness.txt
	cd envs && uv pip compile --quiet --generate-hashes --no-header --no-annotate \
	  --constraint cpu.txt --constraint loggers.txt --constraint test.txt \
	  --python-version 3.11 --python-platform x86_64-manylinux_2_31 torch-tpu.in --output-file torch-tpu.txt
	cd envs && uv pip compile --quiet --generate-hashes --no-header --no-annotate \
	  --python-version 3.8 --python-platform x86_64-manylinux_2_28 $$(printf -- '--no-emit-package %s ' triton cmake lit) \
	  python38.in --output-file python38.txt

licences: environment   ## write envs/licences.csv, the licence of each locked package (needs the package registries)
	@$(BIN)/python envs/write_licences.py

wheel: environment   ## dist/relm-VERSION-py3-none-any.whl; two builds give the same bytes
	@$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --no-index --wheel-dir dist .
	@sha256sum dist/*.whl

schema: environment   ## write envs/*.schema.json from recipe.py
	$(BIN)/relm schema --output envs

clean:   ## remove results, but for the repository's example, and everything in between
	rm -rf work .snakemake
	find results -mindepth 1 -maxdepth 1 ! -name shakespeare_char -exec rm -rf {} + 2>/dev/null || true
