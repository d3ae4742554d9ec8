"""What must hold at the end of every schedule of the simulator, by the names that the design gives it."""

from __future__ import annotations

from simulator import Job, Key, Scenario

from argosy.modes import Async, Sync
from argosy.protocol.decisions import Apply, Part
from argosy.update.membership import Presence


def run(scenario: Scenario, seed: int, turns: int = 150) -> Job:
    """Play a schedule to its end, and check it."""
    job = Job(scenario, seed)
    job.play(turns)
    check(job)
    return job


def check(job: Job) -> None:
    """The invariants, at the end of a schedule."""
    waiting = [(life.worker, life.push, job.core.waited_for()) for life in job.living()]
    assert not waiting, f"E7: never answered, and for whom they wait: {waiting}"
    assert not job.behind(), "a server never learned what another has told"
    assert all(log.kept == 0 for log in job.logs), "entries that everybody has are kept for ever"
    log = job.servers[0].applied
    for server in job.servers:
        assert server.applied == log, "E1: servers applied different sets"
        assert not server.held, f"server {server.index} keeps {server.held} for ever"
        assert server.cuts == [(step, step) for step, _ in job.servers[0].cuts], "E6: not one cut"
    check_checkpoints(job)
    if job.roster.everyone_left() and log:
        assert job.servers[0].cuts[-1] == (len(log), len(log)), "the final state is not saved"
    check_steps(job, log)
    applied = [part for apply in log for part in apply.parts]
    assert len(set(applied)) == len(applied), "E1: applied twice"
    check_accounts(job, {(part.worker, part.seq) for part in applied})
    for apply in log:
        check_parts(job, apply)


def check_checkpoints(job: Job) -> None:
    """E6: every cut is published or has failed, whole, and each step once; nothing waits for ever."""
    assert not job.checkpoints.busy, "E7: a checkpoint is never published"
    assert [each.step for each in job.published] == [step for step, _ in job.servers[0].cuts]
    for contents in job.published:
        assert len(contents.files) + len(contents.errors) == len(job.servers)
        assert {file.bytes for file in contents.files} <= {contents.step}, "files of other steps"
    saved = [contents.step for contents in job.published if not contents.errors]
    assert len(set(saved)) == len(saved), "a step was saved twice"
    assert saved == sorted(saved)


def check_steps(job: Job, log: list[Apply]) -> None:
    """E3, and the end not one update too late."""
    last = job.scenario.last_step
    assert [apply.step for apply in log] == list(range(1, len(log) + 1))
    assert last is None or len(log) <= last, "an update after the last step"
    for key, answer in job.answers.items():
        assert answer.stop == (last is not None and answer.step >= last), f"{key} was told {answer}"


def check_accounts(job: Job, applied: set[Key]) -> None:
    """Every gradient that was answered is applied, or its worker was told that it is not."""
    for key, answer in job.answers.items():
        assert (answer.status in ("applied", "held", "folded")) == (key in applied), f"{key}: {answer}"
    for key in applied - job.answers.keys():
        assert job.counts[key[0]] > 1 or job.roster[key[0]] is Presence.GONE, f"{key} was not answered"


def check_parts(job: Job, apply: Apply) -> None:
    """The set of one step: in order, and what the mode allows."""
    assert list(apply.parts) == sorted(apply.parts), "parts are out of order"
    staleness = [apply.step - 1 - job.pushes[part.worker, part.seq].version for part in apply.parts]
    assert min(staleness) >= 0
    mode = job.scenario.mode
    if isinstance(mode, Async):
        assert len(apply.parts) == 1
        assert mode.max_staleness is None or staleness[0] <= mode.max_staleness, "E4: too stale"
    if isinstance(mode, Sync):
        fresh = [part for part, late in zip(apply.parts, staleness, strict=True) if not late]
        assert mode.late == "fold" or len(fresh) == len(apply.parts), "a late gradient was not dropped"
        check_fresh(job, mode, fresh)


def check_fresh(job: Job, mode: Sync, fresh: list[Part]) -> None:
    if mode.distinct:
        workers = [part.worker for part in fresh]
        assert len(set(workers)) == len(workers), f"a worker counts twice in a step: {fresh}"
    limit = mode.aggregate or job.scenario.workers
    assert not mode.distinct or len(fresh) <= limit, f"{len(fresh)} gradients in a step of {limit}"
