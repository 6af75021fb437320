"""Type-checks every room; fails if the type checker read fewer files than there are. `python -m tests.house.types`"""

import json
import subprocess
import sys
from pathlib import Path

from tests.house.rooms import ROOT, modules


def main() -> int:
    """Prints each error; exit code 1 if there is one, or if a file was not read."""
    command = [str(Path(sys.executable).with_name("basedpyright")), "--level", "error", "--outputjson"]
    report = json.loads(subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True).stdout)
    for error in report["generalDiagnostics"]:
        start = error["range"]["start"]
        print(f"{error['file']}:{start['line'] + 1}:{start['character'] + 1}: {error['message']}")
    read, there = report["summary"]["filesAnalyzed"], len(modules())
    print(f"types: {read} of {there} files read, {report['summary']['errorCount']} errors")
    return int(read < there or report["summary"]["errorCount"] > 0)


if __name__ == "__main__":
    sys.exit(main())
