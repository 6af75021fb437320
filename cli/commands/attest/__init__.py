"""`earnest attest`: quotes and policies; keys; what a guardian may do."""
