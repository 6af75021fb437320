# Every target runs from .venv, which `make setup` builds from requirements.lock.
PY := .venv/bin/python
STAMP := .venv/.installed
.DEFAULT_GOAL := help

.PHONY: help setup demo demo-attested test check format bench bench-demo bench-training bench-codecs bench-attestation bench-verification best-response fuzz gas agreement clean

help:                     ## print every target
	@awk -F ':.*## *' '/^[a-z-]+:.*## / { printf "%-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP)           ## build .venv: torch, earnest and the tools of a developer (1 GB)

$(STAMP): pyproject.toml requirements.lock
	test -x $(PY) || python3 -m venv .venv
	$(PY) -m pip install --quiet --upgrade pip
	$(PY) -m pip install --quiet -c requirements.lock setuptools wheel
	$(PY) -m pip install --quiet -c requirements.lock torch==2.13.0
	$(PY) -m pip install --quiet -c requirements.lock --no-build-isolation -e '.[dev]'
	touch $@

demo: $(STAMP)            ## play a run on the embedded chain: 4 trainers, 3 validators, one cheat; 2 to 4 minutes
	.venv/bin/earnest demo --attack sign-flip --output earnest-demo

demo-attested: $(STAMP)   ## the same with updates signed inside SIMULATED TEEs: three cheats, all refused
	.venv/bin/earnest demo --verification attested --output earnest-demo-attested

test: $(STAMP)            ## every test, on two cores
	$(PY) -m pytest -n 2 --dist worksteal

check: $(STAMP)           ## format, lint, types, architecture, artifacts
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	$(PY) -m tests.house.types
	.venv/bin/lint-imports
	$(PY) -m earnest.deploy.compile --check

format: $(STAMP)          ## format every file, and fix what the linter can fix
	.venv/bin/ruff format .
	.venv/bin/ruff check --fix .

gas: $(STAMP)             ## gas per action, bytecode sizes, whole rounds; writes contracts/gas.json
	$(PY) -m benchmarks.gas

agreement: $(STAMP)       ## contract against protocol/ on 2,000 generated rounds, to the last wei
	$(PY) -m benchmarks.agreement

bench-demo: $(STAMP)      ## every attack over ten seeds: who lost what, who earned what
	$(PY) -m benchmarks.demo

bench-training: $(STAMP)  ## codecs, overlap and torchft's DiLoCo against AllReduce: loss, bytes, idle time; 1 hour
	$(PY) -m pip install --quiet -c requirements.lock --no-build-isolation -e '.[bench]'
	$(PY) -m benchmarks.training --plot docs/training.png
	$(PY) -m benchmarks.idle

bench-codecs: $(STAMP)    ## bytes, speed and memory of every codec beside torch.topk and a dense add
	$(PY) -m benchmarks.codecs

bench-verification: $(STAMP) ## attacks on the judgement of a round, and what they earn; writes benchmarks/results/
	$(PY) -m benchmarks.mechanism --rounds 8
	$(PY) -m benchmarks.mechanism --model demo --codec topk-2bit --rounds 8
	$(PY) -m benchmarks.mechanism --seats 8 --rounds 8 --attacks split-2,split-4
	$(PY) -m benchmarks.harm_level

best-response: $(STAMP)   ## search for the deviation that pays best; make best-response BUDGET=100
	$(PY) -m benchmarks.best_response --budget $(or $(BUDGET),24)

bench-attestation: $(STAMP) ## vectors and their verdicts, bytes and milliseconds of a registration
	$(PY) -m benchmarks.attestation

fuzz: $(STAMP)            ## 200,000 mutated quotes and certificates against contract and verifier
	$(PY) -m benchmarks.fuzz_attestation --cases 200000

bench: gas agreement bench-codecs bench-attestation bench-verification fuzz bench-demo bench-training ## all of the above; hours

clean:                    ## delete .venv and what demos wrote
	rm -rf .venv build *.egg-info earnest-demo earnest-demo-attested
