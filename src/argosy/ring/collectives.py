"""The collectives of the ranks of one host, through memory that all of them share.

All-reduce: every rank copies its chunk into a place of its own (not the slice that it sums itself), sums its
slice of all ranks' chunks (scatter-reduce), and copies all sums out (all-gather). Each moves 2(N-1)/N of the
bytes, as in a ring over a network, but each byte only once and without a hop. A sum is made in the place of
the first other rank, on top of what that one has given: what is not touched leaves the caches to others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from argosy.ring.board import ENTERED, REDUCED
from argosy.ring.call_check import Call, CallCheck, call
from argosy.ring.host_ranks import HostMemory
from argosy.ring.reduction import Operation, combine
from argosy.ring.schedule import chunk_buffers, chunks, home_of, homes, others, slices, stages

# Chunks of this size: all ranks' together fit into the caches that they share.
CHUNK_BYTES = 2 * 2**20
# Up to this size in one go: two waits, and nothing to overlap them with.
_WHOLE_BYTES = 4 * 2**20
_LINE = 64


def ring_bytes(ranks: int) -> int:
    """The shared memory of a ring of so many ranks: in each buffer, a chunk of every rank."""
    return chunk_buffers(ranks) * ranks * _WHOLE_BYTES


class HostRing:
    """The ranks of this host."""

    def __init__(self, host: HostMemory) -> None:
        self._host = host
        self._board = host.board
        self.rank = host.board.rank
        self.size = host.board.size
        self._bytes = host.memory.everything()
        self._areas: dict[torch.dtype, list[list[torch.Tensor]]] = {}
        self._buffers = chunk_buffers(self.size)
        self._next = 0  # the buffer of the next chunk
        self._call_check = CallCheck(host.board)

    @property
    def turns(self) -> int:
        """How many calls this rank has begun, refused ones too."""
        return self._call_check.turns

    def refuse(self, name: str, reason: str) -> None:
        """Have the others' next call fail, as this rank cannot make it."""
        self._call_check.refuse(name, reason)

    def close(self) -> None:
        """Say farewell."""
        self._board.leave()
        self._host.close()

    # --- places in shared memory --------------------------------------------------------------------------
    def _places(self, dtype: torch.dtype) -> list[list[torch.Tensor]]:
        """For each buffer: the chunk of each rank."""
        if dtype not in self._areas:
            begins = self._host.begins
            # A view made in inference mode could not be written to outside of it.
            with torch.inference_mode(False):
                area = self._bytes[begins : begins + ring_bytes(self.size)].view(dtype)
                buffers = area.view(self._buffers, self.size, -1).unbind()
                self._areas[dtype] = [list(buffer.unbind()) for buffer in buffers]
        return self._areas[dtype]

    def _walk(
        self,
        made: Call,
        count: int,
        enter: Callable[[int, int], None],
        reduce: Callable[[int, int], None],
        leave: Callable[[int, int], None] | None = None,
    ) -> None:
        """Take `count` chunks through the buffers; each function gets a chunk's number and its buffer."""
        board = self._board
        self._call_check.begin(made)
        base = board.posted[ENTERED]
        for stage in stages(count):
            number = base + stage.chunk + 1
            buffer = (self._next + stage.chunk) % self._buffers
            if stage.phase == "enter":
                enter(stage.chunk, buffer)
                board.post(ENTERED)
            elif stage.phase == "reduce":
                board.wait(ENTERED, number)
                if stage.chunk == 0:
                    self._call_check.check()
                reduce(stage.chunk, buffer)
                board.post(REDUCED)
            else:
                board.wait(REDUCED, number)
                if leave is not None:
                    leave(stage.chunk, buffer)
        if self.size > 2:  # else the same buffer is free again, and in the caches
            self._next = (self._next + count) % self._buffers

    # --- collectives --------------------------------------------------------------------------------------
    def all_reduce(
        self, flat: torch.Tensor, operation: Operation, divisor: int, root: int | None = None
    ) -> None:
        """`flat`, contiguous, becomes all ranks' combined; with a root, in that rank only."""
        keep = root is None or root == self.rank
        name = "all_reduce" if root is None else "reduce"
        places = self._places(flat.dtype)
        itemsize = flat.element_size()
        whole = flat.numel() * itemsize <= _WHOLE_BYTES
        pieces = _pieces(flat.numel(), (_WHOLE_BYTES if whole else CHUNK_BYTES) // itemsize)

        def own(chunk: int) -> tuple[int, int]:
            begin, end = pieces[chunk]
            return slices(end - begin, self.size, itemsize)[self.rank]

        def enter(chunk: int, buffer: int) -> None:
            begin, end = pieces[chunk]
            mine = places[buffer][self.rank]
            for left, right in others((0, end - begin), own(chunk)):
                mine[left:right].copy_(flat[begin + left : begin + right])

        def reduce(chunk: int, buffer: int) -> None:
            left, right = own(chunk)
            if left == right:
                return
            begin = pieces[chunk][0]
            parts = [place[left:right] for place in places[buffer]]
            target = parts[home_of(self.rank, self.size)]
            parts[self.rank] = flat[begin + left : begin + right]
            combine(target, parts, operation, divisor)
            if keep:
                parts[self.rank].copy_(target)

        def leave(chunk: int, buffer: int) -> None:
            if not keep:
                return
            begin, end = pieces[chunk]
            for home, whole in homes(end - begin, self.size, itemsize):
                for left, right in others(whole, own(chunk)):
                    flat[begin + left : begin + right].copy_(places[buffer][home][left:right])

        made = call(name, flat.dtype, flat.numel(), operation, root)
        self._walk(made, len(pieces), enter, reduce, leave)

    def broadcast(self, flat: torch.Tensor, root: int, name: str = "broadcast") -> None:
        """`flat` becomes the root's."""
        places = self._places(flat.dtype)
        pieces = _pieces(flat.numel(), CHUNK_BYTES // flat.element_size())

        def enter(chunk: int, buffer: int) -> None:
            if self.rank == root:
                begin, end = pieces[chunk]
                places[buffer][root][: end - begin].copy_(flat[begin:end])

        def reduce(chunk: int, buffer: int) -> None:
            if self.rank != root:
                begin, end = pieces[chunk]
                flat[begin:end].copy_(places[buffer][root][: end - begin])

        self._walk(call(name, flat.dtype, flat.numel(), root=root), len(pieces), enter, reduce)

    def all_gather(
        self, outputs: Sequence[torch.Tensor], flat: torch.Tensor, name: str = "all_gather"
    ) -> None:
        """`outputs[r]` becomes the rank r's `flat`; all of one size."""
        places = self._places(flat.dtype)
        pieces = _pieces(flat.numel(), CHUNK_BYTES // flat.element_size())

        def enter(chunk: int, buffer: int) -> None:
            begin, end = pieces[chunk]
            places[buffer][self.rank][: end - begin].copy_(flat[begin:end])

        def reduce(chunk: int, buffer: int) -> None:
            begin, end = pieces[chunk]
            for output, place in zip(outputs, places[buffer], strict=False):
                output[begin:end].copy_(place[: end - begin])

        self._walk(call(name, flat.dtype, flat.numel()), len(pieces), enter, reduce)

    def reduce_scatter(
        self, out: torch.Tensor, inputs: Sequence[torch.Tensor], operation: Operation, divisor: int
    ) -> None:
        """`out` becomes what all ranks have given as input for this rank, combined; sizes may differ."""
        places = self._places(out.dtype)
        sizes = tuple(each.numel() for each in inputs)
        room, pieces = self._shares(max(sizes), out.element_size())

        def enter(chunk: int, buffer: int) -> None:
            self._deal(inputs, pieces[chunk], places[buffer][self.rank], room)

        def reduce(chunk: int, buffer: int) -> None:
            begin, end = pieces[chunk]
            into = out[begin:end]
            if not into.numel():
                return
            left = self.rank * room
            parts = [place[left : left + into.numel()] for place in places[buffer][: self.size]]
            parts[self.rank] = inputs[self.rank][begin:end]
            combine(into, parts, operation, divisor)

        made = call("reduce_scatter", out.dtype, sizes, operation)
        self._walk(made, len(pieces), enter, reduce)

    def exchange(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], most: int, made: Call
    ) -> None:
        """`outputs[r]` becomes what rank r has given as input for this one; `most`: the largest of all."""
        places = self._places(outputs[0].dtype)
        room, pieces = self._shares(most, outputs[0].element_size())

        def enter(chunk: int, buffer: int) -> None:
            self._deal(inputs, pieces[chunk], places[buffer][self.rank], room)

        def reduce(chunk: int, buffer: int) -> None:
            begin, end = pieces[chunk]
            left = self.rank * room
            for rank, output in enumerate(outputs):
                part = output[begin:end]
                if rank == self.rank:
                    part.copy_(inputs[rank][begin:end])
                elif part.numel():
                    part.copy_(places[buffer][rank][left : left + part.numel()])

        self._walk(made, len(pieces), enter, reduce)

    def _shares(self, most: int, itemsize: int) -> tuple[int, Sequence[tuple[int, int]]]:
        """A chunk with a part for every rank: the elements of a part, and the pieces of the largest."""
        room = max(1, CHUNK_BYTES // itemsize // self.size // _LINE * _LINE)
        return room, _pieces(most, room)

    def _deal(
        self, inputs: Sequence[torch.Tensor], piece: tuple[int, int], mine: torch.Tensor, room: int
    ) -> None:
        """Copy a piece of what this rank has for each other one to that one's part of its chunk."""
        for rank, given in enumerate(inputs):
            part = given[piece[0] : piece[1]]
            if rank != self.rank and part.numel():
                mine[rank * room : rank * room + part.numel()].copy_(part)

    def agree(self, made: Call) -> None:
        """Wait until every rank makes this call, which moves nothing."""
        self._call_check.begin(made)
        self._board.wait(ENTERED, self._board.post(ENTERED))
        self._call_check.check()
        self._board.post(REDUCED)
        self._next = 0  # all have done with whatever came before


def _pieces(count: int, most: int) -> Sequence[tuple[int, int]]:
    """At least one, if only an empty one: what is not there must agree as well."""
    return chunks(count, most) or ((0, 0),)
