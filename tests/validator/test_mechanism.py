"""The arithmetic of the benchmarks on attacks: who is compared with whom, and what the search finds."""

from benchmarks.best_response import Response, grid, search
from benchmarks.mechanism import combine, figures, row

HONEST = {
    "attackers": 0,
    "weights": [[0.5, 0.5, 0.5, 0.0], [0.5, 0.5, 0.4, 0.6], [0.5, 0.5, 0.4, 0.6]],
    "former": [[1.0] * 4] * 3,
    "verdicts": [[0] * 4] * 3,
    "losses": [3.0, 2.5, 2.0],
    "judge_s": [1.1],
    "bare_s": [1.0],
}
SPLIT = {
    "attackers": 2,
    "weights": [[0.5, 0.5, 0.9, 0.9], [0.5, 0.0, 0.25, 0.25], [0.5, 0.5, 0.25, 0.25]],
    "former": [[1.0] * 4] * 3,
    "verdicts": [[0, 0, 0, 0], [4, 0, 0, 0], [0, 0, 0, 4]],
    "work": 1.0,
}


def test_pay_is_that_of_all_attacking_seats_beside_one_of_the_same_seats_when_honest():
    found = row(SPLIT, HONEST, first=2)
    assert found["pay"] == (0.5 + 0.5) / (0.5 + 0.5)
    assert found["former_pay"] == 2.0


def test_only_honest_seats_that_earned_something_are_lost_or_slashed():
    found = row(SPLIT, HONEST, first=2)
    assert (found["lost"], found["slashed"], found["seat_rounds"]) == (1, 1, 4)


def test_the_best_response_is_the_pay_per_unit_of_compute():
    half = {**SPLIT, "work": 0.5}
    found = combine([figures({"honest": HONEST, "split-2": SPLIT, "tuned-half": half}, 2)])
    assert found["best_response_max"] == 2.0
    assert found["split_max"] == 1.0
    assert found["half_steps_pay"] is None
    assert (found["honest_rounds"], found["honest_zero_weight_share"]) == (8, 0)
    assert found["forward_passes_ratio"] is None
    assert found["repeat_pay"] == (2 + 4) / 2 / 4, (
        "round 2 repeats two weights of round 1, round 3 all of round 2"
    )
    assert found["guess_pay"] == 0.5
    assert "forward_passes_ratio" in found["reasons"]


def test_the_search_improves_on_its_grid_and_repeats_nothing():
    def value(response: Response) -> float:
        return -abs(response.deviation.rate - 1.2) - abs(response.deviation.scale - 1.3) - response.seats

    start = grid(2)
    tried = search(value, len(start) + 40, 2, seed=0)
    assert len(tried) == len(start) + 40
    assert max(tried.values()) > max(value(one) for one in start)
    assert max(tried, key=lambda one: tried[one]).seats == 1


def test_the_grid_splits_one_machine_over_no_more_seats_than_there_are():
    assert max(one.seats for one in grid(4)) == 4
    assert max(one.seats for one in grid(2)) == 2
    assert grid(2)[0].work == 1.0
