"""A run's files come from strangers: they match the hashes in the contract, or are refused with the reason."""

from __future__ import annotations

import http.server
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from earnest.attestation.formats.quote import parse_quote
from earnest.attestation.policy_file import PolicyFile
from earnest.attestation.prover.simulated import SimulatedAttester
from earnest.base.errors import BadAnswer, StorageError
from earnest.base.strict_json import MAX_DEPTH, check_depth
from earnest.client.chain.endpoints import Chain
from earnest.client.run import bundle
from earnest.client.run.bundle import Bundle, BundleError, load, load_bundle
from earnest.client.storage.objects import ObjectStore
from earnest.protocol.merkle import admission_root, content_root
from earnest.protocol.recipe import Recipe
from earnest.protocol.run import Level, Role, RunParams
from earnest.training.diloco.initial import initial_state
from earnest.training.diloco.state import state_root, to_bytes
from earnest.training.tasks.task import load_task
from tests.client.world import tiny_recipe

TRAINER = "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed"
ADMISSION = ((TRAINER, Role.TRAINER),)


class Sponsor:
    """Publishes a run's files and fixes them in the run's parameters."""

    def __init__(self, folder: Path, recipe: Recipe | None = None) -> None:
        self.recipe = recipe or tiny_recipe()
        self.store = ObjectStore(folder / "sponsor")
        self.initial = initial_state(load_task(self.recipe.task, self.recipe.task_options), self.recipe)
        root = self.publish()
        self.uri = f"{folder / 'sponsor'}/{root.hex()}"
        self.params = RunParams(
            *(1_000, 1, 1_800, 300, 900, 300, 900, 900, False, 4, 2, 1, 1, 1, 1, 1, 2 * 86_400),
            admission_root=admission_root(ADMISSION),
            recipe_hash=self.recipe.hash(),
            initial_state=state_root(self.initial),
        )

    def publish(self, policy: PolicyFile | None = None) -> bytes:
        """Publishes the files and returns the bundle's root."""
        files = Bundle(self.recipe, ADMISSION, state_root(self.initial), policy)
        return bundle.publish(self.store, files, to_bytes(self.initial))

    def serve(self, data: bytes) -> str:
        """The URI of a bundle of these bytes."""
        return f"{self.store.folder}/{self.store.put(data).hex()}"


@pytest.fixture(scope="module")
def sponsor(tmp_path_factory: pytest.TempPathFactory) -> Sponsor:
    return Sponsor(tmp_path_factory.mktemp("bundle"))


def reader(tmp_path: Path) -> ObjectStore:
    return ObjectStore(tmp_path / "reader")


def test_everyone_loads_the_bundle_that_the_sponsor_published(sponsor: Sponsor, tmp_path: Path) -> None:
    files = load(sponsor.uri, sponsor.params, reader(tmp_path))
    assert files.bundle == Bundle(sponsor.recipe, ADMISSION, state_root(sponsor.initial))
    assert state_root(files.initial.state) == files.initial.root == sponsor.params.initial_state
    load("/nowhere/" + sponsor.uri.rpartition("/")[2], sponsor.params, reader(tmp_path))  # kept


@pytest.mark.parametrize(
    ("field", "named"),
    [("recipe_hash", "recipe"), ("admission_root", "admission list"), ("initial_state", "initial state")],
)
def test_files_that_are_not_the_runs_are_refused(
    sponsor: Sponsor, field: str, named: str, tmp_path: Path
) -> None:
    other = replace(sponsor.params, **{field: bytes(31) + b"\x01"})
    with pytest.raises(BundleError, match=f"the {named} under the run's URI has hash") as refusal:
        load(sponsor.uri, other, reader(tmp_path))
    assert "do not work for this run" in refusal.value.fix


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not JSON",
        b"[]",
        b"\xff\xfe",
        b"{}",
        b'{"recipe":1,"admission":[],"initial_state":""}',
        b'{"recipe":"{}","admission":[],"initial_state":""}',
        b"[" * 100_000,
        b'{"admission":' + b"[" * 500_000,
        b'{"recipe":"{}","admission":[],"initial_state":"","more":' + b"[" * 100_000,
    ],
    ids=lambda data: repr(data[:20]),
)
def test_a_malformed_bundle_is_refused(sponsor: Sponsor, data: bytes, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="cannot be read"):
        load_bundle(sponsor.serve(data), sponsor.params, reader(tmp_path))


@pytest.mark.parametrize(
    "change",
    [
        {"initial_state": "zz"},
        {"initial_state": "00" * 31},
        {"admission": [["not an address", 1]]},
        {"admission": [[TRAINER, 9]]},
        {"admission": [[TRAINER, 2**70]]},
        {"recipe": "[" * 200},
    ],
    ids=str,
)
def test_a_bundle_with_an_odd_part_is_refused(
    sponsor: Sponsor, change: dict[str, object], tmp_path: Path
) -> None:
    whole = json.loads(Bundle(sponsor.recipe, ADMISSION, bytes(32)).to_bytes())
    with pytest.raises(BundleError, match="cannot be read"):
        load_bundle(sponsor.serve(json.dumps(whole | change).encode()), sponsor.params, reader(tmp_path))


@pytest.mark.parametrize(
    "uri", ["", "http://host", "http://host/abcd", "http://host/" + "g" * 64, "x/" + "A" * 64]
)
def test_a_uri_that_ends_in_no_root_is_refused(sponsor: Sponsor, uri: str, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="does not end in a root"):
        load_bundle(uri, sponsor.params, reader(tmp_path))


def test_addresses_come_out_in_one_spelling(sponsor: Sponsor) -> None:
    lower = Bundle(sponsor.recipe, ((TRAINER.lower(), Role.TRAINER),), bytes(32))
    assert Bundle.from_bytes(lower.to_bytes()).admission == ADMISSION


def test_a_damaged_copy_is_fetched_again(sponsor: Sponsor, tmp_path: Path) -> None:
    store = reader(tmp_path)
    load(sponsor.uri, sponsor.params, store)
    assert store.folder is not None
    for path in store.folder.iterdir():
        path.write_bytes(b"damaged")
    load(sponsor.uri, sponsor.params, store)
    root = bytes.fromhex(sponsor.uri.rpartition("/")[2])
    assert content_root(store.get(root, 1 << 20)) == root


def test_a_recipe_that_cannot_be_played_is_refused_before_anybody_trains(tmp_path: Path) -> None:
    greedy = Sponsor(tmp_path, tiny_recipe(pool_size=20))
    with pytest.raises(BundleError, match="pool of 20 samples is too small"):
        load_bundle(greedy.uri, greedy.params, reader(tmp_path))
    vast = Sponsor(tmp_path, tiny_recipe(pool_size=2**32))
    with pytest.raises(BundleError, match="its task has"):
        load(vast.uri, vast.params, reader(tmp_path))


def test_files_that_nobody_serves_are_reported_as_missing(sponsor: Sponsor, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="is not available"):
        load(f"{tmp_path}/{bytes(32).hex()}", sponsor.params, reader(tmp_path))


# Nesting


@given(st.integers(0, 3 * MAX_DEPTH), st.sampled_from(["[{}]", '{{"a":{}}}', '["]]}}\\"",{}]']))
def test_depth_equals_the_depth_that_a_parser_reaches(levels: int, shape: str) -> None:
    text = "1"
    for _ in range(levels):
        text = shape.format(text) if "{}" in shape and "{{" in shape else shape.replace("{}", text)
    json.loads(text)
    if levels > MAX_DEPTH:
        with pytest.raises(ValueError, match="nested deeper"):
            check_depth(text.encode())
    else:
        check_depth(text.encode())


def test_breadth_is_not_depth() -> None:
    check_depth(json.dumps([[["x"]]] * 10_000).encode())


DEEP = """
import sys
import eth  # lifts the interpreter's limit
assert sys.getrecursionlimit() > 50_000
import json
from earnest.attestation.policy_file import PolicyFile
from earnest.attestation.prover.simulated import SimulatedAttester
from earnest.client.run.bundle import Bundle, BundleError
from earnest.client.chain.bounded import BoundedProvider
from earnest.training.diloco.tensorfile import PayloadError, entries_of
deep = b"[" * 900_000
for call, error in (
    (lambda: Bundle.from_bytes(deep), BundleError),
    (lambda: Bundle.from_bytes(b'{"admission":' + deep), BundleError),
    (lambda: BoundedProvider.decode_rpc_response(b'{"jsonrpc":"2.0","id":1,"result":' + deep), ValueError),
    (lambda: BoundedProvider.decode_rpc_response(b'{"result":' + b'["]",' * 300_000), ValueError),
    (lambda: entries_of(len(deep).to_bytes(8, "little") + deep), PayloadError),
):
    try:
        call()
    except error:
        continue
    raise SystemExit("not refused")
"""


def test_no_depth_of_brackets_ends_the_process() -> None:
    done = subprocess.run([sys.executable, "-c", DEEP], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-500:]


@contextmanager
def endpoint(body: Iterator[bytes]) -> Iterator[str]:
    """An HTTP server that answers every request with these pieces."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(200)
            self.end_headers()
            try:
                for piece in body:
                    self.wfile.write(piece)
            except OSError:
                return

        def log_message(self, format: str, *args: object) -> None:
            return

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def test_an_endpoint_that_nests_or_sends_without_end_is_refused() -> None:
    with (
        endpoint(iter([b'{"jsonrpc":"2.0","id":1,"result":' + b"[" * 100_000])) as url,
        pytest.raises(BadAnswer),
    ):
        Chain([url], 1).head()
    with endpoint(iter(lambda: b" " * (1 << 20), None)) as url, pytest.raises(BadAnswer):
        Chain([url], 1).head()


def test_an_attestation_policy_is_one_of_the_files_and_the_one_that_the_run_fixed(
    sponsor: Sponsor, tmp_path: Path
) -> None:
    policy = PolicyFile.from_quotes([parse_quote(SimulatedAttester().quote(bytes(64)).quote)])
    root = sponsor.publish(policy)
    uri = f"{sponsor.store.folder}/{root.hex()}"
    params = replace(sponsor.params, verification=Level.ATTESTED, attestation_policy=policy.hash)
    assert load_bundle(uri, params, reader(tmp_path)).attestation == policy
    for wrong in (sponsor.params, replace(params, attestation_policy=b"\x01" * 32)):
        with pytest.raises(BundleError, match="attestation policy"):
            load_bundle(uri, wrong, reader(tmp_path))
    with pytest.raises(BundleError, match="attestation policy"):
        load_bundle(sponsor.uri, params, reader(tmp_path))


def test_a_policy_that_is_none_is_refused(sponsor: Sponsor, tmp_path: Path) -> None:
    document = json.loads(Bundle(sponsor.recipe, ADMISSION, state_root(sponsor.initial)).to_bytes())
    assert "attestation" not in document
    spoilt = sponsor.serve(json.dumps({**document, "attestation": "{}"}).encode())
    with pytest.raises(BundleError, match="not an attestation policy"):
        load_bundle(spoilt, sponsor.params, reader(tmp_path))
