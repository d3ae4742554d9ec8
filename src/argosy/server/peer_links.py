"""A server's links to other servers: the coordinator's to all, everybody else's to the coordinator.

Everything that servers tell each other is numbered here, above the channel, and the other's numbers are
checked: ZeroMQ makes a broken connection anew, and says nothing of what was lost with the old one.
"""

from __future__ import annotations

import hashlib
import hmac
import uuid
from collections.abc import Callable

from argosy.cluster.settings import NOTICE_EVERY
from argosy.cluster.spec import ClusterSpec, Task
from argosy.errors import ConfigError, WireError
from argosy.protocol.header import BetweenServers, Header, Numbered, SentCount
from argosy.protocol.joining import Fail, Hello, JobOver, Known, Refused
from argosy.store.caller_handshake import CallerHandshake
from argosy.update.numbering import Incoming, Outgoing
from argosy.wire.channel import Channel

_REMEDY = "start the job again: with a directory it goes on from its newest checkpoint"
# How often a server says how much it has told the others, in seconds.
TELL_EVERY = 1.0


class PeerLink:
    """To the server that `handshake` leads to: this server's own channel there, and what comes back over the
    other's channel to it. `hello` is this server's own.
    """

    def __init__(self, handshake: CallerHandshake, hello: Hello) -> None:
        self._handshake = handshake
        self._life = hello.life
        self._proof: bytes | None = None  # of the one who listens at the other's address
        self._outgoing = Outgoing()
        self._incoming = Incoming()
        self._unsent: list[Header] = []  # until the other has welcomed this server
        self._words = self._counted = 0  # how often the other has told its count, and when that was looked at
        self._reported = False
        self.silence = 0.0  # for how many seconds nothing has come

    # --- getting in touch ---------------------------------------------------------------------------------
    @property
    def welcomed(self) -> bool:
        """Whether the other has let this server in."""
        return self._handshake.welcome is not None

    def advance(self) -> bool:
        """See what has come back; whether there is any news."""
        before = (self._handshake.welcome, self._proof)
        while self._handshake.welcome is None and (message := self._handshake.advance(0.0)) is not None:
            if isinstance(header := message.header, Refused):
                raise ConfigError(header.field, header.expected, header.got, header.remedy)
            if isinstance(header, Known):
                self._proof = header.proof
        news = before != (self._handshake.welcome, self._proof)
        if news and self._handshake.welcome is not None:
            self._flush()
        return news

    def prove(self, life: str) -> Known:
        """To the process of that life: it is this server whom it reaches."""
        return Known(_proof(self._life, life))

    def confirms(self, life: str) -> bool | None:
        """Whether the process of that life listens at the other's address; None if that is not known yet."""
        return None if self._proof is None else hmac.compare_digest(self._proof, _proof(life, self._life))

    # --- telling ------------------------------------------------------------------------------------------
    def tell(self, header: BetweenServers) -> None:
        """Send it; before there is a welcome, as soon as there is one."""
        numbered = Numbered(self._outgoing.next(), header)
        if self._handshake.welcome is None:  # the way may still change, and a message overtake an earlier one
            self._unsent.append(numbered)
        else:
            self._handshake.channel.send(numbered)

    def tell_count(self) -> None:
        """Say how much was told so far: the other may have missed the latest of it."""
        if self.welcomed:
            self._handshake.channel.send(SentCount(self._outgoing.sent))

    def _flush(self) -> None:
        unsent, self._unsent = self._unsent, []
        for header in unsent:
            self._handshake.channel.send(header)

    def close(self) -> None:
        """Hang up."""
        self._flush()
        self._handshake.close()

    # --- hearing ------------------------------------------------------------------------------------------
    def take(self, header: Header) -> BetweenServers | None:
        """What the other tells, if it is to be acted on; after a missed message only the job's end is."""
        if isinstance(header, Numbered):
            if self._incoming.take(header.number):
                return header.header
            is_end = isinstance(header.header, Fail | JobOver)
            return header.header if is_end and self._incoming.missed is not None else None
        if isinstance(header, SentCount):
            self._words += 1
            self._incoming.expect(header.sent)
        return None

    def missed(self) -> int | None:
        """The number of the first message that did not come, once."""
        if self._reported or self._incoming.missed is None:
            return None
        self._reported = True
        return self._incoming.missed

    def look(self, passed: float) -> None:
        """Note that so many seconds have passed since the last look, and whether anything has come."""
        counted = self._words + self._incoming.taken
        self.silence = 0.0 if counted != self._counted else self.silence + passed
        self._counted = counted


def _proof(listener: str, caller: str) -> bytes:
    """Only who knows both lives can make it: a stranger learns neither from another's."""
    return hashlib.blake2b(f"{listener}/{caller}".encode(), digest_size=16).digest()


class PeerLinks:
    """The way to the other servers."""

    def __init__(
        self, cluster: ClusterSpec, me: Task, connect: Callable[[Task], Channel], use_lane: bool
    ) -> None:
        self._cluster = cluster
        others = [task for task in cluster.tasks("ps") if task != me and 0 in (task.index, me.index)]
        hello = Hello(str(me), cluster.count("ps"), cluster.count("worker"), uuid.uuid4().hex)
        self._links = {
            task: PeerLink(CallerHandshake(connect(task), hello, cluster.describe(task), use_lane), hello)
            for task in others
        }
        self.ready = not others
        self._looked: float | None = None

    # --- getting in touch ---------------------------------------------------------------------------------
    def advance(self) -> bool:
        """See who has answered; whether there is any news."""
        news = [link.advance() for link in self._links.values()]
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
    def tell(self, server: int, header: BetweenServers) -> None:
        """Send to one server."""
        self._links[Task("ps", server)].tell(header)

    def tell_all(self, header: BetweenServers) -> None:
        """Send to every other server."""
        for link in self._links.values():
            link.tell(header)

    def take(self, task: Task, header: Header) -> BetweenServers | None:
        """What a server tells this one, if there is something to do."""
        if not isinstance(header, Numbered | SentCount):
            raise WireError(f"a server does not send {type(header).__name__}")
        return self._links[task].take(header)

    def missed(self, task: Task) -> str | None:
        """What was lost on the way from a server, as a reason to end the job; told once."""
        if (number := self._links[task].missed()) is None:
            return None
        return (
            f"missed message {number} from {self._cluster.describe(task)}: "
            f"the connection between them broke; {_REMEDY}"
        )

    # --- time ---------------------------------------------------------------------------------------------
    def keep_time(self, now: float) -> None:
        """Once a second: say how much was told, and look who is silent."""
        passed = TELL_EVERY if self._looked is None else now - self._looked
        if passed < TELL_EVERY:
            return
        self._looked = now
        for link in self._links.values():
            link.tell_count()
            # What came while this server itself stood still is not read yet: no silence of the other's.
            link.look(min(passed, 2 * TELL_EVERY))

    def silent(self) -> list[tuple[str, float]]:
        """The servers from which nothing comes, and for how many seconds."""
        return [
            (self._cluster.describe(task), link.silence)
            for task, link in self._links.items()
            if link.welcomed and link.silence >= NOTICE_EVERY
        ]

    def close(self) -> None:
        """Hang up."""
        for link in self._links.values():
            link.close()
