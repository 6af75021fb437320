"""The networks of `networks.toml` and their endpoints. To add a network, add a table to that file."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files

import msgspec

from earnest.base.errors import EarnestError


class NetworkError(EarnestError):
    """A network is not in `networks.toml`, or has no endpoint."""


class Network(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One chain. Coins and tokens of a `local` chain are worthless: the play token is deployed and minted there."""

    name: str
    chain_id: int
    block_time_s: float
    finality_blocks: int
    local: bool = False
    url: str | None = None
    explorer: str | None = None
    token: str | None = None  # address of the ERC-20 that the vault holds, if fixed

    @property
    def variable(self) -> str:
        """Name of the environment variable with its endpoints, e.g. EARNEST_RPC_BASE_SEPOLIA."""
        return "EARNEST_RPC_" + self.name.upper().replace("-", "_")

    @property
    def finality_s(self) -> float:
        """Seconds until a block is final, on average. Every window of a run must be at least twice as long."""
        return self.finality_blocks * self.block_time_s

    def urls(self, environment: Mapping[str, str]) -> list[str]:
        """Returns its endpoints, in order of preference. Raises NetworkError if there is none."""
        urls = [url.strip() for url in environment.get(self.variable, "").split(",") if url.strip()]
        if not urls and self.url is None:
            raise NetworkError(
                f"no endpoint for {self.name}", f"set {self.variable}=https://…, or give --rpc"
            )
        return urls or [self.url or ""]

    def address_url(self, address: str) -> str | None:
        """Returns the explorer's page of an address, None if the network has no explorer."""
        return None if self.explorer is None else f"{self.explorer}/address/{address}"


@cache
def networks() -> Mapping[str, Network]:
    """Returns every network by name, in the order of the file."""
    text = (files("earnest.deploy") / "networks.toml").read_text()
    tables = msgspec.toml.decode(text, type=dict[str, dict])
    return {name: msgspec.convert({"name": name, **table}, Network) for name, table in tables.items()}


def network(name: str) -> Network:
    """Returns the network of this name. Raises NetworkError if there is none."""
    try:
        return networks()[name]
    except KeyError:
        raise NetworkError(f"unknown network {name}", f"choose one of {', '.join(networks())}") from None
