"""Asking the coordinator how the job stands, once or again and again."""

from __future__ import annotations

import os
import time

from argosy.cluster.spec import Address
from argosy.errors import WaitTimeout
from argosy.protocol.asking import JobStatus, StatusReport, StatusRequest
from argosy.wire.channel import Channel

ANSWER_WITHIN = 5.0


class Inquirer:
    """Asks the coordinator again and again, over a channel that is its own."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    @staticmethod
    def at(address: str, name: str = "status") -> Inquirer:
        """One who asks the server at `host:port`."""
        from argosy.wire.zmq_channel import ZmqChannel

        identity = f"{name}-{os.getpid()}-{time.monotonic_ns()}".encode()
        # A question that nobody has taken is worth no wait at the end.
        return Inquirer(ZmqChannel(Address.parse(address, "address"), identity, linger=0.0))

    def send(self, stacks: bool = False) -> None:
        """Ask; `receive` brings the answer."""
        self._channel.send(StatusRequest(stacks))

    def receive(self, timeout: float) -> StatusReport | None:
        """An answer; None if there is none in time."""
        message = self._channel.receive(timeout)
        return message.header if message is not None and isinstance(message.header, StatusReport) else None

    def ask(self, timeout: float) -> JobStatus | None:
        """How the job stands now; None if nobody answers in time."""
        while self.receive(0.0) is not None:
            """An answer that came too late."""
        self.send()
        answer = self.receive(timeout)
        return None if answer is None else answer.job

    def close(self) -> None:
        """Hang up."""
        self._channel.close()


def query(address: str, stacks: bool = False) -> str:
    """Ask the server at `host:port`; raises WaitTimeout if nobody answers."""
    inquirer = Inquirer.at(address)
    try:
        inquirer.send(stacks)
        answer = inquirer.receive(ANSWER_WITHIN)
    finally:
        inquirer.close()
    if answer is None:
        raise WaitTimeout("no answer", [f"a server at {address}"], ANSWER_WITHIN)
    return "\n".join(answer.lines)
