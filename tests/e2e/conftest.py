"""Adds the output of the processes to the report of a failure."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from tests.e2e.processes import Town


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    place = getattr(item, "funcargs", {}).get("place")
    if report.failed and isinstance(place, Town):
        report.sections.append(("Processes", place.logs()))
    return report
