"""Which element of which parameter lies where: plain data, made by the chief, the same for everybody.

A server keeps its parameters in flat *blocks*, one or more for each parameter group and dtype. A *piece* is
a run of a parameter's elements inside a block. No torch here; the layout travels as it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from argosy.errors import WireError
from argosy.protocol.frames import ITEMSIZE, MAX_FRAME_BYTES, Dtype


class ParameterSpec(msgspec.Struct, frozen=True, array_like=True):
    """A parameter as all replicas must have it."""

    name: str
    shape: tuple[int, ...]
    dtype: Dtype
    group: int = 0

    @property
    def count(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The number of bytes."""
        return self.count * ITEMSIZE[self.dtype]

    def __str__(self) -> str:
        return f"{self.name} {self.dtype}{list(self.shape)}"


class Share(msgspec.Struct, frozen=True, array_like=True):
    """The elements from `start` to `stop` of a parameter, on a server."""

    server: int
    start: int
    stop: int


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """The elements from `start` to `stop` of a parameter, at `offset` in a block."""

    parameter: int
    start: int
    stop: int
    block: int
    offset: int

    @property
    def count(self) -> int:
        """The number of elements."""
        return self.stop - self.start


class Block(msgspec.Struct, frozen=True, array_like=True):
    """A flat run of elements of one group and dtype on one server."""

    server: int
    group: int
    dtype: Dtype
    count: int


class Layout(msgspec.Struct, frozen=True):
    """Parameters, the blocks that hold them, and the pieces that connect the two."""

    parameters: tuple[ParameterSpec, ...] = ()
    blocks: tuple[Block, ...] = ()
    pieces: tuple[Piece, ...] = ()

    def blocks_of(self, server: int) -> list[int]:
        """The numbers of a server's blocks, in order: a push carries one frame for each."""
        return [number for number, block in enumerate(self.blocks) if block.server == server]

    def pieces_by_block(self) -> list[list[Piece]]:
        """The pieces of each block, in order of their offsets."""
        table: list[list[Piece]] = [[] for _ in self.blocks]
        for piece in self.pieces:
            table[piece.block].append(piece)
        return table

    def loads(self, servers: int) -> list[int]:
        """How many bytes lie on each server."""
        loads = [0] * servers
        for block in self.blocks:
            loads[block.server] += block.count * ITEMSIZE[block.dtype]
        return loads


def extend(
    layout: Layout,
    parameters: Sequence[ParameterSpec],
    shares: Sequence[Sequence[Share]],
    block_bytes: int | None = None,
) -> Layout:
    """`layout` and, in blocks of their own of at most `block_bytes`, these parameters with these shares."""
    filling: dict[tuple[int, int, Dtype], int] = {}
    blocks: list[Block] = []
    pieces: list[Piece] = []
    first_block, first_parameter = len(layout.blocks), len(layout.parameters)
    for index, (spec, parts) in enumerate(zip(parameters, shares, strict=True)):
        capacity = (block_bytes or MAX_FRAME_BYTES) // ITEMSIZE[spec.dtype]
        for share in parts:
            key = (share.server, spec.group, spec.dtype)
            for start, stop in _cut(share.start, share.stop, capacity):
                number = filling.get(key)
                if start == stop:  # its updates are counted, as torch does, and not those of a neighbour
                    number = len(blocks)
                    blocks.append(Block(*key, count=0))
                elif number is None or blocks[number].count + stop - start > capacity:
                    number = filling[key] = len(blocks)
                    blocks.append(Block(*key, count=0))
                block = blocks[number]
                piece = Piece(first_parameter + index, start, stop, first_block + number, block.count)
                pieces.append(piece)
                blocks[number] = Block(*key, count=block.count + stop - start)
    return Layout((*layout.parameters, *parameters), (*layout.blocks, *blocks), (*layout.pieces, *pieces))


def check_layout(layout: Layout, servers: int, groups: int) -> None:
    """Refuse a layout that came from outside and does not hang together."""
    filled = [0] * len(layout.blocks)
    for block in layout.blocks:
        if not (0 <= block.server < servers and 0 <= block.group < groups and block.count >= 0):
            raise WireError(f"layout: {block} with {servers} servers and {groups} groups")
    for piece in layout.pieces:
        fits = 0 <= piece.block < len(filled) and 0 <= piece.parameter < len(layout.parameters)
        if not fits or piece.offset != filled[piece.block] or not 0 <= piece.start <= piece.stop:
            raise WireError(f"layout: {piece} has no place")
        if piece.stop > layout.parameters[piece.parameter].count:
            raise WireError(f"layout: {piece} is larger than {layout.parameters[piece.parameter]}")
        filled[piece.block] += piece.count
    if filled != [block.count for block in layout.blocks]:
        raise WireError("layout: blocks and pieces differ in size")


def _cut(start: int, stop: int, capacity: int) -> list[tuple[int, int]]:
    """A run in pieces that fit into a block; an empty parameter has one empty piece."""
    if start == stop:
        return [(start, stop)]
    return [(at, min(at + capacity, stop)) for at in range(start, stop, capacity)]
