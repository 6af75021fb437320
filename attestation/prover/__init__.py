"""The side inside a TEE: attesters that get quotes from it, and the enclave key."""
