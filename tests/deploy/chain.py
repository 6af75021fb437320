"""Actors and transactions for tests on the embedded chain."""

from __future__ import annotations

from typing import Any

from eth_abi.abi import encode
from eth_account.signers.local import LocalAccount
from eth_utils.crypto import keccak
from web3 import HTTPProvider, Web3
from web3.providers import BaseProvider

from earnest.contracts import load_artifact
from earnest.deploy.devnet import Devnet, account

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
    response = provider.make_request(method, list(params))  # pyright: ignore
    assert "error" not in response, response
    return response["result"]


def refusal(provider: BaseProvider, method: str, *params: Any) -> dict[str, Any]:
    """The error object of a JSON-RPC request that must fail."""
    return provider.make_request(method, list(params))["error"]  # pyright: ignore


def deploy_token(devnet: Devnet, nonce: int = 0) -> str:
    """PlainToken, deployed and minted by the sponsor with this nonce."""
    data = load_artifact("PlainToken").bytecode + encode(["string", "string"], ["Token", "TOK"])
    hash_ = devnet.send(signed(sponsor, nonce, to="", value=0, data=data, gas=2_000_000))
    receipt = ask(devnet.provider, "eth_getTransactionReceipt", "0x" + hash_.hex())
    assert receipt["status"] == "0x1"
    return Web3.to_checksum_address(receipt["contractAddress"])


def calldata(signature: str, *values: Any) -> str:
    """A call's data, e.g. `calldata("mint(address,uint256)", trainer.address, 5)`."""
    types = signature[signature.index("(") + 1 : -1]
    arguments = encode(types.split(",") if types else [], list(values))
    return "0x" + (keccak(text=signature)[:4] + arguments).hex()
