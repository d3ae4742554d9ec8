"""What a checkpoint is, as plain data: the index that lies beside the tensors. No torch here.

In the files, a tensor is called `param/NAME`, `slot/SLOT/NAME` (the optimizer's state, under torch's names),
`step/NAME` (its count of updates), `average/NAME` or `buffer/NAME`. Of a parameter that is spread over
servers, `NAME[START:STOP]` are these of its elements.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import msgspec

from argosy.errors import UNDECODABLE, CheckpointDamaged
from argosy.protocol.saving import ShardFile

FILE = "index.json"
FORMAT = 1


class SavedParameter(msgspec.Struct, frozen=True):
    """A parameter as the model has it."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    group: int = 0


class SavedOptimizer(msgspec.Struct, frozen=True):
    """The optimizer: its class, and the hyperparameters of each group.

    `values`: what it keeps for a parameter that is not a tensor, by parameter and name.
    """

    name: str
    groups: tuple[dict[str, Any], ...]
    values: dict[str, dict[str, Any]] = {}


class Index(msgspec.Struct, frozen=True):
    """All of a checkpoint but its tensors.

    `tied`: other names of a parameter or buffer, and which one they stand for. `placement`: the server of
    each part of a parameter. `replicas`: each worker's own state (random generators, position in its data).
    """

    step: int
    mode: dict[str, Any]
    time: float
    parameters: tuple[SavedParameter, ...]
    optimizer: SavedOptimizer
    shards: tuple[ShardFile, ...]
    buffers: tuple[str, ...] = ()
    tied: dict[str, str] = {}
    placement: dict[str, int] = {}
    replicas: dict[int, bytes] = {}
    average: float | None = None
    versions: dict[str, str] = {}
    format: int = FORMAT

    @property
    def nbytes(self) -> int:
        """Of all files of tensors."""
        return sum(shard.bytes for shard in self.shards)


class _Sealed(msgspec.Struct):
    sha256: str
    index: msgspec.Raw


def encode(index: Index) -> bytes:
    """The index as the bytes of its file, with a checksum of its own."""
    text = msgspec.json.format(msgspec.json.encode(index), indent=1)
    return msgspec.json.encode(_Sealed(hashlib.sha256(text).hexdigest(), msgspec.Raw(text))) + b"\n"


def read(folder: Path) -> Index:
    """The index of a checkpoint; raises CheckpointDamaged, naming the file."""
    path = folder / FILE
    try:
        sealed = msgspec.json.decode(path.read_bytes(), type=_Sealed)
        if hashlib.sha256(bytes(sealed.index)).hexdigest() != sealed.sha256:
            raise CheckpointDamaged(path, "its checksum is wrong")
        index = msgspec.json.decode(sealed.index, type=Index)
    except OSError as error:
        raise CheckpointDamaged(path, error.strerror or "it cannot be read") from None
    except UNDECODABLE as error:
        raise CheckpointDamaged(path, str(error)) from None
    if index.format != FORMAT:
        raise CheckpointDamaged(path, f"format {index.format}, but this version reads {FORMAT}")
    return index


_PART = re.compile(r"(.*)\[(\d+):(\d+)\]\Z", re.DOTALL)


def part_name(name: str, start: int, stop: int) -> str:
    """The name of a part of a parameter."""
    return f"{name}[{start}:{stop}]"


def split_name(entry: str, known: Collection[str] = ()) -> tuple[str, str, tuple[int, int] | None]:
    """Of a name in a file: its kind with the slot (`param`, `slot/exp_avg`), the parameter, and the part.

    `known`: the parameters; one of them may be called as if it were a part.
    """
    kind, _, rest = entry.partition("/")
    if kind == "slot":
        slot, _, rest = rest.partition("/")
        kind = f"slot/{slot}"
    if kind != "buffer" and rest not in known and (found := _PART.match(rest)):
        return kind, found[1], (int(found[2]), int(found[3]))
    return kind, rest, None
