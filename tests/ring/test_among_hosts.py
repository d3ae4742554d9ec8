"""A ring over two hosts, which are two network namespaces with 1 Gbit between them. Needs root."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import ended

from hosts import Hosts, needed

pytestmark = [pytest.mark.processes, pytest.mark.slow, *needed]
PROGRAM = Path(__file__).with_name("across.py")
BANDWIDTH = 1e9 / 8


def workers(
    hosts: Hosts, places: str, *words: str, secure: bool = False, **environ: str
) -> list[tuple[int, str]]:
    """One worker for each digit of `places`, which is its host; exit codes and outputs."""
    addresses = ",".join(f"10.77.0.{place}:{15001 + index}" for index, place in enumerate(places))
    flags = [f"--worker_hosts={addresses}", "--job_name=worker", *([] if secure else ["--insecure"])]
    started = [
        hosts.start(int(place), str(PROGRAM), *words, *flags, f"--task_index={index}", **environ)
        for index, place in enumerate(places)
    ]
    return ended(started, 60)


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    made = Hosts.make()
    yield made
    made.close()


@pytest.mark.parametrize("what", ["plain", pytest.param("bf16", marks=pytest.mark.slow)])
def test_a_training_over_two_hosts_with_uneven_data(hosts: Hosts, what: str) -> None:
    ended = workers(hosts, "112", what)
    # Means of 1, 2 and 3 for four steps, of 2 and 3 for two, then 3: all end with the same parameters.
    for index, (code, output) in enumerate(ended):
        assert code == 0, ended
        assert f"done {4 + 2 * index} -19.0" in output, ended
    assert "ring of 3 on 2 hosts: shared memory inside a host, Gloo among hosts" in ended[0][1]


def test_the_mean_of_buffers_and_of_whole_numbers_the_largest(hosts: Hosts) -> None:
    ended = workers(hosts, "112", "see")
    together = [(1.0, -5, 1, 1, 1), (1.5, -6, 0, 1, 1), (2.0, -7, 0, 0, 1)]
    for index, (code, output) in enumerate(ended):
        assert code == 0, ended
        assert f"seen {together[: index + 1]}" in output, ended


def test_a_worker_that_dies_is_named_on_the_other_host_too(hosts: Hosts) -> None:
    ended = workers(hosts, "112", "plain", DIE_AT="1.2")
    assert [code for code, _ in ended] == [1, -9, 1], ended
    for index in (0, 2):
        assert "lost /job:worker/task:1: its process has ended" in ended[index][1], ended


def test_it_has_to_be_asked_for(hosts: Hosts) -> None:
    ended = workers(hosts, "12", "plain", secure=True, ARGOSY_WAIT="3")
    assert ended[0][0] == 2, ended
    assert "add --insecure" in ended[0][1], ended


@pytest.mark.slow
def test_the_time_is_that_of_the_bytes_over_the_bandwidth(hosts: Hosts) -> None:
    """Loosely, as tests share the machine with others: benchmarks/ has the figures."""
    (code, output), _ = workers(hosts, "12", "clock", "40")
    assert code == 0, output
    seconds = float(output.split("seconds ")[1].split()[0])
    assert 0.9 < seconds / (40e6 / BANDWIDTH) < 2
