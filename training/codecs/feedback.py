"""Error feedback where an update did not count."""

from earnest.training.codecs.codec import CodecMemory


def uncounted(
    now: CodecMemory,
    before: CodecMemory | None,
    after: CodecMemory,
    feedback: float,
    rounds_since: int = 0,
) -> CodecMemory:
    """The memory to go on with, once it is known that a round's update was not counted.

    `before` and `after` are the memories from before and after that round was encoded; `now` is the newest,
    `rounds_since` encodings later. The state never moved by the update, so the next round trains all of it
    again: leftovers of it in the residual would be sent twice, and whatever the update paid back is owed
    again. So the residual becomes what it would be had the round not been worked in, less what later rounds
    have sent: it is linear in what it started from. Warm start and history stay: they steer, they owe nothing.
    """
    fixed = dict(now)
    for name in now:
        if name.startswith("residual/"):
            old = (before or {}).get(name)
            if rounds_since:
                wrong = after[name] if old is None else after[name] - old
                fixed[name] = now[name] - wrong * feedback**rounds_since
            elif old is None:
                del fixed[name]
            else:
                fixed[name] = old
    return fixed
