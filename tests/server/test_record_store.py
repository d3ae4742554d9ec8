"""Small values that outlive a process: all of a commit is found, or nothing of it."""

from __future__ import annotations

import random

import pytest

from argosy.server import record_store
from argosy.server.record_store import WORDS, RecordStore


class Killed(Exception):
    """The process ends here."""


class Space:
    """Memory that stays; a store of a number may be the last thing that its process does."""

    def __init__(self) -> None:
        self.words = memoryview(bytearray(8 * WORDS)).cast("q")
        self._areas: dict[int, bytearray] = {}
        self._end = 0

    def allocate(self, size: int) -> int:
        self._end += 4096
        self._areas[self._end] = bytearray(size)
        return self._end

    def view(self, offset: int, size: int) -> memoryview:
        assert size == len(self._areas[offset])
        return memoryview(self._areas[offset])


class FragileWords:
    """Numbers of which only the first `stores` are stored."""

    def __init__(self, words: memoryview, stores: int) -> None:
        self._words = words
        self.left = stores

    def __getitem__(self, key: int | slice) -> object:
        return self._words[key]

    def __setitem__(self, key: int, value: int) -> None:
        if not self.left:
            raise Killed
        self.left -= 1
        self._words[key] = value


def contents(space: Space) -> dict[str, bytes | None]:
    store = RecordStore(space.words, space)
    return {name: store.get(name) for name in store.names("")}


def test_what_was_committed_is_found() -> None:
    space = Space()
    store = RecordStore(space.words, space)
    store.put("a", b"1")
    store.put("b", b"2")
    assert contents(space) == {}
    store.commit()
    store.put("a", b"3")
    store.drop("b")
    store.drop("never there")
    assert store.get("a") == b"1"
    store.commit()
    store.commit()
    store.put("c", b"")
    assert contents(space) == {"a": b"3"}
    store.commit()
    assert contents(space) == {"a": b"3", "c": b""}
    assert RecordStore(space.words, space).names("a") == ["a"]


@pytest.mark.parametrize("seed", range(20))
def test_a_commit_is_found_whole_or_not_at_all(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Small areas, so that they are often full; the process ends at any store of a number."""
    monkeypatch.setattr(record_store, "_FIRST_AREA", 128)
    draw = random.Random(seed)
    space = Space()
    expected: dict[str, bytes] = {}
    RecordStore(space.words, space)
    for _ in range(60):
        words = FragileWords(space.words, draw.randrange(8))
        changes = {
            draw.choice("abcdef"): draw.randbytes(draw.randrange(60)) for _ in range(draw.randrange(4))
        }
        dropped = draw.choice("abcdefg")
        try:
            store = RecordStore(words, space)  # type: ignore[arg-type]
            for name, value in changes.items():
                store.put(name, value)
            store.drop(dropped)
            store.commit()
        except Killed:
            pass
        found = contents(space)
        after = {**expected, **changes}
        after.pop(dropped, None)
        assert found in (expected, after)
        expected = {name: value for name, value in found.items() if value is not None}


def test_many_commits_need_no_more_memory_than_the_values() -> None:
    space = Space()
    store = RecordStore(space.words, space)
    for number in range(3000):
        store.put("large", bytes([number % 256]) * 5000)
        store.put(f"log/{number}", b"x" * 50)
        store.drop(f"log/{number - 10}")
        store.commit()
    assert contents(space)["large"] == bytes([2999 % 256]) * 5000
    assert len(contents(space)) == 11
    assert sum(map(len, space._areas.values())) <= 2 * record_store._FIRST_AREA
