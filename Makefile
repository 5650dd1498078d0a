# `make help` lists the targets. Every target does its own set-up.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# A release with known advisories: where they can be read, pip-audit can run.
ADVISORIES := https://pypi.org/pypi/jinja2/2.10/json

# What every process of the tests would otherwise compile anew, if the user writes no bytecode.
export PYTHONDONTWRITEBYTECODE :=
# Workers of the tests: one more than cores, since some tests wait for processes; 1.4 GB each.
WORKERS := -n $(shell cores=$$(getconf _NPROCESSORS_ONLN); echo $$((cores < 5 ? cores + 1 : 6))) --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help setup demo faults test lint types layers unit fuzz exhaustive conformance fpga-conformance hls-check rtl bench zoo fuzz-onnx fuzz-ops fuzz-plans chaos lock audit test-lowest docs pictures clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-17s %s\n", $$1, $$2}'

setup: $(STAMP) ## create .venv and install pipec with the tested versions

$(STAMP): pyproject.toml constraints.txt
	@command -v g++ >/dev/null || { apt-get update -qq && apt-get install -y -qq g++ make; }
	@command -v iverilog >/dev/null || { apt-get update -qq && apt-get install -y -qq iverilog; } \
	  || echo "iverilog cannot be installed: the RTL tests will be skipped"
	@command -v clang-14 >/dev/null \
	  || { apt-get update -qq && apt-get install -y -qq --no-install-recommends clang-14; } \
	  || echo "clang-14 cannot be installed: the tests of intervals will be skipped"
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null \
	  || { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium chromium-driver; } \
	  || echo "chromium cannot be installed: the report's tests in a browser will be skipped"
	@command -v dot >/dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends graphviz; } \
	  || echo "graphviz cannot be installed: the test of its pictures will be skipped"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -c constraints.txt "torch" "setuptools>=77" wheel
	$(BIN)/pip install -q -c constraints.txt --no-build-isolation -e '.[dev]'
	touch $@

demo: setup ## compile and verify ResNet-50 for four FPGAs and GPT-2 for four torch stages
	$(BIN)/python examples/demo.py

test: lint types layers audit unit ## everything that must hold

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

layers: setup
	$(BIN)/lint-imports --no-cache

unit: setup
	OMP_NUM_THREADS=1 $(BIN)/pytest $(WORKERS) -q --ignore tests/test_docs.py
	rm -rf build/wheel build/lib && mkdir -p build/wheel/site
	$(BIN)/pip wheel -q --no-deps --no-build-isolation -w build/wheel .
	$(BIN)/python -m zipfile -e build/wheel/*.whl build/wheel/site
	cp -r *.md LICENSE conftest.py pyproject.toml docs tests benchmarks examples distribution build/wheel
	cd build/wheel && PYTHONPATH=$$PWD/site OMP_NUM_THREADS=1 ../../$(BIN)/pytest $(WORKERS) -q tests/test_docs.py

fuzz: setup ## the property tests on new random examples
	HYPOTHESIS_PROFILE=fuzz OMP_NUM_THREADS=1 $(BIN)/pytest $(WORKERS) -q -m hypothesis tests

exhaustive: setup ## every case and example of which make test takes a sample (an hour)
	PIPEC_TESTS=all OMP_NUM_THREADS=1 $(BIN)/pytest $(WORKERS) -q --ignore tests/test_docs.py

conformance: setup ## run the ONNX node tests and rewrite docs/onnx_conformance.md
	$(BIN)/python -m benchmarks.conformance

rtl: setup ## cycles against SystemVerilog under Verilator; rewrites its figures in docs (ten minutes)
	@command -v verilator >/dev/null && command -v yosys >/dev/null \
	  || { apt-get update -qq && apt-get install -y -qq verilator yosys; }
	$(BIN)/python -m benchmarks.rtl.synthesis
	$(BIN)/python -m benchmarks keep rtl
	$(BIN)/python docs/make_figures.py

hls-check: setup ## intervals of emitted loops from LLVM IR; DIR= what pipec compile wrote
	@command -v clang-14 >/dev/null \
	  || { apt-get update -qq && apt-get install -y -qq --no-install-recommends clang-14; }
	$(BIN)/python -m $(if $(DIR),benchmarks.hls_check.stages $(DIR),benchmarks.hls_check)

fpga-conformance: setup ## every stage of 14 models: warnings, onnxruntime, sanitizers, cycles
	$(BIN)/python -m benchmarks.fpga_conformance

bench: setup ## speed and memory, each against a peer or a bound in the same run
	$(BIN)/python -m benchmarks

fuzz-onnx: setup ## 50,000 mutants of ten ONNX models against onnxruntime's verdict (hours)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.fuzz_onnx

fuzz-ops: setup ## every op that a plan may name, with hostile arguments between guard pages (5 minutes)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.fuzz_ops $(ARGS)

fuzz-plans: setup ## 100,000 mutated plans under five commands (half a day); ARGS='--mutants 1000'
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.fuzz_plans $(ARGS)

chaos: setup ## 1,400 commands killed, starved or raced while they write; ranks killed (an hour); ARGS='--cases 300'
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.chaos $(ARGS)
	PIPEC_KILLS=20 OMP_NUM_THREADS=1 $(BIN)/pytest -q tests/runtime/test_survival.py

faults: setup ## faults injected into emitted directories; rewrites docs/faults.md (ten minutes)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.faults

zoo: setup ## ONNX models of published packages (network); ZOO=list.toml takes any other list
	$(BIN)/python -m benchmarks.zoo $(if $(ZOO),--list $(ZOO))

build/lock:
	$(PYTHON) -m venv $@ && $@/bin/pip install -q uv cyclonedx-bom pip-audit

lock: setup build/lock ## requirements.lock with hashes and the bill of materials, from constraints.txt (network)
	PATH=$(CURDIR)/build/lock/bin:$$PATH $(BIN)/python distribution/lock.py

audit: ## known vulnerabilities of the locked versions, where the advisories can be reached
	@if $(PYTHON) -c "from urllib.request import urlopen; assert b'CVE' in urlopen('$(ADVISORIES)', timeout=5).read()" 2>/dev/null; \
	then $(MAKE) build/lock && build/lock/bin/pip-audit --disable-pip --require-hashes -r requirements.lock; \
	else echo "audit: not run, since $(ADVISORIES) cannot be reached"; fi

test-lowest: ## the tests with the lowest versions that pyproject.toml allows (network)
	test -x build/lowest/bin/python || $(PYTHON) -m venv build/lowest
	sed -n '/^dependencies/,/^]/s/^  "\(.*\)>=\(.*\)",/\1==\2/p' pyproject.toml | grep -v '^torch==' > build/lowest/lowest.txt
	grep -E '^(torch|pytest|pytest-xdist|hypothesis|ortools|scikit-learn|selenium|setuptools|build|import-linter)==' constraints.txt > build/lowest/tools.txt
	build/lowest/bin/pip install -q -r build/lowest/lowest.txt -r build/lowest/tools.txt tensorboard "transformers>=5.23"
	build/lowest/bin/pip install -q --no-deps --no-build-isolation -e .
	OMP_NUM_THREADS=1 build/lowest/bin/pytest $(WORKERS) -q

docs: setup ## the site with its API reference, offline, in build/site
	$(BIN)/pip install -q -c constraints.txt -e '.[docs]' --no-build-isolation
	$(BIN)/python docs/make_commands.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build -q

pictures: setup ## pictures of five reports, for README and docs, in docs/pictures
	$(BIN)/python -m benchmarks.pictures

clean: ## remove what was built
	rm -rf $(VENV) build dist *.egg-info .demo .bench
