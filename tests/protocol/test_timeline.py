from earnest.protocol.timeline import Timeline


def test_a_value_holds_until_the_next_change():
    line = Timeline("a")
    assert (line.at(9), line.latest) == ("a", "a")
    line.set(2, "b")
    line.set(2, "c")
    line.set(5, "d")
    assert [line.at(r) for r in (0, 1, 2, 4, 5, 9)] == ["a", "a", "c", "c", "d", "d"]
    assert line.changes == [(2, "c"), (5, "d")]
    assert line.latest == "d"
