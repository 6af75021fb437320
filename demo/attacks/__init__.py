"""Dishonest nodes: one file for trainers, one for validators, one for trainers that cheat with their enclaves."""
