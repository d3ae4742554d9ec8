"""A worker's side of the store: push, pull, wait. One channel to each server, one request at a time.

Whoever waits here says for whom every few seconds, and finds out at the same time whether its push arrived:
one that was lost with a connection is sent again, and the server knows it by its number.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

import msgspec

from argosy.cluster.launched import raise_failure_elsewhere
from argosy.cluster.settings import NOTICE_EVERY
from argosy.cluster.spec import ClusterSpec, Task
from argosy.errors import ConfigError, JobFailed, ModelMismatch, TaskLost, WaitTimeout, WireError
from argosy.events import say_waiting
from argosy.modes import Mode
from argosy.store.approach import Approach
from argosy.store.layout import Layout, ParameterSpec
from argosy.store.status import Inquirer
from argosy.wire.channel import Channel
from argosy.wire.frames import FrameSpec
from argosy.wire.message import Message
from argosy.wire.protocol import (
    Ask,
    Bucket,
    Describe,
    Described,
    Fail,
    Given,
    Header,
    Hello,
    JobOver,
    Leave,
    Left,
    Meet,
    Met,
    Open,
    Opened,
    OwnState,
    PushRequest,
    Refused,
    Register,
    Registered,
    Resume,
    Resumed,
    Slots,
    SlotsKept,
    Verdict,
    Waiting,
)

if TYPE_CHECKING:
    import torch

H = TypeVar("H", bound=Header)

# A server whose connection has been gone for so long is lost.
LOST_AFTER = 3.0
# Saying goodbye must not take longer than this.
FAREWELL = 5.0


class StoreClient:
    """The servers of a cluster, as one worker sees them."""

    def __init__(
        self,
        cluster: ClusterSpec,
        task: Task,
        connect: Callable[[Task], Channel],
        wait: float,
        use_lane: bool = True,
    ) -> None:
        self._cluster = cluster
        self._task = task
        self._servers = list(cluster.tasks("ps"))
        self._wait = wait
        self._connect = connect
        self._seq = 0
        self._meetings = 0
        self._shares = False
        self._in_sight = False  # whether the coordinator reads gradients where this worker writes them
        self._kept: list[Message[Header]] = []  # the coordinator's answers that came before they were awaited
        self.closed = False
        hello = Hello(str(task), cluster.count("ps"), cluster.count("worker"), uuid.uuid4().hex)
        self._approaches = [
            Approach(connect(server), hello, cluster.describe(server), use_lane) for server in self._servers
        ]
        self._channels = [approach.channel for approach in self._approaches]

    # --- arriving and leaving -----------------------------------------------------------------------------
    def hello(self) -> None:
        """Make oneself known to every server; waits for those that are not up yet."""
        started = time.monotonic()
        for server, approach in enumerate(self._approaches):
            notice = NOTICE_EVERY
            missing: Sequence[str] = [self._cluster.describe(self._servers[server])]
            while approach.welcome is None:
                message = approach.advance(0.2)
                self._channels[server] = approach.channel
                if message is not None and isinstance(message.header, Waiting):
                    missing = message.header.tasks  # it is up, and waits for others itself
                elif message is not None:
                    self._heed(server, message.header)
                raise_failure_elsewhere()
                waited = time.monotonic() - started
                if waited > self._wait:
                    raise WaitTimeout(f"{self._task} gave up waiting", missing, self._wait)
                if waited >= notice:
                    notice += NOTICE_EVERY
                    for who in missing:
                        say_waiting(who, waited)
        first = self._approaches[0].welcome
        if first is not None:
            self._seq, self._meetings = first.base_seq, first.meetings

    def leave(self) -> None:
        """Say that this worker is done, and hang up."""
        self._farewell(Leave())

    def fail(self, reason: str) -> None:
        """Say that this worker failed, which ends the job, and hang up."""
        self._farewell(Fail(reason))

    def _farewell(self, header: Leave | Fail) -> None:
        if self.closed:
            return
        self.closed = True
        try:
            self._channels[0].send(header)
            known = self._approaches[0].welcome is not None
            deadline = time.monotonic() + (FAREWELL if known else 0.0)
            while time.monotonic() < deadline and not self._channels[0].lost_for():
                message = self._channels[0].receive(0.2)
                if message is not None and isinstance(message.header, Left | JobOver | Refused):
                    break
        finally:
            for approach in self._approaches:
                approach.close()

    # --- registration -------------------------------------------------------------------------------------
    def describe(self, parameters: Sequence[ParameterSpec], mode: Mode) -> Layout:
        """The layout of these parameters; empty if this is the chief, whose turn it is to register them."""
        self._channels[0].send(Describe(tuple(parameters), mode))
        return self._await(0, Described).header.layout

    def give(self, server: int, given: Given, tensors: Sequence[torch.Tensor]) -> None:
        """What an optimizer has kept of the blocks that will be registered on a server."""
        self._channels[server].send(given, tensors)
        self._await(server, SlotsKept)

    def register(self, registrations: Sequence[tuple[Register, Sequence[torch.Tensor]]]) -> None:
        """Register on every server; on the coordinator last, whose word sets the other workers going."""
        for server in reversed(range(len(self._channels))):
            self._channels[server].send(*registrations[server])
            self._await(server, Registered)

    def open(self, directory: str, keep: int) -> Opened:
        """Have checkpoints kept in a directory, and learn what is in it. Raises ConfigError."""
        self._channels[0].send(Open(directory, keep))
        return self._await(0, Opened).header

    def resume(self) -> Resumed:
        """From where this worker goes on."""
        self._channels[0].send(Resume())
        return self._await(0, Resumed).header

    def give_state(self, state: bytes) -> None:
        """This worker's own state, for the step that was saved."""
        self._channels[0].send(OwnState(state))

    def reserve(self, server: int, frames: Sequence[FrameSpec]) -> list[torch.Tensor]:
        """Tensors to write a push to a server into."""
        return self._channels[server].reserve(frames)

    def share(self, slots: Mapping[int, Sequence[torch.Tensor]]) -> None:
        """Show every server where its share of the gradients will lie, if all of them can see it.

        From then on a push is one short message, to the coordinator: what it orders finds the gradients in
        their place.
        """
        self._shares = False
        if len(self._channels) == 1 or not all(self.in_place):
            return
        for server, channel in enumerate(self._channels):
            channel.send(Slots(), slots.get(server, ()))
            self._await(server, SlotsKept)
        self._shares = True
        self._in_sight = self._is_sent_in_place(0, slots.get(0, ()))

    def _is_sent_in_place(self, server: int, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether these lie where they are sent from: a larger message since may have moved that."""
        from argosy.wire.tensors import spec_of

        places = self.reserve(server, [spec_of(tensor) for tensor in tensors])
        return [tensor.data_ptr() for tensor in tensors] == [place.data_ptr() for place in places]

    @property
    def in_place(self) -> list[bool]:
        """Of each server: whether its values come to the same memory every time."""
        return [channel.in_place for channel in self._channels]

    # --- training -----------------------------------------------------------------------------------------
    def send_ahead(self, server: int, place: int, tensor: torch.Tensor) -> None:
        """Send a block of the next push, which then names it."""
        self._channels[server].send(Bucket(self._seq + 1, place), [tensor])

    def push(
        self,
        request: PushRequest,
        tensors: Mapping[int, Sequence[torch.Tensor]],
        ahead: Mapping[int, tuple[int, ...]] = MappingProxyType({}),
    ) -> list[Message[Verdict]]:
        """Send a push to all servers (its number is set here), and wait for every answer.

        `ahead`: by server, the places of the blocks that it has already.
        """
        self._seq += 1
        numbered = msgspec.structs.replace(request, seq=self._seq, shared=self._shares)
        # Buffers lie on the coordinator alone, and what was logged is for it alone.
        plain = numbered
        if numbered.buffers or numbered.numbers:
            plain = msgspec.structs.replace(numbered, buffers=(), numbers={})

        def send(server: int, there: Collection[int] = ()) -> None:
            if server and self._shares:  # the coordinator tells it
                return
            header = numbered if server == 0 else plain
            # Buffers have no place of their own: they come after all of the gradient.
            seen = self._shares and self._in_sight and not header.buffers
            frames = () if seen else tensors.get(server, ())
            if there:
                header = msgspec.structs.replace(header, ahead=tuple(there))
                frames = [tensor for place, tensor in enumerate(frames) if place not in there]
            self._channels[server].send(header, frames)

        for server in range(1 if self._shares else len(self._channels)):
            send(server, ahead.get(server, ()))
        # The coordinator is the first to answer: to wait for the others before it saves a wake-up.
        answers = [self._await_verdict(server, send) for server in reversed(range(len(self._channels)))]
        return answers[::-1]

    def _await_verdict(self, server: int, send: Callable[[int], None]) -> Message[Verdict]:
        while True:
            message = self._await(server, Verdict, resend=send)
            if message.header.seq == self._seq:  # an older one answers a push that was sent twice
                return message

    def inquire(self) -> Inquirer:
        """Somebody to ask how the job stands, on a channel of its own: for another thread."""
        return Inquirer(self._connect(self._servers[0]))

    # --- meetings -----------------------------------------------------------------------------------------
    def meet(self, value: msgspec.Raw) -> dict[int, msgspec.Raw]:
        """Give a small value to all workers, wait for theirs."""
        self._meetings += 1
        self._channels[0].send(Meet(self._meetings, value))
        return self._await(0, Met).header.values

    # --- waiting ------------------------------------------------------------------------------------------
    def _await(self, server: int, kind: type[H], resend: Callable[[int], None] | None = None) -> Message[H]:
        """The next message of a kind from a server; what else comes is dealt with."""
        notice = time.monotonic() + NOTICE_EVERY
        while True:
            if (left := notice - time.monotonic()) <= 0:
                self._ask_for_whom(server)
                left, notice = NOTICE_EVERY, time.monotonic() + NOTICE_EVERY
            message = self._kept.pop() if server == 0 and self._kept else None
            message = message or self._channels[server].receive(min(left, 1.0))
            if message is None:
                self._listen_to_coordinator(server)
                raise_failure_elsewhere()
                self._check_connection(0)  # first: without the coordinator the other servers go, too
                self._check_connection(server)
                continue
            if isinstance(message.header, kind):
                return Message(message.header, message.tensors)
            self._heed(server, message.header, resend)

    def _ask_for_whom(self, server: int) -> None:
        """It takes long: have those who may know say who is waited for, and whether the push is there."""
        self._check_connection(server)
        self._channels[server].send(Ask(self._seq))
        if server != 0:
            self._channels[0].send(Ask(self._seq))

    def _listen_to_coordinator(self, server: int) -> None:
        """Whoever waits for another server must hear of the end of the job, which the coordinator tells."""
        if server == 0 or (message := self._channels[0].receive(0.0)) is None:
            return
        if isinstance(message.header, Verdict):
            self._kept.append(message)
        else:
            self._heed(0, message.header)

    def _heed(self, server: int, header: Header, resend: Callable[[int], None] | None = None) -> None:
        """What may come at any time: the end of the job, a refusal, or word of who is waited for."""
        if isinstance(header, JobOver):
            raise JobFailed(header.task, header.reason)
        if isinstance(header, Refused):
            raise _error(header)
        if isinstance(header, Waiting):
            for who in header.tasks:
                say_waiting(who, header.seconds)
            if not header.holds and resend is not None:
                resend(server)

    def _check_connection(self, server: int) -> None:
        if self._channels[server].lost_for() > LOST_AFTER:
            raise TaskLost(self._cluster.describe(self._servers[server]), "its connection ended")


def _error(refused: Refused) -> Exception:
    if refused.kind == "protocol":
        return WireError(f"{refused.field}: expected {refused.expected}, got {refused.got}")
    kind = ModelMismatch if refused.kind == "model" else ConfigError
    return kind(refused.field, refused.expected, refused.got, refused.remedy)
