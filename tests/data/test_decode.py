"""Decoding by threads: in order, and without waiting for what nobody wants any more."""

import threading

import pytest

from reverie.data.decode import AHEAD, _threads, by_threads


def test_what_threads_make_comes_in_order():
    assert [*by_threads(lambda n: n * n, range(3 * AHEAD))] == [n * n for n in range(3 * AHEAD)]


def test_what_goes_wrong_for_an_item_goes_wrong_for_whoever_asks():
    def refuse(number):
        if number == 7:
            raise ValueError("seven")
        return number

    made = by_threads(refuse, range(100))
    assert [next(made) for _ in range(7)] == [*range(7)]
    with pytest.raises(ValueError, match="seven"):
        next(made)


def test_who_stops_asking_has_little_to_wait_for():
    begun, go = [], threading.Event()

    def make(number):
        begun.append(number)
        go.wait(10)
        return number

    def asked_for():
        """As Ctrl-C would, while files are still being handed to threads."""
        for number in range(10_000):
            if number == AHEAD - 1:
                raise KeyboardInterrupt
            yield number

    with pytest.raises(KeyboardInterrupt):
        next(by_threads(make, asked_for()))
    go.set()
    assert next(by_threads(lambda n: n, [1])) == 1  # the threads are free again
    assert len(begun) <= _threads()._max_workers < AHEAD - 1


def test_no_more_than_a_few_are_begun_ahead():
    asked = []
    made = by_threads(lambda n: n, (asked.append(n) or n for n in range(10_000)))
    assert next(made) == 0
    made.close()
    assert len(asked) <= AHEAD
