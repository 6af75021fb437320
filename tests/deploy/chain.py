"""Actors and transactions for tests on the embedded chain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eth_abi.abi import encode
from eth_account.signers.local import LocalAccount
from eth_utils.crypto import keccak
from web3 import HTTPProvider, Web3
from web3.providers import BaseProvider
from web3.types import RPCEndpoint, RPCResponse

from earnest.client.chain.endpoints import Chain
from earnest.client.chain.outbox import IntentStore, MemoryIntents, Outbox
from earnest.client.chain.signer import Signer
from earnest.contracts import load_artifact
from earnest.deploy.devnet.chain import Devnet, account
from earnest.deploy.devnet.server import DevnetProvider
from earnest.deploy.execute import run_plan
from earnest.deploy.manifest import Manifest
from earnest.deploy.plan import make_plan

ETHER = 10**18
SEED = b"tests"
sponsor, trainer, stranger = (account(SEED, index) for index in range(3))


def fresh_devnet(**options: Any) -> Devnet:
    """Sponsor and trainer have 1000 ether each, the stranger has nothing."""
    return Devnet({sponsor.address: 1000 * ETHER, trainer.address: 1000 * ETHER}, **options)


def signed(sender: LocalAccount, nonce: int, **fields: Any) -> bytes:
    """A signed transfer of one wei to the stranger, unless `fields` say otherwise."""
    transaction = {
        "chainId": 1337,
        "nonce": nonce,
        "to": stranger.address,
        "value": 1,
        "gas": 21_000,
        "maxFeePerGas": 2 * 10**9,
        "maxPriorityFeePerGas": 10**9,
    }
    if "gasPrice" in fields:
        del transaction["maxFeePerGas"], transaction["maxPriorityFeePerGas"]
    return bytes(sender.sign_transaction({**transaction, **fields}).raw_transaction)


def over_http(url: str) -> HTTPProvider:
    """A web3 provider that does not retry, so that a failing test fails at once."""
    return HTTPProvider(url, exception_retry_configuration=None)


def ask(provider: BaseProvider, method: str, *params: Any) -> Any:
    """The raw result of a JSON-RPC request; fails the test on an error object."""
    response = provider.make_request(RPCEndpoint(method), list(params))
    assert "error" not in response and "result" in response, response
    return response["result"]


def refusal(provider: BaseProvider, method: str, *params: Any) -> dict[str, Any]:
    """The error object of a JSON-RPC request that must fail."""
    response = provider.make_request(RPCEndpoint(method), list(params))
    assert "error" in response, response
    return dict(response["error"])  # pyright: ignore


def deploy_token(devnet: Devnet, deployer: LocalAccount = sponsor) -> str:
    """PlayToken, by the first transaction of its deployer, who may mint."""
    data = load_artifact("PlayToken").bytecode + encode(["string", "string"], ["Token", "TOK"])
    hash_ = devnet.send(signed(deployer, 0, to="", value=0, data=data, gas=2_000_000))
    receipt = ask(DevnetProvider(devnet), "eth_getTransactionReceipt", "0x" + hash_.hex())
    assert receipt["status"] == "0x1"
    return Web3.to_checksum_address(receipt["contractAddress"])


def calldata(signature: str, *values: Any) -> str:
    """A call's data, e.g. `calldata("mint(address,uint256)", trainer.address, 5)`."""
    types = signature[signature.index("(") + 1 : -1]
    arguments = encode(types.split(",") if types else [], list(values))
    return "0x" + (keccak(text=signature)[:4] + arguments).hex()


class Killed(BaseException):
    """The process dies here."""


class MortalProvider(DevnetProvider):
    """Answers `lives` requests (`of` one method); the next is carried out, but kills before the answer."""

    def __init__(self, devnet: Devnet, lives: int, of: str | None = None) -> None:
        super().__init__(devnet)
        self.lives = lives
        self.of = of

    def make_request(self, method: RPCEndpoint, params: Any) -> RPCResponse:
        response = super().make_request(method, params)
        if self.of in (None, method):
            if self.lives == 0:
                raise Killed
            self.lives -= 1
        return response


def chain_of(devnet: Devnet, provider: BaseProvider | None = None) -> Chain:
    return Chain([provider or DevnetProvider(devnet)], devnet.chain_id, devnet.finality)


def outbox_of(chain: Chain, store: IntentStore, sender: LocalAccount = sponsor) -> Outbox:
    """An outbox that never sleeps: in process everything is mined at once."""
    return Outbox(chain, Signer(bytes(sender.key)), store, clock=lambda: 0.0, sleep=lambda s: None)


def deploy_all(devnet: Devnet, path: Path, **plan: Any) -> Manifest:
    """The whole protocol, deployed by the sponsor."""
    chain, store = chain_of(devnet), MemoryIntents()
    nonce = chain.next_nonce(sponsor.address)
    planned = make_plan(devnet.chain_id, sponsor.address, nonce, **plan)
    return run_plan(planned, chain, outbox_of(chain, store), store, path, network="devnet", git="0" * 40)
