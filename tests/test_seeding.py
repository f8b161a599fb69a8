"""Random numbers as a function of names."""

from hypothesis import given
from hypothesis import strategies as st

from reverie.seeding import derive, generator

names = st.lists(st.one_of(st.integers(-5, 5), st.text(max_size=3)), max_size=4)


@given(st.integers(0, 5), names, st.integers(0, 5), names)
def test_equal_names_equal_seeds_other_names_other_seeds(seed, a, other_seed, b):
    assert 0 <= derive(seed, *a) < 2**63
    assert (derive(seed, *a) == derive(other_seed, *b)) == ((seed, a) == (other_seed, b))


def test_seeds_are_the_same_on_every_machine_and_for_good():
    assert derive(0, "task", 1, "learn") == 1418781456919238580
    assert generator(0, "x").initial_seed() == derive(0, "x")
