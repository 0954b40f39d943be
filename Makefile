# All commands run in .venv, which the first of them makes from requirements.lock. `make help` lists
# them. Needs Python 3.11 or newer with its venv module, and nothing else.

CONFIG ?= configs/acrobot.py
ARGS   ?=
EXTRA  ?=
# WHEELS is a folder of wheels, which `make wheels` fills. Given to anything else: nothing is asked of
# the network.
WHEELS ?=
# PYTHON is the interpreter that .venv is made with. Not given: the first of these that is new
# enough. Given: that one, and an existing .venv of another version is made anew.
CANDIDATES := $(or $(PYTHON),python3 python3.14 python3.13 python3.12 python3.11)

comma := ,
space := $(subst ,, )
# EXTRA=cuda, EXTRA=cuda,envpool or EXTRA="cuda envpool"
extras := $(subst $(space),$(comma),$(strip $(subst $(comma),$(space),$(EXTRA))))
# Extras add up in .venv; each set has a stamp of its own, on top of the lock's.
stamp := .venv/.locked$(if $(extras),+$(subst $(comma),+,$(extras)))

pip := .venv/bin/python -m pip --disable-pip-version-check --no-input --quiet

download = $(pip) download --only-binary=:all: --dest='$(folder)'
# `make wheels` itself installs from the network.
given := $(if $(filter wheels,$(MAKECMDGOALS)),,$(WHEELS))
offline := $(if $(given),--no-index --find-links='$(given)')
wheels_are_there := [ -z '$(given)' ] || ls '$(given)'/*.whl > /dev/null 2>&1 || { \
  echo 'make: WHEELS=$(given) is no folder with wheels;' \
    '`make wheels` collects them on a machine with internet' >&2; exit 1; }

# Does $$p run, and is it new enough?
new_enough := "$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null

# Sets $$p to the interpreter, or ends with one line.
define find_python
p=; for p in $(CANDIDATES) ''; do [ -z "$$p" ] || ! $(new_enough) || break; done; \
if [ -z "$$p" ]; then \
  echo "make: Python 3.11 or newer is needed, and none was found as: $(CANDIDATES)." \
    "Give one with PYTHON=/path/to/python3" >&2; exit 1; \
fi; \
if ! "$$p" -c 'import ensurepip, venv' 2>/dev/null; then \
  echo "make: $$p has no venv module; install it (Debian, Ubuntu: apt install python3-venv)" \
    "or give another interpreter with PYTHON=" >&2; exit 1; \
fi
endef

# $(call quietly,COMMAND): its output is shown only if it fails.
quietly = { $(1); } > .venv/install.log 2>&1 || { cat .venv/install.log >&2; exit 1; }

# A .venv of another Python than the one asked for, or whose Python is gone, is made anew.
ifeq ($(wildcard .venv/bin/python),)
remake := remake
else ifneq ($(PYTHON),)
version := -c 'import sys; print(sys.version_info[:2], sys.implementation.name)'
ifneq ($(shell .venv/bin/python $(version) 2>&1),$(shell $(PYTHON) $(version) 2>&1))
remake := remake
endif
endif

.PHONY: help train test lint test-slow install wheels lock clean remake
.DEFAULT_GOAL := help

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo
	@echo 'CONFIG=configs/acrobot.py   what to train'
	@echo 'ARGS="--seed 3"             handed on to the command (train, pytest)'
	@echo 'EXTRA=cuda                  installs this extra too: cuda, envpool, onnx, search,'
	@echo '                            brax, craftax, jumanji, playground'
	@echo 'WHEELS=wheels               installs from this folder, without internet'
	@echo 'PYTHON=python3.12           the interpreter that .venv is made with'

train: $(stamp) ## train CONFIG; installs what it needs the first time
	@.venv/bin/python -m jaxrl_scale.train --config $(CONFIG) $(ARGS)

# The tests of EnvPool run real Procgen and Atari; where it has no wheel, pyproject.toml leaves it out.
# Those of a sweep run real Optuna and read real Parquet, those of an export ONNX's runtime, and one
# has pyright check a program.
test: $(stamp) ## lint, then run the tests
	@$(MAKE) --no-print-directory --jobs=2 lint .venv/.locked+envpool,onnx,pyright,search
	@.venv/bin/python -m pytest --numprocesses=3 --dist=loadfile --no-loadscope-reorder --durations=10 $(ARGS)

lint: $(stamp) ## ruff and mypy
	@.venv/bin/python -m ruff check --quiet .
	@.venv/bin/python -m ruff format --check --quiet . || \
	  { echo 'make: these files need .venv/bin/ruff format' >&2; .venv/bin/python -m ruff format --check . >&2; exit 1; }
	@.venv/bin/python -m mypy --no-error-summary

test-slow: $(stamp) .venv/.locked+envpool,onnx,pyright,search .venv/.locked+brax,craftax,jumanji,playground ## run the tests that take minutes
	@.venv/bin/python -m pytest -m slow $(ARGS)

install: $(stamp) ## only make .venv

.venv/.made: $(remake)
	@$(find_python); \
	echo "make: making .venv with $$("$$p" --version)"; rm -rf .venv; "$$p" -m venv .venv
	@touch $@

# pip compiles Python's files on one core; compileall does it on all of them, in half of the time. It
# ends with an error for files that no Python 3 can read, which a few packages have.
compile = { .venv/bin/python -m compileall -qq -j 0 .venv/lib || :; }

# The editable install builds with the locked setuptools, not with a newer one from outside.
.venv/.locked: requirements.lock pyproject.toml $(remake) | .venv/.made
	@$(wheels_are_there)
	@echo 'make: installing requirements.lock into .venv (once, about a minute)'
	@$(call quietly,$(pip) install $(offline) --no-compile --require-hashes -r requirements.lock && \
	  $(pip) install $(offline) --no-deps --no-build-isolation -e . && $(compile))
	@touch $@

# The locked versions without their hashes, which pip asks of all packages or of none.
constraints = sed -n '/==/s/ *\\$$//p' requirements.lock > .venv/constraints.txt

# An extra's own packages are in no lock; those that are keep their locked versions.
.venv/.locked+%: .venv/.locked
	@$(wheels_are_there)
	@echo 'make: installing the extra $(subst +,$(comma),$*) into .venv (once)'
	@$(constraints)
	@$(call quietly,$(pip) install $(offline) --no-build-isolation -c .venv/constraints.txt -e '.[$(subst +,$(comma),$*)]')
	@touch $@

# The wheels are those for this machine's system, processor and Python. setuptools, which builds the
# editable install, is in the lock; pip comes with Python. What an extra needs is asked of
# pyproject.toml, which takes the locked setuptools, too.
wheels: folder := $(or $(WHEELS),wheels)
wheels: $(if $(extras),.venv/.locked,.venv/.made) ## collect the wheels of the lock and of EXTRA in WHEELS [wheels]
	@echo 'make: collecting wheels in $(folder)'
	@$(call quietly,$(download) --require-hashes -r requirements.lock)
	@$(if $(extras),$(constraints))
	@$(if $(extras),$(call quietly,$(download) --no-build-isolation -c .venv/constraints.txt '.[$(extras)]'))
	@echo "make: $$(ls '$(folder)' | wc -l) wheels are in $(folder); install with" \
	  'make install WHEELS=$(folder)$(if $(extras), EXTRA=$(extras))'

lock: ## write requirements.lock anew, with the newest versions that pyproject.toml allows
	@$(find_python); rm -rf .venv-lock; "$$p" -m venv .venv-lock
	@.venv-lock/bin/python -m pip --disable-pip-version-check install --quiet uv
	@{ echo '# Written by `make lock` from pyproject.toml: the core dependencies, the extra `test` and'; \
	   echo '# setuptools, for Python 3.11 and newer. Versions and hashes, no addresses. Do not edit.'; \
	   echo 'setuptools>=77' | .venv-lock/bin/uv pip compile --quiet --no-config --upgrade --universal \
	     --python-version 3.11 --extra test --generate-hashes --no-header --no-annotate \
	     pyproject.toml - || exit 1; \
	 } > .venv-lock/requirements.lock
	@mv .venv-lock/requirements.lock requirements.lock; rm -rf .venv-lock

clean: ## remove .venv, caches and build products; runs/ stays
	@rm -rf .venv .venv-lock build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
	@find . -name .git -prune -o -name runs -prune -o -name __pycache__ -type d -exec rm -rf {} +
