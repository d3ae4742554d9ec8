"""A server's links to other servers: the coordinator's to all, everybody else's to the coordinator."""

from __future__ import annotations

import uuid
from collections.abc import Callable

from argosy.cluster.settings import NOTICE_EVERY
from argosy.cluster.spec import ClusterSpec, Task
from argosy.errors import WireError
from argosy.protocol.header import BetweenServers, Header, Numbered, SentCount
from argosy.protocol.joining import Hello, Known
from argosy.server.peer_link import TELL_EVERY, PeerLink
from argosy.store.approach import Approach
from argosy.wire.channel import Channel

_REMEDY = "start the job again: with a directory it goes on from its newest checkpoint"


class PeerLinks:
    """The way to the other servers."""

    def __init__(
        self, cluster: ClusterSpec, me: Task, connect: Callable[[Task], Channel], use_lane: bool
    ) -> None:
        self._cluster = cluster
        others = [task for task in cluster.tasks("ps") if task != me and 0 in (task.index, me.index)]
        hello = Hello(str(me), cluster.count("ps"), cluster.count("worker"), uuid.uuid4().hex)
        self._links = {
            task: PeerLink(Approach(connect(task), hello, cluster.describe(task), use_lane), hello)
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
