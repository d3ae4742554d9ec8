"""Where a replica is in its data: hands out batches, counts them, and goes on where it was."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, TypeVar

from argosy.events import say
from argosy.replica.loader import Loader
from argosy.session import own_state as own
from argosy.session.own_state import Position, Random, ReplicaState

T = TypeVar("T")
Resuming = Literal["leave", "skip"]


class BatchFeed:
    """The batches of a session, in one or more calls of `batches`."""

    def __init__(self) -> None:
        self.position = Position()
        self.pass_random: Random | None = None
        self._calls = 0
        self._passes = 0  # that have begun, in all calls
        self._resumed: Position | None = None
        self._skipped_from: Random | None = None
        self.keeps_passes = False  # whether it may have to be found again where any pass was
        self._arrive: Callable[[], None] | None = None

    def resume(self, state: ReplicaState) -> None:
        """Go on from here; calls that had ended before are empty now."""
        self._resumed = state.position
        self._skipped_from = state.pass_random

    def take_place(self, state: ReplicaState, arrive: Callable[[], None]) -> None:
        """Go on from here in the place of another process, whatever the loader is. `arrive` is called just
        before the first batch, when everything that the script does on its way there is done.
        """
        self.resume(state)
        self._arrive = arrive

    def batches(
        self,
        loader: Iterable[T],
        epochs: int | None,
        resuming: Resuming,
        should_stop: Callable[[], bool],
    ) -> Iterator[T]:
        """The batches of `loader`, `epochs` times or without end, until it should stop."""
        call, self._calls = self._calls, self._calls + 1
        if self._arrive is not None:
            resuming = "skip"
        first = self._first(call, loader, resuming)
        if first is None:
            return
        epoch, skipped = first.epoch, first.batch
        while (epochs is None or epoch < epochs) and not should_stop():
            self.position = Position(call, epoch, skipped, self._passes, *_shape(loader))
            iterator = self._begin(loader, skipped, resuming)
            if self._arrive is not None:
                arrive, self._arrive = self._arrive, None
                arrive()
            self._passes += 1  # also if it is broken off: another call must not see the same order again
            empty = not skipped
            while not should_stop():
                try:
                    batch = next(iterator)
                except StopIteration:
                    break
                empty = False
                self.position.batch += 1
                yield batch
            if should_stop() or empty or iterator is loader:
                return
            epoch, skipped = epoch + 1, 0

    def _first(self, call: int, loader: Iterable[Any], resuming: Resuming) -> Position | None:
        """Where this call begins; None if it had ended before."""
        at = self._resumed
        if at is None or call > at.call or not (isinstance(loader, Loader) or resuming == "skip"):
            return Position()
        if call < at.call:
            return None
        self._passes = at.passes
        batch = loader.locate(at.batch, at.batch_size, at.count) if isinstance(loader, Loader) else at.batch
        return Position(call, at.epoch, batch)

    def _begin(self, loader: Iterable[T], skipped: int, resuming: Resuming) -> Iterator[T]:
        """A pass, without its first `skipped` batches."""
        if isinstance(loader, Loader):
            self.pass_random = None
            return loader.iterate(self._passes, skipped)
        if resuming == "leave":
            self.pass_random = own.capture() if self.keeps_passes else None
            return iter(loader)
        return self._skip(loader, skipped)

    def _skip(self, loader: Iterable[T], skipped: int) -> Iterator[T]:
        now = own.capture()
        if skipped and self._skipped_from is not None:
            own.restore(self._skipped_from)  # a loader that shuffles draws its order when the pass begins
        self.pass_random = own.capture()
        iterator = iter(loader)
        if skipped:
            say(f"skips {skipped} batches that were used before the restart")
            for _ in range(skipped):
                if next(iterator, self) is self:
                    break
            own.restore(now)
            self._skipped_from = None
        return iterator


def _shape(loader: object) -> tuple[int, int]:
    """The batch size and the number of replicas that a position counts in."""
    return (loader.batch_size, loader.count) if isinstance(loader, Loader) else (1, 1)
