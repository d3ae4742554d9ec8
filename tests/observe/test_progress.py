"""From counters to speeds, time left, and who is behind."""

from __future__ import annotations

import math

import pytest

from argosy.observe.lines import duration_text, number_text, step_text
from argosy.observe.progress import Progress, Speedometer
from argosy.protocol.asking import JobStatus, WorkerStatus


def status(clock: float, *applied: int, step: int | None = None, last: int | None = 1000) -> JobStatus:
    workers = tuple(
        WorkerStatus(
            f"/job:worker/task:{index}",
            "in the job",
            count,
            dropped=index,
            staleness=2,
            total_staleness=2 * count,
            numbers={"loss": float(index)},
        )
        for index, count in enumerate(applied)
    )
    return JobStatus(sum(applied) if step is None else step, clock, "Async()", last, 3, workers)


def progress(*statuses: JobStatus) -> Progress:
    speedometer = Speedometer()
    return [speedometer.read(each, time=each.clock) for each in statuses][-1]


def test_the_first_look_knows_no_speed() -> None:
    first = progress(status(5.0, 10, 20))
    assert (first.step, first.rate, first.eta) == (30, 0.0, None)


def test_speeds_are_differences() -> None:
    found = progress(status(5.0, 10, 20), status(7.0, 30, 80))
    assert found.rate == 40.0
    assert [worker.rate for worker in found.workers] == [10.0, 30.0]
    assert found.step_rate == 40.0
    assert found.eta == (1000 - 110) / 40
    assert found.staleness == 2.0
    assert found.numbers == {"loss": 0.5}
    assert (found.dropped, found.queue) == (1, 3)


def test_a_synchronous_step_is_several_gradients() -> None:
    found = progress(status(0.0, 0, 0, step=0), status(2.0, 10, 10, step=10))
    assert (found.rate, found.step_rate) == (10.0, 5.0)


def test_a_fast_job_is_measured_over_its_last_second_a_slow_one_over_a_minute() -> None:
    fast = progress(*(status(float(t), 1000 * t if t < 5 else 4000 + 200 * (t - 4)) for t in range(8)))
    assert fast.rate == 200.0
    slow = progress(*(status(float(t), t // 20) for t in range(200)))
    assert slow.rate == pytest.approx(1 / 20, rel=0.1)


def test_another_coordinator_has_another_clock() -> None:
    found = progress(status(1000.0, 500), status(3.0, 500), status(4.0, 600))
    assert found.rate == 100.0


def test_who_is_behind() -> None:
    found = progress(status(0.0, 0, 0, 0), status(1.0, 100, 95, 30))
    assert [worker.behind for worker in found.workers] == [0, 5, 70]
    slow = found.slowest()
    assert slow is not None
    assert slow.short == "worker 2"
    assert progress(status(0.0, 0, 0), status(1.0, 100, 60)).slowest() is None
    assert progress(status(0.0, 0), status(1.0, 100)).slowest() is None


def test_the_line_keeps_its_columns() -> None:
    early = progress(status(0.0, 0, 0), status(1.0, 4, 5)).line()
    late = progress(status(0.0, 0, 0), status(1.0, 400, 500)).line()
    assert (
        early == "step    9 of 1000  loss 0.5000      9.0 gradients/s  staleness  2.0  1 dropped  1:50 to go"
    )
    assert late.index("gradients/s") == early.index("gradients/s")


def test_scalars_are_named_for_tensorboard() -> None:
    scalars = progress(status(0.0, 0, 0), status(1.0, 4, 5)).scalars()
    assert scalars["speed/worker_1"] == 5.0
    assert scalars["speed/gradients_per_second"] == 9.0
    assert scalars["servers/queue"] == 3
    assert {"servers/staleness", "servers/dropped", "speed/steps_per_second"} <= scalars.keys()


def logging(clock: float, step: int, *logged: tuple[int, float]) -> JobStatus:
    workers = tuple(
        WorkerStatus(f"/job:worker/task:{index}", "in the job", step, numbers={"loss": loss}, logged=at)
        for index, (at, loss) in enumerate(logged)
    )
    return JobStatus(step, clock, "Sync()", 1000, 0, workers)


def test_a_number_is_recorded_once_and_with_the_step_that_it_belongs_to() -> None:
    speedometer = Speedometer()

    def recorded(status: JobStatus) -> list[tuple[object, object]]:
        events = speedometer.read(status, time=status.clock).events()
        return [(event["step"], event.get("loss")) for event in events]

    assert recorded(logging(0.0, 0)) == [(0, None)]
    assert recorded(logging(1.0, 428, (1, 2.3), (311, 0.549))) == [(311, 0.549), (428, None)]
    assert recorded(logging(2.0, 500, (1, 2.3), (311, 0.549))) == [(500, None)]
    assert recorded(logging(3.0, 600, (600, 0.5), (600, 0.3))) == [(600, 0.4)]  # of one step: their mean
    assert recorded(logging(4.0, 600, (600, 0.5), (600, 0.3))) == [(600, None)]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0:00"),
        (42.4, "0:42"),
        (725, "12:05"),
        (11220, "3:07:00"),
        (90000, "1 day 1 h"),
        (187200, "2 days 4 h"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


def test_numbers_and_steps_are_aligned() -> None:
    assert {len(number_text(value)) for value in (0.4613, 12.5, 100.0, -3.25, math.nan, math.inf)} == {7}
    assert step_text(5, 2000) == "step    5 of 2000"
    assert step_text(5, None) == "step      5"
