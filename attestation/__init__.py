"""Trusted hardware: formats, provers (make quotes), verifiers (check them), policies, evidence files, roots."""

if __name__ != "earnest.attestation":  # one import path: docs/decisions/import-path.md
    raise ImportError("attestation is imported as earnest.attestation")
