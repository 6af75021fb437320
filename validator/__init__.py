"""Scoring: one file per question asked of an update, the judge, and the validator node."""

if __name__ != "earnest.validator":  # one import path: docs/decisions/import-path.md
    raise ImportError("validator is imported as earnest.validator")
