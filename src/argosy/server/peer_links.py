"""A server's links to other servers: the coordinator's to all, everybody else's to the coordinator.

Everything that servers tell each other goes through a log (`update/log.py`), above the channel: ZeroMQ makes
a broken connection anew, and says nothing of what was lost with the old one. What was lost is sent again.
A server that was started again is called anew; its log and what it had taken of others' outlive its process.
"""

from __future__ import annotations

import hashlib
import hmac
import time
import uuid
from collections.abc import Callable

import msgspec

from argosy.cluster.settings import NOTICE_EVERY
from argosy.cluster.spec import ClusterSpec, Task
from argosy.errors import ConfigError, WireError
from argosy.protocol.header import BetweenServers, Header, LogEntry, LogState
from argosy.protocol.joining import Hello, Known, Refused
from argosy.server.durable_memory import Memory, OrdinaryMemory
from argosy.store.caller_handshake import CallerHandshake
from argosy.update.log import Log, LogReader
from argosy.wire.channel import Channel

# How often a server says how far it is, in seconds.
TELL_EVERY = 1.0
# Without a connection to a server for so long, it is not told of the job's end: it has ended itself.
_HUNG_UP = 1.0
# A server that may be another process by now is called no more often than this, in seconds.
_CALL_AGAIN = 0.2
_decoder: msgspec.msgpack.Decoder[BetweenServers] = msgspec.msgpack.Decoder(BetweenServers)


class PeerLink:
    """To the server that `handshake` leads to: this server's own channel there, and what comes back over the
    other's channel to it. `hello` is this server's own.
    """

    def __init__(self, handshake: CallerHandshake, hello: Hello) -> None:
        self._handshake = handshake
        self._life = hello.life
        self._proof: bytes | None = None  # of the one who listens at the other's address
        self.reader = LogReader()
        self._renewals = 0  # of the connection, as far as they were seen
        self._heard = self._looked = 0  # messages of the other, and how many there were at the last look
        self.silence = 0.0  # for how many seconds nothing has come

    # --- getting in touch ---------------------------------------------------------------------------------
    @property
    def welcomed(self) -> bool:
        """Whether the other has let this server in, and is the one who listens there."""
        return self._handshake.welcome is not None and self._proof is not None

    def advance(self) -> bool:
        """See what has come back; whether there is any news."""
        before = (self._handshake.welcome, self._proof)
        # A connection may break between the two, and a proof that was lost comes with the next hello only.
        while not self.welcomed and (message := self._handshake.advance(0.0)) is not None:
            if isinstance(header := message.header, Refused):
                raise ConfigError(header.field, header.expected, header.got, header.remedy)
            if isinstance(header, Known):
                self._proof = header.proof
        return before != (self._handshake.welcome, self._proof)

    def prove(self, life: str) -> Known:
        """To the process of that life: it is this server whom it reaches."""
        return Known(_proof(self._life, life))

    def confirms(self, life: str) -> bool | None:
        """Whether the process of that life listens at the other's address; None if that is not known yet."""
        return None if self._proof is None else hmac.compare_digest(self._proof, _proof(life, self._life))

    # --- sending and hearing ------------------------------------------------------------------------------
    def send(self, header: LogEntry | LogState) -> None:
        """Send, once there is a welcome: until then the way may still change, and the log keeps it all."""
        if self.welcomed:
            self._handshake.channel.send(header)

    def hear(self) -> None:
        """The other has said something."""
        self._heard += 1

    def renewed(self) -> bool:
        """Whether the connection was made anew since the last look: what was on its way is lost."""
        channel = self._handshake.channel
        channel.lost_for()  # takes note of it
        before, self._renewals = self._renewals, channel.renewals
        return self._renewals != before

    def is_broken(self) -> bool:
        """Whether the other process has ended, or the connection is another now: it may be a new process."""
        return self.welcomed and (self._handshake.channel.hung_up or self.renewed())

    def is_lost(self) -> bool:
        """Whether there is no connection now."""
        return self.welcomed and self._handshake.channel.lost_for() > 0

    def has_hung_up(self) -> bool:
        """Whether there has been no connection for a while."""
        return self._handshake.channel.lost_for() > _HUNG_UP

    def look(self, passed: float) -> None:
        """Note that so many seconds have passed since the last look, and whether anything has come."""
        self.silence = 0.0 if self._heard != self._looked else self.silence + passed
        self._looked = self._heard

    def close(self) -> None:
        """Hang up."""
        self._handshake.close()


def _proof(listener: str, caller: str) -> bytes:
    """Only who knows both lives can make it: a stranger learns neither from another's."""
    return hashlib.blake2b(f"{listener}/{caller}".encode(), digest_size=16).digest()


class LinksState(msgspec.Struct, array_like=True):
    """What outlives the process: the index of the latest entry, and what was taken of each server's log."""

    last: int
    taken: dict[int, int]


class PeerLinks:
    """The way to the other servers. `restarts`: one that has died will be started again."""

    def __init__(
        self,
        cluster: ClusterSpec,
        me: Task,
        connect: Callable[[Task], Channel],
        use_lane: bool,
        memory: Memory | None = None,
        restarts: bool = False,
    ) -> None:
        others = [task for task in cluster.tasks("ps") if task != me and 0 in (task.index, me.index)]
        self._hello = Hello(str(me), cluster.count("ps"), cluster.count("worker"), uuid.uuid4().hex)
        self._cluster = cluster
        self._connect = connect
        self._use_lane = use_lane
        self._memory = memory or OrdinaryMemory()
        self._restarts = restarts
        self._links = {task: self._call(task) for task in others}
        self._log: Log[BetweenServers] = Log(task.index for task in others)
        self._unsent: list[LogEntry] = []
        self._kept: tuple[int, list[int]] | None = None  # how far this server was, as the memory has it
        self._state_due = False  # whether to say how far this server is, with what is sent next
        self._called = dict.fromkeys(others, 0.0)
        self.ready = not others
        self._looked: float | None = None

    def _call(self, task: Task) -> PeerLink:
        name = self._cluster.describe(task)
        handshake = CallerHandshake(self._connect(task), self._hello, name, self._use_lane)
        return PeerLink(handshake, self._hello)

    def call_again(self, task: Task) -> None:
        """A server may be another process by now: say hello again, and see who is there."""
        if time.monotonic() - self._called[task] < _CALL_AGAIN:
            return
        self._called[task] = time.monotonic()
        earlier = self._links[task]
        earlier.close()
        self._links[task] = self._call(task)
        self._links[task].reader = earlier.reader
        self.ready = False

    # --- what the next process of this server needs -------------------------------------------------------
    def keep(self) -> None:
        """Put it into the memory; the caller commits it."""
        state = (self._log.last, [link.reader.taken for link in self._links.values()])
        if state != self._kept:
            self._kept = state
            taken = {task.index: link.reader.taken for task, link in self._links.items()}
            self._memory.put("links", msgspec.msgpack.encode(LinksState(self._log.last, taken)))

    def recall(self) -> None:
        """Go on where the last process of this server was."""
        if (kept := self._memory.get("links")) is None:
            return
        state = msgspec.msgpack.decode(kept, type=LinksState)
        entries = sorted((int(name.removeprefix("log/")), name) for name in self._memory.names("log/"))
        self._log.recall(state.last, [_decoder.decode(self._memory.get(name) or b"") for _, name in entries])
        for task, link in self._links.items():
            link.reader = LogReader(taken=state.taken.get(task.index, 0))

    # --- getting in touch ---------------------------------------------------------------------------------
    def advance(self) -> bool:
        """See who has answered; whether there is any news."""
        waited_for = self.missing()
        news = [link.advance() for link in self._links.values()]
        for task in waited_for:
            if self._links[task].welcomed:
                self._send_again(task, 0)
        self.ready = not self.missing()
        return any(news)

    def missing(self) -> list[Task]:
        """Those who have not let this server in."""
        return [task for task, link in self._links.items() if not link.welcomed]

    def confirms(self, task: Task, life: str) -> bool | None:
        """Whether that process is this server, as far as is known; False where there is no link to it."""
        if (link := self._links.get(task)) is None:
            return False
        confirmed = link.confirms(life)
        if confirmed is False and self._restarts:  # it may be a new process, and listen there now
            before = self._links[task]
            self.call_again(task)
            return None if self._links[task] is not before else False
        return confirmed

    def prove(self, task: Task, life: str) -> Known:
        """To another server: whom it reaches here."""
        return self._links[task].prove(life)

    # --- telling and hearing ------------------------------------------------------------------------------
    def tell(self, header: BetweenServers) -> None:
        """Tell the coordinator or, if this is the coordinator, every other server, with the next `flush`."""
        entry = LogEntry(self._log.epoch, self._log.append(header), header)
        if self._links:
            self._unsent.append(entry)
            if self._memory.lasts:
                self._memory.put(f"log/{entry.index}", msgspec.msgpack.encode(header))

    def flush(self) -> None:
        """Send what was told; by now the next process of this server would know of it, too."""
        if self._unsent:
            for link in self._links.values():
                for entry in self._unsent:
                    link.send(entry)
            self._unsent.clear()
        if self._state_due:
            self._state_due = False
            self.say_state()

    def take(self, task: Task, header: Header) -> BetweenServers | None:
        """What a server tells this one, if there is something to do now."""
        link = self._links[task]
        if isinstance(header, LogEntry):
            link.hear()
            if link.reader.take(header.epoch, header.index):
                return header.entry
            if link.reader.misses(header.epoch, header.index):
                self._say_state(link, again=True)
            return None
        if not isinstance(header, LogState):
            raise WireError(f"a server does not send {type(header).__name__}")
        link.hear()
        for index in self._log.acknowledge(task.index, header.taken):
            self._memory.drop(f"log/{index}")
        if header.again:
            self._send_again(task, header.taken)
        if link.reader.lags(header.epoch, header.last):
            self._say_state(link, again=True)
        return None

    def say_state_soon(self) -> None:
        """With the next `flush`."""
        self._state_due = True

    def say_state(self) -> None:
        """Say how far this server is: what it has told, and what it has taken."""
        for link in self._links.values():
            self._say_state(link)

    def _say_state(self, link: PeerLink, again: bool = False) -> None:
        link.send(LogState(self._log.epoch, self._log.last, link.reader.taken, again))

    def _send_again(self, task: Task, after: int) -> None:
        for index, header in self._log.after(after):
            self._links[task].send(LogEntry(self._log.epoch, index, header))

    def has_told(self) -> bool:
        """Whether every server that can still be reached has acknowledged everything."""
        return all(
            self._log.is_known_to(task.index) or not link.welcomed or link.has_hung_up()
            for task, link in self._links.items()
        )

    # --- time ---------------------------------------------------------------------------------------------
    def keep_time(self, now: float) -> None:
        """Say how far this server is, once a second and over a new connection at once; look who is silent."""
        for task, link in list(self._links.items()):
            if self._restarts:
                if link.is_broken():
                    self.call_again(task)
            elif link.renewed():
                self._say_state(link)
        passed = TELL_EVERY if self._looked is None else now - self._looked
        if passed < TELL_EVERY:
            return
        self._looked = now
        self.say_state()
        for link in self._links.values():
            # What came while this server itself stood still is not read yet: no silence of the other's.
            link.look(min(passed, 2 * TELL_EVERY))

    @property
    def unsettled(self) -> bool:
        """Whether something may have to be sent again soon."""
        return self._log.kept > 0

    def silent(self) -> list[tuple[Task, float]]:
        """The servers from which nothing comes, and for how many seconds."""
        return [
            (task, link.silence)
            for task, link in self._links.items()
            if link.welcomed and link.silence >= NOTICE_EVERY
        ]

    def close(self) -> None:
        """Hang up."""
        for link in self._links.values():
            link.close()
