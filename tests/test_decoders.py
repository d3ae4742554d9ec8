"""Files that are nearly ours: whoever reads one says that it is damaged, or passes over it."""

from __future__ import annotations

import contextlib
import hashlib
import random
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from argosy.checkpoint import index, safetensors
from argosy.cluster.spec import ClusterSpec
from argosy.errors import CheckpointDamaged
from argosy.launch.cause import ErrorRecord, read_record
from argosy.launch.status_poller import StatusPoller
from argosy.observe import journal
from argosy.protocol.asking import JobStatus
from argosy.protocol.saving import ShardFile
from argosy.session import own_state
from mutations import mutations

STATUS = JobStatus(7, 1.5, "Sync()", 9, 1, (), ("worker ü",), 0.5)
RECORD = ErrorRecord("/job:worker/task:1", 1.5, "zwölf", "/job:ps/task:0", "Traceback")
INDEX = index.Index(
    step=3,
    mode={"type": "sync"},
    time=1.5,
    parameters=(index.SavedParameter("weight", (2, 3), "float32", 0),),
    optimizer=index.SavedOptimizer("SGD", ({"lr": 0.1},)),
    shards=(ShardFile("shard-0-of-1.safetensors", 12, "ab"),),
    buffers=("ü",),
)
OWN = own_state.ReplicaState(own_state.capture(), own_state.Position(), kept={"a": {"b": 1}})


def read_index(path: Path) -> None:
    path.rename(path.with_name(index.FILE))
    index.read(path.parent)


def read_unsealed(path: Path) -> None:
    """An index whose checksum was made after the damage."""
    sealed = {"sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "index": None}
    text = msgspec.json.encode(sealed).replace(b"null", path.read_bytes())
    path.with_name(index.FILE).write_bytes(text)
    index.read(path.parent)


def read_journal(path: Path) -> None:
    path.rename(path.with_name(journal.NAME))
    list(journal.read(path.parent))


def look(path: Path) -> None:
    StatusPoller(ClusterSpec({"worker": ["h:1", "h:2"]}), path).look(time.monotonic() + 100)


READERS: dict[str, tuple[bytes, Callable[[Path], object]]] = {
    "an index": (index.encode(INDEX), read_index),
    "an index with a checksum that is right": (msgspec.json.encode(INDEX), read_unsealed),
    "a header of tensors": (
        b"\x40" + bytes(7) + b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}          1234',
        safetensors.Reader,
    ),
    "a journal": (b'{"time":1.5,"event":"saved","step":3}\n{"event":"z\xc3\xbc"}\n' * 2, read_journal),
    "an error": (msgspec.json.encode(RECORD), read_record),
    "a status": (msgspec.json.encode(STATUS), look),
    "a worker's own state": (own_state.encode(OWN), lambda path: own_state.decode(path.read_bytes())),
}


@pytest.mark.parametrize("kind", READERS)
def test_a_file_with_a_few_wrong_bytes(tmp_path: Path, kind: str) -> None:
    good, read = READERS[kind]
    deep = [b"[" * 100_000, b'{"a":' * 100_000, b"\x91" * 100_000, b"\xff\xfe", b""]
    for bad in [*mutations([good], 500, seed=random.Random(kind).randrange(2**32)), *deep]:
        path = tmp_path / "file"
        path.write_bytes(bad)
        with contextlib.suppress(CheckpointDamaged):
            read(path)
