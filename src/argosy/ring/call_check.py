"""Whether all ranks make the same call: the same collective, of tensors of one dtype and size.

Each rank shows a word for its call on the board before it enters the first chunk, and compares all of them
once everybody has entered it: that costs no further wait. If they differ, each shows its call in words, and
all raise the same error; what follows is in step again. A rank whose arguments cannot work shows why instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import NoReturn

import torch

from argosy.errors import ConfigError
from argosy.ring.board import ENTERED, REDUCED, Board

# By when a rank compares, it has entered at most two chunks. A call that fails counts as so many everywhere.
_REFUSED = 3


class Disagreement(ConfigError):
    """The ranks made different calls, or one had arguments that cannot work; raised on all of them."""

    def __init__(self, call: str, texts: Sequence[tuple[str, str]]) -> None:
        by_text: dict[str, list[str]] = {}
        for name, text in texts:
            by_text.setdefault(text, []).append(name)
        got = "; ".join(f"{text} on {', '.join(names)}" for text, names in by_text.items())
        super().__init__(call, "the same call on every rank", got)


@dataclass(frozen=True)
class Call:
    """A call in words, and a number that stands for them."""

    name: str
    text: str
    word: int


@lru_cache(maxsize=1024)
def call(
    name: str,
    dtype: torch.dtype | None = None,
    count: int | tuple[int, ...] = 0,
    operation: str = "",
    root: int | None = None,
) -> Call:
    """`count`: the elements of a tensor, or of each."""
    text = name
    if dtype is not None:
        sizes = str(count) if isinstance(count, int) else " + ".join(map(str, count))
        text += f"({operation}) of " if operation else " of "
        text += f"{sizes} x {str(dtype).removeprefix('torch.')}"
    if root is not None:
        text += f", root {root}"
    return _call(name, text)


def _call(name: str, text: str) -> Call:
    digest = blake2b(text.encode(), digest_size=8).digest()
    return Call(name, text, int.from_bytes(digest, "little") >> 1 or 1)


class CallCheck:
    """One rank's part in it."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._call = call("")
        self._base = 0
        self._owed = 0  # what everybody must have reduced before this rank makes its next call
        self.turns = 0  # how many calls were begun

    def begin(self, made: Call) -> None:
        """Show the call that comes next."""
        if self._owed:
            self._board.wait(REDUCED, self._owed)
            self._owed = 0
        self.turns += 1
        self._call = made
        self._base = self._board.posted[ENTERED]
        self._board.sign(self.turns, made.word)

    def check(self) -> None:
        """Compare, after all have entered the first chunk."""
        if not self._board.agree(self.turns, self._call.word):
            self._settle()

    def _settle(self) -> NoReturn:
        """Everybody comes here, and leaves together."""
        board, end = self._board, self._base + _REFUSED
        board.write(self._call.text)
        board.post(ENTERED, end - board.posted[ENTERED])
        board.wait(ENTERED, end)
        texts = [(board.names[rank], board.read(rank)) for rank in range(board.size)]
        board.post(REDUCED, end - board.posted[REDUCED])
        board.wait(REDUCED, end)
        raise Disagreement(self._call.name, texts)

    def refuse(self, name: str, reason: str) -> None:
        """Have the call that comes next fail everywhere, without waiting for the others to make it."""
        self.begin(_call(name, f"refused ({reason})"))
        self._board.write(self._call.text)
        self._board.post(ENTERED, _REFUSED)
        self._owed = self._board.post(REDUCED, _REFUSED)
