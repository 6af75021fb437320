"""One import path: every room is imported as `earnest.<room>`, from the file that git tracks."""

import importlib
import tomllib
from importlib.metadata import distribution

import pytest

from tests.house.rooms import ROOT, modules, rooms


@pytest.mark.parametrize("room", rooms())
def test_room_is_a_relative_link_under_earnest(room: str) -> None:
    link = ROOT / "earnest" / room
    assert link.is_symlink()
    assert str(link.readlink()) == f"../{room}"


@pytest.mark.parametrize("room", rooms())
def test_second_import_path_is_refused(room: str) -> None:
    with pytest.raises(ImportError, match=f"imported as earnest.{room}"):
        importlib.import_module(room)


def test_links_lead_to_rooms_only() -> None:
    assert sorted(path.name for path in (ROOT / "earnest").iterdir()) == rooms()


def test_type_checker_and_layers_know_every_room() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    assert sorted(settings["pyright"]["include"]) == [f"earnest/{room}" for room in rooms()]
    assert sorted(settings["importlinter"]["root_packages"]) == [f"earnest.{room}" for room in rooms()]


def test_imported_files_are_the_tracked_ones() -> None:
    tracked = {(ROOT / path).resolve() for path in modules()}
    for room in rooms():
        file = importlib.import_module(f"earnest.{room}").__file__
        assert file is not None
        assert (ROOT / file).resolve() in tracked


def test_command_is_installed_from_the_package() -> None:
    scripts = [entry.value for entry in distribution("earnest").entry_points if entry.name == "earnest"]
    assert scripts == ["earnest.cli:main"]
