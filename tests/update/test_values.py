"""What the coordinator knows is a value: written down after any event and recalled, it decides the same."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TypeVar

import msgspec
import pytest

from argosy.modes import Async, Mode, Sync
from argosy.protocol.decisions import Answer, Apply, Decision, Part, Push
from argosy.protocol.saving import CarriedState
from argosy.server.gathers import Gathers, GathersValue
from argosy.server.replica_states import ReplicaStates, Standing
from argosy.server.tally import Counts, Tally
from argosy.update.admission import admission_for
from argosy.update.checkpoints import Checkpoints, CheckpointsValue
from argosy.update.clipping import NormCollector
from argosy.update.coordination import (
    Arrived,
    Coordination,
    CoordinationValue,
    Event,
    Finished,
    Held,
    Lost,
    StopWanted,
)
from argosy.update.log import Log, LogReader
from argosy.update.membership import Presence, Roster

T = TypeVar("T")
WORKERS, SERVERS = 3, 2
SEEDS = range(60)
MODES: dict[str, Mode] = {
    "sync": Sync(),
    "sync weighted": Sync(weighted=True),
    "sync 2": Sync(aggregate=2),
    "sync 2 fold": Sync(aggregate=2, late="fold"),
    "any 4, tokens 2": Sync(aggregate=4, distinct=False, tokens=2),
    "any n fold": Sync(distinct=False, late="fold"),
    "async": Async(),
    "async bound 0": Async(max_staleness=0),
    "async bound 2": Async(max_staleness=2),
}


def written_down(value: T, kind: object) -> T:
    """As another process reads it."""
    return msgspec.msgpack.Decoder(kind).decode(msgspec.msgpack.encode(value))  # type: ignore[no-any-return]


def fresh(mode: Mode, last_step: int | None, replaces: bool) -> Coordination:
    roster = Roster(WORKERS)
    made = Coordination(SERVERS, roster, admission_for(mode, roster, last_step))
    made.replaces = replaces
    return made


class Events:
    """Random events that can happen: pushes go to one server after the other, and a worker waits for its
    answer, or is lost, and comes back.
    """

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._seqs: dict[int, int] = {}
        self._versions = dict.fromkeys(range(WORKERS), 0)
        self._pushes: dict[
            int, tuple[Push, list[int | None]]
        ] = {}  # and the servers that it has yet to reach

    def heard(self, decisions: list[Decision]) -> None:
        for decision in decisions:
            if isinstance(decision, Answer):
                self._pushes.pop(decision.worker, None)
                self._versions[decision.worker] = decision.step

    def next(self, job: Coordination) -> Event:
        chance = self._chance
        if chance.random() < 0.01:
            return StopWanted()
        worker = chance.randrange(WORKERS)
        presence = job.roster[worker]
        if presence is not Presence.PRESENT:
            gone = presence in (Presence.RETURNING, Presence.LEAVING) and chance.random() < 0.2
            return Lost(worker) if gone else self._arrive(worker)
        luck = chance.random()
        if luck < 0.03:
            return self._arrive(worker)  # before anybody has noticed
        if luck < 0.08:
            return Lost(worker, returns=chance.random() < 0.7)
        if luck < 0.09:
            return Finished(worker)
        return self._push(worker, job)

    def _arrive(self, worker: int) -> Event:
        self._pushes.pop(worker, None)
        self._seqs.pop(worker, None)
        return Arrived(worker)

    def _push(self, worker: int, job: Coordination) -> Event:
        chance = self._chance
        if worker not in self._pushes:
            seq = self._seqs.get(worker, job.base_seq(worker)) + 1
            self._seqs[worker] = seq
            kind = chance.choice(["gradient"] * 6 + ["skip", "pull"])
            last = kind == "pull" and chance.random() < 0.1
            weight = float(chance.randint(1, 4))
            push = Push(worker, seq, self._versions[worker], kind, weight, last)  # type: ignore[arg-type]
            servers: list[int | None] = chance.choice([[None], [0, 1], [1, 0]])
            self._pushes[worker] = (push, servers)
        push, servers = self._pushes[worker]
        server = servers.pop(0) if len(servers) > 1 else servers[0]  # the last is said again and again
        return Held(server, worker, push.seq, None if server == 1 else push)


@pytest.mark.parametrize("replaces", [True, False])
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_a_coordinator_that_is_recalled_after_every_event_decides_the_same(
    mode: Mode, replaces: bool
) -> None:
    steps = 0
    for seed in SEEDS:
        chance = random.Random(seed)
        last_step = chance.choice([None, 5, 20])
        plain, recalled = fresh(mode, last_step, replaces), fresh(mode, last_step, replaces)
        events = Events(chance)
        for _ in range(150):
            event = events.next(plain)
            decisions = plain.on(event)
            assert recalled.on(event) == decisions, f"seed {seed}: {event}"
            events.heard(decisions)
            value = written_down(recalled.value(), CoordinationValue)
            recalled = fresh(mode, last_step, replaces)
            recalled.recall(value)
            assert msgspec.msgpack.encode(recalled.value()) == msgspec.msgpack.encode(plain.value())
            assert recalled.waited_for() == plain.waited_for()
            for worker in range(WORKERS):
                assert recalled.base_seq(worker) == plain.base_seq(worker)
        steps += plain.admission.step
    assert steps > 100


def decided(chance: random.Random) -> Iterator[Decision]:
    step = 0
    for seq in range(1, 200):
        worker = chance.randrange(WORKERS)
        status = chance.choice(["applied", "dropped", "folded", "skipped", "held", "pulled"])
        if status == "applied":
            step += 1
            yield Apply(step, (Part(worker, seq), Part((worker + 1) % WORKERS, seq)))
        yield Answer(worker, seq, status, step, chance.randrange(3))  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(5))
def test_a_tally(seed: int) -> None:
    chance = random.Random(seed)
    plain, recalled = Tally(WORKERS), Tally(WORKERS)
    for decision in decided(chance):
        for each in (plain, recalled):
            each.count([decision])
            each.log(0, {"loss": 1.0}, 3)
        value = written_down(recalled.value(), list[Counts])
        recalled = Tally(WORKERS)
        recalled.recall(value)
        assert all(recalled.status(w, "", "") == plain.status(w, "", "") for w in range(WORKERS))


@pytest.mark.parametrize("seed", range(5))
def test_the_states_of_replicas(seed: int) -> None:
    chance = random.Random(seed)
    plain, recalled = ReplicaStates(), ReplicaStates()
    parts: dict[int, dict[str, bytes]] = {}
    for number, decision in enumerate(decided(chance)):
        worker, luck = chance.randrange(WORKERS), chance.random()
        gives = luck < 0.7 or worker not in plain.kept  # the first time all of it, then what has changed
        carried = CarriedState({f"part{luck < 0.5}": bytes([number % 256])} if gives else {}, number, 2)
        for each in (plain, recalled):
            if luck < 0.8:
                each.bring(worker, number, carried)
            elif luck < 0.83:
                each.forget(worker)
            each.count([decision])
        for changed in recalled.changed & recalled.kept.keys():
            parts[changed] = dict(recalled.kept[changed].parts)
        value = written_down(recalled.value(), dict[int, Standing])
        recalled = ReplicaStates()
        recalled.recall(value, {w: written_down(p, dict[str, bytes]) for w, p in parts.items()})
        assert all(recalled.of(w) == plain.of(w) for w in range(WORKERS)), number


@pytest.mark.parametrize("seed", range(5))
def test_norms(seed: int) -> None:
    chance = random.Random(seed)
    plain, recalled = NormCollector(SERVERS, 1.0), NormCollector(SERVERS, 1.0)
    factors = 0
    for number in range(200):
        report = (chance.randrange(SERVERS), 1 + number // 6, chance.random())
        factor = plain.report(*report)
        assert recalled.report(*report) == factor
        factors += factor is not None
        value = written_down(recalled.value(), tuple[dict[int, dict[int, float]], int])
        recalled = NormCollector(SERVERS, 1.0)
        recalled.recall(value)
    assert 20 < factors <= 34


@pytest.mark.parametrize("seed", range(5))
def test_gathers(seed: int) -> None:
    chance = random.Random(seed)
    plain, recalled = Gathers(keeps=True), Gathers(keeps=True)
    for number in range(200):
        gather, worker = 1 + number // 6, chance.randrange(WORKERS)
        awaited = chance.choice([(0, 1, 2), (0, 1, 2), (1, 2)])
        brought = msgspec.Raw(msgspec.msgpack.encode(number))
        outcomes = []
        for each in (plain, recalled):
            if gather > each.held:
                each.attend(gather, worker, brought)
            outcomes.append([(n, texts(values)) for n, values in each.take_place(awaited)])
        assert outcomes[0] == outcomes[1]
        value = written_down(recalled.value(), GathersValue)
        recalled = Gathers(keeps=True)
        recalled.recall(value)
        assert recalled.missing(awaited) == plain.missing(awaited)
        for past in range(gather + 1):
            assert texts(recalled.missed(past) or {}) == texts(plain.missed(past) or {})


def texts(values: dict[int, msgspec.Raw]) -> dict[int, bytes]:
    return {worker: bytes(value) for worker, value in values.items()}


@pytest.mark.parametrize("every", [None, 3])
@pytest.mark.parametrize("seed", range(5))
def test_checkpoints_between_two(seed: int, every: int | None) -> None:
    chance = random.Random(seed)
    plain, recalled = Checkpoints(every, 0, SERVERS), Checkpoints(every, 0, SERVERS)
    cuts = 0
    for step in range(1, 100):
        asks, gives, saved = chance.random() < 0.2, chance.random() < 0.3, chance.random() < 0.8
        outcomes = []
        for each in (plain, recalled):
            if asks:
                each.ask(step - 1)
            taken = each.take(step, (0, 1))
            if gives:
                each.give(1, bytes([step]), step)
            if taken:
                each.written(saved)
            outcomes.append((taken, each.latest, each.state_of(1)))
        assert outcomes[0] == outcomes[1]
        cuts += outcomes[0][0]
        value = written_down(recalled.value(), CheckpointsValue)
        recalled = Checkpoints(every, 0, SERVERS)
        recalled.recall(value)
    assert cuts > 5
    assert plain.finish(100) == recalled.finish(100)


@pytest.mark.parametrize("seed", range(5))
def test_a_log_and_its_readers(seed: int) -> None:
    """What a follower had acknowledged is not kept: it says so again, and until then it counts as less."""
    chance = random.Random(seed)
    plain: Log[int] = Log([1, 2])
    recalled: Log[int] = Log([1, 2])
    readers = {1: LogReader(), 2: LogReader()}
    for number in range(300):
        if chance.random() < 0.6:
            assert plain.append(number) == recalled.append(number)
        follower = chance.choice([1, 2])
        for index, _ in plain.after(readers[follower].taken):
            if chance.random() < 0.7:
                assert readers[follower].take(1, index)
            else:
                break
        for each in (plain, recalled):
            for follower, reader in readers.items():
                each.acknowledge(follower, reader.taken)
        assert list(recalled.after(0)) == list(plain.after(0))
        last, kept = recalled.last, [entry for _, entry in recalled.after(0)]
        recalled = Log([1, 2])
        recalled.recall(last, kept)
        readers = {follower: LogReader(taken=reader.taken) for follower, reader in readers.items()}
    assert plain.last > 100
