"""Dishonest nodes: `trainers.py`, `validators.py`, and `enclaves.py` for trainers that cheat with their enclaves.

`ATTACKS` in `trainers.py` lists what `earnest demo --attack` can play. To add one: CONTRIBUTING.md, "An attack".
"""
