# The two main commands: `make demo` and `make test`.
# Each makes its own virtual environment on first use and reuses it afterwards.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
# One thread a process: two OpenMP pools that spin against each other are many times slower than one.
# What is imported is compiled once, and not by every process that a test starts: that would take longer than the tests.
unexport PYTHONDONTWRITEBYTECODE
ONE_THREAD := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1

.PHONY: demo test compiled check format docs wheel clean help

help:            ## show this list
	@grep -E '^[a-z]+: .*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

demo: $(READY)   ## run a bundled model, then distill a small ViT (four minutes)
	@$(BIN)/python examples/demo.py $(IMAGES)
	@echo "Next: train a ViT on digits with all labels, distill it without labels, and train the same student from"
	@echo "ten labels of each digit, without a teacher. This takes about four minutes."
	@$(ONE_THREAD) $(BIN)/odevit distill experiment=distill/few-labels out=runs/demo overwrite=true
	@$(ONE_THREAD) $(BIN)/python examples/student.py runs/demo
	@echo "Teacher and student in pictures: runs/demo/report.html"

test: $(READY)   ## lint, types and the whole test suite
	@$(MAKE) --no-print-directory -j 2 check compiled
	@$(ONE_THREAD) $(BIN)/python -m pytest -n 2 --dist loadfile -q  # what the tests of a file share is made once

# While one core checks types, the other compiles what the tests import; what is wrong there the tests will say.
compiled: $(READY)
	@$(ONE_THREAD) $(BIN)/python -m pytest --collect-only -qq >/dev/null 2>&1 || true

check: $(READY)  ## lint and types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: $(READY) ## apply ruff's format, and write the help of the commands again
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .
	@$(BIN)/python -m odevit.cli.help

# The variable silences an advertisement, which would look like a warning.
docs: $(READY)   ## build the documentation into site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "Open site/index.html, or run $(BIN)/mkdocs serve to search in it as well."

wheel: $(READY)  ## build the wheel into dist/
	@$(BIN)/python -m build --wheel --no-isolation

# Python compiles what is imported; to compile all that is installed takes a minute longer.
$(READY): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing odevit into $(VENV) (once; a few minutes) ..."
	@$(BIN)/python -m pip install -q --no-compile -c constraints.txt -e '.[solvers,onnx,track,web,docs,dev]'
	@touch $@

clean:           ## remove the environment and everything built
	rm -rf $(VENV) dist build site .mypy_cache .ruff_cache .pytest_cache
