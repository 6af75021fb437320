"""The outbox sends each intent once, whatever the chain, the endpoint or a kill does to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from earnest.base.errors import BadAnswer, EndpointDown, NonceDrift, OutOfFunds, Reverted
from earnest.client.chain.endpoints import Chain
from earnest.client.chain.outbox import FeePolicy, Intent, MemoryIntents, Status, preview
from earnest.client.chain.signer import Signer
from tests.client.chain.conftest import Clock, Counter, counter_on, key_of, outbox_of
from tests.client.chain.local_node import (
    CHAIN_ID,
    Hangup,
    LocalNode,
    RpcError,
    World,
    garbage,
    hangup_after,
    only,
    refuse,
)

GWEI = 10**9
CALM = FeePolicy(patience_s=10)


@pytest.fixture
def counter(chain: Chain, counter_address: str) -> Counter:
    return counter_on(chain, counter_address)


@pytest.fixture
def slow(world: World, node: LocalNode, trainer: Signer, counter_address: str) -> Counter:
    """The counter on a chain where transactions wait in the pool until somebody mines."""
    world.automine = False
    return counter_on(Chain([node.url], CHAIN_ID), counter_address)


def status_of(store: MemoryIntents, name: str) -> str:
    intent = store.intent(name)
    assert intent is not None
    return intent.status


def sent_by(world: World, signer: Signer) -> int:
    return world.tester.get_nonce(signer.address)


# The plain way


def test_a_call_is_mined_and_its_receipt_returned(chain: Chain, trainer: Signer, counter: Counter) -> None:
    receipt = outbox_of(chain, trainer).send("add", counter.add(3, "hello"))
    assert receipt is not None and receipt.succeeded
    assert receipt.to == counter.address and receipt.gas_used > 21_000
    assert counter.count() == 3


def test_the_same_intent_is_never_sent_again(
    world: World, chain: Chain, trainer: Signer, counter: Counter
) -> None:
    outbox = outbox_of(chain, trainer)
    first = outbox.send("add", counter.add())
    assert outbox.send("add", counter.add()) == first
    assert (counter.count(), sent_by(world, trainer)) == (1, 1)


def test_a_call_that_is_no_longer_needed_is_not_sent(
    world: World, chain: Chain, trainer: Signer, counter: Counter
) -> None:
    store = MemoryIntents()
    assert outbox_of(chain, trainer, store).send("add", counter.add(), lambda: False) is None
    assert outbox_of(chain, trainer, store).send("add", counter.add(), deadline=chain.head().time) is None
    assert store.intent("add") is None and sent_by(world, trainer) == 0


def test_intents_in_a_row_take_nonces_in_a_row(
    world: World, chain: Chain, trainer: Signer, counter: Counter
) -> None:
    store = MemoryIntents()
    for name in ("a", "b", "c"):
        outbox_of(chain, trainer, store).send(name, counter.add())
    assert [store.intent(name).nonce for name in ("a", "b", "c")] == [0, 1, 2]  # pyright: ignore


def test_a_preview_returns_the_largest_cost_and_sends_nothing(
    world: World, chain: Chain, trainer: Signer, counter: Counter
) -> None:
    call, balance = counter.add(3, "hi"), chain.balance(trainer.address, chain.head())
    plan = preview(chain, trainer.address, call)
    assert (plan.call.function, plan.call.args) == ("add", {"by": 3, "note": "hi"})
    assert plan.balance == balance and plan.cost == plan.gas * plan.max_fee
    assert sent_by(world, trainer) == 0
    receipt = outbox_of(chain, trainer).send("add", call)
    assert receipt is not None
    assert balance - receipt.cost == chain.balance(trainer.address, chain.head()) >= plan.balance_after


# Refusals


def test_a_call_that_would_revert_is_refused_before_it_is_written_down(
    world: World, chain: Chain, trainer: Signer, counter: Counter
) -> None:
    store = MemoryIntents()
    with pytest.raises(Reverted, match="counter: unlucky number"):
        outbox_of(chain, trainer, store).send("add", counter.add(13))
    assert store.intent("add") is None and sent_by(world, trainer) == 0


def test_an_account_without_coins_raises_the_missing_amount(
    chain: Chain, world: World, counter: Counter
) -> None:
    pauper, store = Signer(key_of("pauper")), MemoryIntents()
    world.fund(pauper.address, 10 * GWEI)
    with pytest.raises(OutOfFunds, match=r"cannot pay|may cost"):
        outbox_of(chain, pauper, store).send("add", counter.add())
    assert store.intent("add") is None


def test_a_call_that_reverts_when_mined_says_why_and_may_be_tried_anew(
    world: World, slow: Counter, trainer: Signer
) -> None:
    rival = Signer(key_of("rival"))
    world.fund(rival.address, 10**18)
    store, clock = MemoryIntents(), Clock()
    outbox = outbox_of(slow.chain, trainer, store, clock)

    def rival_is_first() -> None:
        clock.meanwhile = world.mine
        head = world.tester.get_block_by_number("latest")
        world.request(
            "eth_sendRawTransaction", ["0x" + _signed(rival, slow.add(1).data, slow.address, head).hex()]
        )

    clock.meanwhile = rival_is_first
    with pytest.raises(Reverted) as raised:
        outbox.send("fill", slow.fill(0))
    assert raised.value.reason == "counter: too late"
    assert status_of(store, "fill") == Status.REVERTED
    assert outbox.send("fill", slow.fill(1)) is not None
    assert slow.count() == 1000


def _signed(signer: Signer, data: bytes, to: str, head: Any) -> bytes:
    fee = 2 * head["base_fee_per_gas"] + GWEI
    return signer.sign(
        {
            "type": 2,
            "chainId": CHAIN_ID,
            "nonce": 0,
            "gas": 200_000,
            "maxFeePerGas": fee,
            "maxPriorityFeePerGas": GWEI,
            "to": to,
            "data": data,
            "value": 0,
        }
    ).raw


# Fees


def test_a_transaction_that_stays_in_the_pool_is_replaced_on_its_nonce_for_an_eighth_more(
    world: World, slow: Counter, trainer: Signer
) -> None:
    store, clock = MemoryIntents(), Clock()
    fees: list[tuple[int, int, int]] = []

    def watch() -> None:
        intent = store.intent("add")
        assert intent is not None
        fees.append((intent.nonce, intent.max_fee, intent.tip))
        if len(intent.hashes) == 3:
            world.mine()

    clock.meanwhile = watch
    receipt = outbox_of(slow.chain, trainer, store, clock, policy=CALM).send("add", slow.add())
    intent = store.intent("add")
    assert receipt is not None and intent is not None
    assert receipt.hash == intent.hashes[-1] and len(intent.hashes) == 3
    (first, second, third) = sorted(set(fees))
    assert {nonce for nonce, _, _ in fees} == {0}
    for (_, fee, tip), (_, more, more_tip) in ((first, second), (second, third)):
        assert more == -(-fee * 9 // 8) and more_tip == -(-tip * 9 // 8)
    assert (slow.count(), sent_by(world, trainer)) == (1, 1)


def test_an_older_version_that_is_mined_after_all_settles_the_intent(
    world: World, slow: Counter, trainer: Signer
) -> None:
    store, clock = MemoryIntents(), Clock()

    def mine_the_first_version() -> None:
        intent = store.intent("add")
        assert intent is not None
        if len(intent.hashes) == 1:
            first.update(world.pool)
        elif world.pool:
            world.pool = dict(first)
            world.mine()

    first: dict[tuple[str, int], bytes] = {}
    clock.meanwhile = mine_the_first_version
    receipt = outbox_of(slow.chain, trainer, store, clock, policy=CALM).send("add", slow.add())
    intent = store.intent("add")
    assert receipt is not None and intent is not None
    assert receipt.hash == intent.hashes[0] and len(intent.hashes) == 2
    assert (slow.count(), intent.status) == (1, Status.DONE)


def test_a_replacement_called_underpriced_pays_more_at_once(
    world: World, slow: Counter, trainer: Signer
) -> None:
    world.least_replacement_percent = 125
    store, clock = MemoryIntents(), Clock()
    outbox = outbox_of(slow.chain, trainer, store, clock, policy=CALM, wait_s=11)
    outbox.send("add", slow.add())
    assert len(world.delivered) == 2
    intent = store.intent("add")
    assert intent is not None and len(intent.hashes) == 3
    assert world.delivered[-1] == intent.hashes[-1]


def test_the_fee_ceiling_holds(world: World, slow: Counter, trainer: Signer) -> None:
    store, clock = MemoryIntents(), Clock()
    offer = CALM.first(slow.chain.fees())
    policy = FeePolicy(patience_s=1, ceiling=offer.max_fee * 2)
    outbox_of(slow.chain, trainer, store, clock, policy=policy, wait_s=12).send("add", slow.add())
    intent = store.intent("add")
    assert intent is not None and len(intent.hashes) > 3
    assert intent.max_fee <= policy.ceiling < -(-intent.max_fee * 9 // 8)
    world.mine()
    assert outbox_of(slow.chain, trainer, store).send("add", slow.add()) is not None


def test_the_nearer_the_deadline_the_sooner_more_is_paid() -> None:
    policy = FeePolicy(patience_s=45)
    assert [policy.patience(left) for left in (None, 3600, 80, 8, -5)] == [45, 45, 10, 2, 2]


# Endpoints that mislead


def test_a_success_that_the_endpoint_hid_is_found_and_not_repeated(
    world: World, node: LocalNode, trainer: Signer, counter_address: str
) -> None:
    counter = counter_on(Chain([node.url], CHAIN_ID), counter_address)
    node.mischief = hangup_after("eth_sendRawTransaction")
    receipt = outbox_of(counter.chain, trainer).send("add", counter.add())
    assert receipt is not None and receipt.succeeded
    node.mischief = None
    assert (counter.count(), sent_by(world, trainer), len(world.delivered)) == (1, 1, 1)


def test_already_known_counts_as_sent(world: World, node: LocalNode, slow: Counter, trainer: Signer) -> None:
    def take_and_deny(method: str, params: list[Any], honest: Callable[[], Any]) -> Any:
        answer = honest()
        if method == "eth_sendRawTransaction":
            raise RpcError("already known")
        return answer

    node.mischief, clock = take_and_deny, Clock()
    clock.meanwhile = world.mine
    assert outbox_of(slow.chain, trainer, clock=clock).send("add", slow.add()) is not None
    assert len(world.delivered) == 1


def test_nonce_too_low_means_look_again_not_send_again(
    world: World, node: LocalNode, slow: Counter, trainer: Signer
) -> None:
    def mine_and_deny(method: str, params: list[Any], honest: Callable[[], Any]) -> Any:
        answer = honest()
        if method == "eth_sendRawTransaction":
            world.mine()
            raise RpcError("nonce too low")
        return answer

    node.mischief = mine_and_deny
    assert outbox_of(slow.chain, trainer).send("add", slow.add()) is not None
    assert (slow.count(), sent_by(world, trainer)) == (1, 1)


def test_a_receipt_that_comes_late_is_waited_for(
    world: World, node: LocalNode, trainer: Signer, counter_address: str
) -> None:
    """The account's nonce is used up before the endpoint shows the receipt: no reason to cry or to send."""
    chain = Chain([node.url], CHAIN_ID, confirmations=5)
    counter, clock, store = counter_on(chain, counter_address), Clock(), MemoryIntents()
    node.mischief = only("eth_getTransactionReceipt", lambda _: None)
    outbox = outbox_of(chain, trainer, store, clock, policy=CALM, wait_s=30)
    assert outbox.send("add", counter.add()) is None
    node.mischief = None
    assert outbox.send("add", counter.add()) is not None
    assert len(world.delivered) == 1


def test_a_receipt_that_one_answer_missed_is_no_reason_to_cry_drift(
    world: World, node: LocalNode, trainer: Signer, counter_address: str
) -> None:
    """Receipt missing, then the block arrives, then the nonce is used up: the receipt is asked for again."""
    counter = counter_on(Chain([node.url], CHAIN_ID), counter_address)
    asked = [0]

    def miss_the_second(receipt: Any) -> Any:
        asked[0] += 1
        return None if asked[0] == 2 else receipt

    node.mischief = only("eth_getTransactionReceipt", miss_the_second)
    assert outbox_of(counter.chain, trainer).send("add", counter.add()) is not None
    assert asked[0] > 2 and counter.count() == 1


def test_a_higher_fee_that_cannot_be_paid_leaves_the_version_that_is_out_there(
    world: World, node: LocalNode, slow: Counter, trainer: Signer
) -> None:
    store, clock = MemoryIntents(), Clock()
    outbox_of(slow.chain, trainer, store, clock, wait_s=0).send("add", slow.add())
    node.mischief = refuse("eth_sendRawTransaction", "insufficient funds for gas * price + value")
    outbox = outbox_of(slow.chain, trainer, store, clock, policy=CALM)
    with pytest.raises(OutOfFunds):
        outbox.resume()
    outbox._pay_more(store.open_intents()[0])
    world.mine()
    assert len(outbox.resume()) == 1 and slow.count() == 1


def test_an_endpoint_that_dies_on_the_way_is_waited_out(
    world: World, node: LocalNode, slow: Counter, trainer: Signer
) -> None:
    store, clock = MemoryIntents(), Clock()

    def comes_back() -> None:
        node.mischief = None
        world.mine()

    def dies(method: str, params: list[Any], honest: Callable[[], Any]) -> Any:
        if method == "eth_sendRawTransaction":
            node.mischief = garbage(b"", 503)
            raise Hangup
        return honest()

    node.mischief, clock.meanwhile = dies, comes_back
    outbox = outbox_of(slow.chain, trainer, store, clock)
    assert outbox.send("add", slow.add()) is not None
    assert slow.count() == 1


def test_an_endpoint_that_stays_dead_is_an_error_and_the_intent_stays_open(
    world: World, node: LocalNode, slow: Counter, trainer: Signer
) -> None:
    store = MemoryIntents()

    def dies(method: str, params: list[Any], honest: Callable[[], Any]) -> Any:
        if method == "eth_sendRawTransaction":
            node.mischief = garbage(b"", 503)
            raise Hangup
        return honest()

    node.mischief = dies
    with pytest.raises(EndpointDown):
        outbox_of(slow.chain, trainer, store, wait_s=5).send("add", slow.add())
    assert status_of(store, "add") == Status.OPEN
    node.mischief = None
    outbox_of(slow.chain, trainer, store).resume()
    world.mine()
    assert slow.count() == 1


def test_an_absurd_pending_count_is_not_believed(node: LocalNode, slow: Counter, trainer: Signer) -> None:
    node.mischief = lambda method, params, honest: (
        1000 if method == "eth_getTransactionCount" and params[1] == "pending" else honest()
    )
    with pytest.raises(BadAnswer, match="pending transactions"):
        outbox_of(slow.chain, trainer).send("add", slow.add())


def test_an_unknown_refusal_is_shown(node: LocalNode, slow: Counter, trainer: Signer) -> None:
    node.mischief = refuse("eth_sendRawTransaction", "transaction type not supported")
    with pytest.raises(BadAnswer, match="transaction type not supported"):
        outbox_of(slow.chain, trainer, wait_s=3).send("add", slow.add())


# No longer needed


def test_an_intent_that_is_no_longer_needed_is_cancelled_on_its_nonce(
    world: World, slow: Counter, trainer: Signer
) -> None:
    store, clock, needed = MemoryIntents(), Clock(), [True]

    def lose_interest() -> None:
        needed[0] = False
        intent = store.intent("add")
        if intent is not None and intent.to == trainer.address:
            world.mine()

    clock.meanwhile = lose_interest
    outbox = outbox_of(slow.chain, trainer, store, clock, policy=CALM)
    assert outbox.send("add", slow.add(), lambda: needed[0]) is None
    assert (slow.count(), sent_by(world, trainer)) == (0, 1)
    assert status_of(store, "add") == Status.CANCELLED
    clock.meanwhile = world.mine
    assert outbox.send("add", slow.add()) is not None


def test_an_intent_past_its_deadline_is_cancelled_by_resume(
    world: World, slow: Counter, trainer: Signer
) -> None:
    store = MemoryIntents()
    deadline = slow.chain.head().time + 50
    assert outbox_of(slow.chain, trainer, store, wait_s=0).send("add", slow.add(), deadline=deadline) is None
    world.tester.time_travel(deadline)
    world.tester.mine_blocks()
    outbox = outbox_of(slow.chain, trainer, store)
    assert outbox.resume() == []
    world.mine()
    assert len(outbox.resume()) == 1
    assert status_of(store, "add") == Status.CANCELLED and slow.count() == 0


# Restarts


def test_an_intent_is_written_down_before_anything_is_sent(
    world: World, chain: Chain, trainer: Signer, counter: Counter
) -> None:
    class FullDisk(MemoryIntents):
        def add_intent(self, intent: Intent) -> None:
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        outbox_of(chain, trainer, FullDisk()).send("add", counter.add())
    assert sent_by(world, trainer) == 0


def test_after_a_restart_the_next_intent_takes_the_next_nonce(
    world: World, node: LocalNode, slow: Counter, trainer: Signer
) -> None:
    """Even if the endpoint has forgotten what is pending."""
    store = MemoryIntents()
    outbox_of(slow.chain, trainer, store, wait_s=0).send("first", slow.add())
    node.mischief = lambda method, params, honest: 0 if method == "eth_getTransactionCount" else honest()
    outbox_of(slow.chain, trainer, store, wait_s=0).send("second", slow.add())
    assert [intent.nonce for intent in store.open_intents()] == [0, 1]
    node.mischief = None
    world.mine()
    assert slow.count() == 2
    assert len(outbox_of(slow.chain, trainer, store).resume()) == 2
    assert store.open_intents() == []


def test_pending_transactions_of_another_program_are_counted(
    world: World, slow: Counter, trainer: Signer
) -> None:
    outbox_of(slow.chain, trainer, wait_s=0).send("by hand", slow.add())
    store = MemoryIntents()
    outbox_of(slow.chain, trainer, store, wait_s=0).send("by the node", slow.add())
    assert [intent.nonce for intent in store.open_intents()] == [1]


def test_a_later_intent_brings_the_earlier_one_along_that_the_pool_forgot(
    chain: Chain, world: World, trainer: Signer, counter: Counter
) -> None:
    """The earlier transaction was written down but never arrived; some chains also refuse a nonce gap."""
    store, clock = MemoryIntents(), Clock()
    outbox_of(chain, trainer, store, clock).send("done", counter.add())
    template = store.intent("done")
    assert template is not None
    lost = replace(template, name="lost", nonce=1, status=Status.OPEN, hashes=())
    store.add_intent(outbox_of(chain, trainer)._with_version(lost))
    assert outbox_of(chain, trainer, store, clock).send("next", counter.add()) is not None
    outbox_of(chain, trainer, store, clock).resume()
    assert counter.count() == 3 and store.open_intents() == []


class Killed(BaseException):
    """Stands for SIGKILL: nothing catches it."""


class Fuse:
    """Blows at the n-th thing that happens."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def burn(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise Killed


class FusedIntents(MemoryIntents):
    """A store that may be killed before or after each write."""

    def __init__(self, fuse: Fuse) -> None:
        super().__init__()
        self.fuse = fuse

    def add_intent(self, intent: Intent) -> None:
        self.fuse.burn()
        super().add_intent(intent)
        self.fuse.burn()

    def update_intent(self, intent: Intent) -> None:
        self.fuse.burn()
        super().update_intent(intent)
        self.fuse.burn()


def kills() -> Iterator[int]:
    yield from range(1, 40)


@pytest.mark.parametrize("patience_s", [1000, 1], ids=["patient", "replacing"])
def test_killed_at_any_instruction_it_still_sends_exactly_once(
    patience_s: float, trainer: Signer, world: World, counter_address: str
) -> None:
    """Kills the outbox before and after every request and every write, restarts it, and counts what was done."""
    world.automine = False
    survived = False
    for number, steps in enumerate(kills()):
        signer = Signer(key_of(f"trainer {patience_s} {steps}"))
        world.fund(signer.address, 10**18)
        fuse = Fuse(steps)
        store, clock = FusedIntents(fuse), Clock()
        chain = FusedChain(world, fuse)
        counter = counter_on(chain, counter_address)
        before = _count(world, counter_address)

        def meanwhile(clock: Clock = clock) -> None:
            if clock.now > 3:
                world.mine()

        clock.meanwhile = meanwhile
        policy = FeePolicy(patience_s=patience_s)
        try:
            outbox_of(chain, signer, store, clock, policy=policy).send("add", counter.add())
            survived = True
        except Killed:
            fuse.left = -1
            restarted = outbox_of(chain, signer, store, clock, policy=policy)
            restarted.resume()
            assert restarted.send("add", counter.add()) is not None
        assert _count(world, counter_address) == before + 1, f"killed at step {steps}"
        assert sent_by(world, signer) == 1 and status_of(store, "add") == Status.DONE
        if survived:
            assert number > 15
            return
    pytest.fail("no run was long enough")


class FusedChain(Chain):
    """A chain whose every request may be the last thing the process does, before or after it happened."""

    def __init__(self, world: World, fuse: Fuse) -> None:
        super().__init__([world.provider], CHAIN_ID)

        def request(method: str, params: list[Any]) -> Any:
            if method == "eth_sendRawTransaction":
                fuse.burn()
                try:
                    result: Any = {"result": world.take(bytes.fromhex(params[0][2:]))}
                except RpcError as error:
                    result = {"error": {"message": error.message}}
                fuse.burn()
                return result
            if method in ("eth_getTransactionReceipt", "eth_getTransactionCount", "eth_estimateGas"):
                fuse.burn()
            if method == "eth_getTransactionCount" and params[1] == "pending":
                return {"result": world.pending(params[0])}
            return world.request(method, params)

        self._endpoints[0]._request = request  # pyright: ignore


def _count(world: World, address: str) -> int:
    return counter_on(Chain([world.provider], CHAIN_ID), address).count()


# Somebody else with the key


def test_a_nonce_used_by_somebody_else_is_refused_loudly_and_nothing_is_sent(
    world: World, slow: Counter, trainer: Signer
) -> None:
    store = MemoryIntents()
    outbox = outbox_of(slow.chain, trainer, store, wait_s=0)
    outbox.send("add", slow.add())
    world.pool.clear()
    twin = _signed(trainer, slow.add(7).data, slow.address, world.tester.get_block_by_number("latest"))
    world.request("eth_sendRawTransaction", ["0x" + twin.hex()])
    with pytest.raises(NonceDrift, match="nonce 0"):
        outbox.resume()
    assert status_of(store, "add") == Status.LOST
    assert (slow.count(), sent_by(world, trainer)) == (7, 1)
    assert outbox.resume() == []


# Reorganisations


def test_a_transaction_that_a_reorganisation_dropped_is_sent_again_on_its_nonce(
    world: World, node: LocalNode, trainer: Signer, counter_address: str
) -> None:
    chain, store, clock = Chain([node.url], CHAIN_ID, confirmations=2), MemoryIntents(), Clock()
    counter = counter_on(chain, counter_address)
    world.mine(3)
    fork = world.tester.take_snapshot()
    outbox = outbox_of(chain, trainer, store, clock, policy=CALM)
    assert outbox.send("add", counter.add()) is not None
    assert status_of(store, "add") == Status.OPEN
    world.tester.revert_to_snapshot(fork)
    world.mine(1)
    assert sent_by(world, trainer) == 0
    clock.now += 11
    outbox.resume()
    world.mine(3)
    outbox.resume()
    assert (counter.count(), sent_by(world, trainer)) == (1, 1)
    assert status_of(store, "add") == Status.DONE
