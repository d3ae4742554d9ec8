"""Workers that die and are replaced, on paper: each goes on from what its pushes have carried.

A worker's data is a list of turns, drawn before the job begins. Whatever dies when, the turns that make a
synchronous step must be those of a job in which nobody dies.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from invariants import check
from simulator import Broken, Farewell, Greeting, Job, Kind, Life, OwnState, Reply, Scenario

from argosy.modes import Sync
from argosy.protocol.decisions import Decision, Push
from argosy.protocol.saving import CarriedState
from argosy.server.replica_states import ReplicaStates
from argosy.update.coordination import Lost


@dataclass
class ReplacingLife(Life):
    """One incarnation; it asks from where it goes on before it begins."""

    batch: int = 0  # of its data, the next
    replays: int = 0  # turns that count already
    asked: bool = False
    left: bool = False


class ReplacingJob(Job):
    """Everybody who dies is replaced, sooner or later, or given up with a chance of `giving_up`."""

    def __init__(self, scenario: Scenario, seed: int, giving_up: float = 0.0) -> None:
        super().__init__(scenario, seed)
        self.core.replaces = isinstance(scenario.mode, Sync)
        self.states = ReplicaStates()
        self.turns: list[list[Kind]] = [
            [
                "skip" if self.random.random() < scenario.skips else "gradient"
                for _ in range(self.random.randint(1, scenario.pushes))
            ]
            for _ in range(scenario.workers)
        ]
        self.batches: dict[tuple[int, int], int] = {}  # worker, sequence number -> which of its turns
        self.giving_up = giving_up
        self.given_up: set[int] = set()

    def decided(self, decisions: Sequence[Decision]) -> None:
        self.states.count(decisions)

    def loss(self, worker: int) -> Lost:
        return Lost(worker, returns=self.core.replaces)

    def arrive(self, life: Life, server: int, what: Greeting | Farewell | Broken | OwnState | Push) -> None:
        assert isinstance(life, ReplacingLife)
        if life.fenced and server == 0:
            life.left = False  # nobody has heard that it is done
        elif isinstance(what, Push) and server == 0 and what.seq > self.core.base_seq(life.worker):
            if what.kind != "pull":
                place = {"batch": str(self.batches[what.worker, what.seq]).encode()}
                self.states.bring(what.worker, what.seq, CarriedState(place))
        elif isinstance(what, Farewell) and self.lives[life.worker] is life:
            self.states.forget(life.worker)
        super().arrive(life, server, what)

    # --- the workers ------------------------------------------------------------------------------------
    def begin(self, worker: int) -> None:
        self.counts[worker] += 1
        life = ReplacingLife(worker, self.counts[worker], 1)
        self.lives[worker] = life
        self.send(life, 0, Greeting())

    def welcome(self, life: Life, base: int) -> None:
        """It asks from where it goes on; what happens meanwhile must not matter."""
        life.seq = base
        self.network.send(("asks", str(life.worker), str(life.number)), lambda: self.answer_asked(life))

    def answer_asked(self, life: Life) -> None:
        carried = self.states.of(life.worker)
        link = ("reply", "0", str(life.worker), str(life.number))
        self.network.send(link, lambda: self.resume(life, carried))

    def resume(self, life: Life, carried: CarriedState | None) -> None:
        assert isinstance(life, ReplacingLife)
        life.welcomed = True
        if carried is not None:
            life.batch, life.replays = int(carried.parts["batch"]), carried.turns

    def act(self, life: Life) -> None:
        assert isinstance(life, ReplacingLife)
        done = (life.data == 0 and not life.replays) or life.batch >= len(self.turns[life.worker])
        if life.gives and life.state is not None and not life.replays and life.push is None:
            life.gives = False
            life.state = OwnState(life.state.step, life.batch)
            self.send(life, 0, life.state)
        elif life.push is not None:
            self.send(life, life.sending.popleft(), life.push)
        elif life.started and done:
            life.over = life.left = True
            self.send(life, 0, Farewell())
        else:
            life.seq += 1
            turn = life.started and not life.replays
            kind: Kind = self.turns[life.worker][life.batch] if turn else "pull"
            life.push = Push(life.worker, life.seq, life.version, kind)
            life.sending = deque(range(len(self.servers)))
            self.pushes[life.worker, life.seq] = life.push
            if turn:
                self.batches[life.worker, life.seq] = life.batch

    def hear(self, life: Life, server: int, reply: Reply) -> None:
        assert isinstance(life, ReplacingLife)
        push, started, gives = life.push, life.started, life.gives
        super().hear(life, server, reply)
        if push is None or life.push is not None:
            return
        life.gives |= gives
        if push.kind != "pull" or started:
            life.batch += 1
            life.replays -= life.replays > 0

    def possible(self) -> list:  # type: ignore[type-arg]
        found = [each for each in super().possible() if each[0] != self.begin]
        for worker, life in enumerate(self.lives):
            assert life is None or isinstance(life, ReplacingLife)
            if life is None or (life.over and not life.left):
                found.append((self.begin, (worker,)))
        return found

    def fault(self) -> bool:
        if (returning := self.roster.returning()) and self.random.random() < self.giving_up:
            self.given_up.add(returning[0])
            self.decide(Lost(returning[0]))
            return True
        return super().fault()


def rounds(job: ReplacingJob) -> list[list[tuple[int, int]]]:
    """The turns of each step, if nobody dies: everybody takes one after the other."""
    result = []
    for number in range(max(map(len, job.turns))):
        parts = [
            (worker, number)
            for worker, turns in enumerate(job.turns)
            if number < len(turns) and turns[number] == "gradient"
        ]
        result += [parts] if parts else []
    return result[: job.scenario.last_step]


def play(scenario: Scenario, seed: int, giving_up: float = 0.0) -> ReplacingJob:
    """A schedule to its end, checked."""
    job = ReplacingJob(scenario, seed, giving_up)
    job.play(150)
    check(job)
    steps = [
        [(p.worker, job.batches[p.worker, p.seq]) for p in apply.parts] for apply in job.servers[0].applied
    ]
    counted = [part for parts in steps for part in parts]
    assert len(set(counted)) == len(counted), f"a batch counts twice: {steps}"
    mode = scenario.mode
    if isinstance(mode, Sync) and mode.distinct and mode.aggregate is None and not job.given_up:
        assert steps == rounds(job), "E5: other sums than without the deaths"
        check_positions(job, steps)
    return job


def check_positions(job: ReplacingJob, steps: list[list[tuple[int, int]]]) -> None:
    """A checkpoint has every worker where it stood after that step."""
    for contents in job.published:
        if contents.step == len(steps):
            continue  # the last one is of workers that have left
        place = steps[contents.step - 1][0][1] + 1
        for worker, state in contents.replicas.items():
            step, batch = map(int, state.split())
            if step == contents.step:
                assert batch == min(place, len(job.turns[worker])), f"{contents} has {worker} elsewhere"
