# `make PYTHON=…` chooses the interpreter; otherwise it is the first of these that runs, is new
# enough and can make virtual environments.
SUITABLE = import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	$$python -c '$(SUITABLE)' >/dev/null 2>&1 && echo $$python && break; done)

.PHONY: demo test check bench chaos clean

demo: .venv/stamp
	.venv/bin/python -m project.demo $(ARGS)

test: .venv/stamp
	.venv/bin/python -m pytest -m "not process and not slow and not chaos and not bench" \
		-n 2 --dist loadfile --cov --cov-report=term $(ARGS)

check: .venv/stamp
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	JOBREAPER_NO_SERVERS=1 .venv/bin/mypy jobreaper project tests
	.venv/bin/lint-imports
	.venv/bin/python tests/check_docs.py
	.venv/bin/python manage.py makemigrations --check --dry-run

bench: .venv/stamp
	.venv/bin/python -m pytest -m bench -s tests/benchmarks $(ARGS)

chaos: .venv/stamp
	.venv/bin/python -m pytest -m chaos -s $(ARGS)

clean:
	rm -rf .venv .venv-* .embedded .static .coverage* .pytest_cache .mypy_cache .ruff_cache \
		.hypothesis .import_linter_cache build dist *.egg-info

.venv/stamp: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer with venv is needed: make PYTHON=…" >&2; exit 1; }
	@echo "Installing into .venv with $(PYTHON); the first time takes about a minute."
	"$(PYTHON)" -m venv .venv
	.venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@
