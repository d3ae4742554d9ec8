"""Bugs of servers that die and are started again."""

from __future__ import annotations

from bug import Bug

_EXECUTOR = ("server/test_executor_recovery.py",)
_SERVER = ("server/test_server_recovery.py",)
_GUARD = ("server/test_update_guard.py",)
_VALUES = ("update/test_values.py",)

RECOVERY_BUGS: tuple[Bug, ...] = (
    # --- what is kept, and when -----------------------------------------------------------------------------
    Bug(
        "recovery: answers are sent before they are kept",
        "server/parameter_server.py",
        "self._deferred = DeferredAnswers(listener) if self._memory.lasts else None",
        "self._deferred = None",
        _SERVER,
    ),
    Bug(
        "recovery: the lives of workers are not recalled",
        "server/recovery.py",
        "            self._connected.recall({Task",
        "            ({Task",
        _SERVER,
    ),
    Bug(
        "recovery: what nobody has acknowledged is not recalled",
        "server/peer_links.py",
        "in entries])\n",
        "in entries[:-1]])\n",
        _SERVER,
    ),
    Bug(
        "recovery: the answer to a request is not recalled",
        "server/worker_requests.py",
        "            self._answered = msgspec.msgpack.decode(kept, type=dict[int, tuple[int, Header]])\n",
        "            pass\n",
        _SERVER,
    ),
    Bug(
        "recovery: an order is begun before it is kept",
        "server/step_making.py",
        "self._recovery.keep()  # once an update",
        "pass  # once an update",
        _SERVER,
    ),
    Bug(
        "recovery: how far decisions are carried out is not recalled",
        "server/order_executor.py",
        "            self._orders.extend(state.orders)\n",
        "",
        _EXECUTOR,
    ),
    Bug(
        "recovery: what was answered is not recalled",
        "server/order_executor.py",
        "            self._verdicts, self._settled = state.verdicts, state.settled\n",
        "",
        _EXECUTOR,
    ),
    Bug(
        "recovery: the factor of a clipped step is lost",
        "server/order_executor.py",
        "            self.step, self._factors = state.step, state.factors\n",
        "            self.step = state.step\n",
        _EXECUTOR,
    ),
    Bug(
        "recovery: a worker is told that a push is held which was lost",
        "server/order_executor.py",
        '    if isinstance(order, Answer) and order.status in ("held", "folded"):\n',
        '    if isinstance(order, Answer) and order.status == "folded":\n',
        _EXECUTOR,
    ),
    Bug(
        "recovery: counts of updates are not kept",
        "server/order_executor.py",
        '        self._memory.put("counts", _encoder.encode(self.shard.counts()))\n',
        "        pass\n",
        _EXECUTOR,
    ),
    Bug(
        "recovery: a push whose worker has gone on is not kept",
        "server/held_pushes.py",
        '            self._memory.put(f"held/{worker}/{seq}", _encoder.encode(state))\n',
        "",
        _EXECUTOR,
    ),
    Bug(
        "recovery: gradient memory that an earlier process saw is taken for seen",
        "server/order_executor.py",
        'if self._lacking and request.kind == "gradient" and not self.pushes.sees(worker):',
        "if False:",
        _EXECUTOR,
    ),
    Bug(
        "recovery: slots that were given are lost",
        "server/given_slots.py",
        "            self._slots[given.name] = [each.tensor() for each in given.tensors]\n",
        "",
        _EXECUTOR,
    ),
    Bug(
        "recovery: a lost gradient is waited for without end",
        "server/lost_gradients.py",
        "        if self._executor.pushes.of_later_life(worker, seq):\n            return True\n",
        "",
        _EXECUTOR,
    ),
    # --- half an update -------------------------------------------------------------------------------------
    Bug(
        "recovery: the chunk that was being changed is not set back",
        "server/update_guard.py",
        "                ctypes.memmove(address, place, size)\n",
        "",
        _GUARD,
    ),
    Bug(
        "recovery: chunks that are done are changed again",
        "server/update_guard.py",
        "        self._passed = words[1]\n",
        "",
        _GUARD,
    ),
    Bug(
        "recovery: a chunk counts as done before it is changed",
        "server/update_guard.py",
        "        change()\n        words[1] = number + 1\n",
        "        words[1] = number + 1\n        change()\n",
        _GUARD,
    ),
    # --- the coordinator's value ----------------------------------------------------------------------------
    Bug(
        "recovery: what only some servers hold is forgotten",
        "update/coordination.py",
        "(worker, seq): _Arriving(set(servers), push) for worker, seq, servers, push in value.arriving",
        "(worker, seq): _Arriving(set(), push) for worker, seq, servers, push in value.arriving",
        _VALUES,
    ),
    Bug(
        "recovery: turns of the step being collected are given anew",
        "update/admission.py",
        "        self._turns, self._waiting = dict(value.turns), dict(value.waiting)\n",
        "        self._waiting = dict(value.waiting)\n",
        _VALUES,
    ),
    Bug(
        "recovery: a checkpoint that is due is passed over",
        "update/checkpoints.py",
        "        self._next, self._over, self._states = value.due, value.over, dict(value.states)\n",
        "        self._over, self._states = value.over, dict(value.states)\n",
        _VALUES,
    ),
)
