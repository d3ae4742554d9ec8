"""The exchange with parameter servers: push gradients, wait for the verdict, pull what it brings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import torch
from torch import nn

from argosy.modes import Mode
from argosy.replica.exchange import Training, Verdict, names_of, parameters_of
from argosy.replica.model_state import ModelState
from argosy.replica.overlap import Overlap
from argosy.replica.packing import Packing
from argosy.store.client import StoreClient
from argosy.store.layout import Layout, ParameterSpec, extend
from argosy.store.optimizers import describe, groups_of
from argosy.store.placement import UserPlacement, place
from argosy.wire.frames import Dtype
from argosy.wire.message import Message
from argosy.wire.protocol import Group, PushRequest, Register
from argosy.wire.protocol import Verdict as WireVerdict
from argosy.wire.tensors import dtype_name


@dataclass(frozen=True)
class Options:
    """What `distribute` was told: where parameters go, how gradients are clipped, how both travel."""

    placement: UserPlacement
    clip_norm: float | None = None
    wire_dtype: Dtype | None = None
    overlap: bool = False


# Blocks that leave while backward goes on are of this size: small enough to be ready early.
_BUCKET_BYTES = 4 * 2**20


class ServedExchange:
    """One replica's exchange with the servers."""

    def __init__(
        self,
        client: StoreClient,
        mode: Mode,
        servers: int,
        options: Options,
        is_chief: bool,
    ) -> None:
        self._client = client
        self._mode = mode
        self._servers = servers
        self._options = options
        self._is_chief = is_chief
        self._layout = Layout()
        self._version = 0
        self._groups: tuple[Group, ...] | None = None
        self._overlap: Overlap | None = None

    # --- beginning ----------------------------------------------------------------------------------------
    def start(self, optimizer: torch.optim.Optimizer, training: Training) -> Verdict:
        """See `Exchange`."""
        self._optimizer = optimizer
        self._training = training
        self._state = ModelState(training.model, (p for _, p in parameters_of(optimizer)))
        self._register()
        return self.pull()

    def _register(self) -> None:
        """Agree with the others on the layout of all parameters that the optimizer has now."""
        pairs = parameters_of(self._optimizer)
        names = names_of(self._training.model, pairs)
        specs = [
            ParameterSpec(name, tuple(p.shape), dtype_name(p.dtype, name), group)
            for name, (group, p) in zip(names, pairs, strict=True)
        ]
        layout = self._client.describe(specs, self._mode)
        parameters = [parameter for _, parameter in pairs]
        if not layout.parameters:
            fresh = specs[len(self._layout.parameters) :]
            shares = place(self._options.placement, fresh, self._layout.loads(self._servers))
            layout = extend(self._layout, fresh, shares, _BUCKET_BYTES if self._options.overlap else None)
            self._packing = self._pack(layout, parameters)
            self._client.register(self._registrations(layout))
        else:
            self._packing = self._pack(layout, parameters)
        self._client.share(self._packing.slots())
        self._send_ahead(layout, parameters)
        self._layout = layout
        self._count = len(parameters)

    def _pack(self, layout: Layout, parameters: Sequence[nn.Parameter]) -> Packing:
        wire: dict[int, Dtype] = {}
        if self._options.wire_dtype is not None:  # in shared memory nothing travels, so nothing is shortened
            far = [server for server, near in enumerate(self._client.in_place) if not near]
            wire = dict.fromkeys(far, self._options.wire_dtype)
        return Packing(layout, parameters, self._client.reserve, wire)

    def _send_ahead(self, layout: Layout, parameters: Sequence[nn.Parameter]) -> None:
        if self._overlap is not None:
            self._overlap.close()
        far = [server for server, near in enumerate(self._client.in_place) if not near]
        if self._options.overlap and far:
            self._overlap = Overlap(layout, parameters, self._packing, far, self._client.send_ahead)

    def _registrations(self, layout: Layout) -> list[tuple[Register, list[torch.Tensor]]]:
        values = self._packing.values()
        buffers = self._state.everything() if not self._layout.blocks else {}
        result = []
        for server in range(self._servers):
            header = Register(
                layout,
                describe(self._optimizer),
                self._mode,
                self._training.last_step,
                self._options.clip_norm,
                self._training.buffer_rule,
                tuple(buffers) if server == 0 else (),
                self._options.wire_dtype,
            )
            known = len(self._layout.blocks_of(server))
            tensors = values.get(server, [])[known:]
            result.append((header, [*tensors, *buffers.values()] if server == 0 else tensors))
        return result

    # --- training -----------------------------------------------------------------------------------------
    def step(self, weight: float, scale: float) -> Verdict:
        """See `Exchange`."""
        if sum(len(group["params"]) for group in self._optimizer.param_groups) != self._count:
            self._register()
        done, ahead = self._overlap.collect(scale) if self._overlap is not None else ((), {})
        tensors, absent = self._packing.pack(scale, done)
        brings = self._is_chief or self._training.buffer_rule == "mean"
        buffers = self._state.changed() if brings else {}
        tensors[0] = [*tensors.get(0, ()), *buffers.values()]
        return self._push("gradient", tensors, weight, absent, tuple(buffers), ahead)

    def skip(self) -> Verdict:
        """See `Exchange`."""
        if self._overlap is not None:
            self._overlap.reset()
        return self._push("skip", {})

    def accumulate(self, waits: bool) -> None:
        """See `Exchange`. Nothing leaves before a step."""

    def pull(self) -> Verdict:
        """See `Exchange`."""
        return self._push("pull", {})

    def _push(
        self,
        kind: Literal["gradient", "skip", "pull"],
        tensors: dict[int, list[torch.Tensor]],
        weight: float = 1.0,
        absent: tuple[int, ...] = (),
        buffers: tuple[str, ...] = (),
        ahead: Mapping[int, tuple[int, ...]] = MappingProxyType({}),
    ) -> Verdict:
        groups = groups_of(self._optimizer)
        news = groups if groups != self._groups else None
        request = PushRequest(0, self._version, kind, weight, absent, news, buffers)
        answers = self._client.push(request, tensors, ahead)
        self._groups = groups
        return self._take(answers)

    def _take(self, answers: Sequence[Message[WireVerdict]]) -> Verdict:
        first = answers[0].header
        values = [answer.tensors for answer in answers]
        if first.buffers:
            count = len(values[0]) - len(first.buffers)
            self._state.take(dict(zip(first.buffers, values[0][count:], strict=True)))
            values[0] = values[0][:count]
        self._packing.unpack(values, self._client.in_place)
        self._version = first.step
        return Verdict(first.status, first.step, first.staleness, first.stop)

    def release(self) -> None:
        """See `Exchange`."""
        self._packing.release()
        if self._overlap is not None:
            self._overlap.close()
