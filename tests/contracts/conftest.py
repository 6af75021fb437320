"""One deployment for all contract tests; each test gets it fresh."""

from collections.abc import Iterator

import pytest

from tests.contracts.harness import System, system


@pytest.fixture(scope="session")
def deployed() -> System:
    return system()


@pytest.fixture
def contracts(deployed: System) -> Iterator[System]:
    with deployed.evm.anchor():
        yield deployed
