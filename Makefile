# Everything runs from .venv, which `make setup` builds from requirements.lock.
PY := .venv/bin/python
STAMP := .venv/.installed
ROOMS := contracts protocol client validator deploy cli

.PHONY: demo test check format bench bench-demo gas agreement clean

$(STAMP): pyproject.toml requirements.lock
	test -x $(PY) || python3 -m venv .venv
	$(PY) -m pip install --quiet --upgrade pip
	$(PY) -m pip install --quiet -c requirements.lock setuptools wheel
	$(PY) -m pip install --quiet -c requirements.lock torch==2.13.0
	$(PY) -m pip install --quiet -c requirements.lock --no-build-isolation -e '.[dev]'
	touch $@

demo: $(STAMP)            ## a whole run on the embedded chain: 4 trainers, 3 validators, one cheat
	.venv/bin/earnest demo --attack sign-flip --output earnest-demo

test: $(STAMP)            ## every test, on two cores
	$(PY) -m pytest -n 2 --dist loadfile

check: $(STAMP)           ## format, lint, types, architecture, artifacts
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	mkdir -p build/types/earnest
	for room in $(ROOMS); do ln -sfn ../../../$$room build/types/earnest/$$room; done
	.venv/bin/basedpyright --level error
	.venv/bin/lint-imports
	$(PY) -m earnest.deploy.compile --check

format: $(STAMP)
	.venv/bin/ruff format .
	.venv/bin/ruff check --fix .

gas: $(STAMP)             ## gas per action, bytecode sizes, whole rounds; writes contracts/gas.json
	$(PY) benchmarks/gas.py

agreement: $(STAMP)       ## contract against protocol/ on 2,000 generated rounds, to the last wei
	$(PY) benchmarks/agreement.py

bench-demo: $(STAMP)      ## every attack over ten seeds: who lost what, who earned what
	$(PY) benchmarks/demo.py

bench: gas agreement bench-demo

clean:
	rm -rf .venv build *.egg-info earnest-demo
