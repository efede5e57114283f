# `make PYTHON=…` chooses the interpreter; otherwise it is the first of these that runs, is new
# enough and can make virtual environments.
SUITABLE = import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$python -c '$(SUITABLE)' >/dev/null 2>&1 && echo $$python && break; done)

.PHONY: demo test coverage quick check golden messages docs diagrams screenshots hooks bench chaos model dist clean

demo: .venv/stamp
	.venv/bin/python -m project.demo $(ARGS)

# Tests that start no processes of their own and take no more than a few seconds each.
PYTEST = .venv/bin/python -m pytest -m "not process and not slow and not chaos and not bench" \
	-n 2 --dist loadfile

test: .venv/stamp
	$(PYTEST) $(ARGS)

# The same, and which lines it reaches: measuring them takes as long again as the tests.
coverage: .venv/stamp
	$(PYTEST) --cov --cov-report=term $(ARGS)

# What a change to the protocol or to a statement breaks first, in less than a minute.
quick: .venv/stamp
	$(PYTEST) -q tests/unit tests/db tests/protocol tests/plans $(wildcard tests/golden) $(ARGS)

check: .venv/stamp
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	JOBREAPER_NO_SERVERS=1 .venv/bin/mypy jobreaper project tests
	.venv/bin/lint-imports
	.venv/bin/python tests/check_docs.py
	.venv/bin/python manage.py makemigrations --check --dry-run

# The texts to translate, in jobreaper/locale/: translate those that are empty or fuzzy, and compile
# them by running it again. Needs Debian's package gettext.
messages: .venv/stamp
	.venv/bin/python manage.py makemessages -l de --no-location \
		-i "tests/*" -i "project/*" -i "docs/*" -i ".venv*/*"
	.venv/bin/python manage.py compilemessages -l de -i ".venv*/*" -i "project/*"

# The documentation site, in build/site/. A link or an anchor that leads nowhere fails it.
docs: .venv/stamp
	.venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[docs]"
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --config-file .mkdocs.yml --strict --quiet

# The pictures of the site's diagrams, so that it loads nothing from elsewhere. Needs npm, and Debian's
# package chromium.
diagrams: .venv/stamp
	mkdir -p build && cd build && tar -xzf $$(npm pack --silent mermaid@11.17.2) package/dist/mermaid.min.js
	.venv/bin/python docs/site/diagrams.py build/package/dist/mermaid.min.js

# The pictures of the documentation, from a lively database. Needs Debian's package chromium.
screenshots: .venv/stamp
	.venv/bin/python -m project.screenshots docs/images --docs

# From now on `git commit` runs what .pre-commit-config.yaml names.
hooks: .venv/stamp
	.venv/bin/python -m pip install --quiet --disable-pip-version-check pre-commit
	.venv/bin/pre-commit install

# What PostgreSQL is sent, whole, in tests/golden/: read the difference before you commit it.
golden: .venv/stamp
	GOLDEN=rewrite .venv/bin/python -m pytest -q tests/golden

bench: .venv/stamp
	.venv/bin/python -m pytest -m bench -s tests/benchmarks $(ARGS)

chaos: .venv/stamp
	.venv/bin/python -m pytest -m chaos -s $(ARGS)

# The protocol around one job, checked by Spin, which is a package of Debian's.
model: .venv/stamp
	.venv/bin/python -m pytest -q tests/model $(ARGS)

# The sdist and the wheel, in dist/, ready for `twine upload`.
dist: .venv/stamp
	rm -rf build dist *.egg-info
	.venv/bin/python -m build

clean:
	rm -rf .venv .venv-* .embedded .static .coverage* .pytest_cache .mypy_cache .ruff_cache \
		.hypothesis .import_linter_cache build dist *.egg-info

.venv/stamp: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer with venv is needed: make PYTHON=…" >&2; exit 1; }
	@echo "Installing into .venv with $(PYTHON); the first time takes about a minute."
	"$(PYTHON)" -m venv .venv
	.venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@
