"""A state has one file and one root (Protocol sections 10 and 13)."""

import math
import struct
from dataclasses import replace

import pytest
import torch

from earnest.protocol.merkle import content_root
from earnest.training.diloco.state import (
    Spec,
    State,
    StateError,
    from_bytes,
    read_parameters,
    state_bytes,
    state_root,
    to_bytes,
    write_parameters,
)
from earnest.training.tasks.shakespeare import Shakespeare
from tests.training.codecs.updates import SMALL, random_update

STATE = State(random_update(SMALL, 1), random_update(SMALL, 2), 1.5)


def test_state_file_is_a_line_of_json_then_parameters_then_momentum() -> None:
    state = State({"w": torch.tensor([1.0, -2.0])}, {"w": torch.tensor([0.5, 0.0])}, 20.0)
    header = (
        b'{"clip_norm":"0x1.4000000000000p+4","momentum":[["w","F32",[2]]],"parameters":[["w","F32",[2]]]}\n'
    )
    assert to_bytes(state) == header + struct.pack("<4f", 1.0, -2.0, 0.5, 0.0)


def test_order_of_insertion_does_not_change_the_file() -> None:
    parameters, momentum = ({n: p[n] for n in reversed(p)} for p in (STATE.parameters, STATE.momentum))
    backwards = State(parameters, momentum, STATE.clip_norm)
    assert to_bytes(backwards) == to_bytes(STATE)


def test_state_survives_its_file() -> None:
    back = from_bytes(to_bytes(STATE), SMALL)
    assert to_bytes(back) == to_bytes(STATE)
    assert all(torch.equal(back.parameters[n], v) for n, v in STATE.parameters.items())
    assert all(torch.equal(back.momentum[n], v) for n, v in STATE.momentum.items())
    assert back.clip_norm == 1.5
    assert len(to_bytes(STATE)) <= state_bytes(SMALL)


@pytest.mark.parametrize("norm", [5e-324, 0.1, 1 / 3, 1e300])
def test_every_clip_norm_survives_to_the_last_bit(norm: float) -> None:
    state = replace(STATE, clip_norm=norm)
    assert from_bytes(to_bytes(state), SMALL).clip_norm == norm
    assert len(to_bytes(state)) <= state_bytes(SMALL)


def test_root_is_the_content_root_of_the_file_and_sees_momentum_and_clip_norm() -> None:
    assert state_root(STATE) == content_root(to_bytes(STATE))
    assert state_root(STATE) != state_root(replace(STATE, momentum=STATE.parameters))
    assert state_root(STATE) != state_root(replace(STATE, clip_norm=1.25))


def test_loaded_state_does_not_share_memory_with_the_file() -> None:
    data = to_bytes(STATE)
    from_bytes(data, SMALL).parameters["b"].zero_()
    assert data == to_bytes(STATE)


def number(value: float) -> bytes:
    data = to_bytes(STATE)
    return data[:-4] + struct.pack("<f", value)


def clip_norm(spelled: bytes) -> bytes:
    return to_bytes(STATE).replace(b"0x1.8000000000000p+0", spelled)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "header"),
        (to_bytes(STATE).replace(b"a.weight", b"a.wEight"), "header is not the canonical"),
        (clip_norm(b"0x3.0p-1"), "header is not the canonical"),
        (clip_norm(b"0x0.0p+0"), "no clip norm above zero"),
        (clip_norm(b"-0x1.8000000000000p+0"), "no clip norm above zero"),
        (clip_norm(b"inf"), "no clip norm above zero"),
        (clip_norm(b"0x1.0p+99999"), "no clip norm above zero"),
        (clip_norm(b"0xp-x"), "no clip norm above zero"),
        (clip_norm(b"1" * 100_000), "no clip norm above zero"),
        (b"\x80\x05" + to_bytes(STATE), "header"),
        (to_bytes(STATE)[:-1], "bytes, expected"),
        (to_bytes(STATE) + b"\0", "bytes, expected"),
        (number(math.nan), "not finite"),
        (number(-math.inf), "not finite"),
    ],
)
def test_anything_else_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(StateError, match=reason):
        from_bytes(data, SMALL)


def test_join_sorts_by_name_and_split_undoes_it() -> None:
    layout = Spec.of({"b": torch.zeros(2), "a": torch.zeros(1, 3)})
    assert layout.shapes == (("a", (1, 3)), ("b", (2,)))
    flat = layout.join({"b": torch.tensor([4.0, 5.0]), "a": torch.tensor([[1.0, 2.0, 3.0]])})
    assert flat.tolist() == [1, 2, 3, 4, 5]
    assert layout.split(flat)["a"].tolist() == [[1, 2, 3]]
    assert (layout.size, layout.dense_bytes) == (5, 20)


@pytest.mark.parametrize(
    "shapes", [(), (("b", (1,)), ("a", (1,))), (("a", (1,)), ("a", (1,))), (('a"', (1,)),)]
)
def test_spec_refuses_names_that_have_no_canonical_order(shapes: tuple) -> None:
    with pytest.raises(ValueError, match="name"):
        Spec(shapes)


def test_parameters_are_copied_out_of_and_into_a_model() -> None:
    model = Shakespeare(layers=1, width=8, heads=1, context=8).build_model(0)
    before = read_parameters(model)
    write_parameters(model, {name: value + 1 for name, value in before.items()})
    assert all(torch.equal(p, before[name] + 1) for name, p in model.named_parameters())
    assert State.start(before, 1.0).spec == Spec.of(before)
