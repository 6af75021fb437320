"""Scoring of updates: one file per measurement or check, the judge that combines them, and the validator node."""

if __name__ != "earnest.validator":  # one import path: docs/decisions/import-path.md
    raise ImportError("validator is imported as earnest.validator")
