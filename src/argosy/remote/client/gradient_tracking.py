"""The gradients that a captured step uses and leaves behind.

Autograd sets `.grad` in Python, which does not run at a replay. So the recording notes which `.grad` the step
found and used, because it is replayed only if it finds the same; and which it left, because each replay has
to leave it too.
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
    """Notes the leaf tensors of the first call, whose gradients the second call looks at before it begins."""

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
    """Notes the gradients while a step is recorded. It keeps no tensor alive, because the recording has to
    see which tensors the step frees.
    """

    def __init__(self, known: Iterable[Any]) -> None:
        """`known`: tensors of earlier calls. The gradient of any other is seen only at its first use."""
        self._filled: set[int] = set()
        self._before: dict[int, tuple[weakref.ref[Any], int | None]] = {}
        self._hooks: list[Any] = []
        self.note_leaves(known)

    def note_leaves(self, tensors: Iterable[Any]) -> None:
        """Note tensors that the step uses, at their first use."""
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
        """The tensors that still exist."""
        return [leaf for reference, _ in self._before.values() if (leaf := reference()) is not None]

    def found(self, recording: Recording, leaves: Sequence[Any], outputs: Sequence[Any]) -> GradientEffects:
        """What the step did with gradients; `leaves` are its arguments, `outputs` its results."""
        places = {id(each): place for place, each in enumerate(leaves)}
        returned = {id(each): place for place, each in enumerate(outputs)}
        found = GradientEffects([], [])
        for reference, before in self._before.values():
            if (leaf := reference()) is None:
                continue
            place, after, filled = places.get(id(leaf), -1), leaf.grad, id(leaf) in self._filled
            if before is not None and before in recording.externals:
                found.used.append(UsedGradient(leaf, place, recording.externals[before]))
            elif before is None and (filled or after is None):  # it might have cleared a gradient
                found.used.append(UsedGradient(leaf, place, None))
            if filled or _number(after) != before:
                found.left.append(_Left(leaf, place, after, returned.get(id(after), -1)))
        return found


def is_leaf(tensor: Any) -> bool:
    """Whether it is a remote tensor that may have a gradient. torch may refuse to tell this of a view."""
    if not tensor.requires_grad or is_view(tensor):
        return False
    return bool(tensor.is_leaf and hasattr(tensor, "handle"))


@dataclass(frozen=True)
class UsedGradient:
    """A tensor whose `.grad`, or its absence, mattered. `place`: its place among the arguments, or -1."""

    leaf: Any
    place: int
    handle: Handle | None


@dataclass(frozen=True)
class _Left:
    """A tensor with the `.grad` that the step left; `returned`: its place among the results, or -1."""

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

    def apply(self, leaves: Sequence[Any], results: Sequence[Any]) -> None:
        """Set the gradients that the recorded call left."""
        for each in self.left:
            leaf = each.leaf if each.place < 0 else leaves[each.place]
            gradient = each.gradient if each.returned < 0 else results[each.returned]
            if leaf.grad is not gradient:
                leaf.grad = gradient


def _number(gradient: Any) -> int | None:
    """The number of its value; -1 for a local tensor."""
    if gradient is None:
        return None
    return int(gradient.handle.number) if hasattr(gradient, "handle") else -1
