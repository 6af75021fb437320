"""Tasks for existing formats: token files as nanoGPT writes them, and Hugging Face models."""
