"""The commands, a file for each group; `earnest.cli.app` lists them."""
