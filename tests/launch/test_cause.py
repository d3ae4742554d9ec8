"""Which failure came first, and how it is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from argosy.cluster.spec import Task
from argosy.launch.cause import ErrorRecord, first_cause, last_words, read_record, report
from argosy.launch.job_events import Ended

PS, W0, W1 = Task("ps", 0), Task("worker", 0), Task("worker", 1)
TRACEBACK = 'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\nValueError: boom\n'


def ended(task: Task, code: int, time: float) -> Ended:
    return Ended(task, 4242, code, time)


def record(
    task: Task, time: float, caused_by: Task | None = None, traceback: str | None = TRACEBACK
) -> ErrorRecord:
    return ErrorRecord(str(task), time, "boom", str(caused_by) if caused_by else None, traceback)


def test_nothing_failed() -> None:
    assert first_cause([], {}) is None


def test_without_records_the_first_to_end() -> None:
    failures = [ended(W1, 1, 5), ended(W0, 1, 6)]
    assert first_cause(failures, {}) is failures[0]


def test_of_two_that_ended_at_once_the_first_collected() -> None:
    failures = [ended(W1, 1, 5), ended(W0, 1, 5)]
    assert first_cause(failures, {}) is failures[0]


def test_a_records_time_is_preferred_to_the_order_of_ends() -> None:
    failures = [ended(W0, 1, 5.0), ended(W1, 3, 5.5)]
    assert first_cause(failures, {W0: record(W0, 4.9), W1: record(W1, 4.0)}) is failures[1]


def test_who_names_another_is_never_preferred_to_that_other() -> None:
    failures = [ended(W0, 1, 5.0), ended(W1, 3, 5.5)]
    records = {W0: record(W0, 4.0, caused_by=W1), W1: record(W1, 4.5)}
    assert first_cause(failures, records) is failures[1]


def test_a_server_killed_without_a_record_is_the_cause_of_those_who_name_it() -> None:
    failures = [ended(W0, 1, 5.0), ended(PS, -9, 5.5)]
    assert first_cause(failures, {W0: record(W0, 4.0, caused_by=PS)}) is failures[1]


def test_what_ended_the_job_is_preferred_to_a_death_that_did_not() -> None:
    failures = [ended(W0, -9, 1.0), ended(W1, 1, 60.0)]
    assert first_cause(failures, {W1: record(W1, 59.9)}) is failures[1]


def test_but_not_if_it_names_that_death() -> None:
    failures = [ended(W0, -9, 1.0), ended(W1, 1, 60.0)]
    assert first_cause(failures, {W1: record(W1, 59.9, caused_by=W0)}) is failures[0]


def test_a_death_that_the_job_survived_is_not_blamed_for_a_later_failure() -> None:
    """Not even if all that followed name somebody else, who has not failed: a connection that broke."""
    killed, lost, told = ended(W0, -9, 1.0), ended(W1, 1, 60.0), ended(PS, 1, 61.0)
    records = {W1: record(W1, 59.9, caused_by=PS), PS: record(PS, 60.9, caused_by=W1)}
    assert first_cause([killed, lost, told], records, survived=[killed]) is lost
    second = ended(W1, -11, 60.0)
    assert first_cause([killed, second], {}, survived=[killed]) is second


def test_a_death_that_was_survived_is_the_cause_if_it_is_named_or_the_only_one() -> None:
    killed, lost = ended(W0, -9, 1.0), ended(W1, 1, 60.0)
    named = ErrorRecord(str(W1), 59.9, "lost", f"{W0} at 127.0.0.1:2222")
    assert first_cause([killed, lost], {W1: named}, survived=[killed]) is killed
    assert first_cause([killed], {}, survived=[killed]) is killed


def test_between_a_killed_server_and_a_later_failure_the_server() -> None:
    """Both ended the job of themselves; the server's death was not a worker's, which alone ends no job."""
    killed, later = ended(PS, -9, 1.0), ended(W0, 1, 3.0)
    assert first_cause([killed, later], {W0: record(W0, 2.0)}) is killed
    assert first_cause([later, killed], {W0: record(W0, 2.0)}) is killed
    earlier = record(W0, 0.5)
    assert first_cause([killed, later], {W0: earlier}) is later


def test_if_all_name_another_the_earliest() -> None:
    failures = [ended(W0, 1, 5.0), ended(W1, 1, 6.0)]
    records = {W0: record(W0, 4.5, caused_by=PS), W1: record(W1, 4.0, caused_by=PS)}
    assert first_cause(failures, records) is failures[1]


def test_report_with_a_traceback() -> None:
    lines = report(ended(W1, 1, 0), record(W1, 0), ["noise"], 3).splitlines()
    assert lines[0] == "/job:worker/task:1 failed with exit code 1 (pid 4242), the first of 3 failures:"
    assert lines[1] == "Traceback (most recent call last):"
    assert lines[-1] == "ValueError: boom"


def test_report_of_an_only_failure() -> None:
    assert report(ended(W1, 1, 0), record(W1, 0, traceback=None), [], 1) == (
        "/job:worker/task:1 failed with exit code 1 (pid 4242):\nboom"
    )


def test_report_of_a_usage_error_is_one_line() -> None:
    assert report(ended(W1, 2, 0), record(W1, 0, traceback=""), ["noise"], 4) == "argosy: error: boom"


def test_report_without_a_record_quotes_stderr() -> None:
    assert report(ended(W1, 7, 0), None, ["first", "last"], 1).endswith("(pid 4242):\nfirst\nlast")


@pytest.mark.parametrize("number", [9, 15])
def test_report_of_a_kill_from_outside_quotes_nothing(number: int) -> None:
    text = report(ended(W1, -number, 0), None, ["a warning"], 1)
    assert text.startswith("/job:worker/task:1 was killed by SIG")
    assert text.endswith("(pid 4242)")


def test_report_of_a_crash_quotes_stderr() -> None:
    assert report(ended(PS, -6, 0), None, ["what(): bad_alloc"], 1).endswith("what(): bad_alloc")


def test_last_words_are_the_last_traceback() -> None:
    old = ["Traceback (most recent call last):", "  frame", "KeyError: handled", "more"]
    assert last_words([*old, *TRACEBACK.splitlines()]) == TRACEBACK.splitlines()


@pytest.mark.parametrize(
    "link",
    [
        "During handling of the above exception, another exception occurred:",
        "The above exception was the direct cause of the following exception:",
    ],
)
def test_last_words_keep_a_chain_together(link: str) -> None:
    chain = [*TRACEBACK.splitlines(), "", link, "", *TRACEBACK.splitlines()]
    assert last_words(["noise", *chain]) == chain


def test_last_words_after_a_progress_bar() -> None:
    first, *rest = TRACEBACK.splitlines()
    assert last_words(["\r 50%|###   |" + first, *rest]) == TRACEBACK.splitlines()


def test_last_words_without_a_traceback_are_the_last_lines() -> None:
    lines = [str(number) for number in range(100)]
    assert last_words(lines) == lines[-30:]
    assert last_words([]) == []


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"{}", b'{"task": 1, "time": 2, "message": 3}', b"\xff\xfe"]
)
def test_a_record_that_cannot_be_read_is_none(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "worker-0.json"
    assert read_record(path) is None
    path.write_bytes(content)
    assert read_record(path) is None


def test_a_record_is_read(tmp_path: Path) -> None:
    path = tmp_path / "worker-0.json"
    fields = {"task": str(W0), "time": 1.5, "caused_by": None, "message": "boom", "traceback": TRACEBACK}
    path.write_text(json.dumps(fields))
    assert read_record(path) == record(W0, 1.5)
