"""Between a model's tensors and the flat blocks of the servers: one copy of the gradients, at most one back.

`.grad` stays PyTorch's own; its copy goes into memory that the channel reserves, which a server on this host
reads in place. Such a server also writes fresh values in place: CPU parameters then live in that memory, as
views, until `release` gives them memory of their own again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from operator import is_
from types import MappingProxyType
from typing import TypeAlias

import torch
from torch import nn

from argosy.protocol.frames import Dtype, FrameSpec
from argosy.protocol.layout import Layout, Piece
from argosy.replica.pinning import Pinned
from argosy.torch_private import foreach_copy_, foreach_mul, foreach_mul_
from argosy.wire.tensor_bytes import torch_dtype

Reserve: TypeAlias = Callable[[int, Sequence[FrameSpec]], list[torch.Tensor]]


class BlockPacking:
    """The pieces of these parameters in the blocks of a layout."""

    def __init__(
        self,
        layout: Layout,
        parameters: Sequence[nn.Parameter],
        reserve: Reserve,
        wire_dtypes: Mapping[int, Dtype] = MappingProxyType({}),
    ) -> None:
        self._layout = layout
        self._parameters = list(parameters)
        self._pieces = [piece for block in layout.pieces_by_block() for piece in block]
        self._shapes = [layout.parameters[piece.parameter].shape for piece in self._pieces]
        self._whole = [piece.count == layout.parameters[piece.parameter].count for piece in self._pieces]
        self._narrows = bool(wire_dtypes)
        self._by_server = [(block.server, number) for number, block in enumerate(layout.blocks)]
        self._gradients = _reserved(layout, reserve, wire_dtypes)
        self._gradient_views = self._views(self._gradients)
        self._split_gradients = self._split(self._gradients)
        self._pinned = Pinned(self._gradients, {parameter.device for parameter in parameters})
        self._sources: Sequence[Sequence[torch.Tensor]] = ()  # what `unpack` was last given
        self._addresses: list[int] = []
        self._bound: list[int] = []  # where each parameter lives, once all of them live in shared memory
        self._values: list[torch.Tensor] = []
        for piece, whole in zip(self._pieces, self._whole, strict=True):
            if not whole:  # a part of a tensor must be a stretch of its memory
                parameter = self._parameters[piece.parameter]
                parameter.data = parameter.data.contiguous()

    def _views(self, blocks: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """A view of the blocks for each piece; a whole parameter in its own shape, whatever its strides."""
        views = []
        for piece, shape, whole in zip(self._pieces, self._shapes, self._whole, strict=True):
            flat = blocks[piece.block][piece.offset : piece.offset + piece.count]
            views.append(flat.view(shape) if whole else flat)
        return views

    def pack(
        self, scale: float = 1.0, done: Collection[int] = ()
    ) -> tuple[dict[int, list[torch.Tensor]], tuple[int, ...]]:
        """The gradients, times `scale`, by server; and the numbers of the parameters that have none.

        Blocks in `done` are left as they are: their gradients have been copied before.
        """
        absent: set[int] = set()
        targets, sources = [], []
        for piece, whole, view in zip(self._pieces, self._whole, self._gradient_views, strict=True):
            gradient = self._parameters[piece.parameter].grad
            if gradient is None:
                absent.add(piece.parameter)
                continue
            if piece.block in done:
                continue
            targets.append(view)
            sources.append(gradient if whole and not gradient.is_sparse else _part(gradient, piece, whole))
        if sources and scale != 1.0 and self._narrows:
            # What is to be scaled down may be too large for the dtype in which it travels.
            sources, scale = list(foreach_mul(sources, scale)), 1.0
        if sources:
            foreach_copy_(targets, sources, non_blocking=bool(self._pinned.devices))
            self._pinned.wait()
            if scale != 1.0:
                foreach_mul_(self._gradients, scale)
        return dict(self._split_gradients), tuple(sorted(absent))

    def pack_piece(self, parameter: int, block: int) -> None:
        """Copy what one parameter's gradient has in one block."""
        gradient = self._parameters[parameter].grad
        if gradient is None:
            return
        for piece, whole, view in zip(self._pieces, self._whole, self._gradient_views, strict=True):
            if piece.parameter == parameter and piece.block == block:
                view.copy_(_part(gradient, piece, whole))

    def block(self, number: int) -> torch.Tensor:
        """The memory of one block's gradient."""
        return self._gradients[number]

    def gradient_memory(self) -> dict[int, list[torch.Tensor]]:
        """Where `pack` writes the gradients, by server."""
        return dict(self._split_gradients)

    def values(self) -> dict[int, list[torch.Tensor]]:
        """A copy of the parameters themselves, by server."""
        blocks = [torch.empty(block.count, dtype=torch_dtype(block.dtype)) for block in self._layout.blocks]
        with torch.no_grad():
            for view, target in zip(self._views(blocks), self._targets(), strict=True):
                view.copy_(target)
        return self._split(blocks)

    def unpack(self, by_server: Sequence[Sequence[torch.Tensor]], in_place: Sequence[bool]) -> None:
        """Set the parameters from the values of the servers' blocks; there may be more than are known.

        `in_place` says of each server whether its values come to the same memory every time: parameters may
        then live there.
        """
        if not self._bound or not all(map(is_, by_server, self._sources)):
            self._sources = by_server
            cursors = [iter(values) for values in by_server]
            blocks = [next(cursors[server]) for server, _ in self._by_server]
            addresses = [block.data_ptr() for block in blocks]
            if addresses != self._addresses or not all(in_place):
                self._bound = []
                self._addresses = addresses
                self._values = self._views(blocks)
        if not self._bound or [parameter.data_ptr() for parameter in self._parameters] != self._bound:
            self._copy_in(in_place)

    @torch.no_grad()
    def _copy_in(self, in_place: Sequence[bool]) -> None:
        pairs = zip(self._targets(), self._values, strict=True)
        stray = [(target, value) for target, value in pairs if target.data_ptr() != value.data_ptr()]
        if stray:  # all may live there already, and only this packing is new
            foreach_copy_([target for target, _ in stray], [value for _, value in stray])
        self._bind(in_place)

    def _bind(self, in_place: Sequence[bool]) -> None:
        """Let whole parameters on the CPU live where their values come."""
        for piece, whole, value in zip(self._pieces, self._whole, self._values, strict=True):
            parameter = self._parameters[piece.parameter]
            here = in_place[self._by_server[piece.block][0]]
            alike = (parameter.device, parameter.dtype) == (value.device, value.dtype)
            # One that the user has laid out otherwise (channels_last) stays as it is.
            if here and whole and alike and parameter.stride() == value.stride():
                parameter.data = value
        pairs = zip(self._targets(), self._values, strict=True)
        everywhere = all(in_place) and all(target.data_ptr() == value.data_ptr() for target, value in pairs)
        self._bound = [parameter.data_ptr() for parameter in self._parameters] if everywhere else []

    def detach(self) -> None:
        """Another packing takes this one's place; the parameters stay where they are until it moves them."""
        self._pinned.close()

    def release(self) -> None:
        """Give the parameters memory of their own."""
        for parameter in self._parameters:
            parameter.data = parameter.data.clone()
        self._addresses = []
        self._bound = []
        self._pinned.close()

    def _targets(self) -> list[torch.Tensor]:
        pairs = zip(self._pieces, self._whole, strict=True)
        return [
            self._parameters[piece.parameter].detach()
            if whole
            else self._parameters[piece.parameter].detach().view(-1)[piece.start : piece.stop]
            for piece, whole in pairs
        ]

    def _split(self, blocks: Sequence[torch.Tensor]) -> dict[int, list[torch.Tensor]]:
        result: dict[int, list[torch.Tensor]] = {}
        for server, number in self._by_server:
            result.setdefault(server, []).append(blocks[number])
        return result


def _reserved(layout: Layout, reserve: Reserve, wire_dtypes: Mapping[int, Dtype]) -> list[torch.Tensor]:
    """Memory for each block's gradient, from the channel to its server, in the dtype that it travels in."""
    tensors: dict[int, torch.Tensor] = {}
    for server in sorted({block.server for block in layout.blocks}):
        numbers = layout.blocks_of(server)
        blocks = [layout.blocks[number] for number in numbers]
        frames = [FrameSpec(wire_dtypes.get(server, block.dtype), (block.count,)) for block in blocks]
        tensors |= zip(numbers, reserve(server, frames), strict=True)
    return [tensors[number] for number in range(len(layout.blocks))]


def _part(gradient: torch.Tensor, piece: Piece, whole: bool) -> torch.Tensor:
    dense = gradient.to_dense() if gradient.is_sparse else gradient
    return dense if whole else dense.reshape(-1)[piece.start : piece.stop]
