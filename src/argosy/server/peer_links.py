"""A server's links to other servers: the coordinator's to all, everybody else's to the coordinator.

Everything that servers tell each other goes through a log (`update/log.py`), above the channel: ZeroMQ makes
a broken connection anew, and says nothing of what was lost with the old one. What was lost is sent again.
"""

from __future__ import annotations

import hashlib
import hmac
import uuid
from collections.abc import Callable

from argosy.cluster.settings import NOTICE_EVERY
from argosy.cluster.spec import ClusterSpec, Task
from argosy.errors import ConfigError, WireError
from argosy.protocol.header import BetweenServers, Header, LogEntry, LogState
from argosy.protocol.joining import Hello, Known, Refused
from argosy.store.caller_handshake import CallerHandshake
from argosy.update.log import Log, LogReader
from argosy.wire.channel import Channel

# How often a server says how far it is, in seconds.
TELL_EVERY = 1.0
# Without a connection to a server for so long, it is not told of the job's end: it has ended itself.
_HUNG_UP = 1.0


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


class PeerLinks:
    """The way to the other servers."""

    def __init__(
        self, cluster: ClusterSpec, me: Task, connect: Callable[[Task], Channel], use_lane: bool
    ) -> None:
        others = [task for task in cluster.tasks("ps") if task != me and 0 in (task.index, me.index)]
        hello = Hello(str(me), cluster.count("ps"), cluster.count("worker"), uuid.uuid4().hex)
        self._links = {
            task: PeerLink(CallerHandshake(connect(task), hello, cluster.describe(task), use_lane), hello)
            for task in others
        }
        self._log: Log[BetweenServers] = Log(task.index for task in others)
        self.ready = not others
        self._looked: float | None = None

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
        link = self._links.get(task)
        return False if link is None else link.confirms(life)

    def prove(self, task: Task, life: str) -> Known:
        """To another server: whom it reaches here."""
        return self._links[task].prove(life)

    # --- telling and hearing ------------------------------------------------------------------------------
    def tell(self, header: BetweenServers) -> None:
        """Tell the coordinator; if this is the coordinator, every other server."""
        entry = LogEntry(self._log.epoch, self._log.append(header), header)
        for link in self._links.values():
            link.send(entry)

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
        self._log.acknowledge(task.index, header.taken)
        if header.again:
            self._send_again(task, header.taken)
        if link.reader.lags(header.epoch, header.last):
            self._say_state(link, again=True)
        return None

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
        for link in self._links.values():
            if link.renewed():
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
