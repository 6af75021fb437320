"""A trainer inside a TEE: who makes its quotes, the key that lives there, the evidence that it publishes."""
