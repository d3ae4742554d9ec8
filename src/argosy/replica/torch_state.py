"""A model and its torch optimizer as the entries of a checkpoint, and back: for replicas without servers.

Tensors of an optimizer's state are slots, its counts of steps are steps, other numbers go into the index.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from argosy.checkpoint.index import SavedOptimizer, SavedParameter
from argosy.checkpoint.safetensors import Entry
from argosy.checkpoint.tensor_reader import Checkpoint
from argosy.errors import ConfigError
from argosy.replica.exchange import names_of, parameters_of
from argosy.replica.hyperparameters import groups_of, is_plain
from argosy.replica.model_state import ModelState
from argosy.wire.tensor_bytes import dtype_name


class TorchState:
    """What is saved of a training in this process. `averages`: of each parameter, if they are kept."""

    def __init__(self, model: nn.Module | None, optimizer: torch.optim.Optimizer) -> None:
        self._model = model
        self._optimizer = optimizer
        self.averages: list[torch.Tensor] = []
        self._copies: dict[str, torch.Tensor] = {}
        self._restored: Checkpoint | None = None  # what the training goes on from

    def _named(self) -> list[tuple[str, int, nn.Parameter]]:
        pairs = parameters_of(self._optimizer)
        names = names_of(self._model, pairs)
        return [(name, group, p) for name, (group, p) in zip(names, pairs, strict=True)]

    def parameters(self) -> tuple[SavedParameter, ...]:
        """As the index lists them."""
        return tuple(
            SavedParameter(name, tuple(p.shape), dtype_name(p.dtype, name), group)
            for name, group, p in self._named()
        )

    def optimizer(self) -> SavedOptimizer:
        """As the index has it."""
        values: dict[str, dict[str, Any]] = {}
        for name, _, parameter in self._named():
            state = self._optimizer.state.get(parameter, {})
            plain = {k: v for k, v in state.items() if not isinstance(v, torch.Tensor) and is_plain(v)}
            if plain:
                values[name] = plain
        return SavedOptimizer(type(self._optimizer).__name__, tuple(groups_of(self._optimizer)), values)

    def buffers(self) -> dict[str, torch.Tensor]:
        """Buffers, and parameters that are not trained."""
        return ModelState(self._model, (p for _, _, p in self._named())).everything()

    @torch.no_grad()
    def copy(self) -> list[Entry]:
        """A copy of all tensors, in memory that is used again: entries stay until the next call."""
        entries: list[Entry] = []
        for number, (name, _, parameter) in enumerate(self._named()):
            entries.append(self._entry(f"param/{name}", parameter))
            for key, value in self._optimizer.state.get(parameter, {}).items():
                if key == "step":
                    entries.append(Entry(f"step/{name}", torch.tensor([float(value)], dtype=torch.float64)))
                elif isinstance(value, torch.Tensor):
                    entries.append(self._entry(f"slot/{key}/{name}", value))
            if self.averages:
                entries.append(self._entry(f"average/{name}", self.averages[number]))
        entries += [Entry(f"buffer/{name}", value.clone()) for name, value in self.buffers().items()]
        return entries

    def _entry(self, name: str, value: torch.Tensor) -> Entry:
        value = value.to_dense() if value.is_sparse else value  # momentum of sparse gradients
        kept = self._copies.get(name)
        if kept is None or kept.shape != value.shape or kept.dtype != value.dtype:
            kept = self._copies[name] = torch.empty(value.shape, dtype=value.dtype)
        return Entry(name, kept.copy_(value.detach()))

    @torch.no_grad()
    def restore(self, checkpoint: Checkpoint) -> None:
        """Set everything to what was saved; refuses a checkpoint of another model, by name."""
        self._restored = checkpoint
        saved = {parameter.name: list(parameter.shape) for parameter in checkpoint.index.parameters}
        for name, _, parameter in self._named():
            self._restore_parameter(checkpoint, name, saved.get(name, "none"), parameter)
        self.restore_averages(0)
        if self._model is not None:
            # One that is not trained yet may have been when it was saved.
            kinds = {name: "param" if name in saved else "buffer" for name in self.buffers()}
            found = {n: checkpoint.tensor(kind, n) for n, kind in kinds.items() if checkpoint.has(kind, n)}
            self._model.load_state_dict(found, strict=False)

    @torch.no_grad()
    def restore_later(self, first: int) -> None:
        """Parameters from number `first` on were added in the middle of the training: they get what was saved
        of them, unless the checkpoint is from before they were added.
        """
        if (checkpoint := self._restored) is None:
            return
        saved = {parameter.name: list(parameter.shape) for parameter in checkpoint.index.parameters}
        for name, _, parameter in self._named()[first:]:
            if name in saved:
                self._restore_parameter(checkpoint, name, saved[name], parameter)

    @torch.no_grad()
    def restore_averages(self, first: int) -> None:
        """Those of the parameters from number `first` on; not kept before, they begin at the parameters."""
        if self._restored is None or not self.averages:
            return
        for number, (name, _, parameter) in enumerate(self._named()[first:], start=first):
            kind = "average" if self._restored.has("average", name) else "param"
            if self._restored.has(kind, name):
                self.averages[number].copy_(self._restored.tensor(kind, name).view(parameter.shape))

    def _restore_parameter(
        self, checkpoint: Checkpoint, name: str, shape: list[int] | str, parameter: nn.Parameter
    ) -> None:
        if shape != list(parameter.shape):
            remedy = "it is of another model: choose another directory"
            expected = f"{shape}, as in {checkpoint.path}"
            raise ConfigError(f"parameter {name}", expected, list(parameter.shape), remedy)
        parameter.copy_(checkpoint.tensor("param", name).view(parameter.shape))
        if not checkpoint.has("step", name) or checkpoint.steps(name, 0)[0]:
            self._restore_slots(checkpoint, name, parameter)  # else no update so far: torch has no state

    def _restore_slots(self, checkpoint: Checkpoint, name: str, parameter: nn.Parameter) -> None:
        state: dict[str, Any] = {}
        values = checkpoint.index.optimizer.values.get(name, {})
        for kind in checkpoint.kinds_of(name):
            if kind == "step":
                state["step"] = torch.tensor(checkpoint.steps(name, 0)[0])
            elif kind.startswith("slot/"):
                slot = checkpoint.tensor(kind, name).to(parameter.device)
                # Servers keep the slots of half-precision parameters in full; torch has them alike. What is
                # narrower has a dtype of its own, as NAdam's product, which is a scalar.
                alike = slot.shape == parameter.shape and slot.is_floating_point()
                alike &= slot.dtype.itemsize > parameter.dtype.itemsize
                state[kind.removeprefix("slot/")] = slot.to(parameter.dtype) if alike else slot
        # SGD has no count of its own; the servers keep one to know the first step.
        if set(state) == {"step"} or type(self._optimizer) is torch.optim.SGD:
            state.pop("step", None)
        if state or values:
            self._optimizer.state[parameter] = {**state, **values}
