"""The trainer node: work, optimizer state from round to round, and enclave keys."""
