"""The torch.distributed backend "argosy", for plain PyTorch on CPUs.

A collective that the caller waits for runs in the caller's thread; one that it does not wait for
(`async_op=True`, and what DistributedDataParallel sends during backward) in a thread of the group's own, in
the order of the calls.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from argosy.cluster.settings import read_bool, variable
from argosy.errors import ConfigError
from argosy.ring.flats import Flat, Flats, flat_of, split_by
from argosy.ring.group import Membership, RingGroup
from argosy.ring.lanes import Lanes
from argosy.ring.runner import Runner
from argosy.ring.sums import Operation

NAME = "argosy"
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

    def __init__(self, group: RingGroup, lanes: Lanes) -> None:
        super().__init__(group.rank, group.size)  # type: ignore[call-arg]
        self._group = group
        self._lanes = lanes
        self._runner = Runner()

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
        self._lanes.close()
        self._group.close()

    abort = shutdown

    # --- collectives --------------------------------------------------------------------------------------
    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:  # type: ignore[override]
        """Every rank's tensors combined."""
        operation = _operation(opts)

        def work() -> None:
            for tensor in tensors:
                with Flat(tensor) as flat:
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
                with Flat(tensor) as flat:
                    self._group.all_reduce(flat, operation, keep=self.rank() == root)

        return self._runner.run(work, tensors, opts)

    def broadcast(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:  # type: ignore[override]
        """The root's tensors."""
        root = 0 if opts is None else opts.rootRank

        def work() -> None:
            for tensor in tensors:
                with Flat(tensor) as flat:
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
        return self._runner.run(lambda: self._gather_single(output, given), [output], opts)

    _allgather_base = all_gather_single  # type: ignore[assignment]

    def all_gather_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> Any:
        """Several of them."""

        def work() -> None:
            for output, given in zip(outputs, inputs, strict=True):
                self._gather_single(output, given)

        return self._runner.run(work, outputs, opts)

    allgather_into_tensor_coalesced = all_gather_single_coalesced  # type: ignore[assignment]

    def gather(  # type: ignore[override]
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None
    ) -> Any:
        """Every rank's tensor, in the root."""
        root = opts.rootRank

        def work() -> None:
            for number, given in enumerate(inputs):
                into = outputs[number] if root == self.rank() else []
                most = given.numel()
                with Flats(into) as flat:
                    self._group.exchange(flat, self._only(root, flat_of(given)), most)

        return self._runner.run(work, outputs, opts)

    def scatter(  # type: ignore[override]
        self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any = None
    ) -> Any:
        """The root's tensor for this rank."""
        root = opts.rootRank

        def work() -> None:
            for number, output in enumerate(outputs):
                given = [flat_of(each) for each in inputs[number]] if root == self.rank() else []
                with Flat(output) as flat:
                    self._group.exchange(self._only(root, flat), given, flat.numel())

        return self._runner.run(work, outputs, opts)

    def alltoall(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None) -> Any:
        """What each rank has for this one; sizes may differ."""

        def work() -> None:
            given = [flat_of(each) for each in inputs]
            with Flats(outputs) as flat:
                self._group.exchange(flat, given)

        return self._runner.run(work, outputs, opts)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        given: torch.Tensor,
        output_sizes: list[int],
        input_sizes: list[int],
        opts: Any = None,
    ) -> Any:
        """The same, of tensors that are cut along their first dimension: as said, or evenly."""
        whole = flat_of(given)

        def work() -> None:
            with Flat(output) as flat:
                into = split_by(flat, output, output_sizes, self.size())
                self._group.exchange(into, split_by(whole, given, input_sizes, self.size()))

        return self._runner.run(work, [output], opts)

    alltoall_base = all_to_all_single  # type: ignore[assignment]

    def reduce_scatter(  # type: ignore[override]
        self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any = None
    ) -> Any:
        """What all ranks have for this one, combined."""
        operation = _operation(opts)

        def work() -> None:
            for output, given in zip(outputs, inputs, strict=True):
                with Flat(output) as flat:
                    self._group.reduce_scatter(flat, [flat_of(each) for each in given], operation)

        return self._runner.run(work, outputs, opts)

    def reduce_scatter_single(self, output: torch.Tensor, given: torch.Tensor, opts: Any = None) -> Any:
        """The same, of one tensor that is cut into as many pieces as there are ranks."""
        return self.reduce_scatter([output], [self._cut(output, given)], opts)

    _reduce_scatter_base = reduce_scatter_single  # type: ignore[assignment]

    def reduce_scatter_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> Any:
        """Several of them."""
        pieces = [self._cut(output, given) for output, given in zip(outputs, inputs, strict=True)]
        return self.reduce_scatter(outputs, pieces, opts)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced  # type: ignore[assignment]

    def barrier(self, opts: Any = None) -> Any:
        """Wait until every rank is here."""
        return self._runner.run(self._group.barrier, [], opts)

    # --- from one rank to another -------------------------------------------------------------------------
    def send(self, tensors: list[torch.Tensor], to: int, tag: int = 0) -> Any:
        """To one rank, which calls `recv` with the same tag; those of a tag arrive in order."""
        return self._lanes.send(tensors, to, tag)

    def recv(self, tensors: list[torch.Tensor], source: int, tag: int = 0) -> Any:
        """From one rank."""
        return self._lanes.receive(tensors, source, tag)

    def recv_anysource(self, tensors: list[torch.Tensor], tag: int = 0) -> Any:
        """Refused."""
        raise ConfigError("src", "the rank to receive from", None, "the argosy backend must know it")

    def _start_coalescing(self, device: object) -> None:
        """Calls are not gathered: each is run as it comes."""

    def _end_coalescing(self, device: object) -> None:  # type: ignore[override]
        """See `_start_coalescing`: nothing is left to be run."""

    # --- helpers ------------------------------------------------------------------------------------------
    def _only(self, rank: int, tensor: torch.Tensor) -> list[torch.Tensor]:
        """A list by rank, of which only one is not empty."""
        return [tensor if each == rank else tensor[:0] for each in range(self.size())]

    def _cut(self, output: torch.Tensor, given: torch.Tensor) -> list[torch.Tensor]:
        whole = flat_of(given)
        return list(whole.split(flat_of(output).numel())) if whole.numel() else []

    def _gather_single(self, output: torch.Tensor, given: torch.Tensor) -> None:
        with Flat(output) as flat:
            self._group.all_gather(list(flat.chunk(self.size())) if flat.numel() else [], flat_of(given))

    def _gather(self, outputs: Sequence[torch.Tensor], given: torch.Tensor) -> None:
        with Flats(outputs) as flat:
            self._group.all_gather(flat, flat_of(given))


def _operation(opts: Any) -> Operation:
    if opts is None:
        return "sum"
    found = _OPERATIONS.get(opts.reduceOp.op if hasattr(opts.reduceOp, "op") else opts.reduceOp)
    if found is None:
        raise ConfigError("op", "SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR or BXOR", opts.reduceOp)
    return found


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
    return RingProcessGroup(RingGroup(store, member), Lanes(PrefixStore("lanes", store), member))


def register() -> None:
    """Make the name known to torch.distributed; more than once does no harm."""
    if NAME.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(NAME, create, devices=["cpu"])
