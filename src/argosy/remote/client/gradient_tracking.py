"""The gradients that a captured step reads and leaves behind, which a replay has to leave behind as well.

Autograd gives a tensor its `.grad` in Python, which does not run again at a replay. So it is noted while a
step is recorded: which `.grad` it found and used, for it to be replayed only where it finds the same; and
which it left, to be put there by each replay.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from argosy.remote.client.handle import Handle
from argosy.torch_private import is_view

if TYPE_CHECKING:
    from argosy.remote.client.recording import Recording


class WarmupObserver:
    """Looks on at the first call, for the tensors of which the second is to know how it found them."""

    def __init__(self) -> None:
        self.leaves: dict[int, Any] = {}

    def note(self, inferred: Any, tensors: Iterable[Any], device: Any) -> None:
        """An operation that was sent."""
        self.note_leaves(tensors)

    def note_leaves(self, tensors: Iterable[Any]) -> None:
        """What an operation is given."""
        self.leaves.update((id(each), each) for each in tensors if is_leaf(each))

    def note_made(self, returned: Any) -> None:
        """What an operation returns."""


class GradientTracker:
    """Looks on while a step is recorded. It keeps no tensor alive: what the step lets go of must be seen to
    go.
    """

    def __init__(self, known: Iterable[Any]) -> None:
        """`known`: what an earlier call has used. Of others it is too late to tell what was there."""
        self._filled: set[int] = set()
        self._before: dict[int, tuple[weakref.ref[Any], int | None]] = {}
        self._hooks: list[Any] = []
        self.note_leaves(known)

    def note_leaves(self, tensors: Iterable[Any]) -> None:
        """What the step uses, when it does for the first time."""
        for each in tensors:
            found = self._before.get(id(each))
            if is_leaf(each) and (found is None or found[0]() is not each):
                self._before[id(each)] = (weakref.ref(each), _number(each.grad))
                self._hooks.append(each.register_post_accumulate_grad_hook(self._note))

    def _note(self, leaf: torch.Tensor) -> None:
        self._filled.add(id(leaf))

    def stop(self) -> None:
        """The step is over."""
        for hook in self._hooks:
            hook.remove()

    def leaves(self) -> list[Any]:
        """Those that are still there."""
        return [leaf for reference, _ in self._before.values() if (leaf := reference()) is not None]

    def found(self, recording: Recording, leaves: Sequence[Any], outputs: Sequence[Any]) -> GradientEffects:
        """What it did with gradients; `leaves` are its arguments, `outputs` what it returned."""
        places = {id(each): place for place, each in enumerate(leaves)}
        returned = {id(each): place for place, each in enumerate(outputs)}
        found = GradientEffects([], [])
        for reference, before in self._before.values():
            if (leaf := reference()) is None:
                continue
            place, after, filled = places.get(id(leaf), -1), leaf.grad, id(leaf) in self._filled
            if before is not None and before in recording.externals:
                found.used.append(UsedGradient(leaf, place, recording.externals[before]))
            elif before is None and (filled or after is None):  # one that was there it might have cleared
                found.used.append(UsedGradient(leaf, place, None))
            if filled or _number(after) != before:
                found.left.append(_Left(leaf, place, after, returned.get(id(after), -1)))
        return found


def is_leaf(tensor: Any) -> bool:
    """Whether it may have a gradient of its own, and lies on a device. Of a view torch may refuse to say."""
    if not tensor.requires_grad or is_view(tensor):
        return False
    return bool(tensor.is_leaf and hasattr(tensor, "handle"))


@dataclass(frozen=True)
class UsedGradient:
    """A tensor whose `.grad` was there, or was not, and mattered. `place`: of an argument, which."""

    leaf: Any
    place: int
    handle: Handle | None


@dataclass(frozen=True)
class _Left:
    """A tensor with the `.grad` that the step left; `returned`: which of its results that is, or -1."""

    leaf: Any
    place: int
    gradient: torch.Tensor | None
    returned: int


@dataclass(frozen=True)
class GradientEffects:
    """What a recorded step did with gradients."""

    used: list[UsedGradient]
    left: list[_Left]

    def match(self, leaves: Sequence[Any]) -> bool:
        """Whether a call with these arguments finds what the recorded one found."""
        for each in self.used:
            gradient = (each.leaf if each.place < 0 else leaves[each.place]).grad
            if getattr(gradient, "handle", gradient) is not each.handle:
                return False
        return True

    def put(self, leaves: Sequence[Any], results: Sequence[Any]) -> None:
        """Leave what the recorded call left."""
        for each in self.left:
            leaf = each.leaf if each.place < 0 else leaves[each.place]
            gradient = each.gradient if each.returned < 0 else results[each.returned]
            if leaf.grad is not gradient:
                leaf.grad = gradient


def _number(gradient: Any) -> int | None:
    """Of the value that it is; an ordinary tensor is none."""
    if gradient is None:
        return None
    return int(gradient.handle.number) if hasattr(gradient, "handle") else -1
