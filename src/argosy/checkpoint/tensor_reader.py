"""A checkpoint's tensors by name, wherever in its files they lie: for servers of any number and placement."""

from __future__ import annotations

import math
import os
from pathlib import Path

import torch

from argosy.checkpoint import folder, index
from argosy.checkpoint.index import Index
from argosy.checkpoint.safetensors import Reader
from argosy.errors import CheckpointDamaged, ConfigError
from argosy.protocol.frames import Dtype
from argosy.wire.tensor_bytes import torch_dtype


class Checkpoint:
    """A checkpoint that was found sound."""

    def __init__(self, path: Path, contents: Index | None = None) -> None:
        self.path = path
        self.index = contents or index.read(path)
        self._counts = {p.name: math.prod(p.shape) for p in self.index.parameters}
        # kind, name -> the parts with the file and the name in it
        self._parts: dict[tuple[str, str], list[tuple[int, int, Reader, str]]] = {}
        for shard in self.index.shards:
            reader = Reader(path / shard.file)
            for entry, place in reader.places.items():
                kind, name, part = index.split_name(entry, self._counts)
                start, stop = part or (0, self._counts.get(name, place.spec.count))
                self._parts.setdefault((kind, name), []).append((start, stop, reader, entry))

    def kinds_of(self, name: str) -> list[str]:
        """What is kept of a parameter: `param`, `slot/exp_avg`, `average`, ..."""
        return sorted(kind for kind, other in self._parts if other == name)

    def has(self, kind: str, name: str) -> bool:
        """Whether this is kept."""
        return (kind, name) in self._parts

    def tensor(self, kind: str, name: str) -> torch.Tensor:
        """A tensor in its shape."""
        parts = self._parts.get((kind, name))
        if not parts:
            raise CheckpointDamaged(self.path, f"{kind} of {name} is missing")
        if len(parts) == 1:
            _, _, reader, entry = parts[0]
            return reader.read(entry)
        shape = next(p.shape for p in self.index.parameters if p.name == name)
        return self.elements(kind, name, 0, self._counts[name]).view(shape)

    def elements(self, kind: str, name: str, start: int, stop: int) -> torch.Tensor:
        """The elements from `start` to `stop` of a tensor, flat."""
        found: list[torch.Tensor] = []
        at = start
        parts = sorted(self._parts.get((kind, name), ()), key=lambda part: part[:2])
        if start == stop and parts:
            return parts[0][2].read(parts[0][3], 0, 0)
        for first, last, reader, entry in parts:
            if first <= at < min(last, stop):
                end = min(last, stop)
                found.append(reader.read(entry, at - first, end - first))
                at = end
        if at != stop:
            raise CheckpointDamaged(self.path, f"{kind} of {name}: elements {at} to {stop} are missing")
        return torch.cat(found) if len(found) != 1 else found[0]

    def steps(self, name: str, start: int) -> tuple[float, float]:
        """The updates that the optimizer has counted for these elements, and which stretch they belong to.

        One that does not count (SGD, where torch steps it) has updated what it keeps something of.
        """
        for first, last, reader, entry in self._parts.get(("step", name), ()):
            if first <= start < last or first == last == start:
                count, *stretch = reader.read(entry).view(-1).tolist()
                return count, stretch[0] if stretch else 0.0
        begun = any(kind.startswith("slot/") for kind in self.kinds_of(name))
        return float(begun), 0.0


def load(
    directory: str | os.PathLike[str], step: int | None = None, *, average: bool = False
) -> dict[str, torch.Tensor]:
    """A model's `state_dict` from a directory of checkpoints: buffers and tied names included.

    `step`: which one; default: the newest that is sound. `directory` may also be one checkpoint. `average`:
    the moving averages of the parameters in their place, if the session kept them.
    """
    checkpoint = _find(Path(directory), step)
    contents = checkpoint.index
    if average and contents.average is None:
        expected = f"moving averages in {checkpoint.path}"
        raise ConfigError("average", expected, "none", "keep them with session(average=0.999)")
    state: dict[str, torch.Tensor] = {}
    for parameter in contents.parameters:
        dtype: Dtype = parameter.dtype  # type: ignore[assignment]  # checked when it was written
        kind = "average" if average and checkpoint.has("average", parameter.name) else "param"
        value = checkpoint.tensor(kind, parameter.name).view(parameter.shape)
        state[parameter.name] = value.to(torch_dtype(dtype))
    for name in contents.buffers:
        if name not in state:  # else it was a constant at first, and trained later
            state[name] = checkpoint.tensor("buffer", name)
    for name, other in contents.tied.items():
        state[name] = state[other]
    return state


def _find(directory: Path, step: int | None) -> Checkpoint:
    if (directory / index.FILE).exists():
        return Checkpoint(directory, folder.check(directory))
    problems: list[str] = []
    if step is None:
        if (found := folder.newest(directory, problems.append)) is not None:
            return Checkpoint(*found)
        raise ConfigError("directory", f"a checkpoint in {directory}", "; ".join(problems) or "none")
    known = {each.step: each.path for each in folder.saved(directory)}
    if step not in known:
        steps = ", ".join(map(str, known)) or "none"
        raise ConfigError("step", f"a checkpoint in {directory}: {steps}", step)
    return Checkpoint(known[step], folder.check(known[step]))
