"""A model with running statistics is found where a script holds it, and other threads do not notice."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from torch import nn

from argosy.replica.statistics import keeps_statistics


def model(norm: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(2, 2), norm)


HOLDERS: dict[str, Callable[[nn.Module], object]] = {
    "variable": lambda model: model,
    "list": lambda model: [model],
    "dict": lambda model: {"student": model},
    "attribute": lambda model: SimpleNamespace(model=model),
}


@pytest.mark.parametrize("holder", HOLDERS)
@pytest.mark.parametrize(
    ("norm", "keeps"),
    [
        (nn.BatchNorm1d(2), True),
        (nn.BatchNorm1d(2, affine=False), True),
        (nn.BatchNorm1d(2, track_running_stats=False), False),
        (nn.SyncBatchNorm(2), False),
        (nn.LayerNorm(2), False),
    ],
    ids=["batch", "without parameters", "without statistics", "synchronised", "layer"],
)
def test_where_a_script_holds_it(holder: str, norm: nn.Module, keeps: bool) -> None:
    parameters = list(norm.parameters())
    held = HOLDERS[holder](made := model(norm))
    parameters += [p for p in made.parameters() if all(p is not other for other in parameters)]
    del made
    assert keeps_statistics(parameters) == keeps
    assert held is not None


def test_another_model_does_not_count() -> None:
    other, mine = model(nn.BatchNorm1d(2)), nn.Linear(2, 2)
    assert not keeps_statistics(mine.parameters())
    assert keeps_statistics(other.parameters())


def test_tuples_that_another_thread_makes_stay_its_own() -> None:
    """`gc.get_objects` would hold them while they grow: SystemError, once in some thousand."""
    norm = model(nn.BatchNorm1d(2))
    stop = threading.Event()
    errors: list[BaseException] = []

    def make() -> None:
        try:
            while not stop.is_set():
                tuple(each for each in range(20000))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=make)
    thread.start()
    try:
        for _ in range(30):
            assert keeps_statistics(norm.parameters())
    finally:
        stop.set()
        thread.join()
    assert not errors
