"""A job on paper: the real Coordination, servers and workers that only keep books, a scheduler with a seed.

Messages between two parties keep their order; those of different links overtake each other as the seed has
it. Workers die between any two sends and come back, connections lose what is on its way, pushes arrive
twice. What servers tell each other goes through the real log: of that, too, anything may be lost, doubled or
late. The scheduler is the only source of chance, so a seed that fails once fails always.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from argosy.modes import Mode
from argosy.protocol.decisions import Answer, Apply, Cut, Decision, Forget, Push
from argosy.protocol.saving import ShardFile
from argosy.update.admission import admission_for
from argosy.update.checkpoints import Checkpoints, Contents
from argosy.update.coordination import Arrived, Coordination, CutWritten, Event, Finished, Held, Lost
from argosy.update.log import Log, LogReader
from argosy.update.membership import Presence, Roster

Key: TypeAlias = tuple[int, int]  # a worker, a sequence number
Kind: TypeAlias = Literal["gradient", "skip", "pull"]


@dataclass(frozen=True)
class Scenario:
    """A job, and how unlucky it is: each rate is the chance of that fault at each turn of the scheduler."""

    mode: Mode
    workers: int = 3
    servers: int = 2
    last_step: int | None = None
    pushes: int = 8  # what a life of a worker has data for, at most
    lives: int = 3
    death: float = 0.0
    loss: float = 0.0  # of what is on its way from a worker to a server; it is sent again
    duplication: float = 0.0
    full_disk: float = 0.0  # a server cannot write its file of a checkpoint
    severance: float = 0.0  # of a link between servers: what is on its way is lost
    doubling: float = 0.0  # of what is on its way between servers: it comes twice, once out of order
    expiry: float = (
        0.0  # of a living worker's lease: the coordinator goes on without it, and it does not know
    )
    skips: float = 0.0
    pulls: float = 0.0


# --- what travels -----------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Greeting:
    """A worker's life begins."""


@dataclass(frozen=True)
class Farewell:
    """A worker is done."""


@dataclass(frozen=True)
class Broken:
    """A connection has ended, for good."""


@dataclass(frozen=True)
class OwnState:
    """A worker's own state, for a checkpoint: here, the step that it stands at, and its place in its data."""

    step: int
    batch: int = 0


@dataclass(frozen=True)
class Reply:
    """A server's answer, and how many updates its values have seen."""

    answer: Answer
    updates: int


Delivery: TypeAlias = Callable[[], None]


class Network:
    """Links, each in order; which one delivers next is the scheduler's choice."""

    def __init__(self) -> None:
        self._links: dict[tuple[str, ...], deque[Delivery]] = {}  # only those with something on its way

    def send(self, link: tuple[str, ...], delivery: Delivery) -> None:
        """Put something on its way."""
        self._links.setdefault(link, deque()).append(delivery)

    def busy(self) -> list[tuple[str, ...]]:
        """The links that have something on its way."""
        return list(self._links)

    def deliver(self, link: tuple[str, ...]) -> None:
        """Let the first message of a link arrive."""
        queue = self._links[link]
        delivery = queue.popleft()
        if not queue:
            del self._links[link]
        delivery()

    def lose(self, link: tuple[str, ...]) -> None:
        """Nothing of what is on its way arrives."""
        self._links.pop(link, None)

    def double(self, link: tuple[str, ...], chance: random.Random) -> None:
        """Something that is on its way comes once more, earlier or later than its neighbours."""
        queue = self._links[link]
        queue.insert(chance.randint(0, len(queue)), chance.choice(queue))


def _link(writer: int, follower: int) -> tuple[str, ...]:
    return ("servers", str(writer), str(follower))


# --- who takes part ---------------------------------------------------------------------------------------
class Server:
    """Keeps what it holds, and carries out orders in order: an OrderExecutor without numbers."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.held: set[Key] = set()
        self.applied: list[Apply] = []
        self.cuts: list[tuple[int, int]] = []  # the step, and how many updates had been made
        self.settled: dict[int, int] = {}  # worker -> the last sequence number that was dealt with

    def hold(self, key: Key) -> bool:
        """Whether this push is news."""
        if key[1] <= self.settled.get(key[0], 0):
            return False
        self.held.add(key)
        return True

    def settle(self, worker: int, seq: int) -> None:
        """This push was applied, answered or forgotten: it is no news any more."""
        self.settled[worker] = max(seq, self.settled.get(worker, 0))

    def carry_out(self, decision: Decision) -> Reply | None:
        """One decision; what is to be told to a worker."""
        match decision:
            case Apply(_, parts):
                for part in parts:
                    self.held.remove((part.worker, part.seq))  # a KeyError here: ordered, but not held
                    self.settle(part.worker, part.seq)
                self.applied.append(decision)
            case Cut(step):
                self.cuts.append((step, len(self.applied)))
            case Forget(worker, seq):
                self.held.discard((worker, seq))
                self.settle(worker, seq)
            case Answer(worker, seq):
                if decision.status not in ("held", "folded"):  # those wait for their step
                    self.held.discard((worker, seq))
                self.settle(worker, seq)
                return Reply(decision, len(self.applied))
        return None


@dataclass
class Life:
    """One incarnation of a worker: it greets, pulls, and pushes until it is told to stop."""

    worker: int
    number: int
    data: int
    seq: int = 0
    version: int = 0
    welcomed: bool = False
    started: bool = False  # it has the values it starts from
    over: bool = False  # left or dead
    sending: deque[int] = field(default_factory=deque)  # servers that the push must still be sent to
    replies: dict[int, Reply] = field(default_factory=dict)
    push: Push | None = None
    state: OwnState | None = None  # for the latest checkpoint that it has heard of
    gives: bool = False  # it has yet to be sent
    fenced: bool = False  # it counts as gone, and hears so when it speaks to the coordinator


class Job:
    """Everybody, and the books that the invariants are read from."""

    MOST_TURNS = 100_000

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self.scenario = scenario
        self.random = random.Random(seed)
        self.network = Network()
        self.servers = [Server(index) for index in range(scenario.servers)]
        self.roster = Roster(scenario.workers)
        admission = admission_for(scenario.mode, self.roster, scenario.last_step)
        self.core = Coordination(scenario.servers, self.roster, admission)
        self.checkpoints = self.core.checkpoints = Checkpoints(2, 0, scenario.servers)
        self.owners: dict[int, int] = {}  # the life of each worker that was there at the latest cut
        self.published: list[Contents] = []
        self.lives: list[Life | None] = [None] * scenario.workers
        self.counts = [0] * scenario.workers  # lives so far
        self.pushes: dict[Key, Push] = {}
        self.answers: dict[Key, Answer] = {}
        self.told: dict[Key, Answer] = {}  # answers that a worker has heard from every server
        self.faults = True
        others = range(1, scenario.servers)
        self.logs = [Log[None](others), *(Log[None]([0]) for _ in others)]  # each server's own
        self.entries: dict[tuple[int, int], Callable[[int], None]] = {}  # by writer and index
        self.readers = {(0, other): LogReader() for other in others}  # (writer, follower)
        self.readers |= {(other, 0): LogReader() for other in others}

    # --- between servers --------------------------------------------------------------------------------
    def tell(self, writer: int, entry: Callable[[int], None]) -> None:
        """A server tells all who follow it: what each of them does then."""
        log = self.logs[writer]
        index = log.append(None)
        for source, follower in self.readers:
            if source == writer:
                self.entries[writer, index] = entry
                self.send_entry(writer, follower, index)

    def send_entry(self, writer: int, follower: int, index: int) -> None:
        self.network.send(_link(writer, follower), lambda: self.take(writer, follower, index))

    def take(self, writer: int, follower: int, index: int) -> None:
        """An entry is at a follower, which may find that it misses some."""
        log, reader = self.logs[writer], self.readers[writer, follower]
        if reader.take(log.epoch, index):
            self.entries[writer, index](follower)
        elif reader.misses(log.epoch, index):
            self.say_state(follower, writer, again=True)

    def say_state(self, speaker: int, listener: int, again: bool = False) -> None:
        """How far a server is: as writer, and as follower of the one that it speaks to."""
        last, taken = self.logs[speaker].last, self.readers[listener, speaker].taken
        self.network.send(
            _link(speaker, listener), lambda: self.hear_state(speaker, listener, last, taken, again)
        )

    def hear_state(self, speaker: int, listener: int, last: int, taken: int, again: bool) -> None:
        log = self.logs[listener]
        log.acknowledge(speaker, taken)
        if again:
            for index, _ in log.after(taken):
                self.send_entry(listener, speaker, index)
        if self.readers[speaker, listener].lags(self.logs[speaker].epoch, last):
            self.say_state(listener, speaker, again=True)

    def behind(self) -> bool:
        """Whether somebody has not taken all that it was told, or it is not known that it has."""
        return any(
            reader.taken < self.logs[writer].last or not self.logs[writer].is_known_to(follower)
            for (writer, follower), reader in self.readers.items()
        )

    # --- the coordinator --------------------------------------------------------------------------------
    def decide(self, event: Event) -> None:
        """Let the core decide, and give every server its orders."""
        before = self.core.admission.step
        decisions = self.core.on(event)
        self.decided(decisions)
        assert self.core.admission.step >= before, "E3: the global step went back"
        for answer in decisions:
            if isinstance(answer, Answer):
                key = (answer.worker, answer.seq)
                assert key not in self.answers, f"{key} is answered twice"
                self.answers[key] = answer
        if any(isinstance(decision, Cut) for decision in decisions):
            self.owners = {worker: self.counts[worker] for worker in self.roster.in_training()}
        self.tell(0, lambda follower: self.obey(self.servers[follower], decisions))
        self.obey(self.servers[0], decisions)
        self.publish()

    def decided(self, decisions: Sequence[Decision]) -> None:
        """For jobs that keep more books."""

    def loss(self, worker: int) -> Lost:
        """What follows from a worker's death."""
        return Lost(worker)

    def obey(self, server: Server, decisions: Sequence[Decision]) -> None:
        """A server carries out decisions, and answers."""
        for decision in decisions:
            reply = server.carry_out(decision)
            if isinstance(decision, Apply):
                first = self.servers[0].applied
                assert len(server.applied) <= len(first), "E2: a server is ahead of the coordinator"
                assert first[len(server.applied) - 1] == decision, "E1: servers apply different sets"
            if isinstance(decision, Cut):
                self.write(server, decision.step)
            if reply is not None and (life := self.lives[reply.answer.worker]) is not None:
                link = ("reply", str(server.index), str(life.worker), str(life.number))
                self.network.send(link, self.replied(life, server.index, reply))

    def write(self, server: Server, step: int) -> None:
        """A server begins to write its file of a checkpoint, and reports when it has."""
        fails = self.random.random() < self.scenario.full_disk
        file = None if fails else ShardFile(f"shard-{server.index}", step, "")

        def report() -> None:
            self.checkpoints.file(server.index, step, file, f"full disk of {server.index}" if fails else "")
            self.publish()

        if server.index == 0:
            self.network.send(("saved",), report)
        else:
            self.tell(server.index, lambda _: report())

    def publish(self) -> None:
        """The coordinator publishes a checkpoint once all of it is there; that takes a while."""
        contents = self.checkpoints.ready(set(self.roster.in_training()), 0.0)
        if contents is None:
            return
        self.published.append(contents)
        for worker, number in self.owners.items():
            if self.roster.is_here(worker) and self.counts[worker] == number:
                assert int(contents.replicas[worker].split()[0]) >= contents.step, "a state of before the cut"
        self.network.send(("published",), lambda: self.decide(CutWritten(saved=not contents.errors)))

    def replied(self, life: Life, server: int, reply: Reply) -> Delivery:
        return lambda: self.hear(life, server, reply)

    # --- the servers' inboxes ---------------------------------------------------------------------------
    def arrive(self, life: Life, server: int, what: Greeting | Farewell | Broken | OwnState | Push) -> None:
        """A message of a worker's is at a server."""
        current = self.lives[life.worker] is life
        if life.fenced and server == 0:
            life.over = True
            return
        match what:
            case Greeting() if current:  # one that a newer life overtook is refused
                self.decide(Arrived(life.worker))
                base = self.core.base_seq(life.worker)
                self.network.send(
                    ("reply", "0", str(life.worker), str(life.number)), lambda: self.welcome(life, base)
                )
            case Farewell() if current:
                self.decide(Finished(life.worker))
            case Broken() if current and self.roster[life.worker] is Presence.PRESENT:
                self.decide(self.loss(life.worker))
            case OwnState(step, batch) if current:
                self.checkpoints.give(life.worker, f"{step} {batch}".encode(), step)
                self.publish()
            case Push(worker, seq) if self.servers[server].hold((worker, seq)):
                if server == 0:
                    self.decide(Held(0, worker, seq, what))
                else:
                    self.tell(server, lambda _: self.decide(Held(server, worker, seq)))

    # --- the workers ------------------------------------------------------------------------------------
    def send(self, life: Life, server: int, what: Greeting | Farewell | Broken | OwnState | Push) -> None:
        link = ("request", str(server), str(life.worker), str(life.number))
        self.network.send(link, lambda: self.arrive(life, server, what))

    def begin(self, worker: int) -> None:
        """A new life."""
        self.counts[worker] += 1
        life = Life(worker, self.counts[worker], self.random.randint(0, self.scenario.pushes))
        self.lives[worker] = life
        self.send(life, 0, Greeting())

    def welcome(self, life: Life, base: int) -> None:
        life.welcomed = True
        life.seq = base

    def hear(self, life: Life, server: int, reply: Reply) -> None:
        """An answer; when the last server has answered, the worker may go on."""
        if life.over or life.push is None or reply.answer.seq != life.push.seq:
            return
        life.replies[server] = reply
        if len(life.replies) < len(self.servers):
            return
        first = life.replies[0]
        assert all(reply == first for reply in life.replies.values()), f"servers disagree: {life.replies}"
        assert first.updates == first.answer.step, "the values are not those of the step that was told"
        self.told[life.worker, life.push.seq] = first.answer
        life.version = first.answer.step
        life.started = True
        if first.answer.cut:
            life.state, life.gives = OwnState(life.version), True
        life.push = None
        life.replies = {}
        if first.answer.stop:
            life.data = 0

    def may_act(self, life: Life) -> bool:
        """Whether a worker has something to do on its own."""
        return not life.over and life.welcomed and (life.push is None or bool(life.sending))

    def act(self, life: Life) -> None:
        """The next send of a worker, one server at a time, or its farewell."""
        if life.gives and life.state is not None:
            life.gives = False
            self.send(life, 0, life.state)
        elif life.push is not None:
            self.send(life, life.sending.popleft(), life.push)
        elif life.started and life.data == 0:
            life.over = True
            self.send(life, 0, Farewell())
        else:
            life.seq += 1
            life.push = Push(life.worker, life.seq, life.version, self.kind_of_next(life))
            life.data -= life.started
            life.sending = deque(range(len(self.servers)))
            self.pushes[life.worker, life.seq] = life.push

    def kind_of_next(self, life: Life) -> Kind:
        if not life.started:
            return "pull"
        chance = self.random.random()
        if chance < self.scenario.skips:
            return "skip"
        return "pull" if chance < self.scenario.skips + self.scenario.pulls else "gradient"

    # --- faults -----------------------------------------------------------------------------------------
    def living(self) -> list[Life]:
        return [life for life in self.lives if life is not None and not life.over]

    def die(self, life: Life) -> None:
        """A worker dies where it stands; what is on its way may still arrive, or never."""
        life.over = True
        for server in range(1, len(self.servers)):
            if self.random.random() < 0.5:
                self.lose(life, server)
        self.send(life, 0, Broken())

    def lose(self, life: Life, server: int) -> None:
        link = ("request", str(server), str(life.worker), str(life.number))
        self.network.lose(link)

    def interrupt(self, life: Life) -> None:
        """A connection breaks and is made anew; the worker finds out what the server lacks, and resends."""
        if life.push is None or not life.welcomed:
            return
        server = self.random.randrange(len(self.servers))
        if server not in life.sending and server not in life.replies:
            self.lose(life, server)
            if server == 0 and life.state is not None:
                self.send(life, 0, life.state)
            self.send(life, server, life.push)

    def expire(self, life: Life) -> None:
        """A worker was out of the coordinator's reach for too long; other servers may still hear it."""
        if life.welcomed and not life.fenced and self.roster.is_here(life.worker):
            life.fenced = True
            self.decide(self.loss(life.worker))

    def learn_of_its_end(self, life: Life) -> None:
        """It has asked the coordinator for whom it waits."""
        life.over = True

    def duplicate(self, life: Life) -> None:
        """A push arrives twice."""
        if life.push is not None:
            server = self.random.randrange(len(self.servers))
            if server not in life.sending:
                self.send(life, server, life.push)

    def disturb(self) -> bool:
        """Perhaps a link between servers loses what is on its way, or brings something twice."""
        busy = [link for link in self.network.busy() if link[0] == "servers"]
        chance = self.random.random()
        if not busy or chance >= self.scenario.severance + self.scenario.doubling:
            return False
        link = self.random.choice(busy)
        if chance < self.scenario.severance:
            self.network.lose(link)
        else:
            self.network.double(link, self.random)
        return True

    def fault(self) -> bool:
        """Perhaps something goes wrong."""
        scenario, living = self.scenario, self.living()
        if (scenario.severance or scenario.doubling) and self.disturb():
            return True
        if not living:
            return False
        life, chance = self.random.choice(living), self.random.random()
        for rate, happen in (
            (scenario.death, self.die),
            (scenario.loss, self.interrupt),
            (scenario.duplication, self.duplicate),
            (scenario.expiry, self.expire),
        ):
            if chance < rate:
                happen(life)
                return True
            chance -= rate
        return False

    # --- the scheduler ----------------------------------------------------------------------------------
    def possible(self) -> list[tuple[Callable[..., None], tuple[Any, ...]]]:
        """Everything that may happen next. Servers say how far they are until they know of each other."""
        links = self.network.busy()
        found: list[tuple[Callable[..., None], tuple[Any, ...]]]
        found = [(self.network.deliver, (link,)) for link in links]
        if not links or self.random.random() < 0.1:
            found += [(self.say_state, pair) for pair in self.readers if self.behind()]
        for worker, life in enumerate(self.lives):
            if life is None:
                found.append((self.begin, (worker,)))
            elif self.may_act(life):
                found.append((self.act, (life,)))
            elif life.fenced and not life.over:
                found.append((self.learn_of_its_end, (life,)))
            elif life.over and self.faults and self.counts[worker] < self.scenario.lives:
                found.append((self.begin, (worker,)))
        return found

    def play(self, turns: int) -> None:
        """So many turns with faults, then on without any until nothing is left to happen."""
        played = 0
        while choices := self.possible():
            played += 1
            assert played < self.MOST_TURNS, "E7: it never ends"
            self.faults = played < turns
            if not (self.faults and self.fault()):
                happens, to = self.random.choice(choices)
                happens(*to)
