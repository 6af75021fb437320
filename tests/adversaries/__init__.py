"""Attacks as classes; the demo runs the same ones, so they live where it can import them."""

from earnest.cli.adversaries import (
    ATTACKS,
    Absent,
    Attack,
    Copy,
    Forgery,
    Honest,
    Malformed,
    Noise,
    Scaled,
    SignFlip,
    Stale,
    Zero,
)

__all__ = [
    "ATTACKS",
    "Absent",
    "Attack",
    "Copy",
    "Forgery",
    "Honest",
    "Malformed",
    "Noise",
    "Scaled",
    "SignFlip",
    "Stale",
    "Zero",
]
