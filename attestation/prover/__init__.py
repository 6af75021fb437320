"""The side inside a TEE: attesters that get quotes from it, and the enclave key.

To add a platform: CONTRIBUTING.md, "A platform that makes quotes".
"""
