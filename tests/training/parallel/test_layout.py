"""A layout says which process does what; an impossible one is refused with a reason."""

import pytest

from earnest.training.parallel import Layout, LayoutError


@pytest.mark.parametrize(
    ("text", "layout", "processes"),
    [
        ("pp4-mb8", Layout(stages=4, microbatches=8), 4),
        ("dp2", Layout(replicas=2), 2),
        ("fsdp3", Layout(replicas=3, sharded=True), 3),
        ("pp2-dp2-mb2-gpipe", Layout(2, 2, False, 2, "gpipe"), 4),
        ("dp1", Layout(), 1),
    ],
)
def test_a_layout_is_written_in_a_word(text: str, layout: Layout, processes: int) -> None:
    assert Layout.parse(text) == layout == Layout.parse(str(layout))
    assert str(layout) == text
    assert layout.processes == processes


@pytest.mark.parametrize("text", ["", "pp", "tp2", "pp2-pp4", "dp2-fsdp2", "pp2-fsdp2", "pp0", "dp99999"])
def test_a_layout_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(LayoutError) as caught:
        Layout.parse(text)
    assert caught.value.fix
