"""The calls that a replica has had: one that cannot work where it is made is refused by the script's line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from argosy.errors import CallError
from argosy.script import calling_line

if TYPE_CHECKING:
    import torch
    from torch import nn


class CallOrder:
    """Of one replica. `served`: its parameters are kept by servers. `alone`: it is the only one."""

    def __init__(self, served: bool, alone: bool) -> None:
        self._served = served
        self._alone = alone
        self._distributed = ""  # where
        self._session = ""
        self._ended = ""

    def distribute(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer is to be distributed."""
        from argosy.replica.optimizer import DistributedOptimizer

        where = calling_line()
        if isinstance(optimizer, DistributedOptimizer):
            raise CallError(
                where, "distribute()", "the optimizer is distributed already", "pass torch's own optimizer"
            )
        if self._served and self._distributed:
            raise CallError(
                where,
                "distribute()",
                f"the servers train one model, and it was distributed at {self._distributed}",
                "make one optimizer with several parameter groups, or use --mode ring",
            )
        self._distributed = where

    def begin_session(self, stepped: bool) -> None:
        """A session begins; `stepped`: its optimizer has made a step before."""
        where = calling_line()
        if self._session:
            problem = f"this replica is in a session already, begun at {self._session}"
            raise CallError(where, "session()", problem, "leave that one first")
        if self._ended and not self._alone:
            problem = f"the job ended with the session at {self._ended}"
            raise CallError(where, "session()", problem, "train in one session, or start the script again")
        if stepped and not self._alone:
            problem = "step() was called before it, so training began without the model's names and buffers"
            raise CallError(where, "session()", problem, "call step() only inside the session")
        self._session = where

    def end_session(self) -> None:
        """It has ended."""
        self._session, self._ended = "", self._session

    def check_model(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
        """That the optimizer has parameters of the model; a note if it lacks some, empty if all is well."""
        known = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        missing = [name for name, parameter in trained.items() if id(parameter) not in known]
        if not missing:
            return ""
        if len(missing) == len(trained):
            raise CallError(
                calling_line(),
                "session()",
                f"none of the model's {len(trained)} trainable parameters is in the optimizer "
                f"(the first is {missing[0]})",
                "make the optimizer from this very model, after the last change to it",
            )
        return (
            f"{len(missing)} of the model's {len(trained)} trainable parameters are not in the optimizer, "
            f"and stay as they are: {missing[0]}{' and others' if missing[1:] else ''}"
        )
