"""Bugs of the log between servers, of what is sent again, and of leases."""

from __future__ import annotations

from bug import Bug

LOG_BUGS: tuple[Bug, ...] = (
    # --- the log --------------------------------------------------------------------------------------------
    Bug(
        "entries of an earlier epoch are taken",
        "update/log.py",
        "        if epoch < self.epoch or index != self.taken + 1:\n",
        "        if index != self.taken + 1:\n",
        ("update/test_log.py",),
    ),
    Bug(
        "no continuity check",
        "update/log.py",
        "        if epoch < self.epoch or index != self.taken + 1:\n",
        "        if epoch < self.epoch or index <= self.taken:\n",
        ("update/test_log.py", "simulation/test_schedules.py"),
    ),
    Bug(
        "no deduplication",
        "update/log.py",
        "        if epoch < self.epoch or index != self.taken + 1:\n",
        "        if epoch < self.epoch or index > self.taken + 1:\n",
        ("update/test_log.py", "simulation/test_schedules.py"),
    ),
    Bug(
        "an entry is let go when the first follower has it",
        "update/log.py",
        "needed = min(self._acknowledged.values()) + 1",
        "needed = max(self._acknowledged.values()) + 1",
        ("update/test_log.py", "simulation/test_schedules.py"),
    ),
    Bug(
        "what nobody has written can be acknowledged",
        "update/log.py",
        "if not self._acknowledged[follower] < index <= self.last:",
        "if not self._acknowledged[follower] < index:",
        ("update/test_log.py",),
    ),
    Bug(
        "the loss of the last entry is not noticed",
        "update/log.py",
        "return epoch >= self.epoch and last > self.taken",
        "return epoch >= self.epoch and last > self.taken + 1",
        ("update/test_log.py", "simulation/test_schedules.py"),
    ),
    Bug(
        "a second gap is not asked for",
        "update/log.py",
        "index <= self.taken or self._asked == self.taken:",
        "index <= self.taken or self._asked is not None:",
        ("update/test_log.py",),
    ),
    # --- links between servers ------------------------------------------------------------------------------
    Bug(
        "what was told before the welcome is not sent",
        "server/peer_links.py",
        "            if self._links[task].welcomed:\n                self._send_again(task, 0)\n",
        "            pass\n",
        ("server/test_calling_servers.py",),
    ),
    Bug(
        "entries are acknowledged before they are taken",
        "server/peer_links.py",
        "link.send(LogState(self._log.epoch, self._log.last, link.reader.taken, again))",
        "link.send(LogState(self._log.epoch, self._log.last, link.reader.taken + 1, again))",
        ("server/test_peer_links.py", "simulation/test_breaking.py"),
    ),
    Bug(
        "what is asked for again is not sent",
        "server/peer_links.py",
        "        if header.again:\n            self._send_again(task, header.taken)\n",
        "",
        ("server/test_peer_links.py", "simulation/test_breaking.py"),
    ),
    Bug(
        "a proof that was lost is not asked for",
        "server/peer_links.py",
        "return self._handshake.welcome is not None and self._proof is not None",
        "return self._handshake.welcome is not None",
        ("server/test_calling_servers.py",),
    ),
    # --- a worker that sends again --------------------------------------------------------------------------
    Bug(
        "only the server that is waited for is heard",
        "store/conversation.py",
        "concerned = {0, server} if resend is None else set(range(len(self.channels)))",
        "concerned = {0, server}",
        ("simulation/test_breaking.py",),
    ),
    Bug(
        "nothing is asked again over a new connection",
        "store/conversation.py",
        "            channel.send(self._state)\n        renew(server)\n",
        "            channel.send(self._state)\n",
        ("store/test_conversation.py", "simulation/test_breaking.py"),
    ),
    Bug(
        "an answer to an earlier request is taken for this one's",
        "store/conversation.py",
        "while (message := self.wait(server, kind, send)).header.number != header.number:",
        "while (message := self.wait(server, kind, send)) is None:",
        ("store/test_conversation.py", "faults/test_broken_connection.py", "simulation/test_breaking.py"),
    ),
    Bug(
        "a request that is sent again is done again",
        "server/worker_requests.py",
        "if answer is None or number != message.header.number or seen:",
        "if True:",
        ("server/test_worker_requests.py",),
    ),
    Bug(
        "an answer counts as received, although its connection broke",
        "server/order_executor.py",
        "        if anew and latest is not None and seq <= latest.seq:\n            return False\n",
        "",
        ("store/test_client.py", "simulation/test_breaking.py"),
    ),
    Bug(
        "a push that was resent is taken a second time",
        "server/order_executor.py",
        "return (worker, seq) in self.pushes or seq <= self._settled.get(worker, 0)",
        "return (worker, seq) in self.pushes",
        ("server/test_order_executor.py", "faults/test_broken_connection.py", "simulation/test_breaking.py"),
    ),
    # --- servers that come back -----------------------------------------------------------------------------
    Bug(
        "what was lost with a server is not asked for when it is back",
        "store/returning_channel.py",
        "renewals = self.renewals + 1",
        "renewals = self.renewals",
        ("store/test_returning_servers.py",),
    ),
    Bug(
        "a new process that asks for a hello gets none",
        "store/returning_channel.py",
        "elif _asks_for_hello(message.header):",
        "elif False:",
        ("store/test_returning_servers.py",),
    ),
    Bug(
        "a server that came back is not sent its share",
        "store/client.py",
        "if server and shown is not None and shown[server] == self.attached[server]:",
        "if server and shown is not None:",
        ("store/test_returning_servers.py",),
    ),
    Bug(
        "a server that came back meanwhile counts as one that sees the memory",
        "store/client.py",
        "self._shown = attached",
        "self._shown = self.attached",
        ("store/test_returning_servers.py",),
    ),
    Bug(
        "memory is not shared again with a server that came back",
        "replica/server_exchange.py",
        "if self._client.attached != self._attached:",
        "if False:",
        ("store/test_returning_servers.py",),
    ),
    Bug(
        "a server that came back is reached over the network only",
        "store/caller_handshake.py",
        'if self._use_lane and lane not in ("", self._tried) and self._shorten(lane):',
        "if self._use_lane and lane and not self._tried and self._shorten(lane):",
        ("store/test_caller_handshake.py", "store/test_returning_servers.py"),
    ),
    Bug(
        "whoever has lost its lease is let in over a new connection",
        "server/handshake.py",
        "if self._connected.has_ended(hello.life):",
        "if False:",
        ("server/test_handshake.py",),
    ),
    # --- leases ---------------------------------------------------------------------------------------------
    Bug(
        "whoever has lost its lease may go on",
        "server/connected_tasks.py",
        "                del self._tasks[peer]\n                self._given_up[peer] = task\n",
        "                pass\n",
        ("server/test_coordinator.py",),
    ),
    Bug(
        "a connection that is back does not renew the lease",
        "server/connected_tasks.py",
        "            elif since != _ENDED and not stands_still(peer) and reaches(peer):\n"
        "                self._departed[task] = now\n",
        "",
        ("faults/test_deaths.py", "faults/test_broken_connection.py", "faults/test_resets.py"),
    ),
    Bug(
        "two updates of one list are kept together",
        "server/order_executor.py",
        "        self.step = apply.step\n        self._keep_due = True\n",
        "        self.step = apply.step\n",
        ("server/test_recalled_executor.py",),
    ),
)
