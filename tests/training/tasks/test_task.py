"""Recipes come from strangers, so a dotted path may load a Task and nothing else."""

from pathlib import Path

import pytest

from earnest.training.tasks.shakespeare import Shakespeare
from earnest.training.tasks.task import TaskError, load_task


def test_the_bundled_task_loads_with_its_options() -> None:
    task = load_task("earnest.training.tasks.shakespeare:Shakespeare", {"layers": 1, "width": 16, "heads": 2})
    assert isinstance(task, Shakespeare)
    assert (task.layers, task.width) == (1, 16)


def test_a_class_that_is_no_task_is_never_called(tmp_path: Path) -> None:
    target = tmp_path / "touched"
    with pytest.raises(TaskError, match="is not a Task"):
        load_task("subprocess:Popen", {"args": f"touch {target}", "shell": True})
    with pytest.raises(TaskError, match="is not a Task"):
        load_task("os:system", {"command": f"touch {target}"})
    assert not target.exists()


@pytest.mark.parametrize(
    ("dotted", "cause"),
    [
        ("no_such_package.tasks:Mine", "cannot be imported"),
        ("earnest.training.tasks.shakespeare:Hamlet", "is not a Task"),
        ("earnest.training.tasks.task:Batch", "is not a Task"),
        ("earnest.training.tasks.task:Task", "refuses its options"),
        ("shakespeare", "is not a path"),
        ("../evil:Task", "is not a path"),
        ("a:b:c", "is not a path"),
        ("", "is not a path"),
    ],
)
def test_a_path_that_leads_nowhere_says_so(dotted: str, cause: str) -> None:
    with pytest.raises(TaskError, match=cause) as caught:
        load_task(dotted, {})
    assert caught.value.fix


@pytest.mark.parametrize("options", [{"colour": 1}, {"width": 7}, {"width": "wide"}])
def test_options_that_the_task_refuses_are_named(options: dict) -> None:
    with pytest.raises(TaskError, match="refuses its options"):
        load_task("earnest.training.tasks.shakespeare:Shakespeare", options)
