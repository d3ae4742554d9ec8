"""Bugs of workers that die and are replaced."""

from __future__ import annotations

from bug import Bug

REPLACEMENT_BUGS: tuple[Bug, ...] = (
    Bug(
        "replacement: it begins after a push that was not applied",
        "server/replica_states.py",
        "        kept.turns = carried.turns\n",
        "        kept.turns = carried.turns + 1\n",
        ("server/test_replica_states.py", "simulation/test_replaced.py"),
    ),
    Bug(
        "replacement: a turn that counts is made again",
        "server/replica_states.py",
        "            kept.turns += seq >= kept.seq\n",
        "",
        ("server/test_replica_states.py", "simulation/test_replaced.py"),
    ),
    Bug(
        "replacement: the step does not wait for one who will come back",
        "update/coordination.py",
        "                    self.roster.expect_back(worker)\n",
        "                    self.roster.lose(worker)\n",
        ("update/test_returning_workers.py", "simulation/test_replaced.py"),
    ),
    Bug(
        "replacement: one who is back before it was missed leaves the step first",
        "update/coordination.py",
        "self._decide(Lost(worker, self.replaces)) if here else []",
        "self._decide(Lost(worker)) if here else []",
        ("update/test_returning_workers.py", "simulation/test_replaced.py"),
    ),
    Bug(
        "replacement: what the dead one had brought stays beside it",
        "update/coordination.py",
        "        decisions += self.admission.withdraw(worker)\n",
        "",
        ("update/test_returning_workers.py", "simulation/test_replaced.py"),
    ),
    Bug(
        "replacement: it is not asked for the state that a checkpoint waits for",
        "update/coordination.py",
        "            self.checkpoints.tell_again(worker)\n",
        "            pass\n",
        ("update/test_returning_workers.py", "session/test_replacement.py"),
    ),
    Bug(
        "replacement: it gives a checkpoint its state in the middle of a turn",
        "replica/server_exchange.py",
        "        cut, self._cut = self._cut, False  # the state is to be that of after this turn\n",
        "        cut = self._cut\n",
        ("session/test_replacement.py",),
    ),
    Bug(
        "replacement: it goes on in the middle of an accumulation",
        "session/carried_state.py",
        "        if self._between:\n",
        "        if True:\n",
        ("session/test_replacement.py",),
    ),
    Bug(
        "replacement: its own loader begins anew",
        "session/batch_feed.py",
        '            resuming = "skip"\n',
        "            pass\n",
        ("session/test_replacement.py",),
    ),
    Bug(
        "replacement: the gathers of its script wait for everybody once more",
        "server/gathers.py",
        "return self._latest if number == self.held else self._past.get(number)",
        "return self._latest if number == self.held else None",
        ("session/test_replacement.py",),
    ),
    Bug(
        "replacement: a chief registers beside what a dead one has registered",
        "server/order_executor.py",
        "        if self.shard.count and count == every and not self._verdicts:\n",
        "        if False:\n",
        ("session/test_replacement.py",),
    ),
    Bug(
        "replacement: random numbers go on from where its script is",
        "session/carried_state.py",
        "            own.restore(state.random)\n",
        "",
        ("faults/test_replacing.py",),
    ),
)
