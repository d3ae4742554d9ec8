"""Small values by name, in memory that outlives the process that writes them.

Values are staged, and become valid together: a commit appends them, and then stores one number, so whoever
opens the memory after the writer's death finds all of a commit or nothing of it. When an area is full, what
is valid is written to another one, and a number says which of the two counts.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Protocol

_HEAD = struct.Struct("<II")  # lengths of name and value
_DROPPED = 2**32 - 1  # in place of a value's length
_FIRST_AREA = 2**20
# The numbers of a store: which area counts, and of each area its offset, its size and what is committed.
WORDS = 7


class Space(Protocol):
    """Where areas come from."""

    def allocate(self, size: int) -> int:
        """Room of this size; its offset."""

    def view(self, offset: int, size: int) -> memoryview:
        """The bytes of an area."""


class RecordStore:
    """The values of one memory; `words` are numbers in it, zero at first."""

    def __init__(self, words: memoryview, space: Space) -> None:
        self._words = words
        self._space = space
        self._values: dict[str, bytes] = {}
        self._staged: dict[str, bytes | None] = {}
        self._offset, self._size, self._end = words[1 + 3 * words[0] : 4 + 3 * words[0]]
        if not self._size:
            self._begin(words[0], _FIRST_AREA)
        self._area = space.view(self._offset, self._size)
        for name, value in _records(self._area[: self._end]):
            if value is None:
                self._values.pop(name, None)
            else:
                self._values[name] = value

    def get(self, name: str) -> bytes | None:
        """The value that was committed last."""
        return self._values.get(name)

    def names(self, prefix: str) -> list[str]:
        """Those that begin with this, in the order in which they came."""
        return [name for name in self._values if name.startswith(prefix)]

    def put(self, name: str, value: bytes) -> None:
        """With the next commit, this is the value."""
        self._staged[name] = value

    def drop(self, name: str) -> None:
        """With the next commit, there is none."""
        self._staged[name] = None

    def commit(self) -> None:
        """What was staged is valid from now on, all at once."""
        if not self._staged:
            return
        values, parts = self._values, []
        for name, value in self._staged.items():
            if value is None:
                if values.pop(name, None) is not None:
                    parts.append(_encode(name, None))
            elif values.get(name) != value:
                values[name] = value
                parts.append(_encode(name, value))
        self._staged.clear()
        if not parts:
            return
        data = b"".join(parts)
        end = self._end + len(data)
        if end > self._size:
            self._compact()
            return
        self._area[self._end : end] = data
        self._end = self._words[3 + 3 * self._words[0]] = end

    def close(self) -> None:
        """Let go of the memory."""
        self._area.release()
        self._words.release()

    def _compact(self) -> None:
        """Write everything that is valid to the other area, and let that one count."""
        data = b"".join(_encode(name, value) for name, value in self._values.items())
        other = 1 - self._words[0]
        offset, size, _ = self._words[1 + 3 * other : 4 + 3 * other]
        if size < 2 * len(data):
            self._begin(other, max(self._size, 4 * len(data)))
        else:
            self._offset, self._size = offset, size
        self._area = self._space.view(self._offset, self._size)
        self._area[: len(data)] = data
        self._end = self._words[3 + 3 * other] = len(data)
        self._words[0] = other

    def _begin(self, number: int, size: int) -> None:
        self._offset, self._size, self._end = self._space.allocate(size), size, 0
        self._words[2 + 3 * number] = 0  # there is no area, until all of it is known
        self._words[3 + 3 * number] = 0
        self._words[1 + 3 * number] = self._offset
        self._words[2 + 3 * number] = size


def _encode(name: str, value: bytes | None) -> bytes:
    key = name.encode()
    if value is None:
        return _HEAD.pack(len(key), _DROPPED) + key
    return _HEAD.pack(len(key), len(value)) + key + value


def _records(data: memoryview) -> Iterator[tuple[str, bytes | None]]:
    position = 0
    while position < len(data):
        key, size = _HEAD.unpack_from(data, position)
        position += _HEAD.size
        name = bytes(data[position : position + key]).decode()
        position += key
        if size == _DROPPED:
            yield name, None
            continue
        yield name, bytes(data[position : position + size])
        position += size
