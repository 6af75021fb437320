"""Simulates the harm test, with its own code, beside its bound: how often is a window of ten rounds convicted?

Gains of a round are normal around a mean of that round, on fresh and own sequences alike. Prints, for trainers at the
limit in every update, at the limit on average only, and honest ones, the share of windows with a verdict.

    python -m benchmarks.harm_level [--windows 300] [--sequences 512]
"""

from __future__ import annotations

import argparse
from random import Random

from earnest.protocol.harm import HarmTerms, HarmTest, threshold

TERMS = HarmTerms()
SEATS = 4
CASES = {
    "at the limit in every update": (-TERMS.delta, 0.0),
    "at the limit on average, rounds vary by 0.01": (-TERMS.delta, 0.01),
    "harmless on average (0.005), rounds vary by 0.01": (0.0, 0.01),
    "honest: gains 0.01, rounds vary by 0.005": (0.01, 0.005),
}
"""Mean gain of the rounds, and its standard deviation from round to round, nats per byte."""


def convicted(mean: float, spread: float, sequences: int, random: Random, noise: float = 0.05) -> bool:
    """Plays one window; True if the test exceeds the threshold of a run of ten rounds."""
    test, limit = HarmTest(), threshold(TERMS, TERMS.restart_rounds, SEATS)
    for round_ in range(1, TERMS.restart_rounds):
        centre = random.gauss(mean, spread)
        streams = [[random.gauss(centre, noise) for _ in range(sequences)] for _ in range(2)]
        test = test.update_round(round_, *streams, TERMS)
        if test.harmful(limit):
            return True
    return False


def main() -> None:
    """Simulates every case and prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--windows", type=int, default=300)
    parser.add_argument("--sequences", type=int, default=512)
    options = parser.parse_args()
    print(
        f"{options.windows} windows each; the bound for the first case is {TERMS.alpha / SEATS:.1e} a window"
    )
    print("| trainer | windows with a verdict |")
    print("|---|---|")
    for name, (mean, spread) in CASES.items():
        random = Random(0)
        found = sum(convicted(mean, spread, options.sequences, random) for _ in range(options.windows))
        print(f"| {name} | {found} of {options.windows} |")


if __name__ == "__main__":
    main()
