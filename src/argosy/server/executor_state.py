"""What an executor leaves to the next process of its server, as plain data."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import torch

from argosy.protocol.decisions import Decision
from argosy.protocol.fields import Group, UpdateCounts
from argosy.protocol.frames import Dtype
from argosy.protocol.joining import Register
from argosy.protocol.training import PushAnswer
from argosy.server.gradient_sums import Gradient
from argosy.wire.tensor_bytes import bytes_of, dtype_name, torch_dtype


class Registrations(msgspec.Struct, array_like=True):
    """What the chief has registered, in order."""

    headers: list[Register]


class ExecutorState(msgspec.Struct, array_like=True):
    """How far decisions are carried out: `orders` are those that are not, with the factors of their steps."""

    step: int
    verdicts: dict[int, PushAnswer]
    settled: dict[int, int]
    orders: list[Decision]
    factors: dict[int, float]


class KeptTensor(msgspec.Struct, array_like=True):
    """A tensor as plain data."""

    dtype: Dtype
    shape: tuple[int, ...]
    data: bytes

    @classmethod
    def of(cls, tensor: torch.Tensor) -> KeptTensor:
        """A copy of it."""
        whole = tensor.detach().contiguous()
        return cls(dtype_name(tensor.dtype, "a kept tensor"), tuple(tensor.shape), bytes(bytes_of(whole)))

    def tensor(self) -> torch.Tensor:
        """It again."""
        dtype = torch_dtype(self.dtype)
        if not self.data:
            return torch.empty(self.shape, dtype=dtype)
        return torch.frombuffer(bytearray(self.data), dtype=dtype).view(self.shape)


class GivenState(msgspec.Struct, array_like=True):
    """A slot of an optimizer that was used before, until its blocks are registered."""

    name: str
    tensors: list[KeptTensor]
    steps: tuple[UpdateCounts, ...]


class HeldState(msgspec.Struct, array_like=True):
    """A push whose worker has had its answer, and which is still to be applied."""

    worker: int
    seq: int
    blocks: list[KeptTensor]
    absent: list[int]
    exact: bool
    groups: tuple[Group, ...]
    buffers: dict[str, KeptTensor]

    @classmethod
    def of(
        cls,
        worker: int,
        seq: int,
        gradient: Gradient,
        groups: tuple[Group, ...],
        buffers: Mapping[str, torch.Tensor],
    ) -> HeldState:
        """A copy of it."""
        kept = {name: KeptTensor.of(value) for name, value in buffers.items()}
        blocks = [KeptTensor.of(block) for block in gradient.blocks]
        return cls(worker, seq, blocks, sorted(gradient.absent), gradient.exact, groups, kept)

    def parts(self) -> tuple[Gradient, tuple[Group, ...], dict[str, torch.Tensor]]:
        """It again: the gradient, the hyperparameters, and the buffers."""
        gradient = Gradient([block.tensor() for block in self.blocks], frozenset(self.absent), self.exact)
        return gradient, self.groups, {name: kept.tensor() for name, kept in self.buffers.items()}
