"""Parsers of what vendors sign: quotes, certificates, collateral. Nothing here checks a signature."""
