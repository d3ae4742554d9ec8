"""A server's channels to other servers: the coordinator's to all, everybody else's to the coordinator.

They only send. What comes back is the answer to the hello; after that the peer speaks through its own
channel to this server's inbox.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable

from argosy.cluster.spec import ClusterSpec, Task
from argosy.errors import ConfigError
from argosy.store.approach import Approach
from argosy.wire.channel import Channel
from argosy.wire.protocol import Header, Hello, Refused


class Links:
    """The way to the other servers."""

    def __init__(
        self, cluster: ClusterSpec, me: Task, connect: Callable[[Task], Channel], use_lane: bool
    ) -> None:
        others = [task for task in cluster.tasks("ps") if task != me and 0 in (task.index, me.index)]
        hello = Hello(str(me), cluster.count("ps"), cluster.count("worker"), uuid.uuid4().hex)
        self._approaches = {
            task: Approach(connect(task), hello, cluster.describe(task), use_lane) for task in others
        }
        self.ready = not others

    def advance(self) -> bool:
        """See who has answered; True when all have."""
        for task in self.missing():
            approach = self._approaches[task]
            message = approach.advance(0.0)
            if message is not None and isinstance(header := message.header, Refused):
                raise ConfigError(header.field, header.expected, header.got, header.remedy)
        self.ready = not self.missing()
        return self.ready

    def missing(self) -> list[Task]:
        """Those who have not answered."""
        return [task for task, approach in self._approaches.items() if approach.welcome is None]

    def tell(self, server: int, header: Header) -> None:
        """Send to one server."""
        self._approaches[Task("ps", server)].channel.send(header)

    def tell_all(self, header: Header) -> None:
        """Send to every other server."""
        for approach in self._approaches.values():
            approach.channel.send(header)

    def close(self) -> None:
        """Hang up."""
        for approach in self._approaches.values():
            approach.close()
