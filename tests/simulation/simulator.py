"""A job on paper: the real Coordination, servers and workers that only keep books, a scheduler with a seed.

Messages between two parties keep their order; those of different links overtake each other as the seed has
it. Workers die between any two sends and come back, connections lose what is on its way, pushes arrive
twice. What servers tell each other is numbered, and ends the job if some of it is lost. The scheduler is the
only source of chance, so a seed that fails once fails always.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from argosy.modes import Mode
from argosy.protocol.decisions import Answer, Apply, Cut, Decision, Forget, Push
from argosy.protocol.saving import ShardFile
from argosy.update.admission import admission_for
from argosy.update.checkpoints import Checkpoints, Contents
from argosy.update.coordination import Arrived, Coordination, CutWritten, Event, Finished, Held, Lost
from argosy.update.membership import Presence, Roster
from argosy.update.numbering import Incoming, Outgoing

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
    severance: float = 0.0  # of a link between servers: what is on its way is lost for good
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
    """A worker's own state, for a checkpoint: here, the step that it stands at."""

    step: int


@dataclass(frozen=True)
class Reply:
    """A server's answer, and how many updates its values have seen."""

    answer: Answer
    updates: int


Delivery: TypeAlias = Callable[[], None]


class Network:
    """Links, each in order; which one delivers next is the scheduler's choice."""

    def __init__(self) -> None:
        self._links: dict[tuple[str, ...], deque[Delivery]] = {}

    def send(self, link: tuple[str, ...], delivery: Delivery) -> None:
        """Put something on its way."""
        self._links.setdefault(link, deque()).append(delivery)

    def busy(self) -> list[tuple[str, ...]]:
        """The links that have something on its way."""
        return [link for link, queue in self._links.items() if queue]

    def deliver(self, link: tuple[str, ...]) -> None:
        """Let the first message of a link arrive."""
        self._links[link].popleft()()

    def lose(self, link: tuple[str, ...]) -> None:
        """Nothing of what is on its way arrives."""
        self._links[link].clear()


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


class Job:
    """Everybody, and the books that the invariants are read from."""

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
        self.links: dict[tuple[str, ...], tuple[Outgoing, Incoming]] = {}  # between servers
        self.failed = False

    # --- between servers --------------------------------------------------------------------------------
    def tell(self, link: tuple[str, ...], delivery: Delivery) -> None:
        """One server tells another."""
        outgoing, incoming = self.links.setdefault(link, (Outgoing(), Incoming()))
        number = outgoing.next()

        def arrive() -> None:
            if incoming.take(number):
                delivery()
            self.failed = self.failed or incoming.missed is not None

        self.network.send(link, arrive)

    def tell_counts(self) -> None:
        """Every server says how much it has told, after all else has arrived."""
        for outgoing, incoming in self.links.values():
            incoming.expect(outgoing.sent)
            self.failed = self.failed or incoming.missed is not None

    # --- the coordinator --------------------------------------------------------------------------------
    def decide(self, event: Event) -> None:
        """Let the core decide, and give every server its orders."""
        before = self.core.admission.step
        decisions = self.core.on(event)
        assert self.core.admission.step >= before, "E3: the global step went back"
        for answer in decisions:
            if isinstance(answer, Answer):
                key = (answer.worker, answer.seq)
                assert key not in self.answers, f"{key} is answered twice"
                self.answers[key] = answer
        if any(isinstance(decision, Cut) for decision in decisions):
            self.owners = {worker: self.counts[worker] for worker in self.roster.present()}
        for server in self.servers[1:]:
            self.tell(("orders", str(server.index)), self.ordered(server, decisions))
        self.obey(self.servers[0], decisions)
        self.publish()

    def ordered(self, server: Server, decisions: Sequence[Decision]) -> Delivery:
        return lambda: self.obey(server, decisions)

    def obey(self, server: Server, decisions: Sequence[Decision]) -> None:
        """A server carries out decisions, and answers."""
        for decision in decisions:
            reply = server.carry_out(decision)
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
            self.tell(("reports", str(server.index)), report)

    def publish(self) -> None:
        """The coordinator publishes a checkpoint once all of it is there; that takes a while."""
        contents = self.checkpoints.ready(set(self.roster.present()), 0.0)
        if contents is None:
            return
        self.published.append(contents)
        for worker, number in self.owners.items():
            if self.roster.is_here(worker) and self.counts[worker] == number:
                assert int(contents.replicas[worker]) >= contents.step, "a state of before the cut"
        self.network.send(("published",), lambda: self.decide(CutWritten(saved=not contents.errors)))

    def replied(self, life: Life, server: int, reply: Reply) -> Delivery:
        return lambda: self.hear(life, server, reply)

    # --- the servers' inboxes ---------------------------------------------------------------------------
    def arrive(self, life: Life, server: int, what: Greeting | Farewell | Broken | OwnState | Push) -> None:
        """A message of a worker's is at a server."""
        current = self.lives[life.worker] is life
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
                self.decide(Lost(life.worker))
            case OwnState(step) if current:
                self.checkpoints.give(life.worker, str(step).encode(), step)
                self.publish()
            case Push(worker, seq) if self.servers[server].hold((worker, seq)):
                if server == 0:
                    self.decide(Held(0, worker, seq, what))
                else:
                    self.tell(("reports", str(server)), lambda: self.decide(Held(server, worker, seq)))

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
        if link in self.network.busy():
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

    def duplicate(self, life: Life) -> None:
        """A push arrives twice."""
        if life.push is not None:
            server = self.random.randrange(len(self.servers))
            if server not in life.sending:
                self.send(life, server, life.push)

    def sever(self) -> bool:
        """Perhaps a connection between servers breaks; it is made anew, without what was on its way."""
        busy = [link for link in self.network.busy() if link in self.links]
        if not busy or self.random.random() >= self.scenario.severance:
            return False
        self.network.lose(self.random.choice(busy))
        return True

    def fault(self) -> bool:
        """Perhaps something goes wrong."""
        scenario, living = self.scenario, self.living()
        if scenario.severance and self.sever():
            return True
        if not living:
            return False
        life, chance = self.random.choice(living), self.random.random()
        for rate, happen in (
            (scenario.death, self.die),
            (scenario.loss, self.interrupt),
            (scenario.duplication, self.duplicate),
        ):
            if chance < rate:
                happen(life)
                return True
            chance -= rate
        return False

    # --- the scheduler ----------------------------------------------------------------------------------
    def possible(self) -> Iterator[Callable[[], None]]:
        """Everything that may happen next."""
        for link in self.network.busy():
            yield lambda link=link: self.network.deliver(link)  # type: ignore[misc]
        for worker, life in enumerate(self.lives):
            if life is None:
                yield lambda worker=worker: self.begin(worker)  # type: ignore[misc]
            elif self.may_act(life):
                yield lambda life=life: self.act(life)  # type: ignore[misc]
            elif life.over and self.faults and self.counts[worker] < self.scenario.lives:
                yield lambda worker=worker: self.begin(worker)  # type: ignore[misc]

    def play(self, turns: int) -> None:
        """So many turns with faults, then on without any until nothing is left to happen."""
        while not self.failed and (choices := list(self.possible())):
            turns -= 1
            self.faults = turns > 0
            if not (self.faults and self.fault()):
                self.random.choice(choices)()
        self.tell_counts()
