"""How a step is made on all servers: a push is held, the coordinator decides, its orders go to every server.

`ParameterServer` passes pushes in, and the coordinator its decisions. What an order changes is kept before it
is carried out here: the next process of this server must not decide otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from argosy.protocol.decisions import Decision, Push
from argosy.protocol.training import HeldNotice, NormReport, Orders, PushRequest, Scale
from argosy.server.coordinator import Coordinator
from argosy.server.order_executor import OrderExecutor
from argosy.server.peer_links import PeerLinks
from argosy.server.recovery import Recovery
from argosy.server.status_report import StatusAnswers
from argosy.wire.message import Message


class StepMaking:
    """Of one server; only the coordinator's gives orders."""

    def __init__(
        self,
        executor: OrderExecutor,
        coordinator: Coordinator | None,
        links: PeerLinks,
        status: StatusAnswers,
        recovery: Recovery,
    ) -> None:
        self._executor = executor
        self._coordinator = coordinator
        self._links = links
        self._status = status
        self._recovery = recovery
        self._untold: list[tuple[int, PushRequest]] = []  # pushes that the other servers only see

    def push(self, worker: int, message: Message[PushRequest]) -> None:
        """Hold it, and tell the coordinator; what it decides at once is done when this returns."""
        header = message.header
        if header.wishes and self._coordinator is not None:
            self._coordinator.wish(header.wishes)
        if not self._executor.hold(worker, message):
            return
        if self._coordinator is None:
            self._links.tell(HeldNotice(worker, header.seq))
        else:
            push = Push(
                worker, header.seq, header.version, header.kind, header.weight, "last" in header.wishes
            )
            self._coordinator.hear(worker, header)
            if push.last:  # the steps that follow from its leaving are made without it
                self._executor.buffers.forget(worker)
            if header.shared:
                plain = header
                if header.buffers or header.numbers or header.state is not None:
                    plain = msgspec.structs.replace(header, buffers=(), numbers={}, state=None)
                self._untold.append((worker, plain))
            self._coordinator.held(None if header.shared else 0, worker, header.seq, push)
        self._executor.resume()
        self._executor.add_early()

    def order(self, decisions: Sequence[Decision]) -> None:
        """The coordinator has decided this, for every server."""
        self._status.note(decisions)
        self._links.tell(Orders(tuple(decisions), tuple(self._untold)))
        self._untold.clear()
        self._executor.order(decisions)
        self._recovery.keep()  # once an update has begun, nothing else may be decided in its place
        self._links.flush()  # the others need not wait for this server's own part
        self._executor.carry_out()

    def obey(self, orders: Orders) -> None:
        """The coordinator has decided this, on another server."""
        for worker, request in orders.pushes:
            self._executor.hold_shared(worker, request)
        self._status.note(orders.decisions)
        self._executor.carry_out(orders.decisions)

    def scale(self, scale: Scale) -> None:
        """The coordinator knows the factor of a step."""
        self._links.tell(scale)
        self._executor.expect_factor(scale.step, scale.factor)
        self._recovery.keep()
        self._links.flush()
        self._executor.go_on()

    def report_norm(self, step: int, square: float) -> None:
        """Tell the coordinator this server's share of a step's norm."""
        if self._coordinator is not None:
            self._coordinator.norm(0, step, square)
        else:
            self._links.tell(NormReport(step, square))
