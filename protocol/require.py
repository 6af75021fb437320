"""How the reference models refuse a call: in the contract's words. Used by the models of sections 2, 3 and 11."""


class Refused(Exception):
    """A call that the contract reverts; the reason is the contract's."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def require(condition: bool, reason: str) -> None:
    """Raises Refused unless the condition holds, as `assert condition, reason` does in a contract."""
    if not condition:
        raise Refused(reason)
