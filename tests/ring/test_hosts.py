"""A ring over two hosts, which are two network namespaces with 1 Gbit between them. Needs root."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import ended

pytestmark = [
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.skipif(os.getuid() != 0, reason="network namespaces need root"),
    pytest.mark.skipif(not (shutil.which("ip") and shutil.which("tc")), reason="needs ip and tc (iproute2)"),
]
PROGRAM = Path(__file__).with_name("across.py")
BANDWIDTH = 1e9 / 8


def run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, timeout=20)


class Hosts:
    """Two namespaces, 10.77.0.1 and 10.77.0.2."""

    def __init__(self) -> None:
        mark = uuid.uuid4().hex[:8]
        self.names = [f"argosy-{mark}-{host}" for host in (1, 2)]
        links = [f"av{mark}{host}" for host in (1, 2)]
        for name in self.names:
            run("ip", "netns", "add", name)
        run("ip", "link", "add", links[0], "type", "veth", "peer", "name", links[1])
        for host, (name, link) in enumerate(zip(self.names, links, strict=True), start=1):
            run("ip", "link", "set", link, "netns", name)
            run("ip", "-n", name, "addr", "add", f"10.77.0.{host}/24", "dev", link)
            run("ip", "-n", name, "link", "set", "lo", "up")
            run("ip", "-n", name, "link", "set", link, "up")
            limit = ("tbf", "rate", "1gbit", "burst", "256kb", "latency", "50ms")
            run("ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", link, "root", *limit)

    def workers(
        self, places: str, *words: str, secure: bool = False, **environ: str
    ) -> list[tuple[int, str]]:
        """One worker for each digit of `places`, which is its host; exit codes and outputs."""
        hosts = ",".join(f"10.77.0.{place}:{15001 + index}" for index, place in enumerate(places))
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("ARGOSY_", "TF_"))}
        started = [
            subprocess.Popen(
                ["ip", "netns", "exec", self.names[int(place) - 1], sys.executable, str(PROGRAM), *words]
                + [f"--worker_hosts={hosts}", "--job_name=worker", f"--task_index={index}"]
                + ([] if secure else ["--insecure"]),
                env=clean | {"OMP_NUM_THREADS": "1"} | environ,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for index, place in enumerate(places)
        ]
        return ended(started, 60)

    def close(self) -> None:
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True, timeout=20)


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    try:
        made = Hosts()
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespaces here: {error.stderr.decode().strip()}")
    yield made
    made.close()


@pytest.mark.parametrize("what", ["plain", pytest.param("bf16", marks=pytest.mark.slow)])
def test_a_training_over_two_hosts_with_uneven_data(hosts: Hosts, what: str) -> None:
    ended = hosts.workers("112", what)
    # Means of 1, 2 and 3 for four steps, of 2 and 3 for two, then 3: all end with the same parameters.
    for index, (code, output) in enumerate(ended):
        assert code == 0, ended
        assert f"done {4 + 2 * index} -19.0" in output, ended
    assert "ring of 3 on 2 hosts: shared memory inside a host, Gloo among hosts" in ended[0][1]


def test_a_worker_that_dies_is_named_on_the_other_host_too(hosts: Hosts) -> None:
    ended = hosts.workers("112", "plain", DIE_AT="1.2")
    assert [code for code, _ in ended] == [1, -9, 1], ended
    for index in (0, 2):
        assert "lost /job:worker/task:1: its process has ended" in ended[index][1], ended


def test_it_has_to_be_asked_for(hosts: Hosts) -> None:
    ended = hosts.workers("12", "plain", secure=True, ARGOSY_WAIT="3")
    assert ended[0][0] == 2, ended
    assert "add --insecure" in ended[0][1], ended


@pytest.mark.slow
def test_the_time_is_that_of_the_bytes_over_the_bandwidth(hosts: Hosts) -> None:
    """Loosely, as tests share the machine with others: benchmarks/ has the figures."""
    (code, output), _ = hosts.workers("12", "clock", "40")
    assert code == 0, output
    seconds = float(output.split("seconds ")[1].split()[0])
    assert 0.9 < seconds / (40e6 / BANDWIDTH) < 2
