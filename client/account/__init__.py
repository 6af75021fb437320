"""One account: its key, stores and outbox, and the transactions by which it takes part."""
