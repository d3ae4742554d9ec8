from __future__ import annotations

from typing import Any

import pytest
from benchmarks.memory import allowed_for_server, growth, task_ids
from benchmarks.tables import Table, markdown

from benchmarks import report

MACHINE = {
    "when": "2026-01-01T00:00:00+00:00",
    "cores": 2,
    "cpu": "A Processor",
    "memory": 24e9,
    "system": "Linux",
    "python": "3.11.7",
    "torch": "2.13.0",
    "argosy": "0.1.0",
    "load": 0.05,
}


def contender(title: str, rates: list[float | None], failures: int = 0) -> dict[str, Any]:
    return {
        "title": title,
        "flags": f"flags of {title}",
        "workers": 2,
        "versions": {"torch": "2.13.0"},
        "rates": rates,
        "first_step": [1.5],
        "failures": ["why"] * failures,
    }


def trained(**contenders: dict[str, Any]) -> dict[str, Any]:
    named = {name.replace("_", "-"): row for name, row in contenders.items()}
    return {"kind": "training", "network": "mnist", "machine": MACHINE, "contenders": named}


def test_a_table_in_markdown() -> None:
    text = markdown(Table("Title", ["a", "b"], [["x|y", "1"]], ["A note."]))
    assert text == "## Title\n\n| a | b |\n|---|---:|\n| x\\|y | 1 |\n\nA note.\n"


def test_a_row_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="a row of 1 under a header of 2"):
        Table("Title", ["a", "b"], [["x"]])


def test_ratios_use_the_rounds_in_which_both_ran() -> None:
    result = trained(
        argosy_sync=contender("ours", [20.0, None, 40.0]), ddp=contender("theirs", [10.0, 10.0, 10.0])
    )
    found = report.paired(result, "argosy-sync", "ddp")
    assert found is not None
    assert found.values == (2.0, 4.0)


def test_a_contender_that_did_not_run_has_no_ratio() -> None:
    result = trained(argosy_sync=contender("ours", [20.0]), ddp=contender("theirs", [None], 1))
    assert report.paired(result, "argosy-sync", "ddp") is None
    assert report.paired(result, "argosy-sync", "ray-async") is None


def test_the_limit_counts_once_a_core() -> None:
    result = trained(argosy_async=contender("ours", [300.0]), limit=contender("limit", [300.0]))
    rows = report.comparisons(result).rows
    assert rows == [["argosy-async / 2 x limit", "0.50 (0.50–0.50)", "0.5 / 0.7"]]


def test_the_page_names_versions_flags_machine_and_failures() -> None:
    page = report.page({"mnist": trained(ddp=contender("theirs", [10.0, None], failures=1))})
    for words in (
        "torch 2.13.0",
        "flags of theirs",
        "2 cores of A Processor",
        "theirs: 1 runs failed",
        "0.05",
    ):
        assert words in page


def test_the_other_kinds_of_results_have_tables() -> None:
    row = {"servers": 2, "workers": 1, "rate": 500.0, "cost": 0.002, "p90": 0.003}
    sized = {"bytes": 1024, "cost": 0.001, "p90": 0.002, "plain": 0.0005, "count": 9}
    task = {"rss": 2e8, "pss": 1e8, "growth": 0.0, "samples": []}
    job = {
        "network": "mnist",
        "mode": "async",
        "gradients": 9,
        "allowed": 3e8,
        "tasks": {"/job:ps/task:0": task},
    }
    saved = {
        "rates": {"with": [96.0], "without": [100.0]},
        "cuts": {"shard": {"cut": [0.001], "copies": [0.002]}},
    }
    results: list[dict[str, Any]] = [
        {"kind": "start", "seconds": {"ours": [1.0, 2.0]}},
        {"kind": "alone", "pairs": [{"plain": 100.0, "argosy": 99.0}]},
        {"kind": "copies", "floats": 25_000_000, "rows": {"bare": {"costs": [0.03], "plain": [0.02]}}},
        {"kind": "saving", "jobs": {"sync": saved}},
        {"kind": "size", "rows": [sized]},
        {"kind": "shape", "rows": [row]},
        {
            "kind": "allreduce",
            "rows": [{"ranks": 2, "bytes": 4, "seconds": {"argosy": [0.1]}, "required": {}}],
        },
        {"kind": "hosts", "bytes": 40e6, "ideal": 0.32, "seconds": {"all-reduce": [0.33]}},
        {
            "kind": "remote",
            "rounds": [{"sent": 3e4, "step": 4.0, "client": 0.4, "ahead": 4.0, "stages": 1.5}],
            "tensorflow": [12.0],
            "monarch": [{"sent": 870.0, "step": 126.0}],
        },
        {"kind": "memory", "imported": {"rss": 2e8}, "jobs": [job]},
    ]
    assert {result["kind"] for result in results} | {"training"} == set(report.KINDS)
    page = report.page({result["kind"]: {**result, "machine": MACHINE} for result in results})
    for words in (
        "1.50 (1.00–2.00)",
        "0.990 (0.990–0.990)",
        "1.50 (1.50–1.50)",
        "1.02 kB",
        "500",
        "300 MB",
        "0.960 (0.960–0.960)",
        "126 (126–126)",
    ):
        assert words in page


def test_tasks_are_found_in_the_launchers_output() -> None:
    log = "started /job:ps/task:0 pid 12 at 127.0.0.1:1\n[x] hello\nstarted /job:worker/task:1 pid 34 at y\n"
    assert task_ids(log) == {"/job:ps/task:0": 12, "/job:worker/task:1": 34}


def test_growth_leaves_the_beginning_out() -> None:
    assert growth([1.0, 50.0, 100.0, 100.0, 100.0, 100.0, 100.0, 100.0]) == 0.0
    assert growth([float(number) for number in range(8)]) == 4.0
    assert growth([5.0]) == 0.0


def test_a_synchronous_server_may_have_an_accumulator_more() -> None:
    floats = 1_000_000
    more = allowed_for_server(floats, "sync", 0) - allowed_for_server(floats, "async", 0)
    assert more == pytest.approx(1.1 * 4 * floats / 2)


def test_the_ring_is_compared_with_each_peer() -> None:
    seconds = {"argosy": [0.001, 0.002], "gloo": [0.006, 0.010], "openmpi": [0.001, 0.002]}
    row = {"ranks": 2, "bytes": 2_600_000, "seconds": seconds, "required": {"gloo": "5 / 8", "openmpi": ""}}
    (table,) = report.tables({"kind": "allreduce", "machine": MACHINE, "rows": [row]})
    assert [cells[2] for cells in table.rows] == ["argosy", "gloo", "openmpi"]
    assert table.rows[0][3:] == ["1.500", "", ""]
    assert table.rows[1][3] == "8.000"
    assert table.rows[1][4].startswith("5.5")
    assert table.rows[1][5] == "5 / 8"


def test_two_hosts_against_the_bandwidth() -> None:
    result = {"kind": "hosts", "bytes": 40e6, "ideal": 0.32, "seconds": {"a whole step": [0.336, 0.352]}}
    (table,) = report.tables(result)
    assert table.rows == [["a whole step", "344", "1.07 (1.05–1.10)", "1.15 / 1.05"]]
    (table,) = report.tables(result | {"seconds": {}, "skipped": "network namespaces need root"})
    assert table.notes == ["Not measured: network namespaces need root."]
