"""What an optimizer's groups say at each step: always what they say now."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from argosy.store.optimizers import Hyperparameters, groups_of


def optimizer(**values: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam([torch.zeros(2, requires_grad=True)], **values)


def test_what_has_not_changed_is_the_same_object() -> None:
    watched = Hyperparameters(adam := optimizer(lr=0.5))
    first = watched.now()
    assert first == groups_of(adam)
    assert watched.now() is first


def test_a_scheduler_is_seen() -> None:
    watched = Hyperparameters(adam := optimizer(lr=0.5))
    scheduler = torch.optim.lr_scheduler.ExponentialLR(adam, gamma=0.5)
    seen = []
    for _ in range(3):
        seen.append(watched.now()[0]["lr"])
        adam.step()
        scheduler.step()
    assert seen == [0.5, 0.25, 0.125]


def test_what_is_written_to_is_seen() -> None:
    watched = Hyperparameters(adam := optimizer(lr=torch.tensor(0.5)))
    adam.param_groups[0]["betas"] = [0.5, 0.75]
    assert watched.now()[0]["lr"] == 0.5
    adam.param_groups[0]["lr"].fill_(0.25)
    assert watched.now()[0]["lr"] == 0.25
    adam.param_groups[0]["betas"][0] = 0.25
    assert watched.now()[0]["betas"] == (0.25, 0.75)


@pytest.mark.parametrize(("first", "then"), [(0.5, torch.tensor(0.25)), (torch.tensor(0.5), 0.25)])
def test_a_number_may_become_a_tensor_and_back(first: Any, then: Any) -> None:
    watched = Hyperparameters(adam := optimizer(lr=first))
    assert watched.now()[0]["lr"] == 0.5
    adam.param_groups[0]["lr"] = then
    assert watched.now()[0]["lr"] == 0.25


def test_a_new_group_is_seen() -> None:
    watched = Hyperparameters(adam := optimizer(lr=0.5))
    watched.now()
    adam.add_param_group({"params": [torch.zeros(1, requires_grad=True)], "lr": 0.125})
    assert [group["lr"] for group in watched.now()] == [0.5, 0.125]
