"""Ground that every room stands on and that knows none of them: errors, strict JSON, durable files, amounts, logs."""

if __name__ != "earnest.base":  # one import path: docs/decisions/import-path.md
    raise ImportError("base is imported as earnest.base")
