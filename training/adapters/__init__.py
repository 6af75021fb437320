"""Tasks from what others have already: token files as nanoGPT writes them, Hugging Face models."""
