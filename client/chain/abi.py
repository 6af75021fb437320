"""Encodes the calls of one contract, and decodes its results and events, by its ABI."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from eth_abi.abi import decode, encode
from eth_abi.exceptions import DecodingError, EncodingError
from eth_utils.abi import collapse_if_tuple, event_abi_to_log_topic, function_abi_to_4byte_selector
from eth_utils.address import to_checksum_address

from earnest.base.errors import BadAnswer
from earnest.client.chain.answers import Log

Item = Mapping[str, Any]


class Abi:
    """One contract's ABI. Addresses come out checksummed, bytes as bytes, arrays and structs as tuples."""

    def __init__(self, items: Sequence[Item]) -> None:
        self._functions: dict[str, Item] = {i["name"]: i for i in items if i["type"] == "function"}
        self._events: dict[bytes, Item] = {_topic(i): i for i in items if i["type"] == "event"}

    @property
    def functions(self) -> frozenset[str]:
        return frozenset(self._functions)

    def encode_call(self, function: str, arguments: Sequence[Any]) -> bytes:
        """Returns the calldata of a call. Raises ValueError for arguments of wrong types."""
        item = self._functions[function]
        try:
            return _selector(item) + encode(_types(item["inputs"]), list(arguments))
        except EncodingError as error:
            raise ValueError(f"these arguments do not fit {function}: {error}") from None

    def named(self, function: str, arguments: Sequence[Any]) -> dict[str, Any]:
        """Returns the arguments of a call by their names."""
        return _named(self._functions[function]["inputs"], arguments)

    def decode_result(self, function: str, data: bytes) -> Any:
        """Decodes the result of a call: one value, or a tuple of several. Raises BadAnswer for other bytes."""
        outputs = self._functions[function]["outputs"]
        values = _decode(outputs, data)
        return values[0] if len(outputs) == 1 else values

    def decode_log(self, log: Log) -> tuple[str, dict[str, Any]] | None:
        """Returns the event's name and arguments; None for an event of another contract."""
        item = self._events.get(log.topics[0]) if log.topics else None
        if item is None:
            return None
        indexed = [i for i in item["inputs"] if i["indexed"]]
        others = [i for i in item["inputs"] if not i["indexed"]]
        if len(log.topics) != len(indexed) + 1:
            raise BadAnswer(f"a {item['name']} event lacks topics", "use another endpoint")
        arguments = _named(indexed, _decode(indexed, b"".join(log.topics[1:])))
        arguments |= _named(others, _decode(others, log.data))
        return item["name"], {i["name"]: arguments[i["name"]] for i in item["inputs"]}


def _decode(components: Sequence[Item], data: bytes) -> tuple[Any, ...]:
    try:
        values = decode(_types(components), data)
    except (DecodingError, UnicodeDecodeError):
        raise BadAnswer(
            f"{len(data)} bytes that do not decode as {', '.join(_types(components)) or 'nothing'}",
            "check that the address is the contract's, and that the endpoint is in step",
        ) from None
    return tuple(_clean(c, c["type"], value) for c, value in zip(components, values, strict=True))


def _clean(component: Item, kind: str, value: Any) -> Any:
    if kind.endswith("]"):
        return tuple(_clean(component, kind[: kind.rindex("[")], element) for element in value)
    if kind == "tuple":
        fields = zip(component["components"], value, strict=True)
        return tuple(_clean(field, field["type"], element) for field, element in fields)
    return to_checksum_address(value) if kind == "address" else value


def _named(components: Sequence[Item], values: Sequence[Any]) -> dict[str, Any]:
    return {c["name"]: value for c, value in zip(components, values, strict=True)}


def _types(components: Sequence[Item]) -> list[str]:
    return [collapse_if_tuple(dict(component)) for component in components]  # pyright: ignore[reportArgumentType]


def _selector(item: Item) -> bytes:
    return function_abi_to_4byte_selector(dict(item))  # pyright: ignore[reportArgumentType]


def _topic(item: Item) -> bytes:
    return event_abi_to_log_topic(dict(item))  # pyright: ignore[reportArgumentType]
