"""The table of networks, and the sources of their endpoints."""

from __future__ import annotations

import pytest

from earnest.base.errors import WrongChain
from earnest.client.chain.endpoints import Chain
from earnest.deploy.devnet.chain import CHAIN_ID
from earnest.deploy.devnet.server import DevnetProvider
from earnest.deploy.networks import NetworkError, network, networks
from tests.deploy.chain import fresh_devnet


def test_every_network_that_was_promised_is_there_with_its_chain_id():
    assert {name: known.chain_id for name, known in networks().items()} == {
        "devnet": CHAIN_ID,
        "anvil": 31337,
        "sepolia": 11155111,
        "base-sepolia": 84532,
        "hoodi": 560048,
        "0g-galileo": 16602,
    }


def test_only_local_networks_have_a_url_of_their_own():
    assert [name for name, known in networks().items() if known.local] == ["devnet", "anvil"]
    assert all((known.url is not None) == known.local for known in networks().values())


def test_endpoints_come_from_the_environment_several_in_order():
    environment = {"EARNEST_RPC_BASE_SEPOLIA": "https://one.example/key, https://two.example"}
    assert network("base-sepolia").urls(environment) == ["https://one.example/key", "https://two.example"]


def test_the_environment_goes_before_a_local_default():
    assert network("devnet").urls({}) == ["http://127.0.0.1:8545"]
    assert network("devnet").urls({"EARNEST_RPC_DEVNET": "http://127.0.0.1:1"}) == ["http://127.0.0.1:1"]


def test_a_network_without_an_endpoint_says_which_variable_to_set():
    with pytest.raises(NetworkError) as caught:
        network("0g-galileo").urls({"EARNEST_RPC_0G_GALILEO": " , "})
    assert caught.value.fix == "set EARNEST_RPC_0G_GALILEO=https://…, or give --rpc"


def test_an_unknown_network_lists_those_that_exist():
    with pytest.raises(NetworkError, match=r"unknown network mainnet.*sepolia"):
        network("mainnet")


def test_finality_and_explorer_links():
    assert network("sepolia").finality_s == 64 * 12
    assert network("sepolia").address_url("0x1") == "https://sepolia.etherscan.io/address/0x1"
    assert network("devnet").address_url("0x1") is None


def test_another_chain_behind_the_url_is_noticed_on_first_use():
    sepolia = network("sepolia")
    chain = Chain([DevnetProvider(fresh_devnet())], sepolia.chain_id, sepolia.finality_blocks)
    with pytest.raises(WrongChain, match="1337"):
        chain.head()
