"""Gradients that leave while backward goes on, a block at a time, over the network.

A hook on each parameter copies its gradient when it is ready; when all of a block are there, the block is
sent ahead. Only `step` commits: it names the blocks that are there already and sends the rest, among them
every block whose gradients were changed in the meantime (clipped, unscaled, accumulated once more).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from argosy.protocol.layout import Layout
from argosy.replica.block_packing import BlockPacking
from argosy.torch_private import version_of


class Overlap:
    """The blocks of `servers` that have been sent ahead. `send` takes server, place there, and tensor."""

    def __init__(
        self,
        layout: Layout,
        parameters: Sequence[nn.Parameter],
        packing: BlockPacking,
        servers: Collection[int],
        send: Callable[[int, int, torch.Tensor], None],
    ) -> None:
        self._parameters = parameters
        self._packing = packing
        self._send = send
        self._places = {
            number: (server, place)
            for server in servers
            for place, number in enumerate(layout.blocks_of(server))
        }
        pieces = layout.pieces_by_block()
        self._members = {number: {piece.parameter for piece in pieces[number]} for number in self._places}
        self._blocks: dict[int, list[int]] = {}
        for number, members in self._members.items():
            for parameter in members:
                self._blocks.setdefault(parameter, []).append(number)
        self._ready: dict[int, _Mark] = {}
        self._sent: set[int] = set()
        self._handles: list[RemovableHandle] = [
            parameters[number].register_post_accumulate_grad_hook(self._hook(number))
            for number in self._blocks
            if parameters[number].requires_grad and not parameters[number].is_cuda
        ]

    def _hook(self, number: int) -> Callable[[torch.Tensor], None]:
        def arrived(parameter: torch.Tensor) -> None:
            if number in self._ready:  # once more before a step: what was sent is out of date
                return
            self._ready[number] = _Mark(parameter)
            for block in self._blocks[number]:
                self._packing.pack_piece(number, block)
                if block not in self._sent and self._members[block] <= self._ready.keys():
                    self._sent.add(block)
                    self._send(*self._places[block], self._packing.block(block))

        return arrived

    def collect(self, scale: float) -> tuple[set[int], dict[int, tuple[int, ...]]]:
        """The blocks that were sent ahead and still hold, and their places by server; then begin anew."""
        same = {number for number, mark in self._ready.items() if mark.holds(self._parameters[number])}
        valid = {block for block in self._sent if scale == 1.0 and self._members[block] <= same}
        places: dict[int, tuple[int, ...]] = {}
        for block in sorted(valid):
            server, place = self._places[block]
            places[server] = (*places.get(server, ()), place)
        self.reset()
        return valid, places

    def reset(self) -> None:
        """What was sent ahead does not count."""
        self._ready.clear()
        self._sent.clear()

    def close(self) -> None:
        """Take the hooks off."""
        for handle in self._handles:
            handle.remove()


class _Mark:
    """The gradient of a parameter as it is now.

    It is kept and not only its identity: that of one that was thrown away is used again for the next.
    """

    __slots__ = ("_gradient", "_version")

    def __init__(self, parameter: torch.Tensor) -> None:
        self._gradient = parameter.grad
        self._version = -1 if self._gradient is None else version_of(self._gradient)

    def holds(self, parameter: torch.Tensor) -> bool:
        """Whether it is still that one, and as it was."""
        gradient = parameter.grad
        return gradient is self._gradient and (gradient is None or version_of(gradient) == self._version)
