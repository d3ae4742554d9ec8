"""A worker's channels to all servers: it asks and waits for the answer, one request at a time.

A worker that waits prints every few seconds which task it waits for, and asks at the same time whether its
push has arrived: one that was lost with a connection is sent again, and is known by its number.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import msgspec

from argosy.cluster.launcher import raise_failure_elsewhere
from argosy.cluster.lease import Lease
from argosy.cluster.settings import NOTICE_EVERY
from argosy.cluster.spec import ClusterSpec
from argosy.errors import ConfigError, JobFailed, ModelMismatch, TaskLost, WireError
from argosy.events import say_waiting
from argosy.protocol.asking import WaitingReport, WaitingRequest
from argosy.protocol.header import Header
from argosy.protocol.joining import (
    Describe,
    Described,
    Fail,
    GradientMemory,
    GradientMemorySeen,
    JobOver,
    Leave,
    Left,
    Refused,
    Register,
    Registered,
    SlotValues,
)
from argosy.protocol.saving import DirectoryOpened, OpenDirectory, OwnState, ResumePoint, ResumeRequest
from argosy.protocol.training import Gathered, GatherRequest, PushAnswer
from argosy.wire.channel import Channel
from argosy.wire.message import Message

if TYPE_CHECKING:
    import torch

H = TypeVar("H", bound=Header)
Question: TypeAlias = (
    Describe | Register | SlotValues | GradientMemory | OpenDirectory | ResumeRequest | GatherRequest
)
Reply = TypeVar("Reply", Described, Registered, GradientMemorySeen, DirectoryOpened, ResumePoint, Gathered)
# Who waits looks so often whether a connection was made anew, over which it must ask again.
_SLICE = 0.2
# While a server comes back, and for a second after that, so often: the training stands still.
_SHORT_SLICE = 0.02
_SHORT_SLICES_FOR = 1.0
# A worker that has failed does not wait longer than this for a server that is out of reach.
_FAREWELL_ALONE = 1.0
ToServer = Callable[[int], None]


def _nothing(_: int) -> None:
    """Nothing was asked of that server."""


class Conversation:
    """With every server of a cluster; `channels` are in their order.

    `return_within`: the seconds in which a server whose process has ended must be there again; None if it is
    not started again.
    """

    def __init__(
        self,
        cluster: ClusterSpec,
        channels: list[Channel],
        lease: Lease,
        return_within: float | None = None,
    ) -> None:
        self.channels = channels
        self.number = 0  # of the latest request
        self._lease = lease
        self._return_within = return_within
        self._names = [cluster.describe(task) for task in cluster.tasks("ps")]
        self._renewals = [0] * len(channels)  # of each connection, as far as they were seen to
        self._kept: list[list[Message[Header]]] = [[] for _ in channels]  # answers before their turn
        self._state: OwnState | None = None  # this worker's, as the coordinator was last given it

    def give_state(self, state: OwnState) -> None:
        """To the coordinator: it does not answer, so this is said again if it may have been lost."""
        self._state = state
        self.channels[0].send(state)

    def request(
        self,
        server: int,
        header: Question,
        kind: type[Reply],
        tensors: Sequence[torch.Tensor] = (),
    ) -> Message[Reply]:
        """Send, and wait for the answer of a kind; asks again over a connection that was made anew."""
        self.number += 1
        return self.ask(server, msgspec.structs.replace(header, number=self.number), kind, tensors)

    def ask(
        self, server: int, header: Question, kind: type[Reply], tensors: Sequence[torch.Tensor] = ()
    ) -> Message[Reply]:
        """The same for a question that has its number."""
        channel = self.channels[server]
        channel.lost_for()  # takes note of a connection that was made anew before
        self._see_to(server, _nothing)
        while (late := channel.receive(0.0)) is not None:  # a second answer to a request that was repeated
            self.heed(server, late.header)

        def send(_: int) -> None:
            channel.send(header, tensors)

        send(server)
        while (message := self.wait(server, kind, send)).header.number != header.number:
            pass  # an older one answers a request that was repeated
        return message

    def wait(
        self,
        server: int,
        kind: type[H],
        renew: ToServer,
        resend: ToServer | None = None,
        seq: int = 0,
    ) -> Message[H]:
        """The next message of a kind from a server; what else comes is dealt with.

        `renew`: how to ask again when the connection was made anew.
        `resend`: how to send the push `seq` to a server that does not have it.
        """
        began, wait = time.monotonic(), None
        away = self._return_within is not None and any(channel.hung_up for channel in self.channels)
        hurry_until = began + _SHORT_SLICES_FOR if away else 0.0
        # A push that one server lacks keeps all from answering, whichever of them is waited for.
        concerned = {0, server} if resend is None else set(range(len(self.channels)))
        while True:
            if self._kept[server]:
                message: Message[Header] | None = self._kept[server].pop(0)
            else:
                left = _SLICE if wait is None else wait.left
                if hurry_until and time.monotonic() < hurry_until:
                    left = min(left, _SHORT_SLICE)
                message = self.channels[server].receive(left)
            if message is not None and isinstance(message.header, kind):
                return Message(message.header, message.tensors)
            wait = wait or Wait(began)
            if message is None:
                raise_failure_elsewhere()
                for each in sorted(concerned):  # the coordinator first: without it the other servers go, too
                    if each != server:
                        self._listen_to(each, wait, resend)
                    if self._is_lost(each) and self._return_within is not None:
                        hurry_until = time.monotonic() + _SHORT_SLICES_FOR
            else:
                wait.answered(server)
                self.heed(server, message.header, wait, resend)
            for each in concerned:
                self._see_to(each, renew if each == server or resend is not None else _nothing)
            if wait.asks(concerned):
                for each in concerned:
                    self.channels[each].send(WaitingRequest(seq))
            wait.name_silent(self._names)

    def _see_to(self, server: int, renew: ToServer) -> None:
        """If a connection was made anew: say again what may have been lost with the old one."""
        channel = self.channels[server]
        if channel.renewals == self._renewals[server]:
            return
        self._renewals[server] = channel.renewals
        if server == 0 and self._state is not None:
            channel.send(self._state)
        renew(server)

    def _listen_to(self, server: int, wait: Wait, resend: ToServer | None) -> None:
        """While another is waited for: the coordinator tells of the job's end, any server what it lacks."""
        if (message := self.channels[server].receive(0.0)) is None:
            return
        wait.answered(server)
        if isinstance(message.header, PushAnswer):
            self._kept[server].append(message)
        else:
            self.heed(server, message.header, wait, resend)

    def heed(
        self, server: int, header: Header, wait: Wait | None = None, resend: ToServer | None = None
    ) -> None:
        """What may come at any time: the end of the job, a refusal, or word of who is waited for."""
        if isinstance(header, JobOver):
            raise JobFailed(header.task, header.reason)
        if isinstance(header, Refused):
            raise _error(header)
        if isinstance(header, WaitingReport) and wait is not None:
            for who in header.tasks:
                wait.name(who, header.seconds)
            if not header.holds and resend is not None:
                resend(server)

    def _is_lost(self, server: int) -> bool:
        """Whether a server is out of reach; raises TaskLost if it is for too long."""
        channel, lease = self.channels[server], self._lease
        lost = channel.lost_for()
        if not lost:
            return False
        hung_up = channel.hung_up
        # On one host, a process that is out of reach but has not ended was stopped: nobody starts it again.
        if self._return_within is not None and (hung_up or not channel.in_place):
            limit, why = self._return_within, f"its connection ended, and it was not back after {lost:.0f} s"
        elif hung_up:
            limit, why = lease.last_words, "its connection ended"
        else:
            limit, why = lease.seconds, f"it was out of reach for {lost:.0f} s"
        if lost > limit:
            raise TaskLost(self._names[server], why)
        return True

    def end(self, header: Leave | Fail, known: bool) -> None:
        """Tell the coordinator, and see that it has heard, if it knows this worker."""
        channel = self.channels[0]
        channel.send(header)
        deadline = time.monotonic() + (self._lease.heartbeat_limit if known else 0.0)
        patience = self._lease.last_words if isinstance(header, Leave) else _FAREWELL_ALONE
        returns = self._return_within is not None
        while time.monotonic() < deadline and channel.lost_for() <= patience:
            if channel.hung_up and not (returns and isinstance(header, Leave)):
                break
            self._see_to(0, lambda _: channel.send(header))
            message = channel.receive(0.2)
            if message is not None and isinstance(message.header, Left | JobOver | Refused):
                break


def _error(refused: Refused) -> Exception:
    if refused.kind == "lost":
        return TaskLost(refused.field, f"{refused.got}; {refused.remedy}")
    if refused.kind == "protocol":
        return WireError(f"{refused.field}: expected {refused.expected}, got {refused.got}")
    kind = ModelMismatch if refused.kind == "model" else ConfigError
    return kind(refused.field, refused.expected, refused.got, refused.remedy)


class Wait:
    """One wait: when to ask for whom, and which of the servers do not even answer that."""

    def __init__(self, began: float) -> None:
        self._began = began
        self._ask_at = began + NOTICE_EVERY
        self._answers_at = math.inf
        self._asked: set[int] = set()
        self._named: set[str] = set()

    @property
    def left(self) -> float:
        """The seconds until something is due, or until the next look at the connections."""
        due = min(self._ask_at, self._answers_at if self._asked else math.inf)
        return max(0.0, min(_SLICE, due - time.monotonic()))

    def asks(self, servers: Collection[int]) -> bool:
        """Whether it is time to ask these."""
        if (now := time.monotonic()) < self._ask_at:
            return False
        self._ask_at, self._answers_at = now + NOTICE_EVERY, now + NOTICE_EVERY / 5
        self._asked, self._named = set(servers), set()
        return True

    def answered(self, server: int) -> None:
        """A server has said something."""
        self._asked.discard(server)

    def name(self, who: str, seconds: float) -> None:
        """Say who is waited for, once each time; a connection made anew is no reason to say it earlier."""
        if who not in self._named and time.monotonic() - self._began >= NOTICE_EVERY:
            self._named.add(who)
            say_waiting(who, seconds)

    def name_silent(self, names: Sequence[str]) -> None:
        """Say which of those asked do not answer."""
        if self._asked and (now := time.monotonic()) >= self._answers_at:
            for server in sorted(self._asked):
                self.name(names[server], now - self._began)
            self._asked.clear()
