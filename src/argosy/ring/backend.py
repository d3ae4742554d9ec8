"""The torch.distributed backend "argosy", for plain PyTorch on CPUs.

A collective that the caller waits for runs in the caller's thread; one that it does not wait for
(`async_op=True`, and what DistributedDataParallel sends during backward) in a thread of the group's own, in
the order of the calls.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import distributed as dist
from torch._C import _distributed_c10d
from torch._C._distributed_c10d import Store
from torch.futures import Future

from argosy.cluster.settings import read_bool, variable
from argosy.errors import ConfigError
from argosy.ring.group import Membership, RingGroup
from argosy.ring.sums import Operation

NAME = "argosy"
_work_of: Callable[[Any], Any] = getattr(_distributed_c10d, "_create_work_from_future")  # noqa: B009
_OPERATIONS: dict[Any, Operation] = {
    dist.ReduceOp.SUM: "sum",
    dist.ReduceOp.AVG: "mean",
    dist.ReduceOp.PRODUCT: "product",
    dist.ReduceOp.MIN: "min",
    dist.ReduceOp.MAX: "max",
    dist.ReduceOp.BAND: "and",
    dist.ReduceOp.BOR: "or",
    dist.ReduceOp.BXOR: "xor",
}


class RingProcessGroup(dist.ProcessGroup):
    """What `init_process_group("argosy")` makes."""

    def __init__(self, group: RingGroup) -> None:
        super().__init__(group.rank, group.size)  # type: ignore[call-arg]
        self._group = group
        self._runner = _Runner()

    # --- what torch asks of a group -----------------------------------------------------------------------
    def getBackendName(self) -> str:  # noqa: N802
        """As torch prints it."""
        return NAME

    def size(self) -> int:
        """The number of ranks."""
        return self._group.size

    def rank(self) -> int:
        """Which one this is."""
        return self._group.rank

    @property
    def group_name(self) -> str:  # type: ignore[override]
        """The name that torch has given to this group."""
        return str(dist.distributed_c10d._world.pg_names[self])

    def shutdown(self) -> None:
        """Leave: called by `destroy_process_group`."""
        self._runner.close()
        self._group.close()

    abort = shutdown

    # --- collectives --------------------------------------------------------------------------------------
    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:  # type: ignore[override]
        """Every rank's tensors combined."""
        operation = _operation(opts)

        def work() -> None:
            for tensor in tensors:
                with _Flat(tensor) as flat:
                    self._group.all_reduce(flat, operation)

        return self._runner.run(work, tensors, opts)

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:
        """The same."""
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:  # type: ignore[override]
        """Combined, in the root only."""
        operation, root = _operation(opts), opts.rootRank

        def work() -> None:
            for tensor in tensors:
                with _Flat(tensor) as flat:
                    self._group.all_reduce(flat, operation, keep=self.rank() == root)

        return self._runner.run(work, tensors, opts)

    def broadcast(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:  # type: ignore[override]
        """The root's tensors."""
        root = 0 if opts is None else opts.rootRank

        def work() -> None:
            for tensor in tensors:
                with _Flat(tensor) as flat:
                    self._group.broadcast(flat, root)

        return self._runner.run(work, tensors, opts)

    def allgather(  # type: ignore[override]
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None
    ) -> Any:
        """Every rank's tensor."""

        def work() -> None:
            for output, given in zip(outputs, inputs, strict=True):
                self._gather(output, given)

        return self._runner.run(work, outputs, opts)

    def allgather_coalesced(
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None
    ) -> Any:
        """Lists of tensors, by rank."""

        def work() -> None:
            for number, given in enumerate(inputs):
                self._gather([lists[number] for lists in outputs], given)

        return self._runner.run(work, outputs, opts)

    def all_gather_single(self, output: torch.Tensor, given: torch.Tensor, opts: Any = None) -> Any:
        """Every rank's tensor, one after the other in one."""

        def work() -> None:
            with _Flat(output) as flat:
                self._group.all_gather(list(flat.chunk(self.size())) if flat.numel() else [], _flat(given))

        return self._runner.run(work, [output], opts)

    _allgather_base = all_gather_single  # type: ignore[assignment]

    def gather(  # type: ignore[override]
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None
    ) -> Any:
        """Every rank's tensor, in the root."""

        def work() -> None:
            for number, given in enumerate(inputs):
                mine = outputs[number] if opts.rootRank == self.rank() else None
                self._gather(mine or [torch.empty_like(given) for _ in range(self.size())], given)

        return self._runner.run(work, outputs, opts)

    def reduce_scatter(  # type: ignore[override]
        self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any = None
    ) -> Any:
        """What all ranks have for this one, combined."""
        operation = _operation(opts)

        def work() -> None:
            for output, given in zip(outputs, inputs, strict=True):
                with _Flat(output) as flat:
                    self._group.reduce_scatter(flat, [_flat(each) for each in given], operation)

        return self._runner.run(work, outputs, opts)

    def reduce_scatter_single(self, output: torch.Tensor, given: torch.Tensor, opts: Any = None) -> Any:
        """The same, of one tensor that is cut into as many pieces as there are ranks."""
        pieces = list(_flat(given).split(output.numel())) if output.numel() else []
        return self.reduce_scatter([output], [pieces], opts)

    _reduce_scatter_base = reduce_scatter_single  # type: ignore[assignment]

    def barrier(self, opts: Any = None) -> Any:
        """Wait until every rank is here."""
        return self._runner.run(self._group.barrier, [], opts)

    def _gather(self, outputs: Sequence[torch.Tensor], given: torch.Tensor) -> None:
        room = [torch.empty(given.numel(), dtype=given.dtype) for _ in outputs]
        whole = all(output.is_contiguous() for output in outputs)
        flat = [output.detach().view(-1) for output in outputs] if whole else room
        self._group.all_gather(flat, _flat(given))
        if not whole:
            for output, filled in zip(outputs, room, strict=True):
                output.detach().copy_(filled.view(output.shape))


class _Flat:
    """A tensor as a flat one; what becomes of that goes back into a tensor that is not contiguous."""

    def __init__(self, tensor: torch.Tensor) -> None:
        if tensor.device.type != "cpu" or tensor.is_sparse:
            raise ConfigError("tensor", "a dense one on the CPU", f"{tensor.layout} on {tensor.device}")
        self._tensor = tensor.detach()
        self._flat = _flat(self._tensor)

    def __enter__(self) -> torch.Tensor:
        return self._flat

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None and not self._tensor.is_contiguous():
            self._tensor.copy_(self._flat.view(self._tensor.shape))


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.detach().contiguous().view(-1)
    return torch.view_as_real(flat).view(-1) if flat.is_complex() else flat


def _operation(opts: Any) -> Operation:
    if opts is None:
        return "sum"
    found = _OPERATIONS.get(opts.reduceOp.op if hasattr(opts.reduceOp, "op") else opts.reduceOp)
    if found is None:
        raise ConfigError("op", "SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR or BXOR", opts.reduceOp)
    return found


class _Runner:
    """Runs collectives in order: here, or in a thread that is started when it is first needed."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[Callable[[], None], Any, Any] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._pending = 0
        done: Any = Future()
        done.set_result([])
        self._done = _work_of(done)  # of everything that was done when the call came back
        self._lock = threading.Lock()

    def run(self, work: Callable[[], None], result: Any, opts: Any) -> Any:
        """A torch Work for it."""
        if self._pending or getattr(opts, "asyncOp", True):
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, name="argosy-ring", daemon=True)
                self._thread.start()
            future: Any = Future()
            with self._lock:
                self._pending += 1
            self._queue.put((work, future, result))
            return _work_of(future)
        with torch.no_grad():
            work()
        return self._done

    def _loop(self) -> None:
        torch.set_grad_enabled(False)
        while (item := self._queue.get()) is not None:
            work, future, result = item
            error = None
            try:
                work()
            except Exception as raised:  # goes to whoever waits for the work
                error = raised
            with self._lock:
                self._pending -= 1
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)
            del item, work, future, result, error

    def close(self) -> None:
        """Let what was asked for end, and the thread with it."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None


def create(store: Store, rank: int, size: int, timeout: timedelta) -> RingProcessGroup:
    """As torch.distributed calls it."""
    told = os.environ.get(variable("insecure"), "")
    member = Membership(
        rank,
        tuple(f"rank {number}" for number in range(size)),
        timeout.total_seconds(),
        insecure=bool(told) and read_bool("insecure", told),
        towards=os.environ.get("MASTER_ADDR", "localhost"),
    )
    return RingProcessGroup(RingGroup(store, member))


def register() -> None:
    """Make the name known to torch.distributed; more than once does no harm."""
    if NAME.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(NAME, create, devices=["cpu"])
