"""Changes go into the journal once, whoever writes it and however often the coordinator tells of them."""

from __future__ import annotations

from pathlib import Path

from argosy.observe.change_recorder import ChangeRecorder
from argosy.observe.journal import Journal, read, record
from argosy.protocol.asking import Change

JOINED = Change(1, "joined", "/job:worker/task:1", 0, 1000.125)
LOST = Change(2, "lost", "/job:worker/task:1", 7, 1001.5)
BACK = Change(3, "restarted", "/job:worker/task:1", 7, 1002.0)


def recorder(directory: Path) -> tuple[ChangeRecorder, Journal]:
    journal = Journal(directory)
    return ChangeRecorder(journal), journal


def test_each_once_with_its_own_time(tmp_path: Path) -> None:
    changes, journal = recorder(tmp_path)
    changes.record([JOINED])
    changes.record([JOINED, LOST])
    changes.record([JOINED, LOST])
    journal.close()
    assert list(read(tmp_path)) == [
        {"time": 1000.125, "event": "joined", "step": 0, "task": "/job:worker/task:1", "number": 1},
        {"time": 1001.5, "event": "lost", "step": 7, "task": "/job:worker/task:1", "number": 2},
    ]


def test_a_chief_that_was_started_again_goes_on(tmp_path: Path) -> None:
    for told in ([JOINED, LOST], [JOINED, LOST, BACK]):
        changes, journal = recorder(tmp_path)
        changes.record(told)
        journal.close()
        record(tmp_path, "progress", step=7, note='"event":"lost"')
    assert [event["event"] for event in read(tmp_path) if "number" in event] == [
        "joined",
        "lost",
        "restarted",
    ]


def test_another_job_in_the_same_directory_counts_anew(tmp_path: Path) -> None:
    for told in (JOINED, Change(1, "joined", "/job:worker/task:1", 9, 2000.0)):
        changes, journal = recorder(tmp_path)
        changes.record([told])
        journal.close()
    assert [event["step"] for event in read(tmp_path)] == [0, 9]
