"""Trusted hardware: quotes and what they prove. Formats, provers (who makes a quote), verifiers, policies, roots."""

if __name__ != "earnest.attestation":  # one import path: docs/decisions/import-path.md
    raise ImportError("attestation is imported as earnest.attestation")
