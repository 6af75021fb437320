"""The rooms of the project: the top-level folders that make up the package `earnest`."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
NO_ROOMS = {"benchmarks", "docs", "earnest", "tests", ".ci"}


def tracked() -> list[str]:
    """Paths that git tracks, and new ones that it does not ignore."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    return [path for path in listed if (ROOT / path).exists()]


def rooms() -> list[str]:
    """Top-level folders that hold Python and are neither tests nor benchmarks."""
    return sorted({path.split("/")[0] for path in tracked() if path.endswith(".py")} - NO_ROOMS)


def modules() -> list[str]:
    """Paths of every Python file in a room."""
    return [path for path in tracked() if path.endswith(".py") and path.split("/")[0] in rooms()]
