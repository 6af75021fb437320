"""`earnest trainer start --layout`: what is refused before anything is opened, and what processes it describes."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from earnest.cli.commands.nodes import _several
from earnest.cli.exits import UsageError
from earnest.cli.flags import LayoutFlags
from earnest.protocol.recipe import Recipe
from earnest.training.diloco.engine import CPU
from earnest.training.parallel import Layout, LayoutError, ParallelTrainer, Rendezvous
from tests.cli.conftest import Result

RECIPE = Recipe("earnest.training.tasks.shakespeare:Shakespeare", 4_000)


def described(**flags: Any) -> ParallelTrainer:
    record = SimpleNamespace(params=SimpleNamespace(rounds=7))
    parts = SimpleNamespace(follower=SimpleNamespace(recipe=RECIPE, record=record))
    return _several(LayoutFlags(**flags), cast(Any, parts), CPU)


@pytest.mark.parametrize("flag", [("--micro-batch", "2"), ("--compile", "inductor")])
def test_flags_of_a_single_process_are_refused_with_a_layout(
    cli: Callable[..., Result], flag: tuple[str, str]
) -> None:
    result = cli("trainer", "start", "1", "--layout", "pp2", *flag)
    assert result.code == 2
    assert "are for one process" in result.err


def test_one_host_has_all_the_processes() -> None:
    found = described(layout="pp2-dp2-mb4", step_timeout=20.0)
    assert (found.layout, found.rounds) == (Layout(2, 2, microbatches=4), 7)
    assert (found.workers.rendezvous, found.workers.timeout_s) == (Rendezvous(local_processes=4), 20.0)
    assert found.workers.pids == [], "nothing is started before it is needed"


def test_several_hosts_share_the_processes_and_meet_somewhere() -> None:
    assert described(layout="pp4", hosts=2, meet="10.0.0.1:29500").workers.rendezvous == Rendezvous(
        2, 2, "10.0.0.1", 29500
    )
    assert (
        described(layout="pp4", hosts=2, processes_here=1, meet="a:1").workers.rendezvous.local_processes == 1
    )


@pytest.mark.parametrize("meet", ["", "10.0.0.1", "10.0.0.1:", ":29500", "a:b"])
def test_hosts_without_an_address_to_connect_to_are_refused(meet: str) -> None:
    with pytest.raises(UsageError, match="address to connect to"):
        described(layout="pp4", hosts=2, meet=meet)


def test_a_layout_that_does_not_exist_is_refused() -> None:
    with pytest.raises(LayoutError, match="is not a layout"):
        described(layout="tp8")
