"""Basics without protocol terms: errors, strict JSON, durable files, amounts, addresses, logs."""

if __name__ != "earnest.base":  # one import path: docs/decisions/import-path.md
    raise ImportError("base is imported as earnest.base")
