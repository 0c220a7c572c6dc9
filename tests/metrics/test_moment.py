"""Recall while rows come and go is that of the moment: what was there is asked for, what was in flight is not."""

from __future__ import annotations

import numpy as np

from anncestry.metrics import recall
from anncestry.metrics.recall import NEVER, Candidates, Lives

K = 2


def line(*positions: float) -> np.ndarray:
    return np.asarray(positions, float)


def asked_of(lives: Lives, positions: np.ndarray, sent: int, answered: int, *returned: int) -> recall.Moment:
    """One query at 0 on a line of rows, answered by `returned`."""
    order = np.lexsort((np.arange(len(positions)), positions))
    candidates = Candidates(order[None, :], positions[order][None, :], np.array([np.inf]))
    ids = np.array([[*returned, *[-1] * (K - len(returned))]])
    return recall.truth_of_moment(candidates, np.array([0]), np.array([sent]), np.array([answered]), ids, lives, K)


def test_a_row_counts_once_its_insertion_was_acknowledged_before_the_query_was_sent():
    lives, at = Lives.loaded(3, 1), line(1, 2, 3, 0.5)
    lives.insert(np.array([3]), 10, 20)
    assert asked_of(lives, at, 20, 30, 0, 1).ids.tolist() == [[3, 0]], "it was there, and was not found"
    assert asked_of(lives, at, 5, 10, 0, 1).ids.tolist() == [[0, 1]], "it was not sent yet"


def test_a_row_in_flight_may_be_found_or_not_and_both_are_right():
    lives, at = Lives.loaded(3, 1), line(1, 2, 3, 0.5)
    lives.insert(np.array([3]), 10, 20)
    for sent, answered in ((5, 15), (12, 18), (15, 25), (19, 90)):
        assert asked_of(lives, at, sent, answered, 3, 0).ids.tolist() == [[3, 0]]
        assert asked_of(lives, at, sent, answered, 0, 1).ids.tolist() == [[0, 1]]
        assert not asked_of(lives, at, sent, answered, 3, 0).gone.any()


def test_a_deleted_row_is_no_hit_once_its_deletion_was_acknowledged_and_is_asked_until_it_is_sent():
    lives, at = Lives.loaded(3, 0), line(1, 2, 3)
    lives.delete(np.array([0]), 10, 20)
    assert asked_of(lives, at, 1, 10, 1, 2).ids.tolist() == [[0, 1]]
    assert asked_of(lives, at, 15, 17, 1, 2).ids.tolist() == [[1, 2]]
    assert asked_of(lives, at, 15, 17, 0, 1).ids.tolist() == [[0, 1]]
    after = asked_of(lives, at, 20, 30, 0, 1)
    assert after.ids.tolist() == [[1, 2]] and after.gone.tolist() == [[True, False]]


def test_a_change_that_nobody_acknowledged_stays_in_doubt_from_when_it_was_sent():
    lives, at = Lives.loaded(3, 1), line(1, 2, 3, 0.5)
    lives.insert(np.array([3]), 10, NEVER)
    lives.delete(np.array([0]), 10, NEVER)
    assert asked_of(lives, at, 1000, 1001, 1, 2).ids.tolist() == [[1, 2]]
    assert asked_of(lives, at, 1000, 1001, 3, 0).ids.tolist() == [[3, 0]]
    assert asked_of(lives, at, 1, 9, 1, 2).ids.tolist() == [[0, 1]]


def test_what_may_be_there_never_costs_a_system_that_did_not_return_it():
    """Against every subset of the rows in flight: the share of hits by the rule is the best of them."""
    random = np.random.RandomState(3)
    for _ in range(200):
        rows, flying = 8, 4
        at = random.random_sample(rows + flying)
        lives = Lives.loaded(rows, flying)
        lives.insert(np.arange(rows, rows + flying), 10, 20)
        returned = random.choice(rows + flying, K, replace=False)
        found = asked_of(lives, at, 15, 16, *returned)
        hits = len(set(found.ids[0]) & set(returned))
        best = 0
        for mask in range(2**flying):
            there = [*range(rows), *(rows + bit for bit in range(flying) if mask >> bit & 1)]
            best = max(best, len(set(sorted(there, key=lambda row: at[row])[:K]) & set(returned.tolist())))
        assert hits == best


def test_rows_that_came_meanwhile_are_told_from_those_that_were_loaded():
    lives, at = Lives.loaded(2, 2), line(1, 2, 0.5, 9)
    lives.insert(np.array([2]), 1, 2)
    assert asked_of(lives, at, 5, 6, 2, 0).fresh.tolist() == [[True, False]]


def test_candidates_that_do_not_reach_far_enough_are_told():
    ids, far = np.array([[0, 1, 2]]), np.array([[1.0, 2.0, 3.0]])
    candidates = Candidates.of(ids, far, [np.array([7])], [np.array([2.5])])
    assert candidates.ids.tolist() == [[0, 1, 7, 2]]
    lives = Lives.loaded(10, 0)
    times = np.array([5]), np.array([6])
    none = np.array([[-1, -1]])
    assert not recall.truth_of_moment(candidates, np.array([0]), *times, none, lives, 3).shallow.any()
    lives.delete(np.array([0, 1]), 1, 2)
    assert recall.truth_of_moment(candidates, np.array([0]), *times, none, lives, 3).shallow.all()
    whole = Candidates.of(
        np.array([[0, -1, -1]]), np.array([[1.0, np.inf, np.inf]]), [np.array([7])], [np.array([2.5])]
    )
    assert not recall.truth_of_moment(whole, np.array([0]), *times, none, lives, 3).shallow.any()
