"""events.jsonl: appended to, never in the way, and read past what is torn."""

from __future__ import annotations

import json
import math
import threading
from pathlib import Path

import pytest

from argosy import observe
from argosy.observe.journal import NAME, Journal, read


def test_events_come_back_in_order_with_their_time(tmp_path: Path) -> None:
    observe.record(tmp_path, "saved", step=100, path="a", size=1.5)
    observe.record(tmp_path, "ended", step=200)
    first, second = read(tmp_path)
    assert first.pop("time") <= second.pop("time")
    assert first == {"event": "saved", "step": 100, "path": "a", "size": 1.5}
    assert second == {"event": "ended", "step": 200}


def test_every_line_is_json_of_its_own(tmp_path: Path) -> None:
    observe.record(tmp_path, "progress", loss=math.nan, note="a\nb")
    (line,) = (tmp_path / NAME).read_text().splitlines()
    assert json.loads(line)["loss"] is None
    assert json.loads(line)["note"] == "a\nb"


def test_no_field_takes_the_place_of_ours(tmp_path: Path) -> None:
    observe.record(tmp_path, "progress", time=1, event="other", kind=2, directory=3, self=4)
    (event,) = read(tmp_path)
    assert (event["event"], event["kind"], event["directory"]) == ("progress", 2, 3)
    assert event["time"] > 1


@pytest.mark.parametrize("torn", [b'{"time": 1, "ev', b"[1, 2]\n", b"\xff\xfe\n", b"\n\n"])
def test_a_torn_line_costs_nothing_but_itself(tmp_path: Path, torn: bytes) -> None:
    observe.record(tmp_path, "one")
    with (tmp_path / NAME).open("ab") as file:
        file.write(torn)
    assert [event["event"] for event in read(tmp_path)] == ["one"]
    observe.record(tmp_path, "two")
    assert [event["event"] for event in read(tmp_path)] == ["one", "two"]


def test_a_disk_that_is_full_is_told_of_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / NAME).symlink_to("/dev/full")
    journal = Journal(tmp_path)
    journal.record("one")
    journal.record("two")
    journal.close()
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"argosy: cannot write {tmp_path / NAME}: No space left on device; the training goes on"


def test_several_journals_of_one_folder_tell_it_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / NAME).symlink_to("/dev/full")
    for kind in ("one", "two", "three"):
        observe.record(tmp_path, kind)
    assert capsys.readouterr().err.count("cannot write") == 1
    (tmp_path / NAME).unlink()
    observe.record(tmp_path, "there is room")
    (tmp_path / NAME).unlink()
    (tmp_path / NAME).symlink_to("/dev/full")
    observe.record(tmp_path, "full again")
    assert capsys.readouterr().err.count("cannot write") == 1


def test_a_folder_that_cannot_be_made_is_told_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    observe.record(tmp_path / "file" / "run", "one")
    assert "the training goes on" in capsys.readouterr().err


def test_several_threads_and_writers_tear_nothing(tmp_path: Path) -> None:
    shared = Journal(tmp_path)

    def write(number: int) -> None:
        for count in range(100):
            shared.record("shared", writer=number, count=count)
            observe.record(tmp_path, "own", writer=number, count=count)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    shared.close()
    events = list(read(tmp_path))
    assert len(events) == 800
    assert [e["count"] for e in events if e["event"] == "own" and e["writer"] == 2] == list(range(100))


def test_no_journal_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        list(read(tmp_path))
