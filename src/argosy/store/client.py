"""A worker's side of the store: push, pull, wait. One channel to each server, one request at a time."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec

from argosy.cluster.launcher import raise_failure_elsewhere
from argosy.cluster.lease import Lease
from argosy.cluster.settings import NOTICE_EVERY
from argosy.cluster.spec import ClusterSpec, Task
from argosy.errors import WaitTimeout
from argosy.events import say_waiting
from argosy.modes import Mode
from argosy.protocol.asking import StacksOffer, WaitingReport, WaitingRequest
from argosy.protocol.frames import FrameSpec
from argosy.protocol.joining import (
    Describe,
    Described,
    Fail,
    GradientMemory,
    GradientMemorySeen,
    Hello,
    Leave,
    Register,
    Registered,
    SlotValues,
)
from argosy.protocol.layout import Layout, ParameterSpec
from argosy.protocol.saving import DirectoryOpened, OpenDirectory, OwnState, ResumePoint, ResumeRequest
from argosy.protocol.training import BlockAhead, Gathered, GatherRequest, PushAnswer, PushRequest
from argosy.store.caller_handshake import CallerHandshake
from argosy.store.conversation import Conversation
from argosy.store.inquiry import Inquirer
from argosy.store.returning_channel import ReturningChannel
from argosy.store.stack_reporter import StackReporter
from argosy.wire.channel import Channel
from argosy.wire.message import Message

if TYPE_CHECKING:
    import torch

    from argosy.wire.zmq_channel import ZmqChannel

_LEASE = Lease()


class StoreClient:
    """The servers of a cluster, as one worker sees them. `restarts`: whether they come back when they die."""

    def __init__(
        self,
        cluster: ClusterSpec,
        task: Task,
        connect: Callable[[Task], Channel],
        wait: float,
        use_lane: bool = True,
        lease: Lease = _LEASE,
        restarts: bool = False,
    ) -> None:
        self._cluster = cluster
        self._task = task
        self._servers = list(cluster.tasks("ps"))
        self._wait = wait
        self._connect = connect
        self._use_lane = use_lane
        self._restarts = restarts
        self._seq = 0
        self._resent = False  # whether the latest push was sent to some server twice
        self.gathers = 0  # in how many this worker has taken part
        self._shown: list[int] | None = None  # `attached`, when all servers were shown the gradient memory
        self._in_sight = False  # whether the coordinator reads gradients where this worker writes them
        self.closed = False
        self._life = uuid.uuid4().hex
        self._reporter: StackReporter | None = None
        self._hello = Hello(str(task), cluster.count("ps"), cluster.count("worker"), self._life)
        self._handshakes = [self._call(server) for server in self._servers]
        channels = [handshake.channel for handshake in self._handshakes]
        self._talk = Conversation(cluster, channels, lease, wait if restarts else None)

    def _call(self, server: Task, channel: Channel | None = None) -> CallerHandshake:
        """Say hello over a new channel; or over this one, which has proved to be the only way."""
        use_lane = self._use_lane and channel is None
        name = self._cluster.describe(server)
        return CallerHandshake(channel or self._connect(server), self._hello, name, use_lane)

    def offer_stacks(self, open_channel: Callable[[], ZmqChannel]) -> None:
        """From now on the coordinator can ask what this process is doing, over a channel of its own."""
        self._reporter = StackReporter(open_channel, StacksOffer(str(self._task), self._life))

    # --- arriving and leaving -----------------------------------------------------------------------------
    def hello(self) -> None:
        """Make oneself known to every server; waits for those that are not up yet."""
        started = time.monotonic()
        for server, handshake in enumerate(self._handshakes):
            notice = NOTICE_EVERY
            missing: Sequence[str] = [self._cluster.describe(self._servers[server])]
            while handshake.welcome is None:
                message = handshake.advance(0.2)
                self._talk.channels[server] = handshake.channel
                if message is not None and isinstance(message.header, WaitingReport):
                    missing = message.header.tasks  # it is up, and waits for others itself
                elif message is not None:
                    self._talk.heed(server, message.header)
                raise_failure_elsewhere()
                waited = time.monotonic() - started
                if waited > self._wait:
                    raise WaitTimeout(f"{self._task} gave up waiting", missing, self._wait)
                if waited >= notice:
                    notice += NOTICE_EVERY
                    for who in missing:
                        say_waiting(who, waited)
            if self._restarts:
                call = partial(self._call, self._servers[server])
                self._talk.channels[server] = ReturningChannel(handshake.channel, call)
        first = self._handshakes[0].welcome
        if first is not None:
            self._seq, self.gathers = first.base_seq, first.gathers
            self._talk.number = first.base_seq  # a number of an earlier life is not used again

    def leave(self) -> None:
        """Say that this worker is done, and hang up."""
        self._farewell(Leave())

    def fail(self, reason: str, task: str = "") -> None:
        """Say that this worker failed, or that `task` did, which ends the job, and hang up."""
        self._farewell(Fail(reason, task))

    def _farewell(self, header: Leave | Fail) -> None:
        if self.closed:
            return
        self.closed = True
        if self._reporter is not None:
            self._reporter.stop()
        try:
            self._talk.end(header, known=self._handshakes[0].welcome is not None)
        finally:
            for handshake, channel in zip(self._handshakes, self._talk.channels, strict=True):
                if handshake.welcome is None:
                    handshake.close()
                else:
                    channel.close()

    # --- registration -------------------------------------------------------------------------------------
    def describe(self, parameters: Sequence[ParameterSpec], mode: Mode) -> Layout:
        """The layout of these parameters; empty if this is the chief, whose turn it is to register them."""
        return self._talk.request(0, Describe(tuple(parameters), mode), Described).header.layout

    def give(self, server: int, given: SlotValues, tensors: Sequence[torch.Tensor]) -> None:
        """What an optimizer has kept of the blocks that will be registered on a server."""
        self._talk.request(server, given, GradientMemorySeen, tensors)

    def register(self, registrations: Sequence[tuple[Register, Sequence[torch.Tensor]]]) -> None:
        """Register on every server; on the coordinator last, whose word sets the other workers going."""
        for server in reversed(range(len(self._talk.channels))):
            header, tensors = registrations[server]
            self._talk.request(server, header, Registered, tensors)

    def open(self, directory: str, keep: int) -> DirectoryOpened:
        """Have checkpoints kept in a directory, and learn what is in it. Raises ConfigError."""
        return self._talk.request(0, OpenDirectory(directory, keep), DirectoryOpened).header

    def resume(self) -> ResumePoint:
        """From where this worker goes on."""
        return self._talk.request(0, ResumeRequest(), ResumePoint).header

    def give_state(self, state: bytes, step: int) -> None:
        """This worker's own state at a step, for the checkpoint that it has heard of."""
        self._talk.give_state(OwnState(state, step))

    def reserve(self, server: int, frames: Sequence[FrameSpec]) -> list[torch.Tensor]:
        """Tensors to write a push to a server into."""
        return self._talk.channels[server].reserve(frames)

    def share(self, gradients: Mapping[int, Sequence[torch.Tensor]]) -> None:
        """Show every server where its share of the gradients will lie, if all of them can see it.

        From then on a push is one short message, to the coordinator: what it orders finds the gradients in
        their place.
        """
        self._shown = None
        attached = self.attached  # a server that comes back during this has seen nothing
        if len(self._talk.channels) == 1 or not all(self.in_place):
            return
        for server in range(len(self._talk.channels)):
            self._talk.request(server, GradientMemory(), GradientMemorySeen, gradients.get(server, ()))
        self._shown = attached
        self._in_sight = self._is_sent_in_place(0, gradients.get(0, ()))

    def _is_sent_in_place(self, server: int, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether these lie where they are sent from: a larger message since may have moved that."""
        from argosy.wire.tensor_bytes import spec_of

        places = self.reserve(server, [spec_of(tensor) for tensor in tensors])
        return [tensor.data_ptr() for tensor in tensors] == [place.data_ptr() for place in places]

    @property
    def in_place(self) -> list[bool]:
        """Of each server: whether its values come to the same memory every time."""
        return [channel.in_place for channel in self._talk.channels]

    @property
    def attached(self) -> list[int]:
        """Changes when memory that was shared with a server is gone: reserve it anew, and share it."""
        return [channel.renewals if channel.in_place else -1 for channel in self._talk.channels]

    # --- training -----------------------------------------------------------------------------------------
    def send_ahead(self, server: int, place: int, tensor: torch.Tensor) -> None:
        """Send a block of the next push, which then names it."""
        self._talk.channels[server].send(BlockAhead(self._seq + 1, place), [tensor])

    def push(
        self,
        request: PushRequest,
        tensors: Mapping[int, Sequence[torch.Tensor]],
        ahead: Mapping[int, tuple[int, ...]] = MappingProxyType({}),
    ) -> list[Message[PushAnswer]]:
        """Send a push to all servers (its number is set here), and wait for every answer.

        `ahead`: by server, the places of the blocks that it has already.
        """
        answers = self._push(request, tensors, ahead)
        if not self._resent:
            return answers
        # One of the servers may have answered a second time, and later: only a pull gives one cut of all.
        wishes = tuple(wish for wish in request.wishes if wish in ("average", "slots"))
        pull = PushRequest(0, request.version, "pull", wishes=wishes)
        pulled = self._push(pull, {}, {})
        while self._resent and any(self.in_place):  # no second answer may change the parameters in use
            pulled = self._push(pull, {}, {})
        said = [answer.header for answer in answers]
        return [
            Message(_with_values_of(verdict, answer.header), answer.tensors)
            for verdict, answer in zip(said, pulled, strict=True)
        ]

    def _push(
        self,
        request: PushRequest,
        tensors: Mapping[int, Sequence[torch.Tensor]],
        ahead: Mapping[int, tuple[int, ...]],
    ) -> list[Message[PushAnswer]]:
        self._seq += 1
        self._resent = False
        shown = self._shown if self._shown == self.attached else None
        shares = shown is not None
        numbered = msgspec.structs.replace(request, seq=self._seq, shared=shares)
        # Buffers lie on the coordinator alone, and what was logged and the own state are for it alone.
        plain = numbered
        if len(self._talk.channels) > 1 and not shares:
            plain = msgspec.structs.replace(numbered, buffers=(), numbers={}, state=None)

        for server, channel in enumerate(self._talk.channels[: 1 if shares else None]):
            header = numbered if server == 0 else plain
            # Buffers have no place of their own: they come after all of the gradient.
            seen = shares and self._in_sight and not header.buffers
            frames = () if seen else tensors.get(server, ())
            if there := ahead.get(server, ()):
                header = msgspec.structs.replace(header, ahead=there)
                frames = [tensor for place, tensor in enumerate(frames) if place not in there]
            channel.send(header, frames)

        def resend(server: int) -> None:
            """All of it, to one that has come back and sees no memory of this worker, too."""
            if server and shown is not None and shown[server] == self.attached[server]:
                return  # the coordinator tells it
            self._resent = True
            header = numbered
            if server:
                header = msgspec.structs.replace(numbered, shared=False, buffers=(), numbers={}, state=None)
            self._talk.channels[server].send(header, tensors.get(server, ()))

        # The coordinator is the first to answer: to wait for the others before it saves a wake-up.
        backwards = reversed(range(len(self._talk.channels)))
        return [self._await_verdict(server, resend) for server in backwards][::-1]

    def _await_verdict(self, server: int, resend: Callable[[int], None]) -> Message[PushAnswer]:
        while True:
            message = self._talk.wait(server, PushAnswer, self._ask_anew, resend, self._seq)
            if message.header.seq == self._seq:  # an older one answers a push that was sent twice
                return message

    def _ask_anew(self, server: int) -> None:
        self._talk.channels[server].send(WaitingRequest(self._seq, anew=True))

    def inquire(self) -> Inquirer:
        """Somebody to ask how the job stands, on a channel of its own: for another thread."""
        return Inquirer(self._connect(self._servers[0]))

    # --- gathers ------------------------------------------------------------------------------------------
    def gather(self, value: msgspec.Raw) -> dict[int, msgspec.Raw]:
        """Give a small value to all workers, wait for theirs."""
        self.gathers += 1
        return self._talk.ask(0, GatherRequest(self.gathers, value), Gathered).header.values


def _with_values_of(verdict: PushAnswer, pull: PushAnswer) -> PushAnswer:
    """What became of a push, with the values that were pulled after it."""
    return msgspec.structs.replace(
        pull, seq=verdict.seq, status=verdict.status, staleness=verdict.staleness, cut=verdict.cut
    )
