"""Alters quotes, certificates and calldata at random and checks contract, parser and verifier against one law.

    python -m benchmarks.fuzz_attestation [--cases 200000] [--seed 0] [--verifier table|contract]

The law and the alterations are in `tests/contracts/fuzzing.py`; seed and number identify a case and replay it exactly.
Uses one core. `table` (default): the P-256 precompile answers from a list of the originals' signatures in
both forms, so no alteration makes a signature valid; `contract`: signatures are computed by a contract, which takes
five times as long. Prints a line for each outcome; exits with the first case that breaks the law.
"""

from __future__ import annotations

import argparse
import time

from tests.contracts.fuzzing import Fuzzer

EVERY = 10_000


def main() -> None:
    parser = argparse.ArgumentParser(description="Fuzz the attestation registry and the quote parsers.")
    parser.add_argument("--cases", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--verifier", choices=["table", "contract"], default="table")
    options = parser.parse_args()
    fuzzer = Fuzzer(table=options.verifier == "table")
    began = time.perf_counter()

    def progress(case: int) -> None:
        if (case + 1) % EVERY == 0:
            print(f"{case + 1:>9,} cases, {time.perf_counter() - began:6.0f} s", flush=True)

    outcomes = fuzzer.run(options.cases, options.seed, progress)
    took = time.perf_counter() - began
    for outcome, count in sorted(outcomes.items()):
        print(f"{count:>9,} {outcome}")
    print(
        f"{options.cases:,} cases, seed {options.seed}, {took:.0f} s, {options.cases / took:.0f} a second: the law held"
    )


if __name__ == "__main__":
    main()
