# Two commands: `make demo` shows what FastLoader does, `make test` checks it. Each sets up what it needs first.
PYTHON ?= python3
VENV ?= .venv
FASTLOAD_WERROR ?= OFF
JOBS ?= 2
ARGS ?=

BIN := $(VENV)/bin
CXX_FILES = $(shell find csrc -name '*.cpp' -o -name '*.h' -o -name '*.cu')

.DEFAULT_GOAL := help
.PHONY: help setup demo bench test test-all thorough release tag torture mutants lint format figures docs wheel matrix cluster sanitize simd unsimd clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## system library, virtual environment (.venv), packages, native core; only what is missing
	@PYTHON="$(PYTHON)" VENV="$(VENV)" FASTLOAD_WERROR="$(FASTLOAD_WERROR)" scripts/setup.sh

demo: ## load real photographs with DataLoader and with FastLoader; installs only what that needs
	@PYTHON="$(PYTHON)" VENV="$(VENV)" EXTRAS=bench FASTLOAD_WERROR="$(FASTLOAD_WERROR)" scripts/setup.sh
	$(BIN)/fastload bench demo $(ARGS)

bench: setup ## every benchmark at tiny size, to see that all work; ARGS='--only peers' picks some
	$(BIN)/python -m benchmarks all --quick $(ARGS)

test: setup ## all tests but the slow ones; ARGS='-k name' picks some
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile $(ARGS)

test-all: setup ## every test, as thoroughly as it can; ARGS='-k name' picks some
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --all $(ARGS)

thorough: setup ## what a merge does not wait for: tests in full, matrix, other Pillows, fuzzing, torture
	scripts/thorough.sh

release: setup ## sources, wheels and notes in dist/, checked, after make thorough; ARGS=--quick leaves that out
	scripts/release.sh $(ARGS)

tag: ## tag the version of pyproject.toml, if all is committed and CHANGELOG.md has its section
	$(PYTHON) scripts/tag.py

torture: setup ## hostile trials beside torch's DataLoader, in hours; ARGS='--only kills --share 0.1'
	PYTHONPATH=tests $(BIN)/python -m torture $(ARGS)

mutants: setup ## 300 small changes of the loader's code: how many the tests notice, in hours; ARGS='--first 30'
	$(BIN)/python scripts/mutants.py --jobs $(JOBS) --out benchmarks/results/mutants.json $(ARGS)

lint: setup ## ruff, mypy, clang-format, and tests of the code's form; changes nothing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run -Werror $(CXX_FILES)
	$(BIN)/python -m pytest -q -m lint tests/unit/test_house.py

format: setup ## let ruff and clang-format change the files
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CXX_FILES)

wheel: setup ## wheels in dist/ that need nothing of the system, tested in an empty environment
	PYTHON=$(BIN)/python scripts/wheel.sh dist
	FASTLOAD_WHEEL="$$(ls -t dist/fastload_torch-*-manylinux*.whl | head -1)" $(BIN)/python -m pytest --all tests/wheel

matrix: ## tests marked matrix on other Pythons, with the oldest torch and the newest; ARGS=3.12:oldest is one row
	scripts/matrix.sh $(ARGS)

cluster: setup ## loaders on two nodes of a Ray cluster on this machine; installs Ray, half a gigabyte
	$(BIN)/python -m pip install -q -e ".[cluster]"
	$(BIN)/python -m pytest -q --all tests/conformance/test_ray.py tests/unit/test_examples.py -k ray

sanitize: ## the native core under sanitizers and FUZZ_SECONDS (60) of fuzzing; needs clang
	scripts/sanitize.sh $(FUZZ_SECONDS)

figures: setup ## write the tables and chart from benchmarks/results, the drawing of the imports, the list of ops
	$(BIN)/python -m benchmarks figures
	$(BIN)/python scripts/architecture.py
	$(BIN)/python scripts/native_list.py

docs: setup ## the documentation, in build/docs; a warning is an error
	$(BIN)/python -m sphinx -W -n --keep-going -q -b html docs build/docs

simd: setup ## swap Pillow for Pillow-SIMD in the virtual environment
	scripts/simd.sh $(BIN)/python install

unsimd: setup ## swap Pillow back
	scripts/simd.sh $(BIN)/python remove

clean: ## delete build products, caches and the demo's data; keep the virtual environment
	rm -rf build dist .fastload .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
