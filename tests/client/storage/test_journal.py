"""The journal: what was written before the crash is there after it, and one node at a time holds it."""

import os
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from earnest.base.errors import EarnestError, JournalCorrupt, JournalLocked, StorageError
from earnest.client.chain.outbox import Intent, IntentStore, Status
from earnest.client.storage import journal as journal_module
from earnest.client.storage.database import Database
from earnest.client.storage.journal import (
    APPLICATION_ID,
    MIGRATIONS,
    Journal,
    JournalForeign,
)
from earnest.client.storage.lease import Lease
from earnest.client.storage.salts import SavedCommitment
from earnest.protocol.manifest import Manifest
from earnest.protocol.run import Role

TRAINER = "0x" + "aB" * 20
STRANGER = "0x" + "cd" * 20
MANIFEST = Manifest(
    run=1,
    round=4,
    trainer=TRAINER,
    base_state=b"\x01" * 32,
    update=b"\x02" * 32,
    samples=b"\x03" * 32,
    trace=bytes(32),
    steps=40,
    tokens=2**40,
    size=2**64 - 1,
)
WORDS = (b"\x04" * 32, b"\x05" * 32, b"\x06" * 32)
INTENT = Intent(
    name="1/commit/4",
    to=STRANGER,
    data=b"\x00\xff",
    value=10**24,
    gas=90_000,
    nonce=7,
    max_fee=2**70,
    tip=2**65,
    hashes=("0x" + "11" * 32, "0x" + "22" * 32),
    status=Status.OPEN,
    created_block=12,
    deadline=1_800_000_000,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "node" / "journal.sqlite"


@pytest.fixture
def journal(path: Path) -> Iterator[Journal]:
    with Journal(path, TRAINER) as opened:
        yield opened


def says_cause_and_fix(error: EarnestError, path: Path) -> bool:
    return str(path) in error.cause and bool(error.fix)


# Values and transactions


def test_a_value_is_there_after_reopening(path: Path) -> None:
    with Journal(path, TRAINER) as journal:
        assert journal.get("memory") is None
        journal.put("memory", b"\x00residual")
        journal.put("memory", b"\x00newer")
        journal.put("empty", b"")
    with Journal(path, TRAINER) as journal:
        assert journal.get("memory") == b"\x00newer"
        assert journal.get("empty") == b""


def test_a_transaction_that_fails_leaves_nothing(journal: Journal) -> None:
    with pytest.raises(KeyboardInterrupt), journal.transaction():
        journal.put("a", b"1")
        with journal.transaction():
            journal.put("b", b"2")
        raise KeyboardInterrupt
    assert journal.get("a") is None
    assert journal.get("b") is None
    journal.put("a", b"3")
    assert journal.get("a") == b"3"


def test_a_transaction_is_seen_whole_by_other_threads(journal: Journal) -> None:
    def count() -> None:
        for _ in range(50):
            with journal.transaction():
                seen = int(journal.get("count") or b"0")
                journal.put("count", str(seen + 1).encode())

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert journal.get("count") == b"200"


def test_every_commit_is_synced(journal: Journal) -> None:
    database = journal._database
    assert database.row("PRAGMA journal_mode") == ("wal",)
    assert database.row("PRAGMA synchronous") == (2,)


def test_only_the_nodes_user_can_read_the_salts(journal: Journal, path: Path) -> None:
    journal.put("a", b"1")
    for file in path.parent.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) & 0o077 == 0, file


# Commitments


def test_a_commitment_is_there_with_all_that_its_reveal_needs(path: Path) -> None:
    with Journal(path, TRAINER) as journal:
        assert journal.salts.find(1, 4, Role.TRAINER) is None
        journal.salts.save(1, 4, Role.TRAINER, b"c" * 32, b"s" * 32, manifest=MANIFEST)
        journal.salts.save(1, 4, Role.VALIDATOR, b"d" * 32, b"t" * 32, words=WORDS)
    with Journal(path, TRAINER) as journal:
        assert journal.salts.find(1, 4, Role.TRAINER) == SavedCommitment(
            1, 4, Role.TRAINER, b"c" * 32, b"s" * 32, MANIFEST, ()
        )
        assert journal.salts.find(1, 4, Role.VALIDATOR) == SavedCommitment(
            1, 4, Role.VALIDATOR, b"d" * 32, b"t" * 32, None, WORDS
        )
        assert journal.salts.find(1, 5, Role.TRAINER) is None
        assert journal.salts.find(2, 4, Role.TRAINER) is None


def test_a_second_commitment_of_a_round_is_refused_and_the_first_returned(journal: Journal) -> None:
    first = journal.salts.save(1, 4, Role.TRAINER, b"c" * 32, b"s" * 32, manifest=MANIFEST)
    second = journal.salts.save(
        1, 4, Role.TRAINER, b"e" * 32, b"u" * 32, manifest=replace(MANIFEST, update=b"\x09" * 32)
    )
    assert second == first
    assert journal.salts.find(1, 4, Role.TRAINER) == first
    assert journal.salts.save(1, 4, Role.TRAINER, b"c" * 32, b"s" * 32, manifest=MANIFEST) == first


def test_a_commitment_is_never_part_of_a_transaction_that_could_be_undone(journal: Journal) -> None:
    with pytest.raises(RuntimeError, match="durable"), journal.transaction():
        journal.salts.save(1, 4, Role.TRAINER, b"c" * 32, b"s" * 32, manifest=MANIFEST)
    assert journal.salts.find(1, 4, Role.TRAINER) is None


def test_a_manifest_that_does_not_decode_is_corruption(journal: Journal) -> None:
    journal.salts.save(1, 4, Role.TRAINER, b"c" * 32, b"s" * 32, manifest=MANIFEST)
    journal._database.execute("UPDATE commitments SET manifest = x'7b7d'")
    with pytest.raises(JournalCorrupt, match="manifest of run 1, round 4"):
        journal.salts.find(1, 4, Role.TRAINER)


# Intents


def test_an_intent_is_there_after_reopening_with_amounts_of_any_size(path: Path) -> None:
    with Journal(path, TRAINER) as journal:
        store: IntentStore = journal
        store.add_intent(INTENT)
    with Journal(path, TRAINER) as journal:
        assert journal.intent(INTENT.name) == INTENT
        assert journal.intent("1/reveal/4") is None
        assert isinstance(journal.open_intents()[0].status, Status)


def test_an_intent_without_hashes_or_deadline_round_trips(journal: Journal) -> None:
    bare = replace(INTENT, hashes=(), deadline=None, data=b"")
    journal.add_intent(bare)
    assert journal.intent(INTENT.name) == bare


def test_an_open_intent_is_not_replaced_and_a_closed_one_is(journal: Journal) -> None:
    journal.add_intent(INTENT)
    with pytest.raises(ValueError, match="1/commit/4 is still open"):
        journal.add_intent(replace(INTENT, nonce=8))
    for closed in (Status.DONE, Status.REVERTED, Status.CANCELLED, Status.LOST):
        journal.update_intent(replace(INTENT, status=closed))
        again = replace(INTENT, nonce=9, hashes=())
        journal.add_intent(again)
        assert journal.intent(INTENT.name) == again


def test_only_a_known_intent_is_updated(journal: Journal) -> None:
    with pytest.raises(KeyError, match="1/commit/4"):
        journal.update_intent(INTENT)
    journal.add_intent(INTENT)
    raised = replace(INTENT, max_fee=INTENT.max_fee * 9 // 8, hashes=(*INTENT.hashes, "0x" + "33" * 32))
    journal.update_intent(raised)
    assert journal.intent(INTENT.name) == raised


def test_open_intents_come_by_nonce(journal: Journal) -> None:
    for nonce, status in ((10, Status.OPEN), (9, Status.OPEN), (8, Status.DONE), (100, Status.OPEN)):
        journal.add_intent(replace(INTENT, name=f"intent {nonce}", nonce=nonce, status=status))
    assert [intent.nonce for intent in journal.open_intents()] == [9, 10, 100]


def test_an_intent_that_cannot_be_is_corruption(journal: Journal) -> None:
    journal.add_intent(INTENT)
    journal._database.execute("UPDATE intents SET value = 'much'")
    with pytest.raises(JournalCorrupt, match="intent 1/commit/4"):
        journal.intent(INTENT.name)


# One node at a time


def test_a_second_node_on_the_same_journal_is_refused(journal: Journal, path: Path) -> None:
    with pytest.raises(JournalLocked, match=rf"in use by another node \(process {os.getpid()}\)") as caught:
        Journal(path, TRAINER)
    assert says_cause_and_fix(caught.value, path)
    journal.put("a", b"the first one goes on")


def test_closing_releases_the_lease(path: Path) -> None:
    Journal(path, TRAINER).close()
    Journal(path, TRAINER).close()


def test_a_journal_that_fails_to_open_does_not_stay_locked(path: Path) -> None:
    Journal(path, TRAINER).close()
    for _ in range(2):
        with pytest.raises(JournalForeign):
            Journal(path, STRANGER)
    Journal(path, TRAINER).close()


def test_a_key_can_be_leased_too(tmp_path: Path) -> None:
    with Lease(tmp_path / "key.lock", "key 0xab"), pytest.raises(JournalLocked, match="key 0xab is in use"):
        Lease(tmp_path / "key.lock", "key 0xab")


def test_a_lease_where_nothing_can_be_written_says_so(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot open"):
        Lease(tmp_path / "missing" / "key.lock", "key 0xab")


# Somebody else's, damaged, or too new


def test_another_accounts_journal_is_refused(path: Path) -> None:
    Journal(path, TRAINER).close()
    Journal(path, TRAINER.lower()).close()
    with pytest.raises(JournalForeign, match="belongs to owner") as caught:
        Journal(path, STRANGER)
    assert says_cause_and_fix(caught.value, path)


def test_a_journal_of_another_deployment_is_refused(path: Path) -> None:
    Journal(path, TRAINER, "31337/0xaa").close()
    with pytest.raises(JournalForeign, match="deployment 31337/0xaa, not 31337/0xbb"):
        Journal(path, TRAINER, "31337/0xbb")


def test_a_newer_versions_journal_is_refused_and_left_as_it_is(path: Path) -> None:
    Journal(path, TRAINER).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    with pytest.raises(JournalForeign, match="newer version") as caught:
        Journal(path, TRAINER)
    assert "upgrade" in caught.value.fix
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS) + 1,)


def test_an_older_versions_journal_is_migrated_with_its_content(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Journal(path, TRAINER) as journal:
        journal.put("a", b"1")
    newer = (
        *MIGRATIONS,
        ("ALTER TABLE entries ADD COLUMN note TEXT", "UPDATE entries SET note = 'migrated'"),
    )
    with closing(Database(path, APPLICATION_ID, newer)) as database:
        assert database.execute("SELECT * FROM entries") == [("a", b"1", "migrated")]
        assert database.row("PRAGMA user_version") == (len(newer),)
    monkeypatch.setattr(journal_module, "MIGRATIONS", newer)
    with Journal(path, TRAINER) as journal:
        assert journal.get("a") == b"1"


def test_a_migration_that_fails_leaves_the_older_version(path: Path) -> None:
    with Journal(path, TRAINER) as journal:
        journal.put("a", b"1")
    broken = (*MIGRATIONS, ("CREATE TABLE half (x)", "INSERT INTO missing VALUES (1)"))
    with pytest.raises(sqlite3.OperationalError, match="missing"):
        Database(path, APPLICATION_ID, broken)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)
        assert connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'half'").fetchone() is None


def fill(path: Path) -> int:
    """A closed journal of several pages; returns its size."""
    with Journal(path, TRAINER) as journal:
        for round in range(64):
            journal.salts.save(1, round, Role.TRAINER, b"c" * 32, b"s" * 32, manifest=MANIFEST)
    return path.stat().st_size


@pytest.mark.parametrize("damage", ["empty", "text", "header", "truncated", "pages", "last page"])
def test_a_damaged_journal_is_an_error_and_never_recreated(path: Path, damage: str) -> None:
    size = fill(path)
    with path.open("r+b") as file:
        match damage:
            case "empty":
                file.truncate(0)
            case "text":
                file.truncate(0)
                file.write(b"once upon a time" * 1000)
            case "header":
                file.write(b"\x00" * 100)
            case "truncated":
                file.truncate(size // 2 // 4096 * 4096)
            case "pages":
                file.seek(4096)
                file.write(b"\xa5" * (size - 4096))
            case "last page":
                file.seek(size - 4096)
                file.write(b"\xa5" * 4096)
    before = path.read_bytes()
    for _ in range(2):
        with pytest.raises(JournalCorrupt, match="damaged") as caught:
            Journal(path, TRAINER)
        assert says_cause_and_fix(caught.value, path)
        assert "backup" in caught.value.fix
    assert path.read_bytes() == before


def test_damage_under_an_open_journal_is_found_when_read(path: Path) -> None:
    size = fill(path)
    with Journal(path, TRAINER) as journal:
        with path.open("r+b") as file:
            file.seek(4096)
            file.write(b"\xa5" * (size - 4096))
        journal._database.execute(
            "PRAGMA shrink_memory"
        )  # as when other pages had pushed these out of memory
        with pytest.raises(JournalCorrupt):
            for round in range(64):
                journal.salts.find(1, round, Role.TRAINER)


def test_a_missing_main_file_beside_its_log_is_corruption(path: Path) -> None:
    path.parent.mkdir()
    path.with_name(f"{path.name}-wal").write_bytes(b"frames")
    with pytest.raises(JournalCorrupt, match="main file is missing"):
        Journal(path, TRAINER)
    assert not path.exists()


def test_another_programs_database_is_not_a_journal(path: Path) -> None:
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE photos (name)")
    with pytest.raises(JournalCorrupt, match="another program"):
        Journal(path, TRAINER)


def test_a_draft_left_by_a_killed_first_start_is_no_obstacle(path: Path) -> None:
    path.parent.mkdir()
    path.with_name(f"{path.name}.draft").write_bytes(b"half")
    with Journal(path, TRAINER) as journal:
        journal.put("a", b"1")
    assert not path.with_name(f"{path.name}.draft").exists()


def test_a_folder_that_cannot_be_made_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match="cannot create"):
        Journal(tmp_path / "file" / "journal.sqlite", TRAINER)


def test_a_full_disk_is_an_error_and_nothing_is_lost(journal: Journal) -> None:
    journal.put("a", b"1")
    pages = journal._database.row("PRAGMA page_count")
    assert pages is not None
    journal._database.execute(f"PRAGMA max_page_count = {pages[0]}")
    with pytest.raises(StorageError, match="full"):
        journal.put("a", b"2" * 100_000)
    assert journal.get("a") == b"1"
    journal.put("a", b"3")


# Killed at any instruction

NODE = """
import sys, time
from pathlib import Path
from earnest.client.storage.journal import Journal
from earnest.protocol.run import Role

journal = Journal(Path(sys.argv[1]), sys.argv[2])
def then_wait(word):
    print(word, flush=True)
    time.sleep(60)
"""


@contextmanager
def killed_node(path: Path, script: str) -> Iterator[str]:
    """A node process that runs `script` up to `then_wait(word)`; yields the word, then kills it."""
    command = [sys.executable, "-c", NODE + script, str(path), TRAINER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as node:
        try:
            assert node.stdout is not None
            yield node.stdout.readline().strip()
        finally:
            node.send_signal(signal.SIGKILL)


def test_a_killed_nodes_commitment_is_there(path: Path) -> None:
    save = "then_wait(journal.salts.save(1, 4, Role.TRAINER, b'c' * 32, b's' * 32).salt.hex())"
    with killed_node(path, save) as salt:
        assert salt == (b"s" * 32).hex()
    with Journal(path, TRAINER) as journal:
        again = journal.salts.save(1, 4, Role.TRAINER, b"e" * 32, b"u" * 32)
        assert (again.commitment, again.salt) == (b"c" * 32, b"s" * 32)


def test_a_node_killed_inside_a_transaction_leaves_nothing_of_it(path: Path) -> None:
    script = """
journal.put("before", b"1")
with journal.transaction():
    journal.put("inside", b"2")
    then_wait("inside")
"""
    with killed_node(path, script) as word:
        assert word == "inside"
    with Journal(path, TRAINER) as journal:
        assert journal.get("before") == b"1"
        assert journal.get("inside") is None


def test_a_running_nodes_lease_is_respected_and_a_killed_ones_is_free(path: Path) -> None:
    with (
        killed_node(path, "then_wait(__import__('os').getpid())") as process,
        pytest.raises(JournalLocked, match=f"process {process}"),
    ):
        Journal(path, TRAINER)
    Journal(path, TRAINER).close()
