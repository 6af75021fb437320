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
MIN_PASSWORD = 8  # characters


@app.command
def new(name: str, /, *, flags: KeyFlags = KEY) -> Answer:
    """Create a new key. Back up the file: neither it nor its password can be restored.

    Example: earnest keys new mine --password-file password.txt

    Parameters
    ----------
    name
        Name of the key, or path of the new key file.
    """
    with Session(flags) as session:
        path, password = _path(session, name), _new_password(session)
        with progress(session.environment.stderr, "encrypting the key"):
            return _made(path, new_keystore(path, password, session.environment.random))


@app.command(name="import")
def import_(name: str, /, *, key_file: Path | None = None, flags: KeyFlags = KEY) -> Answer:
    """Import a private key, 64 hex digits, from a file or stdin. The command line never takes a private key.

    Example: earnest keys import mine --key-file private.txt --password-file password.txt

    Parameters
    ----------
    name
        Name of the key, or path of the new key file.
    key_file
        File with the private key (default: stdin).
    """
    with Session(flags) as session:
        path, key = _path(session, name), _private_key(session, key_file)
        password = _new_password(session)
        with progress(session.environment.stderr, "encrypting the key"):
            return _made(path, import_key(path, password, key))


@app.command(name="list")
def list_(*, flags: Flags = PLAIN) -> Answer:
    """List your keys. Needs no password.

    Example: earnest keys list
    """
    with Session(flags) as session:
        keys = []
        for path in sorted((session.settings.data_dir / "keys").glob("*.json")):
            try:
                keys.append({"name": path.stem, "account": keystore_address(path), "path": str(path)})
            except KeystoreError as error:
                keys.append({"name": path.stem, "account": None, "path": str(path), "problem": error.cause})
        rows = [(key["name"], key["account"] or key["problem"], key["path"]) for key in keys]
        shown = (
            table("Keys", ("name", "account", "file"), rows)
            if rows
            else "No keys yet. Create one: `earnest keys new NAME`"
        )
        return Answer({"keys": keys}, [shown])


def _made(path: Path, signer: Signer) -> Answer:
    document = {"account": signer.address, "path": str(path)}
    return Answer(
        document, [f"{signer.address} in {path}", "Back up the file, and keep the password in another place."]
    )


def _path(session: Session, name: str) -> Path:
    """Returns the path of the new key file. Raises KeystoreError if it exists, before any prompt."""
    named = re.fullmatch(r"[\w-]+", name)
    path = session.settings.data_dir / "keys" / f"{name}.json" if named else Path(name).expanduser()
    if path.exists():
        raise KeystoreError(f"{path} already exists", "choose another name; keys are never overwritten")
    return path


def _new_password(session: Session) -> str:
    password = session.settings.keystore_password()
    if password is None:
        password = session.password("New password: ")
        if session.environment.ask_password("Repeat the password: ") != password:
            raise UsageError("the two passwords differ", "run the command again")
    if len(password) < MIN_PASSWORD:
        raise UsageError(f"the password has fewer than {MIN_PASSWORD} characters", "choose a longer one")
    return password


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
        raise UsageError("this is not a private key", "give 64 hex digits, with or without 0x")
    return bytes.fromhex(digits)
