"""What a script loads into its model in the middle of a training: noticed, and never undone in silence.

`model.load_state_dict(best)` after the last step stays, whatever the end of the session brings. Before
another step it is the exchange's to say what becomes of it: servers have the parameters.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from argosy.errors import CallError
from argosy.script import calling_line
from argosy.wire.tensor_bytes import bytes_of


@dataclass(frozen=True)
class Loaded:
    """Other values than before, loaded by the script's line `where`; `digest` is a checksum of them."""

    where: str
    digest: int


class Loads:
    """Notices `load_state_dict` of a model and of its parts."""

    def __init__(self) -> None:
        self._model: nn.Module | None = None
        self._handles: list[RemovableHandle] = []
        self._where = ""
        self._before: dict[str, tuple[nn.Parameter, torch.Tensor]] = {}
        self._own = False  # whether it is we who load

    def watch(self, model: nn.Module | None) -> None:
        """From now on."""
        self._model = model
        for module in () if model is None else model.modules():
            self._handles.append(module.register_load_state_dict_pre_hook(self._on_load))

    def _on_load(self, *_: Any) -> None:
        if self._own or self._where or self._model is None:
            return
        self._where = calling_line()
        self._before = {n: (p, p.detach().clone()) for n, p in self._model.named_parameters()}

    def changed(self) -> Loaded | None:
        """What was loaded since this was last asked, if the model is not as it was before."""
        if not self._where:
            return None
        where, before = self._where, self._before
        self._where, self._before = "", {}
        now = {} if self._model is None else dict(self._model.named_parameters())
        if any(now.get(name) is not parameter for name, (parameter, _) in before.items()):
            problem = "it replaced parameters of the model, and the optimizer does not have the new ones"
            raise CallError(where, "load_state_dict()", problem, "load without assign=True")
        if all(torch.equal(now[name], values) for name, (_, values) in before.items()):
            return None  # put in and taken out again: averages for an evaluation, say
        digest = 0
        for parameter in now.values():
            digest = zlib.crc32(bytes_of(parameter.detach().cpu().contiguous()), digest)
        return Loaded(where, digest)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """What was loaded is in the model afterwards, whatever happens to its values in here."""
        model = self._model if self._where else None
        state = {} if model is None else {n: value.clone() for n, value in model.state_dict().items()}
        yield
        if model is not None:
            self._own = True
            try:
                model.load_state_dict(state)
            finally:
                self._own = False

    def close(self) -> None:
        """Take the hooks off."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
