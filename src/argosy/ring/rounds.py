"""Rounds: everybody's buckets in, the mean of all out. One round a step, through memory of this host.

A rank enters a bucket when it is full, sums its slice of a bucket when all have entered it, and reads the
result when all have summed theirs. Whether a rank gives something, and for which items, lies beside the
buckets; of two rounds in turn, for the next round begins while a slow rank still reads about this one.
A rank that leaves is not waited for: all agree since when it is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

import torch

from argosy.ring.among_hosts import Leaders
from argosy.ring.board import ENTERED, PUBLISHED, REDUCED
from argosy.ring.buckets import Bucket, Rule
from argosy.ring.host_ranks import HostMemory, RanksByHost
from argosy.ring.notes import (
    ABSENT,
    DENSE,
    HEAD,
    NO_WISHES,
    PLAIN,
    RoundOutcome,
    Said,
    Says,
    Wishes,
    conclude,
    from_number,
    head,
    merge,
    read_head,
    to_number,
)
from argosy.ring.reduction import NARROW, Operation, combine, nothing
from argosy.ring.schedule import slices

_PAGE = 4096
# How the ranks' parts become one: what a mean is made of is a sum.
_AMONG: dict[Rule, Operation] = {"mean": "sum", "latest": "sum", "first": "sum", "max": "max"}
_MEANS = frozenset({"mean", "latest"})


def room(buckets: Sequence[Bucket[torch.dtype]], company: RanksByHost) -> int:
    """The shared memory that rounds of these buckets need on this host, in bytes."""
    ranks = len(company.mine)
    results = sum(_result_bytes(bucket, company) for bucket in buckets)
    return _notes_bytes(buckets, company) + ranks * sum(bucket.nbytes for bucket in buckets) + results


def _result_dtype(bucket: Bucket[torch.dtype], company: RanksByHost) -> torch.dtype:
    """Sums that other hosts' will be added to are not rounded to half precision before."""
    return torch.float32 if len(company.hosts) > 1 and bucket.dtype in NARROW else bucket.dtype


def _result_bytes(bucket: Bucket[torch.dtype], company: RanksByHost) -> int:
    return bucket.count * _result_dtype(bucket, company).itemsize


def _items(buckets: Sequence[Bucket[torch.dtype]]) -> int:
    return sum(len(bucket.pieces) for bucket in buckets)


def _agreed_count(buckets: Sequence[Bucket[torch.dtype]], company: RanksByHost) -> int:
    """The numbers that hosts agree on: what each rank says, wants, its mark, and the kind of each piece."""
    return 3 * sum(map(len, company.hosts)) + _items(buckets)


def _notes_bytes(buckets: Sequence[Bucket[torch.dtype]], company: RanksByHost) -> int:
    rows = len(company.mine) * (HEAD + _items(buckets))
    each = 2 * (rows + 8 * _agreed_count(buckets, company)) + 8
    return -(-each // _PAGE) * _PAGE


class Rounds:
    """The rounds of these buckets among the ranks of a host, and, through its leader, of all hosts."""

    def __init__(
        self,
        host: HostMemory,
        buckets: Sequence[Bucket[torch.dtype]],
        company: RanksByHost,
        leaders: Leaders | None = None,
        wire: torch.dtype | None = None,
    ) -> None:
        self._host = host
        self._board = board = host.board
        self.buckets = tuple(buckets)
        self._leaders = leaders
        self._several = len(company.hosts) > 1
        self._on_first_host = company.hosts[0] == company.mine
        self._wire = wire
        self._ranks = company.mine
        self._world = sum(map(len, company.hosts))
        self._width = HEAD + _items(buckets)
        self._dense = bytes([DENSE]) * _items(buckets)
        everything = host.memory.everything()[host.begins :]
        notes = 2 * board.size * self._width
        whole = host.memory.words(-(-(host.begins + notes) // 8)).cast("B")
        self._notes = whole[host.begins : host.begins + notes]
        agreed = _agreed_count(buckets, company)
        numbers = everything[notes + (-notes) % 8 :][: 16 * agreed]
        self._agreed = numbers.view(torch.int64).view(2, agreed)
        self._inputs: list[list[torch.Tensor]] = []
        self._results: list[torch.Tensor] = []
        place = _notes_bytes(buckets, company)
        for bucket in buckets:
            self._inputs.append(
                [
                    everything[place + rank * bucket.nbytes :][: bucket.nbytes].view(bucket.dtype)
                    for rank in range(board.size)
                ]
            )
            place += board.size * bucket.nbytes
            nbytes = _result_bytes(bucket, company)
            self._results.append(everything[place:][:nbytes].view(_result_dtype(bucket, company)))
            place += nbytes
        # Pieces are noted in the order of the buckets, so that a bucket's are one stretch.
        ends = list(accumulate((len(bucket.pieces) for bucket in buckets), initial=0))
        self._stretches = list(pairwise(ends))
        self._closed = False
        self._round = 0
        self._head = head(Says.GIVES, 0)
        self._base = 0
        self._entered = self._reduced = 0
        self._under_way: list[Callable[[], None]] = []  # buckets that travel between the hosts
        self._agreeing: Callable[[], None] = lambda: None

    keeps_given = True  # until the next round: a result has memory of its own

    @property
    def stays(self) -> bool:
        """Whether who is done stays, giving nothing: others may need its host's leader."""
        return self._several

    # --- places -------------------------------------------------------------------------------------------
    def given(self, bucket: int) -> torch.Tensor:
        """Where this rank's part of a bucket goes."""
        return self._inputs[bucket][self._board.rank]

    def result(self, bucket: int) -> torch.Tensor:
        """Where a bucket's result is found after the round, until this rank's next one begins."""
        return self._results[bucket]

    def _row(self, rank: int) -> int:
        return (self._round % 2 * self._board.size + rank) * self._width

    # --- a round ------------------------------------------------------------------------------------------
    def begin(self, says: Says, mark: int, wishes: Wishes = NO_WISHES) -> None:
        """A new round. `mark`: a number on which all must agree; the outcome names who does not."""
        self._round += 1
        self._head = head(says, mark, wishes)
        self._base = self._board.posted[ENTERED]
        self._entered = self._reduced = 0
        self._under_way = []

    @property
    def entered(self) -> int:
        """How many buckets of this round have been entered."""
        return self._entered

    def enter(self, kinds: Sequence[int] | None = None) -> None:
        """The next bucket is in its place; `kinds`: of each of its pieces, None if all are dense."""
        row = self._row(self._board.rank)
        if not self._entered:
            self._notes[row : row + HEAD] = self._head
        begin, end = self._stretches[self._entered]
        row += HEAD
        self._notes[row + begin : row + end] = self._dense[begin:end] if kinds is None else bytes(kinds)
        self._entered += 1
        self._board.post(ENTERED)

    def kinds(self, bucket: int) -> list[int]:
        """The kinds of the pieces that this rank has entered in this round."""
        begin, end = self._stretches[bucket]
        row = self._row(self._board.rank) + HEAD
        return list(self._notes[row + begin : row + end])

    def advance(self) -> None:
        """Do what can be done without waiting."""
        while self._reduced < self._entered and self._board.reached(ENTERED, self._base + self._reduced + 1):
            self._reduce()
        self._send_ready_ones()

    def _send_ready_ones(self) -> None:
        """The leader's part: what all of this host have summed leaves for the other hosts."""
        if self._leaders is None or self._wire is not None:
            return
        while len(self._under_way) < self._reduced:
            if not self._board.reached(REDUCED, self._base + len(self._under_way) + 1):
                return
            self._send_across(self._leaders)

    def finish(self, take: Callable[[int, RoundOutcome], None]) -> RoundOutcome:
        """Wait for the others, and have each bucket taken when its result is there, if there is one.

        Every bucket has been entered.
        """
        board = self._board
        last = self._base + len(self.buckets)
        while self._reduced < len(self.buckets):
            board.wait(ENTERED, self._base + self._reduced + 1)
            self._reduce()
            self._send_ready_ones()
        if self._several:
            return self._finish_across(take, last)
        outcome = self._tally(last)
        board.posted[PUBLISHED] += len(self.buckets)
        for number in range(len(self.buckets)):
            board.wait(REDUCED, self._base + number + 1)
            if outcome.givers:
                take(number, outcome)
        return outcome

    def _finish_across(self, take: Callable[[int, RoundOutcome], None], last: int) -> RoundOutcome:
        if self._leaders is not None:
            self._agree(self._leaders, last)
        outcome = None
        for number in range(len(self.buckets)):
            if self._leaders is not None:
                self._fetch(self._leaders, number)
            self._board.post(PUBLISHED)
            self._board.wait(PUBLISHED, self._base + number + 1)
            if outcome is None:
                outcome = self._read_agreed()
            if outcome.givers:
                take(number, outcome)
        assert outcome is not None
        return outcome

    def _reduce(self) -> None:
        number = self._reduced
        bucket = self.buckets[number]
        present = self._board.present(self._base + number + 1)
        left, right = slices(bucket.count, len(present), bucket.dtype.itemsize)[
            present.index(self._board.rank)
        ]
        givers = self._givers(number, present)
        if left < right:
            out = self._results[number][left:right]
            parts = [self._inputs[number][rank][left:right] for rank in givers]
            if parts:
                mean = bucket.rule in _MEANS and not self._several
                combine(out, parts, "mean" if mean else _AMONG[bucket.rule], len(parts))
            else:
                out.fill_(nothing(bucket.rule, out.dtype))
        self._reduced += 1
        self._board.post(REDUCED)

    def _givers(self, bucket: int, present: Sequence[int]) -> list[int]:
        """Whose parts a bucket's result is made of."""
        rule = self.buckets[bucket].rule
        if rule == "mean":
            return [rank for rank in present if self._notes[self._row(rank)] == Says.GIVES]
        if rule == "first":
            return list(present[:1]) if self._on_first_host else []
        place = HEAD + self._stretches[bucket][0]
        return [rank for rank in present if self._notes[self._row(rank) + place] != ABSENT]

    def _rows(self, present: Sequence[int]) -> list[bytes]:
        return [bytes(self._notes[self._row(rank) :][: self._width]) for rank in present]

    def _tally(self, last: int) -> RoundOutcome:
        present = self._board.present(last)
        rows = self._rows(present)
        one = rows[0]
        everyone = len(present) == self._board.size
        if one.startswith(PLAIN) and one.endswith(self._dense) and all(row == one for row in rows):
            return RoundOutcome(len(rows), present[0], len(rows), everyone=everyone)
        said = {rank: read_head(row) for rank, row in zip(present, rows, strict=True)}
        return conclude(said, self._kinds(rows), everyone)

    def _kinds(self, rows: Sequence[bytes]) -> list[int]:
        """The kind of each piece's sum, over the rows of those who give."""
        given = [row[HEAD:] for row in rows if row[0] == Says.GIVES]
        return [merge(column) for column in zip(*given, strict=True)] or [0] * len(self._dense)

    # --- among hosts: the leader's part -------------------------------------------------------------------
    def _send_across(self, leaders: Leaders) -> None:
        """Begin to sum the next bucket with the other hosts'."""
        number = len(self._under_way)
        result, operation = self._results[number], _AMONG[self.buckets[number].rule]
        if self._wire is not None and result.is_floating_point():
            leaders.all_reduce_narrow(result, self._wire)
            self._under_way.append(lambda: None)
        else:
            whole = result.view(torch.uint8) if result.dtype == torch.bool else result
            self._under_way.append(leaders.begin_all_reduce(whole, operation))

    def _agree(self, leaders: Leaders, last: int) -> None:
        """Begin to find out, with the other hosts, who gives what."""
        self._board.wait(ENTERED, last)
        rows = self._rows(range(self._board.size))
        says, wishes, marks = ([0] * self._world for _ in range(3))
        for rank, row in zip(self._ranks, rows, strict=True):
            says[rank], wishes[rank], marks[rank] = read_head(row)
        pieces = [to_number(kind) for kind in self._kinds(rows)]
        for bucket, (begin, end) in zip(self.buckets, self._stretches, strict=True):
            if bucket.rule == "latest":  # of these the number counts
                brought = [row for row in rows if row[HEAD + begin] != ABSENT]
                pieces[begin:end] = [len(brought) * to_number(DENSE)] * (end - begin)
        agreed = self._agreed[self._round % 2]
        agreed.copy_(torch.tensor([*says, *wishes, *marks, *pieces], dtype=torch.int64))
        self._agreeing = leaders.begin_noting(agreed)

    def _read_agreed(self) -> RoundOutcome:
        numbers = self._agreed[self._round % 2].tolist()
        world = self._world
        said = {
            rank: Said(Says(numbers[rank]), Wishes(numbers[world + rank]), numbers[2 * world + rank])
            for rank in range(world)
        }
        return conclude(said, [from_number(number) for number in numbers[3 * world :]])

    def _fetch(self, leaders: Leaders, number: int) -> None:
        """Wait for the sum of a bucket over all hosts, and make the mean of it."""
        while len(self._under_way) <= number:
            self._board.wait(REDUCED, self._base + len(self._under_way) + 1)
            self._send_across(leaders)
        if number == 0:
            self._agreeing()
        self._under_way[number]()
        agreed = self._agreed[self._round % 2]
        if self.buckets[number].rule == "latest":
            givers = int(agreed[3 * self._world + self._stretches[number][0]]) // to_number(DENSE)
        else:
            givers = int((agreed[: self._world] == Says.GIVES).sum())
        if self.buckets[number].rule in _MEANS and givers:
            combine(self._results[number], [self._results[number]], "mean", givers)

    def fail(self, reason: str) -> None:
        """Tell the others on this host that this rank has failed."""
        self._board.fail(reason)

    def close(self) -> None:
        """Leave, and let go of the memory; results stay valid as long as they are held."""
        if not self._closed:
            self._closed = True
            self._under_way, self._agreeing = [], lambda: None  # they hold on to Gloo
            self._board.leave()
            self._host.close()
