"""From what a job has counted to what a person wants to know: speeds, time left, who is behind. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import msgspec

from argosy.observe.lines import duration_text, numbers_text, step_text
from argosy.protocol.asking import JobStatus, WorkerStatus

# A speed is taken over as many gradients, or as many seconds: a slow job needs longer to be seen moving.
_ENOUGH_GRADIENTS = 100
_LONGEST_WINDOW = 60.0
_IN_THE_JOB = "in the job"


class WorkerProgress(msgspec.Struct, frozen=True):
    """One worker. `rate`: gradients/s; `staleness`: recent mean; `behind`: fewer gradients than the first."""

    task: str
    presence: str
    rate: float
    applied: int
    dropped: int
    skipped: int
    staleness: float
    behind: int
    heard: float | None

    @property
    def short(self) -> str:
        """`worker 1`."""
        job, _, index = self.task.removeprefix("/job:").partition("/task:")
        return f"{job} {index}"


class Progress(msgspec.Struct, frozen=True):
    """The whole job. `rate`: gradients/s of all; `step_rate`: updates/s; `eta`: seconds to the last step.

    `numbers`: what each worker logged last, their mean. `logged`: the newest of them, which are of the step
    `logged_at`; `fresh`: whether an earlier progress had not seen them.
    """

    time: float
    step: int
    last_step: int | None
    numbers: dict[str, float]
    rate: float
    step_rate: float
    eta: float | None
    staleness: float
    dropped: int
    queue: int
    workers: tuple[WorkerProgress, ...]
    waiting: tuple[str, ...]
    waited: float
    logged: dict[str, float] = {}
    logged_at: int = 0
    fresh: bool = False

    def line(self) -> str:
        """All of it in one line."""
        text = step_text(self.step, self.last_step) + numbers_text(self.numbers)
        text += f"  {self.rate:6.1f} gradients/s"
        if self.staleness:
            text += f"  staleness {self.staleness:4.1f}"
        if self.dropped:
            text += f"  {self.dropped} dropped"
        if self.eta is not None:
            text += f"  {duration_text(self.eta)} to go"
        if (slow := self.slowest()) is not None:
            text += f"  {slow.short} behind ({slow.rate:.1f}/s)"
        return text

    def slowest(self) -> WorkerProgress | None:
        """The one that falls behind: less than half as fast as the fastest."""
        here = [worker for worker in self.workers if worker.presence == _IN_THE_JOB]
        if len(here) < 2:
            return None
        last = min(here, key=lambda worker: (worker.rate, worker.applied))
        return last if last.rate < 0.5 * max(worker.rate for worker in here) else None

    def scalars(self) -> dict[str, float]:
        """What is counted, by a name as TensorBoard groups them; all of it is of `step`."""
        found: dict[str, float] = {
            "speed/steps_per_second": self.step_rate,
            "speed/gradients_per_second": self.rate,
            "servers/staleness": self.staleness,
            "servers/queue": self.queue,
            "servers/dropped": self.dropped,
        }
        for worker in self.workers:
            name = worker.short.replace(" ", "_")
            found[f"speed/{name}"] = worker.rate
            found[f"staleness/{name}"] = worker.staleness
        return found

    def events(self) -> list[dict[str, object]]:
        """What goes into `events.jsonl`: new numbers with the step that they are of, counts with theirs."""
        if not self.fresh:
            return [self._counts()]
        numbers: dict[str, object] = {**self.logged, "step": self.logged_at}  # ours, whatever is logged
        if self.logged_at == self.step:
            return [numbers | self._counts()]
        return [numbers, self._counts()]

    def _counts(self) -> dict[str, object]:
        return {
            "step": self.step,
            "last_step": self.last_step,
            "gradients_per_second": round(self.rate, 2),
            "steps_per_second": round(self.step_rate, 2),
            "staleness": round(self.staleness, 2),
            "dropped": self.dropped,
            "queue": self.queue,
            "workers": {
                worker.task: {
                    "gradients_per_second": round(worker.rate, 2),
                    "gradients": worker.applied,
                    "staleness": round(worker.staleness, 2),
                    "dropped": worker.dropped,
                    "presence": worker.presence,
                }
                for worker in self.workers
            },
            "waiting_for": list(self.waiting),
        }


class Speedometer:
    """Turns one status after the other into progress."""

    def __init__(self) -> None:
        self._past: deque[JobStatus] = deque()
        self._newest = -1  # the step of the latest numbers

    def read(self, status: JobStatus, time: float) -> Progress:
        """The progress at `status`, read at the wall clock's `time`."""
        before = self._reference(status)
        seconds = status.clock - before.clock
        earlier = {worker.task: worker for worker in before.workers}
        most = max((w.applied for w in status.workers if w.presence == _IN_THE_JOB), default=0)
        workers = tuple(_worker(w, earlier.get(w.task, w), seconds, most) for w in status.workers)
        step_rate = _per_second(status.step - before.step, seconds)
        logged_at = max((w.logged for w in status.workers if w.numbers), default=-1)
        newest = [w for w in status.workers if w.numbers and w.logged == logged_at]
        fresh, self._newest = logged_at > self._newest, max(logged_at, self._newest)
        return Progress(
            time=time,
            step=status.step,
            last_step=status.last_step,
            numbers=_mean_numbers(status.workers),
            rate=sum(worker.rate for worker in workers),
            step_rate=step_rate,
            eta=_eta(status, step_rate),
            staleness=_staleness(status.workers, before.workers),
            dropped=sum(worker.dropped for worker in status.workers),
            queue=status.queue,
            workers=workers,
            waiting=status.waiting,
            waited=status.waited,
            logged=_mean_numbers(newest),
            logged_at=max(0, logged_at),
            fresh=fresh,
        )

    def _reference(self, status: JobStatus) -> JobStatus:
        """An earlier status, far enough away to measure by."""
        past = self._past
        if past and status.clock < past[-1].clock:  # another coordinator: its clock is not the earlier one's
            past.clear()
        past.append(status)
        count = _applied(status)
        while len(past) > 2 and (
            count - _applied(past[1]) >= _ENOUGH_GRADIENTS or status.clock - past[1].clock >= _LONGEST_WINDOW
        ):
            past.popleft()
        return past[0]


def _worker(now: WorkerStatus, before: WorkerStatus, seconds: float, most: int) -> WorkerProgress:
    here = now.presence == _IN_THE_JOB
    return WorkerProgress(
        task=now.task,
        presence=now.presence,
        rate=_per_second(now.applied - before.applied, seconds),
        applied=now.applied,
        dropped=now.dropped,
        skipped=now.skipped,
        staleness=_staleness([now], [before]),
        behind=most - now.applied if here else 0,
        heard=now.heard,
    )


def _applied(status: JobStatus) -> int:
    return sum(worker.applied for worker in status.workers)


def _per_second(count: int, seconds: float) -> float:
    return max(0, count) / seconds if seconds > 0 else 0.0


def _staleness(now: Iterable[WorkerStatus], before: Iterable[WorkerStatus]) -> float:
    """The mean of the gradients between; of all so far if there were none."""
    gradients, total = _totals(now)
    earlier, earlier_total = _totals(before)
    if gradients > earlier:
        return (total - earlier_total) / (gradients - earlier)
    return total / gradients if gradients else 0.0


def _totals(workers: Iterable[WorkerStatus]) -> tuple[int, int]:
    pairs = [(worker.applied, worker.total_staleness) for worker in workers]
    return sum(applied for applied, _ in pairs), sum(total for _, total in pairs)


def _mean_numbers(workers: Iterable[WorkerStatus]) -> dict[str, float]:
    """Of each number that was logged the mean over the workers: they see different batches."""
    values: dict[str, list[float]] = {}
    for worker in workers:
        for name, value in worker.numbers.items():
            values.setdefault(name, []).append(value)
    return {name: sum(found) / len(found) for name, found in values.items()}


def _eta(status: JobStatus, rate: float) -> float | None:
    if status.last_step is None or status.step >= status.last_step or not rate:
        return None
    return (status.last_step - status.step) / rate
