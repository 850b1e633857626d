"""Search: from a grid outward along ladders, until the best lies within what was tried."""

import itertools
import math

from hypothesis import given
from hypothesis import strategies as st

from fedlap.errors import InputError
from fedlap.reproduce.search import Search

LADDERS = {"lr": [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0], "strength": [1, 2, 5, 10, 20]}


def grid(**values):
    return [
        dict(zip(values, combination, strict=True)) for combination in itertools.product(*values.values())
    ]


def over(**values):
    return Search(grid(**values), {name: LADDERS[name] for name in values})


def run(search, score, refused=lambda values: False):
    """Try what is wanted until nothing is; every pass, as it was asked for."""
    passes = []
    while wanted := search.next_candidates():
        passes.append(wanted)
        for values in wanted:
            if refused(values):
                search.refuse(values, InputError("no"))
            else:
                search.add(values, score(values))
    return passes


def peak(**at):
    """Highest at these values of the ladders, lower the more rungs away."""
    return lambda values: (
        -sum(
            abs(LADDERS[name].index(values[name]) - LADDERS[name].index(value)) for name, value in at.items()
        )
    )


@st.composite
def windows(draw, name):
    """Some neighbouring rungs."""
    begin = draw(st.integers(0, len(LADDERS[name]) - 2))
    return LADDERS[name][begin : draw(st.integers(begin + 2, len(LADDERS[name])))]


@given(
    windows("lr"), windows("strength"), st.sampled_from(LADDERS["lr"]), st.sampled_from(LADDERS["strength"])
)
def test_the_peak_is_found_from_any_grid(rates, strengths, lr, strength):
    search = over(lr=rates, strength=strengths)
    passes = run(search, peak(lr=lr, strength=strength))
    assert search.choice.values == {"lr": lr, "strength": strength}
    assert search.choice.by == "tuned"
    tried = [tuple(values.values()) for combination in passes for values in combination]
    assert len(tried) == len(set(tried))


def test_nothing_is_tried_beyond_a_best_within():
    search = over(lr=[0.01, 0.03, 0.1])
    assert run(search, peak(lr=0.03)) == [grid(lr=[0.01, 0.03, 0.1])]


def test_one_rung_at_a_time_the_rest_as_it_is():
    search = over(lr=[0.01, 0.03], strength=[2, 5, 10])
    passes = run(search, peak(lr=0.1, strength=5))
    assert passes[1:] == [
        [{"lr": 0.1, "strength": 5}],
        [{"lr": 0.3, "strength": 5}, {"lr": 0.1, "strength": 2}, {"lr": 0.1, "strength": 10}],
    ]


def test_without_ladders_it_keeps_to_the_grid_and_takes_the_first_of_equals():
    search = Search(grid(lr=[0.01, 0.03, 0.1]), {})
    assert len(run(search, lambda values: 0.5)) == 1
    assert search.choice.values == {"lr": 0.01}


def test_what_is_refused_ends_a_ladder():
    search = over(strength=[1, 2, 5])
    run(search, peak(strength=20), refused=lambda values: values["strength"] > 5)
    assert search.choice.values == {"strength": 5}
    assert search.choice.refused == 1


def test_what_diverged_is_never_chosen():
    search = over(lr=[0.1, 0.3])
    run(search, lambda values: -math.inf if values["lr"] > 0.1 else values["lr"])
    assert search.choice.values == {"lr": 0.1}
    search = over(lr=[0.1, 0.3])
    run(search, lambda values: -math.inf)
    assert search.choice is None
