"""`join()` and the `Replica` it gives: who am I, and how do I work together with the others."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec

from argosy.cluster.cores import share_cores
from argosy.cluster.discover import EVALUATOR, Identity, discover, take_flags
from argosy.cluster.launched import mark_joined
from argosy.cluster.memory import keep_freed_memory
from argosy.cluster.spec import ClusterSpec, Task
from argosy.errors import CallError, ConfigError
from argosy.events import say
from argosy.modes import BufferRule, Local, Mode, Ring
from argosy.replica import farewell
from argosy.replica.calls import Calls
from argosy.replica.serving import Server, connect
from argosy.script import calling_line
from argosy.store.client import StoreClient
from argosy.store.placement import Greedy, UserPlacement

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.utils.data import Dataset

    from argosy.hooks.hook import Hook
    from argosy.replica.exchange import Exchange
    from argosy.replica.loader import Loader
    from argosy.replica.optimizer import DistributedOptimizer
    from argosy.replica.served import Options
    from argosy.replica.towers import Towers
    from argosy.ring.member import RingMember
    from argosy.session.session import Session
    from argosy.session.state import Stateful
    from argosy.store.status import Inquirer


T = TypeVar("T")
_joined = ""  # the script's line that has joined a cluster, of which a process is one task


def join(
    *,
    cluster: ClusterSpec | Mapping[str, Sequence[str]] | None = None,
    job_name: str | None = None,
    task_index: int | None = None,
    mode: Mode | None = None,
) -> Replica:
    """Find this task's place in its cluster, and take it.

    Reads flags (and takes them out of `sys.argv`), ARGOSY_* variables and TF_CONFIG; with none of them this
    is a cluster of one. In a ps task it serves until the job is done, and then the process exits.
    """
    global _joined
    where = calling_line()
    if _joined:
        problem = f"this process joined its cluster at {_joined}"
        raise CallError(where, "join()", problem, "call it once, and pass the replica on")
    farewell.install(Task("task", 0), lambda: None, lambda reason: None)
    mark_joined()
    words, rest = take_flags(sys.argv[1:])
    if job_name is not None:
        words["job_name"] = job_name
    if task_index is not None:
        words["task_index"] = str(task_index)
    spec = ClusterSpec(cluster) if isinstance(cluster, Mapping) else cluster
    identity = discover(words, os.environ, cluster=spec, mode=mode)
    sys.argv[1:] = rest
    if identity.task.job == "ps":
        _serve(identity)
    replica = _enter(identity)
    _joined = "" if isinstance(identity.mode, Local) else where
    return replica


def _serve(identity: Identity) -> None:
    try:
        server = Server(
            identity.cluster,
            identity.task.job,
            identity.task.index,
            bind=identity.bind,
            insecure=identity.insecure,
            wait=identity.wait,
            use_lane=identity.use_lane,
            remote=False,
        )
        server.join()
    except Exception as error:
        farewell.write_record(identity.task, error)
        raise
    sys.exit(0)


def _enter(identity: Identity) -> Replica:
    keep_freed_memory()
    if isinstance(identity.mode, Local):
        return Replica(identity, None)
    share_cores(identity.cluster, identity.task)
    if isinstance(identity.mode, Ring):
        from argosy.replica.ringing import enter_ring

        member = enter_ring(identity)
        farewell.install(identity.task, member.leave, member.fail)
        return Replica(identity, None, member)
    me, cluster = identity.task, identity.cluster
    client = StoreClient(
        cluster, me, lambda server: connect(cluster, me, server), identity.wait, identity.use_lane
    )
    farewell.install(me, client.leave, client.fail)
    client.hello()
    return Replica(identity, client)


class Replica:
    """One worker of the job."""

    def __init__(
        self, identity: Identity, client: StoreClient | None, member: RingMember | None = None
    ) -> None:
        self._identity = identity
        self._client = client
        self._member = member
        self.calls = Calls(served=client is not None, alone=client is None and member is None)

    @property
    def task(self) -> str:
        """This task's name, such as `/job:worker/task:1`."""
        return str(self._identity.task)

    @property
    def index(self) -> int:
        """Which worker this is."""
        return self._identity.task.index

    @property
    def count(self) -> int:
        """How many workers there are."""
        return 1 if isinstance(self.mode, Local) else max(1, self._identity.cluster.count("worker"))

    @property
    def is_chief(self) -> bool:
        """Whether this is worker 0, which initialises the parameters."""
        return self.index == 0 and not self.is_evaluator

    @property
    def is_evaluator(self) -> bool:
        """Whether this task evaluates the checkpoints of the others, and does not train."""
        return self._identity.task.job == EVALUATOR

    @property
    def mode(self) -> Mode:
        """How the replicas work together: Async, Sync, Ring or Local."""
        return self._identity.mode

    @property
    def num_gpus(self) -> int | None:
        """What `--num_gpus` said."""
        return self._identity.num_gpus

    def seed(self, number: int) -> int:
        """Seed torch and random: the same stream in every run, another one in every worker."""
        import torch

        mixed = random.Random(f"{number}/{self.index}").getrandbits(63)
        random.seed(mixed)
        torch.manual_seed(mixed)
        return mixed

    def distribute(
        self,
        optimizer: torch.optim.Optimizer,
        placement: UserPlacement | None = None,
        clip_norm: float | None = None,
        wire_dtype: torch.dtype | None = None,
        overlap: bool | None = None,
    ) -> DistributedOptimizer:
        """An optimizer whose `step()` trains together with all the replicas.

        `placement`: which server keeps which parameter (Greedy, RoundRobin, Split, a function or a mapping
        of parameter names). `clip_norm`: clip the averaged gradient by its norm over all servers.
        `wire_dtype`: torch.bfloat16 halves what travels between hosts; the servers go on in full precision.
        `overlap`: gradients leave while backward goes on. With servers, for other hosts only, `step` commits
        them, and it is off unless asked for; in the ring it is on: after backward `.grad` is the mean.
        """
        from argosy.replica.optimizer import DistributedOptimizer
        from argosy.wire.tensors import dtype_name

        self.calls.distribute(optimizer)
        if clip_norm is not None and not clip_norm > 0:
            raise ConfigError("clip_norm", "a number greater than 0", clip_norm)
        if wire_dtype is not None and not wire_dtype.is_floating_point:
            raise ConfigError("wire_dtype", "a floating-point dtype, such as torch.bfloat16", wire_dtype)
        from argosy.replica.served import Options

        wire = None if wire_dtype is None else dtype_name(wire_dtype, "the wire")
        speaks = self.is_chief and self.count > 1
        if self._member is not None:
            from argosy.replica.ringed import RingExchange

            ring = RingExchange(self._member, clip_norm, wire_dtype, overlap is not False)
            return DistributedOptimizer(optimizer, ring, speaks)
        options = Options(Greedy() if placement is None else placement, clip_norm, wire, bool(overlap))
        return DistributedOptimizer(optimizer, self._exchange(optimizer, options), speaks)

    def _exchange(self, optimizer: torch.optim.Optimizer, options: Options) -> Exchange:
        if self._client is None:
            from argosy.replica.alone import AloneExchange

            return AloneExchange(options.clip_norm)
        from argosy.replica.served import ServedExchange
        from argosy.store.optimizers import describe

        describe(optimizer)  # refused here, where it was made, if the servers cannot run it
        servers = self._identity.cluster.count("ps")
        return ServedExchange(self._client, self.mode, servers, options, self.is_chief)

    def towers(self, model: nn.Module, devices: Sequence[str | torch.device] | None = None) -> Towers:
        """The model on several devices of this worker: call it like the model.

        Each batch is split over the devices, forward and backward run on all at once, and the gradients
        arrive as of one device on the whole batch. `devices`: such as `["cuda:0", "cuda:1"]`, or
        `["cpu", "cpu"]`; default: what `--num_gpus` says, else every GPU, else the CPU.
        """
        from argosy.replica.towers import Towers, choose_devices

        return Towers(model, choose_devices(devices, self.num_gpus))

    def session(
        self,
        model: nn.Module,
        optimizer: DistributedOptimizer,
        *,
        last_step: int | None = None,
        directory: str | os.PathLike[str] | None = None,
        save_every: int | None = None,
        save_seconds: float | None = None,
        keep: int = 5,
        average: float | None = None,
        initial: str | os.PathLike[str] | None = None,
        state: Mapping[str, Stateful] | None = None,
        hyperparameters: Literal["checkpoint", "script"] = "checkpoint",
        evaluate: Callable[[nn.Module], Any] | None = None,
        buffers: BufferRule = "chief",
        hooks: Sequence[Hook] = (),
    ) -> Session:
        """The frame of a training: begins from the chief's parameters, ends for all at `last_step` updates.

        `directory`: checkpoints are kept there, the newest `keep`, one every `save_every` updates or every
        `save_seconds` (600 if neither is said) and one at the end; a training that finds one goes on from it.
        `average`: keep moving averages of the parameters with this decay, for `session.averaged()`.
        `initial`: a file with a `state_dict` to begin from. `state`: what else is kept with the checkpoints,
        such as `{"scheduler": scheduler}`. `hyperparameters`: when a training is resumed, those of the
        "checkpoint" count, or those of the "script". `evaluate`: what an evaluator does with each checkpoint.
        `buffers`: whose running statistics (of BatchNorm and the like) everybody gets, the "chief"'s or the
        "mean" of all. `hooks`: what else happens along with it, see `argosy.hooks`.
        """
        from argosy.replica.exchange import Training
        from argosy.session.beginning import initial_values, plan
        from argosy.session.session import Session

        if last_step is not None and last_step < 0:
            raise ConfigError("last_step", "a number of updates, 0 or more", last_step)
        if buffers not in ("chief", "mean"):
            raise ConfigError("buffers", "chief or mean", repr(buffers))
        if hyperparameters not in ("checkpoint", "script"):
            raise ConfigError("hyperparameters", "checkpoint or script", repr(hyperparameters))
        if average is not None and not 0 < average < 1:
            raise ConfigError("average", "a decay between 0 and 1, such as 0.999", average)
        keeping, saving = plan(directory, save_every, save_seconds, keep)
        training = Training(
            model,
            last_step,
            buffers,
            keeping,
            average,
            None if initial is None else initial_values(model, initial),
            hyperparameters=hyperparameters,
        )
        if self.is_evaluator:
            from argosy.session.evaluation import EvaluatorSession

            return EvaluatorSession(self, optimizer, training, evaluate, self._identity.wait)
        if (note := self.calls.check_model(model, optimizer)) and self.is_chief:
            say(note)
        return Session(self, optimizer, training, [*saving, *hooks], state)

    def loader(self, dataset: Dataset[T], batch_size: int, seed: int = 0, **options: Any) -> Loader[T]:
        """Batches of this replica's own share of `dataset`, reshuffled each epoch; resumes where it was.

        `seed`: the same on every replica. `shuffle`, `drop_last` and all other options are as of torch's
        DataLoader.
        """
        from argosy.replica.loader import Loader

        return Loader(dataset, batch_size, seed, self.index, self.count, **options)

    def barrier(self) -> None:
        """Wait until every worker is here."""
        self.gather(None)

    def broadcast(self, value: Any) -> Any:
        """The chief's `value` (numbers, text, lists, mappings), on every worker."""
        return self.gather(value if self.is_chief else None)[0]

    def gather(self, value: Any) -> list[Any]:
        """Every worker's `value`, in order of index."""
        if self._member is not None:
            return [
                msgspec.msgpack.decode(each) for each in self._member.gather(msgspec.msgpack.encode(value))
            ]
        if self._client is None:
            return [value]
        gathered = self._client.gather(msgspec.Raw(msgspec.msgpack.encode(value)))
        return [msgspec.msgpack.decode(gathered[worker]) for worker in sorted(gathered)]

    @property
    def has_servers(self) -> bool:
        """Whether there are parameter servers in this job."""
        return self._client is not None

    def inquire(self) -> Inquirer | None:
        """Somebody to ask how the job stands, on a channel of its own; None without servers."""
        return None if self._client is None else self._client.inquire()

    def leave(self) -> None:
        """This worker is done; the session says it by itself, and so does the end of the script."""
        if self._member is not None:
            self._member.leave()
        if self._client is not None:
            self._client.leave()

    def fail(self, error: BaseException) -> None:
        """This worker failed: the job ends, and everybody hears why."""
        farewell.write_record(self._identity.task, error)
        if self._member is not None:
            self._member.fail(farewell.describe(error))
        if self._client is not None:
            self._client.fail(farewell.describe(error))
