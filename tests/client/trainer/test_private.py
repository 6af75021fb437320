"""A trainer with private data: the manifest commits to its root, and the update is clipped and gets noise."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from earnest.base.errors import EarnestError
from earnest.client.trainer.node import PrivateDataMissing, TrainerNode
from earnest.protocol.recipe import Privacy
from earnest.protocol.verdicts import Verdict
from earnest.training.tasks.shakespeare import Shakespeare
from earnest.training.tasks.task import Batch
from tests.client.world import OPTIONS, make_world, tiny_recipe

T0, V0 = "trainer-0", "validator-0"
CLIP = 0.5
RECIPE = tiny_recipe(data="private", privacy=Privacy(clip=CLIP, noise=1e-3))


class Diary:
    """Somebody's own samples."""

    root = b"d" * 32

    def batches(self, round: int, steps: int, batch: int) -> Iterator[Batch]:
        return Shakespeare(**OPTIONS).batches(
            "report", 0, range(round * 100, round * 100 + steps * batch), batch
        )


def test_a_run_on_private_data_counts_and_pays(tmp_path: Path) -> None:
    with make_world(tmp_path, attacks=("none",), validators=1, rounds=2, recipe=RECIPE, idle=(T0,)) as world:
        world.node(T0, private=Diary())
        world.play()
        record, follower = world.nodes[V0].record, world.nodes[V0].follower
        for round in range(2):
            manifest = record.round(round).manifests[0]
            assert (manifest.samples, manifest.steps) == (Diary.root, 2)
            assert record.settled(round).verdicts == (Verdict.ACCEPTED,)
            assert follower.update(round, 0).norm < CLIP * 1.1
        assert world.idle(T0) > 0


@pytest.mark.parametrize(("data", "private"), [("private", None), ("assigned", Diary())])
def test_a_node_and_its_run_agree_on_whose_data_it_is(
    tmp_path: Path, data: str, private: Diary | None
) -> None:
    recipe = tiny_recipe(data=data)
    with make_world(tmp_path, attacks=("none",), validators=1, rounds=1, recipe=recipe, idle=(T0,)) as world:
        parts, files = world.account(T0).follow(world.run, lambda: bytes(32))
        with pytest.raises(PrivateDataMissing, match=f"data = '{data}'") as error:
            TrainerNode(parts, files.task, private=private)
        assert isinstance(error.value, EarnestError)
