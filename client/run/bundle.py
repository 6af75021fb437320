"""The bundle under a run's URI: recipe, admission list, attestation policy, initial state (Protocol sections 3, 11).

The URI is `<base>/<root>`: the bundle is an object under its root, so nobody can serve two versions of it; its parts
must match the hashes in the run's parameters.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import msgspec
from eth_utils.address import to_checksum_address

from earnest.attestation.policy_file import PolicyFile, PolicyFileError
from earnest.base.errors import EarnestError
from earnest.base.strict_json import read_json
from earnest.client.storage.fetch import fetch
from earnest.client.storage.objects import ObjectStore
from earnest.protocol.merkle import admission_root
from earnest.protocol.recipe import Recipe, RecipeError
from earnest.protocol.run import Role, RunParams
from earnest.training.diloco.state import RootedState, Spec, StateError, read_parameters, state_bytes
from earnest.training.tasks.task import Task, load_task

MAX_BUNDLE_BYTES = 1 << 20


class BundleError(EarnestError):
    """The files of a run are not the ones that its parameters name."""


class _Document(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    recipe: str
    admission: list[tuple[str, int]]
    initial_state: str
    attestation: str | None = None


@dataclass(frozen=True)
class Bundle:
    """A run's files, apart from the initial state itself. `admission` lists (account, role).

    `attestation` is the policy of a run that takes attestations.
    """

    recipe: Recipe
    admission: tuple[tuple[str, Role], ...]
    initial_state: bytes
    attestation: PolicyFile | None = None

    def to_bytes(self) -> bytes:
        """Returns the canonical JSON."""
        document = _Document(
            recipe=self.recipe.to_json().decode(),
            admission=[(account, int(role)) for account, role in self.admission],
            initial_state=self.initial_state.hex(),
            attestation=None if self.attestation is None else self.attestation.to_bytes().decode(),
        )
        return msgspec.json.encode(document, order="sorted")

    @staticmethod
    def from_bytes(data: bytes) -> Bundle:
        """Raises BundleError for anything that is not a bundle."""
        try:
            document = msgspec.convert(read_json(data), _Document)
            policy = document.attestation
            return Bundle(
                Recipe.from_json(document.recipe.encode()),
                tuple((_address(account), Role(role)) for account, role in document.admission),
                _root(document.initial_state),
                None if policy is None else PolicyFile.from_bytes(policy.encode()),
            )
        except (msgspec.MsgspecError, RecipeError, PolicyFileError, ValueError, RecursionError) as error:
            raise BundleError(
                f"the run's bundle cannot be read: {error}", "ask the sponsor for the right URI"
            ) from error

    def check(self, params: RunParams) -> None:
        """Raises BundleError unless recipe, admission list, initial state and attestation policy are the run's."""
        admitted = admission_root(self.admission) if self.admission else bytes(32)
        policy = bytes(32) if self.attestation is None else self.attestation.hash
        for name, ours, fixed in (
            ("recipe", self.recipe.hash(), params.recipe_hash),
            ("admission list", admitted, params.admission_root),
            ("initial state", self.initial_state, params.initial_state),
            ("attestation policy", policy, params.attestation_policy),
        ):
            if ours != fixed:
                raise BundleError(
                    f"the {name} under the run's URI has hash {ours.hex()}, the run fixed {fixed.hex()}",
                    "do not work for this run until its sponsor serves the files that it committed to",
                )
        try:
            self.recipe.sample_pool().check(params.trainer_limit)
        except ValueError as error:
            raise BundleError(
                f"the recipe does not fit the run: {error}", "this run cannot be played; leave it"
            ) from error


@dataclass(frozen=True)
class RunFiles:
    """A run's files, fetched, checked and loaded."""

    bundle: Bundle
    task: Task
    initial: RootedState


def publish(store: ObjectStore, bundle: Bundle, initial: bytes) -> bytes:
    """Stores the bundle and its initial state's file; returns the bundle's root, which is the URI's last part.

    The caller has computed `bundle.initial_state`, the root of `initial`: the file is not hashed again.
    """
    store.put(initial, bundle.initial_state)
    return store.put(bundle.to_bytes())


def load(uri: str, params: RunParams, store: ObjectStore) -> RunFiles:
    """Fetches the run's files, checks them against the run's parameters, stores copies in `store`.

    Raises BundleError if they are not the run's, StorageError if they are not available.
    """
    bundle = load_bundle(uri, params, store)
    task = load_task(bundle.recipe.task, bundle.recipe.task_options)
    if bundle.recipe.pool_size > task.pool_size:
        raise BundleError(
            f"the recipe draws from {bundle.recipe.pool_size} samples, its task has {task.pool_size}",
            "this run cannot be played; leave it",
        )
    layout = Spec.of(read_parameters(task.build_model(bundle.recipe.seed)))
    limit = state_bytes(layout)
    try:
        data = _obtain(bundle.initial_state, _parts(uri)[0], limit, store)
        initial = RootedState.read(data, layout, bundle.initial_state)
    except StateError as error:
        raise BundleError(f"the run's initial state cannot be read: {error}", "ask the sponsor") from error
    return RunFiles(bundle, task, initial)


def load_bundle(uri: str, params: RunParams, store: ObjectStore) -> Bundle:
    """Fetches the bundle alone, without building the task or fetching the state; checks and errors as in `load`."""
    base, root = _parts(uri)
    bundle = Bundle.from_bytes(_obtain(root, base, MAX_BUNDLE_BYTES, store))
    bundle.check(params)
    return bundle


def bundle_root(uri: str) -> bytes:
    """Returns the bundle's root, the last part of a run's URI. Raises BundleError."""
    return _parts(uri)[1]


def _parts(uri: str) -> tuple[str, bytes]:
    """Returns the URI's base and the root that it ends in."""
    base, _, name = uri.rstrip("/").rpartition("/")
    try:
        return base, _root(name)
    except ValueError as error:
        raise BundleError(f"the run's URI {uri!r} does not end in a root", "ask the sponsor") from error


def _root(name: str) -> bytes:
    if not re.fullmatch(r"[0-9a-f]{64}", name):
        raise ValueError(f"{name[:70]!r} is not a root of 64 hex digits")
    return bytes.fromhex(name)


def _address(account: str) -> str:
    if not re.fullmatch(r"0x[0-9a-fA-F]{40}", account):
        raise ValueError(f"{account[:50]!r} is not an address")
    return to_checksum_address(account)


def _obtain(root: bytes, base: str, limit: int, store: ObjectStore) -> bytes:
    """Returns an object from the store or else from the run's URI, which also repairs a damaged copy in the store."""
    return fetch(root, [base], limit, store)
