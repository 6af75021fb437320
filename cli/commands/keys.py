"""`earnest keys`: key files (keystore v3), encrypted with a password."""

from __future__ import annotations

import re
import string
from pathlib import Path

from earnest.base.errors import KeystoreError
from earnest.cli.app import make_group
from earnest.cli.exits import UsageError
from earnest.cli.flags import Flags, KeyFlags
from earnest.cli.output import Answer, progress, table
from earnest.cli.session import Session
from earnest.client.chain.signer import Signer, import_key, keystore_address, new_keystore

app = make_group("keys")
PLAIN, KEY = Flags(), KeyFlags()
LEAST_PASSWORD = 8


@app.command
def new(name: str, /, *, flags: KeyFlags = KEY) -> Answer:
    """Make a new key. Back the file up: nobody can restore it, or its password.

    Example: earnest keys new mine --password-file password.txt

    Parameters
    ----------
    name
        A name, for a file among your keys, or the path of a new file.
    """
    with Session(flags) as session:
        path, password = _path(session, name), _new_password(session)
        with progress(session.environment.stderr, "encrypting the key"):
            return _made(path, new_keystore(path, password, session.environment.random))


@app.command(name="import")
def import_(name: str, /, *, key_file: Path | None = None, flags: KeyFlags = KEY) -> Answer:
    """Bring in a private key: 64 hex digits from a file or, without one, from stdin. Never from the command line.

    Example: earnest keys import mine --key-file private.txt --password-file password.txt

    Parameters
    ----------
    name
        A name, for a file among your keys, or the path of a new file.
    key_file
        File that holds the private key (default: stdin).
    """
    with Session(flags) as session:
        path, key = _path(session, name), _private_key(session, key_file)
        password = _new_password(session)
        with progress(session.environment.stderr, "encrypting the key"):
            return _made(path, import_key(path, password, key))


@app.command(name="list")
def list_(*, flags: Flags = PLAIN) -> Answer:
    """List your keys; needs no password.

    Example: earnest keys list
    """
    with Session(flags) as session:
        found = []
        for path in sorted((session.settings.data_dir / "keys").glob("*.json")):
            try:
                found.append({"name": path.stem, "account": keystore_address(path), "path": str(path)})
            except KeystoreError as error:
                found.append({"name": path.stem, "account": None, "path": str(path), "problem": error.cause})
        rows = [(key["name"], key["account"] or key["problem"], key["path"]) for key in found]
        shown = (
            table("Keys", ("name", "account", "file"), rows)
            if rows
            else "No keys yet: `earnest keys new NAME`"
        )
        return Answer({"keys": found}, [shown])


def _made(path: Path, signer: Signer) -> Answer:
    document = {"account": signer.address, "path": str(path)}
    return Answer(
        document, [f"{signer.address} in {path}", "Back up the file and keep the password apart from it."]
    )


def _path(session: Session, name: str) -> Path:
    """The new file; told before a password is asked for if it is already there."""
    named = re.fullmatch(r"[\w-]+", name)
    path = session.settings.data_dir / "keys" / f"{name}.json" if named else Path(name).expanduser()
    if path.exists():
        raise KeystoreError(f"{path} is already there", "choose another name; keys are not overwritten")
    return path


def _new_password(session: Session) -> str:
    given = session.settings.keystore_password()
    if given is None:
        given = session.password("New password: ")
        if session.environment.ask_password("The same again: ") != given:
            raise UsageError("the two passwords differ", "try again")
    if len(given) < LEAST_PASSWORD:
        raise UsageError(f"the password has fewer than {LEAST_PASSWORD} characters", "choose a longer one")
    return given


def _private_key(session: Session, key_file: Path | None) -> bytes:
    if key_file is None and session.environment.stdin.isatty():
        text = session.environment.ask_password("Private key (64 hex digits): ")
    else:
        try:
            text = session.environment.stdin.read() if key_file is None else key_file.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{key_file or 'stdin'} cannot be read", "give a text file") from error
    digits = text.strip().removeprefix("0x")
    if len(digits) != 64 or not set(digits) <= set(string.hexdigits):
        raise UsageError("that is not a private key", "give 64 hex digits, with or without 0x")
    return bytes.fromhex(digits)
