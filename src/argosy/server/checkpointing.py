"""A server's part in checkpoints: it copies its shard at a cut, and writes the copy in the background.

The coordinator also holds the archive: it collects what every server has written, and gives it a name.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec
import torch

from argosy.checkpoint.archive import Archive, SaveOutcome, versions
from argosy.checkpoint.index import Index, SavedOptimizer, SavedParameter
from argosy.checkpoint.safetensors import Entry
from argosy.checkpoint.save_log import SaveLog
from argosy.checkpoint.shard_writer import ShardWriter
from argosy.checkpoint.tensor_reader import Checkpoint
from argosy.errors import ConfigError, SaveFailed
from argosy.modes import Sync
from argosy.protocol.fields import Group
from argosy.protocol.frames import Dtype
from argosy.protocol.joining import Refused, Register
from argosy.protocol.layout import Layout
from argosy.protocol.saving import DirectoryOpened, OpenDirectory, OwnState, ShardSaved
from argosy.server.durable_memory import Memory
from argosy.server.handshake import refusal
from argosy.server.shard import Shard
from argosy.server.snapshot import Snapshot, restore
from argosy.update.checkpoints import Checkpoints, CheckpointsValue
from argosy.wire.tensor_bytes import torch_dtype

# How long a cut waits for the own state of asynchronous workers.
_STATES_WITHIN = 5.0


class SavingState(msgspec.Struct, array_like=True):
    """What the coordinator leaves to its next process."""

    opened: OpenDirectory
    saved_states: dict[int, bytes]
    checkpoints: CheckpointsValue | None = None


class ShardSaving:
    """One server's; `archive` is there on the coordinator of a job that saves."""

    def __init__(self, server: int, servers: int, memory: Memory) -> None:
        self._server = server
        self._servers = servers
        self._memory = memory
        self._opened: OpenDirectory | None = None
        self._changed = False  # whether the memory has not what is here
        self._snapshot = Snapshot()
        self._writer: ShardWriter | None = None
        self._register: Register | None = None
        self._restored: Checkpoint | None = None
        self._log = SaveLog()
        self._latest: SaveOutcome | None = None
        self.archive: Archive | None = None
        self.checkpoints: Checkpoints | None = None  # on the coordinator of a job that saves
        self._index: Index | None = None  # of the checkpoint that is being made
        self._recalled: SavingState | None = None
        self._saved_states: dict[int, bytes] = {}  # as the checkpoint has them that the job goes on from

    # --- beginning ----------------------------------------------------------------------------------------
    def open(self, header: OpenDirectory) -> DirectoryOpened | Refused:
        """On the coordinator: take the directory, and look what is in it."""
        if self._register is not None:  # the chief has come back: the job has gone on
            return DirectoryOpened(again=True, number=header.number)
        try:  # a chief that came back before it had registered finds the directory open
            archive = self.archive or Archive(Path(header.directory), header.keep)
        except ConfigError as error:
            return refusal(error)
        notes: list[str] = []
        found = archive.newest(notes.append)
        self.archive = archive
        self._opened, self._changed = header, True
        if found is None:
            return DirectoryOpened(notes=tuple(notes), number=header.number)
        self._saved_states = dict(found[1].replicas)
        return DirectoryOpened(str(found[0]), found[1].step, tuple(notes), number=header.number)

    def state_of(self, worker: int) -> bytes:
        """What a worker goes on from; one that the checkpoint does not know, from the chief's."""
        saved = self._saved_states
        given = b"" if self.checkpoints is None else self.checkpoints.state_of(worker)
        return given or saved.get(worker) or saved.get(0, b"")

    def register(self, header: Register, shard: Shard, first: int) -> int | None:
        """New blocks are there, from number `first` on: they get their saved values, if there are any.

        The step that the job begins from, the first time, if it goes on from a checkpoint.
        """
        layout = header.layout
        again = self._register is not None
        self._register = header
        self._changed = True
        self._open_writer(header)
        step = None
        if header.restore:
            if self._restored is None:
                self._restored = Checkpoint(Path(header.restore))
                step = self._restored.index.step
            # What is added in the middle of a training may have been added after the checkpoint, too.
            restore(shard, layout, self._restored, first, partly=again)
        self._prepare(header, shard, step or 0)
        return step

    def _open_writer(self, header: Register) -> None:
        if header.directory and self._writer is None:
            name = f"shard-{self._server}-of-{self._servers}.safetensors"
            self._writer = ShardWriter(Path(header.directory), name)

    def _prepare(self, header: Register, shard: Shard, step: int) -> None:
        if self._writer is None:
            return
        self._snapshot.prepare(shard)
        if self.archive is not None and self.checkpoints is None:
            # Asynchronous workers are never all at one point: a slow one must not hold the others up.
            patience = math.inf if isinstance(header.mode, Sync) else _STATES_WITHIN
            self.checkpoints = Checkpoints(header.save_every, step, self._servers, patience)

    # --- what the next process of this server needs -------------------------------------------------------
    def keep(self) -> None:
        """Put what has changed into the memory; the caller commits it."""
        if not self._changed or not self._memory.lasts:
            return
        self._changed = False
        if self._opened is not None:
            value = None if self.checkpoints is None else self.checkpoints.value()
            state = SavingState(self._opened, self._saved_states, value)
            self._memory.put("saving", msgspec.msgpack.encode(state))

    def recall_directory(self) -> None:
        """On the coordinator, before anything is registered again: take the directory again."""
        if (kept := self._memory.get("saving")) is not None:
            self._recalled = msgspec.msgpack.decode(kept, type=SavingState)
            self._opened = self._recalled.opened
            self._saved_states = self._recalled.saved_states
            self.archive = Archive(Path(self._opened.directory), self._opened.keep)

    def recall(self, header: Register, shard: Shard) -> None:
        """What an earlier process of this server has registered; the blocks have their values."""
        self._register = header
        self._open_writer(header)
        if header.restore and self._restored is None and Path(header.restore).exists():
            self._restored = Checkpoint(Path(header.restore))
        self._prepare(header, shard, 0)
        if self.checkpoints is not None and self._recalled is not None and self._recalled.checkpoints:
            self.checkpoints.recall(self._recalled.checkpoints)
            self._recalled = None

    def unwritten(self) -> ShardSaved | None:
        """What to report of a file that an earlier process of this server did not finish."""
        if (kept := self._memory.get("cut")) is None:
            return None
        self._memory.drop("cut")
        name = f"/job:ps/task:{self._server}"
        return ShardSaved(int(kept), None, f"{name}: it died while it wrote, and was started again")

    def buffers(self) -> dict[str, torch.Tensor]:
        """The saved buffers, on the coordinator, where they lie; and constants that were trained by then."""
        if self._restored is None or self._register is None or self._server != 0:
            return {}
        saved, found = self._restored, dict[str, torch.Tensor]()
        for name in saved.index.buffers:
            found[name] = saved.tensor("buffer", name)
        for parameter in saved.index.parameters:
            if parameter.name in self._register.buffers:
                dtype: Dtype = parameter.dtype  # type: ignore[assignment]  # checked when it was written
                value = saved.tensor("param", parameter.name)
                found[parameter.name] = value.view(parameter.shape).to(torch_dtype(dtype))
        return found

    @property
    def groups(self) -> tuple[Group, ...] | None:
        """The hyperparameters that the job begins from, if it goes on from a checkpoint."""
        return None if self._restored is None else self._restored.index.optimizer.groups

    # --- a cut --------------------------------------------------------------------------------------------
    def cut(
        self,
        step: int,
        shard: Shard,
        layout: Layout,
        buffers: Mapping[str, torch.Tensor],
        groups: tuple[Group, ...],
    ) -> None:
        """Copy the state as it is now, and begin to write it."""
        if self._writer is None or self._register is None:
            return
        self._changed = True
        if self.archive is None and self._memory.lasts:
            self._memory.put("cut", str(step).encode())
        self._snapshot.take(shard)
        kept = [Entry(f"buffer/{name}", value.clone()) for name, value in buffers.items()]
        if self.archive is not None:
            self._index = self._describe(self._register, step, layout, tuple(buffers), groups)
            self.archive.begin()
        self._writer.write(step, lambda: [*self._snapshot.entries(layout), *kept])

    def _describe(
        self,
        header: Register,
        step: int,
        layout: Layout,
        buffers: tuple[str, ...],
        groups: tuple[Group, ...],
    ) -> Index:
        servers = [block.server for block in layout.blocks]
        placement = {
            f"{layout.parameters[p.parameter].name}[{p.start}:{p.stop}]": servers[p.block]
            for p in layout.pieces
        }
        return Index(
            step=step,
            mode=msgspec.to_builtins(header.mode),
            time=time.time(),
            parameters=tuple(SavedParameter(p.name, p.shape, p.dtype, p.group) for p in layout.parameters),
            optimizer=SavedOptimizer(header.optimizer.name, groups),
            shards=(),
            buffers=buffers,
            tied=header.tied,
            placement=placement,
            average=header.average,
            versions=versions(),
        )

    def written(self) -> ShardSaved | None:
        """What this server has written since the last call; the coordinator collects it at once."""
        result = None if self._writer is None else self._writer.result()
        if result is None:
            return None
        step, file, error = result
        self._memory.drop("cut")
        report = ShardSaved(step, file, f"/job:ps/task:{self._server}: {error}" if error else "")
        self.collect(self._server, report)
        return report

    def collect(self, server: int, report: ShardSaved) -> None:
        """On the coordinator: what a server has written."""
        if self.checkpoints is not None:
            self.checkpoints.file(server, report.step, report.file, report.error)

    def give_state(self, worker: int, given: OwnState) -> None:
        """On the coordinator: a worker's own state."""
        if self.checkpoints is not None:
            self._changed = True
            self.checkpoints.give(worker, given.state, given.step)

    def published(self, present: Iterable[int]) -> SaveOutcome | None:
        """On the coordinator: what has become of a cut. People hear of it."""
        if self.archive is None or self.checkpoints is None:
            return None
        contents = self.checkpoints.ready(set(present), time.monotonic())
        if contents is not None and self._index is not None:
            self.archive.publish(self._index, contents.files, contents.replicas, contents.errors)
        outcome = self.archive.poll()
        if outcome is not None:
            self._changed = True
            self._latest = outcome
            self._log.tell(outcome)
        return outcome

    @property
    def failure(self) -> SaveFailed | None:
        """On the coordinator, at the end: the error of the final save, if it failed."""
        return None if self._latest is None else self._latest.failure

    @property
    def planned(self) -> bool:
        """Whether this job saves."""
        return self._writer is not None

    @property
    def busy(self) -> bool:
        """Whether something is being written."""
        making = self.checkpoints is not None and self.checkpoints.busy
        return making or (self._writer is not None and self._writer.busy)

    def close(self) -> None:
        """Finish what is being written, and let others into the directory."""
        self._log.finish()
        if self._writer is not None:
            self._writer.close()
        if self.archive is not None:
            self.archive.close()
