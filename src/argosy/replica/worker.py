"""A worker: which task it is, and how it works with the others. `argosy.Replica` adds the session."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from argosy.cluster.discover import EVALUATOR, Identity
from argosy.errors import ConfigError, JobFailed
from argosy.modes import Local, Mode
from argosy.replica import task_exit
from argosy.replica.call_order import CallOrder
from argosy.store.client import StoreClient
from argosy.store.placement import Greedy, UserPlacement

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.utils.data import Dataset

    from argosy.replica.exchange import Exchange
    from argosy.replica.loader import Loader
    from argosy.replica.optimizer import DistributedOptimizer
    from argosy.replica.server_exchange import Options
    from argosy.replica.towers import Towers
    from argosy.ring.member import RingMember
    from argosy.store.inquiry import Inquirer


T = TypeVar("T")


class Worker:
    """One worker of the job: all that a `Replica` is, but for its session."""

    def __init__(
        self, identity: Identity, client: StoreClient | None, member: RingMember | None = None
    ) -> None:
        self._identity = identity
        self._client = client
        self._member = member
        self.calls = CallOrder(served=client is not None, alone=client is None and member is None)

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
        from argosy.wire.tensor_bytes import dtype_name

        self.calls.distribute(optimizer)
        if clip_norm is not None and not clip_norm > 0:
            raise ConfigError("clip_norm", "a number greater than 0", clip_norm)
        if wire_dtype is not None and not wire_dtype.is_floating_point:
            raise ConfigError("wire_dtype", "a floating-point dtype, such as torch.bfloat16", wire_dtype)
        from argosy.replica.server_exchange import Options

        wire = None if wire_dtype is None else dtype_name(wire_dtype, "the wire")
        speaks = self.is_chief and self.count > 1
        if self._member is not None:
            from argosy.replica.ring_exchange import RingExchange

            ring = RingExchange(self._member, clip_norm, wire_dtype, overlap is not False)
            return DistributedOptimizer(optimizer, ring, speaks)
        options = Options(Greedy() if placement is None else placement, clip_norm, wire, bool(overlap))
        return DistributedOptimizer(optimizer, self._exchange(optimizer, options), speaks)

    def _exchange(self, optimizer: torch.optim.Optimizer, options: Options) -> Exchange:
        if self._client is None:
            from argosy.replica.local_exchange import LocalExchange

            return LocalExchange(options.clip_norm)
        from argosy.replica.server_exchange import ServerExchange
        from argosy.store.optimizers import describe

        describe(optimizer)  # refused here, where it was made, if the servers cannot run it
        servers = self._identity.cluster.count("ps")
        return ServerExchange(self._client, self.mode, servers, options, self.is_chief)

    def towers(self, model: nn.Module, devices: Sequence[str | torch.device] | None = None) -> Towers:
        """The model on several devices of this worker: call it like the model.

        Each batch is split over the devices, forward and backward run on all at once, and the gradients
        arrive as of one device on the whole batch. `devices`: such as `["cuda:0", "cuda:1"]`, or
        `["cpu", "cpu"]`; default: what `--num_gpus` says, else every GPU, else the CPU.
        """
        from argosy.replica.towers import Towers, choose_devices

        return Towers(model, choose_devices(devices, self.num_gpus))

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
    def is_replaceable(self) -> bool:
        """Whether another process takes this one's place if it dies."""
        return self._client is not None and self._identity.losses.replaces

    @property
    def gathers(self) -> int:
        """In how many gathers, with servers, this worker has taken part."""
        return 0 if self._client is None else self._client.gathers

    def skip_gathers(self, count: int) -> None:
        """A process whose place this one has taken has taken part in so many."""
        if self._client is not None:
            self._client.gathers = count

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
        task_exit.write_record(self._identity.task, error)
        if self._member is not None:
            self._member.fail(task_exit.describe(error))
        if self._client is not None and isinstance(error, JobFailed):
            self._client.fail(error.reason, error.task)
        elif self._client is not None:
            self._client.fail(task_exit.describe(error))
