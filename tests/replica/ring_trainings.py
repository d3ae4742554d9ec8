"""Trainings in a ring for the tests of this folder."""

from __future__ import annotations

from trainings import Case, State, train_one

from local_ring import in_ring as in_ring


def train_ring(case: Case, workers: int) -> list[State]:
    """The state of the model on every worker; each starts from a seed of its own."""
    models = [case.make(seed) for seed in range(workers)]
    return in_ring(workers, lambda replica: train_one(case, replica, models[replica.index]))
