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
from torch.distributed import PrefixStore, Store

from argosy.cluster.settings import read_bool, variable
from argosy.errors import ConfigError
from argosy.ring import sparse
from argosy.ring.flats import Flat, Flats, alike, flat_of, split_by
from argosy.ring.group import Membership, RingGroup
from argosy.ring.point_to_point import PointToPoint
from argosy.ring.reduction import Operation
from argosy.ring.runner import Runner

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
# Complex numbers travel as pairs of real ones, which can be added and no more.
_BITWISE = frozenset({"and", "or", "xor"})
_REAL = _BITWISE | {"product", "min", "max"}


class RingProcessGroup(dist.ProcessGroup):
    """What `init_process_group("argosy")` makes."""

    def __init__(self, group: RingGroup, pairs: PointToPoint) -> None:
        super().__init__(group.rank, group.size)  # type: ignore[call-arg]
        self._group = group
        self._pairs = pairs
        others = tuple(name for rank, name in enumerate(group.names) if rank != group.rank)
        self._runner = Runner(group, others)
        self._name = ""

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
        return self._name

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def shutdown(self) -> None:
        """Leave: called by `destroy_process_group`."""
        self._runner.close()
        self._pairs.close()
        self._group.close()

    abort = shutdown

    # --- collectives --------------------------------------------------------------------------------------
    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:  # type: ignore[override]
        """Every rank's tensors combined."""

        def work() -> None:
            operation = _operation(opts, tensors)
            for tensor in tensors:
                if tensor.layout == torch.sparse_coo and tensor.device.type == "cpu":
                    sparse.all_reduce(self._group, tensor, operation)
                    continue
                with Flat(tensor) as flat:
                    self._group.all_reduce(flat, operation)

        return self._runner.run("all_reduce", work, tensors, opts)

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:
        """The same."""
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:  # type: ignore[override]
        """Combined, in the root only."""

        def work() -> None:
            operation = _operation(opts, tensors)
            for tensor in tensors:
                with Flat(tensor, written=self.rank() == opts.rootRank) as flat:
                    self._group.all_reduce(flat, operation, opts.rootRank)

        return self._runner.run("reduce", work, tensors, opts)

    def broadcast(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:  # type: ignore[override]
        """The root's tensors."""
        root = 0 if opts is None else opts.rootRank

        def work() -> None:
            for tensor in tensors:
                with Flat(tensor, written=self.rank() != root) as flat:
                    self._group.broadcast(flat, root)

        return self._runner.run("broadcast", work, tensors, opts)

    def allgather(  # type: ignore[override]
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None
    ) -> Any:
        """Every rank's tensor."""

        def work() -> None:
            for output, given in zip(outputs, inputs, strict=True):
                self._gather(output, given)

        return self._runner.run("all_gather", work, outputs, opts)

    def allgather_coalesced(
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None
    ) -> Any:
        """Lists of tensors, by rank."""

        def work() -> None:
            for number, given in enumerate(inputs):
                self._gather([lists[number] for lists in outputs], given)

        return self._runner.run("all_gather", work, outputs, opts)

    def all_gather_single(self, output: torch.Tensor, given: torch.Tensor, opts: Any = None) -> Any:
        """Every rank's tensor, one after the other in one."""
        return self.all_gather_single_coalesced([output], [given], opts)

    _allgather_base = all_gather_single  # type: ignore[assignment]

    def all_gather_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> Any:
        """Several of them."""

        def work() -> None:
            for output, given in zip(outputs, inputs, strict=True):
                self._whole("output", output, given)
                mine = flat_of(given)
                with Flat(output) as flat:
                    self._group.all_gather(flat.view(self.size(), mine.numel()).unbind(), mine)

        return self._runner.run("all_gather", work, outputs, opts)

    allgather_into_tensor_coalesced = all_gather_single_coalesced  # type: ignore[assignment]

    def gather(  # type: ignore[override]
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None
    ) -> Any:
        """Every rank's tensor, in the root."""
        root = opts.rootRank

        def work() -> None:
            for number, given in enumerate(inputs):
                into = outputs[number] if root == self.rank() else []
                if root == self.rank():
                    alike("gather_list", into, given, self.size())
                mine = flat_of(given)
                with Flats(into) as flat:
                    self._group.exchange(flat, self._only(root, mine), "gather", mine.numel(), root)

        return self._runner.run("gather", work, outputs, opts)

    def scatter(  # type: ignore[override]
        self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any = None
    ) -> Any:
        """The root's tensor for this rank."""
        root = opts.rootRank

        def work() -> None:
            for number, output in enumerate(outputs):
                tensors = inputs[number] if root == self.rank() else []
                if root == self.rank():
                    alike("scatter_list", tensors, output, self.size())
                given = [flat_of(each) for each in tensors]
                with Flat(output) as flat:
                    self._group.exchange(self._only(root, flat), given, "scatter", flat.numel(), root)

        return self._runner.run("scatter", work, outputs, opts)

    def alltoall(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None) -> Any:
        """What each rank has for this one; sizes may differ."""

        def work() -> None:
            alike("output_tensor_list", outputs, outputs[0], self.size(), sizes=False)
            alike("input_tensor_list", inputs, outputs[0], self.size(), sizes=False)
            given = [flat_of(each) for each in inputs]
            with Flats(outputs) as flat:
                self._group.exchange(flat, given)

        return self._runner.run("all_to_all", work, outputs, opts)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        given: torch.Tensor,
        output_sizes: list[int],
        input_sizes: list[int],
        opts: Any = None,
    ) -> Any:
        """The same, of tensors that are cut along their first dimension: as said, or evenly."""

        def work() -> None:
            alike("input", [given], output, 1, sizes=False)
            parts = split_by(flat_of(given), given, input_sizes, self.size())
            with Flat(output) as flat:
                into = split_by(flat, output, output_sizes, self.size())
                self._group.exchange(into, parts)

        return self._runner.run("all_to_all", work, [output], opts)

    alltoall_base = all_to_all_single  # type: ignore[assignment]

    def reduce_scatter(  # type: ignore[override]
        self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any = None
    ) -> Any:
        """What all ranks have for this one, combined."""

        def work() -> None:
            operation = _operation(opts, outputs)
            for output, given in zip(outputs, inputs, strict=True):
                alike("input_list", given, output, self.size(), sizes=False)
                alike("output", [output], given[self.rank()], 1)
                with Flat(output) as flat:
                    self._group.reduce_scatter(flat, [flat_of(each) for each in given], operation)

        return self._runner.run("reduce_scatter", work, outputs, opts)

    def reduce_scatter_single(self, output: torch.Tensor, given: torch.Tensor, opts: Any = None) -> Any:
        """The same, of one tensor that is cut into as many pieces as there are ranks."""
        return self.reduce_scatter_single_coalesced([output], [given], opts)

    _reduce_scatter_base = reduce_scatter_single  # type: ignore[assignment]

    def reduce_scatter_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> Any:
        """Several of them."""

        def work() -> None:
            operation = _operation(opts, outputs)
            for output, given in zip(outputs, inputs, strict=True):
                self._whole("input", given, output)
                with Flat(output) as flat:
                    pieces = flat_of(given).view(self.size(), flat.numel()).unbind()
                    self._group.reduce_scatter(flat, pieces, operation)

        return self._runner.run("reduce_scatter", work, outputs, opts)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced  # type: ignore[assignment]

    def barrier(self, opts: Any = None) -> Any:
        """Wait until every rank is here."""
        return self._runner.run("barrier", self._group.barrier, [], opts)

    # --- from one rank to another -------------------------------------------------------------------------
    def send(self, tensors: list[torch.Tensor], to: int, tag: int = 0) -> Any:
        """To one rank, which calls `recv` with the same tag; those of a tag arrive in order."""
        return self._pairs.send(tensors, to, tag)

    def recv(self, tensors: list[torch.Tensor], source: int, tag: int = 0) -> Any:
        """From one rank."""
        return self._pairs.receive(tensors, source, tag)

    def recv_anysource(self, tensors: list[torch.Tensor], tag: int = 0) -> Any:
        """Refused."""
        raise ConfigError("src", "the rank to receive from", None, "pass the rank that sends")

    def _start_coalescing(self, device: object) -> None:
        """Calls are not gathered: each is run as it comes."""

    def _end_coalescing(self, device: object) -> None:  # type: ignore[override]
        """See `_start_coalescing`: nothing is left to be run."""

    # --- helpers ------------------------------------------------------------------------------------------
    def _only(self, rank: int, tensor: torch.Tensor) -> list[torch.Tensor]:
        """A list by rank, of which only one is not empty."""
        return [tensor if each == rank else tensor[:0] for each in range(self.size())]

    def _whole(self, what: str, whole: torch.Tensor, part: torch.Tensor) -> None:
        """Refuse a tensor that is not as large as one part for each rank."""
        if whole.dtype != part.dtype or whole.numel() != self.size() * part.numel():
            expected = f"{self.size()} times {part.numel()} elements of {part.dtype}"
            raise ConfigError(what, expected, f"{whole.numel()} of {whole.dtype}")

    def _gather(self, outputs: Sequence[torch.Tensor], given: torch.Tensor) -> None:
        alike("tensor_list", outputs, given, self.size())
        mine = flat_of(given)
        with Flats(outputs) as flat:
            self._group.all_gather(flat, mine)


def _operation(opts: Any, tensors: Sequence[torch.Tensor]) -> Operation:
    if opts is None:
        return "sum"
    found = _OPERATIONS.get(opts.reduceOp.op if hasattr(opts.reduceOp, "op") else opts.reduceOp)
    if found is None:
        raise ConfigError("op", "SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR or BXOR", opts.reduceOp)
    if found in _REAL:
        for tensor in tensors:
            if tensor.is_complex() or (found in _BITWISE and tensor.is_floating_point()):
                kind = "integers" if found in _BITWISE else "real numbers"
                raise ConfigError("op", f"SUM or AVG, since {found.upper()} takes {kind} only", tensor.dtype)
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
    return RingProcessGroup(RingGroup(store, member), PointToPoint(PrefixStore("lanes", store), member))


def register() -> None:
    """Make the name known to torch.distributed; more than once does no harm."""
    if not dist.is_backend_available(NAME):
        dist.Backend.register_backend(NAME, create, devices=["cpu"])
