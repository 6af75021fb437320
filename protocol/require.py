"""Reverts of the reference models, with the contracts' reasons. Protocol sections 2, 3 and 11."""


class Refused(Exception):
    """A call that the contract reverts, with the contract's reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def require(condition: bool, reason: str) -> None:
    """Raises Refused unless the condition holds, as `assert condition, reason` does in a contract."""
    if not condition:
        raise Refused(reason)
