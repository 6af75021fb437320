"""Error feedback after a round whose update did not count."""

from earnest.training.codecs.codec import CodecState


def undo_feedback(
    now: CodecState,
    before: CodecState | None,
    after: CodecState,
    feedback: float,
    rounds_since: int = 0,
) -> CodecState:
    """Returns the codec state with a round's error feedback undone: that round's update was not counted.

    `before` and `after`: the codec state before and after that round was encoded; `now`: the newest one,
    `rounds_since` encodings later. The model never moved by the update, so the next round trains it again: what is
    left of it in the residual would be sent twice, and what it paid back is due again. The residual becomes what it
    would be without that round. This is exact: a residual is linear in the one it started from, and what later rounds
    sent stays sent. Warm start and history are kept: they only affect how the next update is encoded.
    """
    corrected = dict(now)
    for name in now:
        if name.startswith("residual/"):
            start = (before or {}).get(name)
            if rounds_since:
                change = after[name] if start is None else after[name] - start
                corrected[name] = now[name] - change * feedback**rounds_since
            elif start is None:
                del corrected[name]
            else:
                corrected[name] = start
    return corrected
