"""Which of several failures came first, and how it is told. Pure, but for the reading of a record's file.

A task that fails writes a record (see `ErrorRecord`) before it ends; one that crashes earlier, or is killed,
leaves none, and what it last said on stderr has to do.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from argosy.cluster.spec import Task
from argosy.errors import UNDECODABLE, USAGE_EXIT_CODE
from argosy.launch.job_events import Ended

_TAIL_LINES = 30
# A progress bar that is not yet ended by a newline may stand before it.
_TRACEBACK_START = re.compile(
    r"(  \+ Exception Group )?Traceback \(most recent call last\):$|Fatal Python error: "
)
# Between the parts of one chained traceback.
_LINKS = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
# Sent from outside: what the task said last has nothing to do with it.
_FROM_OUTSIDE = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})


class ErrorRecord(msgspec.Struct, frozen=True):
    """What a failing task says about itself; `caused_by` names the task whose failure it merely followed.

    `brief`: what the other tasks are told, if that is less than the whole message.
    """

    task: str
    time: float
    message: str
    caused_by: str | None = None
    traceback: str | None = None
    brief: str = ""


def read_record(path: Path) -> ErrorRecord | None:
    """The record in a file; None if there is none, or none that can be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=ErrorRecord)
    except (OSError, *UNDECODABLE):
        return None


def first_cause(
    failures: Sequence[Ended], records: Mapping[Task, ErrorRecord], survived: Sequence[Ended] = ()
) -> Ended | None:
    """The failure that the others followed from; `failures` in the order in which the tasks ended.

    First those that ended the job of themselves, then workers that died of a signal, which alone end no job,
    then those that name another as their cause; among equals the earliest. `survived`: those that the job
    went on without; they count only if a later one names them, or if there is no other.
    """
    named = {record.caused_by.partition(" ")[0] for record in records.values() if record.caused_by}
    ended_it = [each for each in failures if each not in survived or str(each.task) in named]

    def order(failure: Ended) -> tuple[int, float]:
        record = records.get(failure.task)
        moment = failure.time if record is None else record.time
        if record is not None and record.caused_by is not None:
            return 2, moment
        return int(failure.died and failure.task.job == "worker"), moment

    return min(ended_it or failures, key=order, default=None)


def report(cause: Ended, record: ErrorRecord | None, errors: Sequence[str], total: int) -> str:
    """What the screen ends with: who failed, how, and the traceback, whose last line comes last."""
    if record is not None and not record.traceback and cause.code == USAGE_EXIT_CODE:
        return f"argosy: error: {record.message.strip()}"
    rank = f", the first of {total} failures" if total > 1 else ""
    header = f"{cause.task} {cause.how} (pid {cause.pid}){rank}"
    body = _body(cause, record, errors)
    return f"{header}:\n{body}" if body else header


def _body(cause: Ended, record: ErrorRecord | None, errors: Sequence[str]) -> str:
    if record is not None:
        return (record.traceback or record.message).strip("\n")
    if cause.died and -cause.code in _FROM_OUTSIDE:
        return ""
    return "\n".join(last_words(errors)).strip("\n")


def last_words(lines: Sequence[str]) -> Sequence[str]:
    """The last traceback with all its links, or the last lines if there is none."""
    found = {index: match for index, line in enumerate(lines) if (match := _TRACEBACK_START.search(line))}
    if not found:
        return lines[-_TAIL_LINES:]
    start, match = found.popitem()
    while found and lines[start - 2] in _LINKS:
        start, match = found.popitem()
    return [match.string[match.start() :], *lines[start + 1 :]]
