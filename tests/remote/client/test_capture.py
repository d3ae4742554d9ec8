"""Captured steps give what the same steps give without, and fall back when they cannot be repeated."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from clusters import cluster_here, local_client
from torch import nn

import argosy
from argosy.remote.client.recording import Recording

PS, WORKER = "/job:ps/task:0", "/job:worker/task:0"


def make_step(network: Any, optimizer: Any, scope: Any = nullcontext) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    with argosy.device(PS):
        model: nn.Module = network()
    stepper = optimizer(model.parameters())

    def step(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        with argosy.device(WORKER):
            stepper.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
        with scope():
            stepper.step()
        return loss.detach()

    return model, step


def assert_same_bits(data: Sequence[tuple[torch.Tensor, torch.Tensor]], *made: Any) -> None:
    """Of a step that is made so, captured and not."""
    with cluster_here(ps=1, worker=1) as target, argosy.connect(target, wait=20):
        runs = []
        for wrap in (lambda step: step, argosy.capture):
            model, step = make_step(*made)
            step = wrap(step)
            losses = [step(*batch) for batch in data]
            gradients = [parameter.grad for parameter in model.parameters()]
            runs.append(argosy.fetch([*losses, *model.state_dict().values(), *gradients]))
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(*runs, strict=True))


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        lambda p: torch.optim.Adam(p, lr=0.01, fused=True),
        lambda p: torch.optim.Adam(p, lr=0.01),  # it reads its count of steps: run as it is
    ],
    ids=["SGD", "fused Adam", "Adam"],
)
def test_the_same_results_as_without(optimizer: Any) -> None:
    generator = torch.Generator().manual_seed(1)
    data = [
        (torch.randn(4, 6, generator=generator), torch.randint(0, 3, (4,), generator=generator))
        for _ in range(8)
    ]

    def network() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Dropout(0.2), nn.Linear(5, 3))

    assert_same_bits(data, network, optimizer)


def test_large_gradients_change_places_and_the_results_do_not() -> None:
    """As large as it takes for segments to be cut and ordered anew once their costs are known."""
    images = torch.randn(32, 784, generator=torch.Generator().manual_seed(1))
    data = [(images, torch.arange(32) % 10)] * 30

    def network() -> nn.Module:
        return nn.Sequential(nn.Linear(784, 400), nn.ReLU(), nn.Linear(400, 300), nn.Linear(300, 10))

    def optimizer(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)

    assert_same_bits(data, network, optimizer, lambda: argosy.device(PS))


def test_what_is_fed_is_as_it_is_at_the_call() -> None:
    with cluster_here(ps=1, worker=1) as target, argosy.connect(target, wait=20):

        @argosy.capture
        def step(x: torch.Tensor) -> torch.Tensor:
            with argosy.device(WORKER):
                return x * 2

        fed, results, expected = torch.zeros(50, 100, dtype=torch.complex64), [], []
        for turn in range(20):
            fed.fill_(complex(turn, turn))
            mine = fed.conj() if turn % 5 == 4 else fed.t().contiguous().t() if turn % 5 == 3 else fed
            results.append(step(mine))
            expected.append(mine.resolve_conj() * 2)
            fed.fill_(-1)
        assert all(torch.equal(r.cpu(), e) for r, e in zip(results, expected, strict=True))


def test_other_shapes_are_another_recording_and_remote_arguments_travel() -> None:
    with cluster_here(worker=2) as target, argosy.connect(target, wait=20):
        double = argosy.capture(lambda x, factor: {"sum": (x * factor).sum(), "x": x})
        for size in (2, 3):
            for value in range(1, 5):
                x = argosy.place(torch.full((size,), float(value)), "/job:worker/task:1")
                result = double(x, 3)
                assert result["sum"].item() == 3 * value * size
                assert result["x"].tolist() == x.tolist()


def test_what_cannot_be_repeated_is_said_and_run(capfd: pytest.CaptureFixture[str]) -> None:
    with local_client():
        counter = argosy.place(torch.zeros(1), "/cpu:0")

        @argosy.capture
        def looks(x: torch.Tensor) -> float:
            return float((counter + x).item())

        assert [looks(torch.ones(1) * n) for n in range(5)] == [0, 1, 2, 3, 4]
        state = {"h": argosy.place(torch.zeros(1), "/cpu:0")}

        @argosy.capture
        def replaces(x: torch.Tensor) -> torch.Tensor:
            state["h"] = state["h"] + x
            return state["h"]

        assert [replaces(torch.ones(1)).item() for _ in range(5)] == [1, 2, 3, 4, 5]
    said = capfd.readouterr().err
    assert "it waits for a value" in said
    assert "it replaces a tensor that it has read" in said


def test_a_task_keeps_no_copy_of_what_it_is_sent_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is sent by the client's other thread while a plan is made."""

    def held() -> tuple[int, int]:
        with cluster_here(ps=1, worker=1) as target, argosy.connect(target, wait=20) as client:
            weight = argosy.place(torch.ones(8, 8), PS)

            def step(x: torch.Tensor) -> torch.Tensor:
                with argosy.device(WORKER):
                    loss = (x @ weight).sum()
                weight.mul_(0.5)
                return loss

            captured = argosy.capture(step)
            for _ in range(8):
                loss = captured(torch.ones(2, 8))
            assert loss.item() == 128 * 0.5**7
            client.synchronize()
            return client.held(WORKER)

    quiet = held()
    ordinary = Recording.prune

    def prune(recording: Recording, *words: Any) -> None:
        recording.client.flush()
        ordinary(recording, *words)
        recording.client.flush()

    monkeypatch.setattr(Recording, "prune", prune)
    assert held() == quiet
    assert quiet[1] < 8 * 8 * 4  # the loss, and not the weight


def gradients_of(wrap: Any, program: Any) -> list[Any]:
    """What a program notes of the gradient of a weight, plain or captured."""
    with cluster_here(ps=1, worker=1) as target, argosy.connect(target, wait=20):
        weight = argosy.place(torch.ones(2), PS).requires_grad_()
        noted: list[Any] = []

        def note(gradient: torch.Tensor | None) -> None:
            noted.append(None if gradient is None else gradient.tolist())

        program(wrap, weight, note)
    return noted


def _back_to_an_earlier_one(wrap: Any, weight: torch.Tensor, note: Any) -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        weight.grad = None
        with argosy.device(WORKER):
            loss = (weight * x.sum()).sum()
            loss.backward()
        return loss.detach()

    step = wrap(step)
    for turn in range(5):
        for size in (1, 2, 2, 1):
            step(torch.ones(size) + turn)
            note(weight.grad)
            assert weight.grad is not None
            with argosy.device(PS):  # a copy elsewhere is that of the same step
                note(weight.grad + 1)


def _zeroed_outside(wrap: Any, weight: torch.Tensor, note: Any) -> None:
    step = wrap(lambda x: (weight * x).sum().backward())
    for turn in range(8):
        step(torch.full((2,), float(turn)))
        note(weight.grad)
        weight.grad = None


def _accumulated_over_three(wrap: Any, weight: torch.Tensor, note: Any) -> None:
    step = wrap(lambda x: (weight * x).sum().backward())
    for turn in range(20):
        step(torch.full((2,), float(turn)))
        note(weight.grad)
        if turn % 3 == 2:
            weight.grad = None


def _dropped_inside(wrap: Any, weight: torch.Tensor, note: Any) -> None:
    def step(x: torch.Tensor) -> None:
        (weight * x).sum().backward()
        assert weight.grad is not None
        with torch.no_grad():
            weight.sub_(weight.grad)
        weight.grad = None

    step = wrap(step)
    for turn in range(10):
        if turn in (5, 8):
            (weight * 10).sum().backward()  # it is there when the step begins
        step(torch.full((2,), float(turn)))
        note(weight.grad)
        note(weight.detach())


def _only_read(wrap: Any, weight: torch.Tensor, note: Any) -> None:
    optimizer = torch.optim.SGD([weight], lr=1.0)
    step = wrap(optimizer.step)
    for turn in range(30):
        optimizer.zero_grad()
        (weight * turn).sum().backward()
        step()
        note(weight.detach())


def _returned(wrap: Any, weight: torch.Tensor, note: Any) -> None:
    def step(x: torch.Tensor) -> torch.Tensor | None:
        weight.grad = None
        (weight * x).sum().backward()
        return weight.grad

    step = wrap(step)
    first = None
    for turn in range(8):
        gradient = step(torch.full((2,), float(turn)))
        first = gradient if first is None else first
        note(gradient)
        note(weight.grad)
    note(first)


def _of_an_argument(wrap: Any, weight: torch.Tensor, note: Any) -> None:
    step = wrap(lambda x: (weight * x).sum().backward())
    for turn in range(8):
        x = argosy.place(torch.ones(2), PS).requires_grad_()
        with torch.no_grad():
            weight.add_(turn)
        step(x)
        note(x.grad)


@pytest.mark.parametrize(
    ("program", "recordings"),
    [
        (_back_to_an_earlier_one, 2),
        (_zeroed_outside, 1),
        (_accumulated_over_three, 3),
        (_dropped_inside, 1),
        (_only_read, 16),
        (_returned, 1),
        (_of_an_argument, 1),
    ],
)
def test_gradients_are_those_of_the_last_call(
    program: Any, recordings: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[None] = []
    build = Recording.prune  # of each recording that is replayed
    monkeypatch.setattr(Recording, "prune", lambda *args: made.append(build(*args)))
    assert gradients_of(argosy.capture, program) == gradients_of(lambda step: step, program)
    assert len(made) == recordings
