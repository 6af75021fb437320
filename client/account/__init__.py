"""One account: its key, stores and outbox, and its transactions."""
