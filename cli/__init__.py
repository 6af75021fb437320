"""The `earnest` command: parses and prints. Decisions are made in `client`, `validator` and `deploy`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from earnest.cli.environment import Environment

if __name__ != "earnest.cli":  # one import path: docs/decisions/import-path.md
    raise ImportError("cli is imported as earnest.cli")


if TYPE_CHECKING:
    from earnest.base.errors import EarnestError


def main(argv: Sequence[str] | None = None, environment: Environment | None = None) -> int:
    """Runs one command line and returns its exit code (`earnest.cli.exits.Exit`). Never raises an EarnestError."""
    from cyclopts.exceptions import CycloptsError

    from earnest.base.errors import EarnestError, StorageError
    from earnest.cli.exits import Exit, Interrupted, UsageError, exit_code

    arguments = list(sys.argv[1:] if argv is None else argv)
    environment = Environment() if environment is None else environment
    try:
        return _run(arguments, environment)
    except CycloptsError as error:
        command = " ".join(["earnest", *(error.command_chain or ())])
        _report(UsageError(str(error), f"see `{command} --help`"), arguments, environment)
        return Exit.USAGE
    except EarnestError as error:
        _report(error, arguments, environment)
        return exit_code(error)
    except KeyboardInterrupt:
        interrupted = Interrupted("interrupted", "run the same command again: it continues where it stopped")
        _report(interrupted, arguments, environment)
        return Exit.INTERRUPTED
    except BrokenPipeError:  # the reader of stdout has closed it, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.OK
    except OSError as error:
        fix = "check that the path exists and is writable, and that the disk has room"
        failure = StorageError(f"{error.filename or 'the machine'}: {error.strerror or error}", fix)
        _report(failure, arguments, environment)
        return Exit.STORAGE


def _run(argv: list[str], environment: Environment) -> int:
    from earnest.cli.app import COMMANDS, app
    from earnest.cli.flags import Flags
    from earnest.cli.output import Answer, show

    if not set(argv) - {"--help", "-h"}:
        for name, *_ in COMMANDS:
            app[name]
    command, bound, _ = app.parse_args(argv, exit_on_error=False, print_error=False)
    flags = None
    for name, value in bound.arguments.items():
        if isinstance(value, Flags):
            flags = bound.arguments[name] = replace(value, environment=environment)
    answer = command(*bound.args, **bound.kwargs)
    if not isinstance(answer, Answer):
        return 0
    show(answer, environment.stdout, as_json=flags is not None and flags.json)
    return answer.exit


def _report(error: EarnestError, argv: Sequence[str], environment: Environment) -> None:
    """Prints an error: with --json as one document on stdout, else its cause and fix on stderr."""
    from earnest.cli.exits import error_document
    from earnest.cli.output import Answer, safe, show

    if "--json" in argv:
        show(Answer(error_document(error)), environment.stdout, as_json=True)
    else:
        environment.stderr.write(f"error: {safe(error.cause)}\n  fix: {safe(error.fix)}\n")
