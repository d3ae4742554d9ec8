"""Clusters on paper: addresses, tasks, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy.cluster.spec import Address, ClusterSpec, Task
from argosy.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("localhost:2222", "localhost", 2222),
        (" 10.0.0.1:1 ", "10.0.0.1", 1),
        ("[::1]:65535", "::1", 65535),
        ("ps-0.job.svc:80", "ps-0.job.svc", 80),
        ("compose_service_1:80", "compose_service_1", 80),
        ("absolute.example.:80", "absolute.example.", 80),
        ("[fe80::1%eth0]:80", "fe80::1%eth0", 80),
    ],
)
def test_an_address_is_read(text: str, host: str, port: int) -> None:
    address = Address.parse(text, "here")
    assert (address.host, address.port) == (host, port)
    assert Address.parse(str(address), "again") == address


@pytest.mark.parametrize("text", ["", "host", ":80", "::1:80", "ho st:80", "[]:80"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Address.parse(text, "bind")
    assert (caught.value.field, caught.value.expected) == ("bind", "host:port")
    assert caught.value.got == repr(text)


@pytest.mark.parametrize(
    "host", ["☃", "*", "a..b", ".a", "a/b", "a" * 254, "[a]", "[1.2.3]", "tcp;x", "ｈost"]
)
def test_what_is_no_host_is_refused(host: str) -> None:
    with pytest.raises(ConfigError, match="bind: expected a"):
        Address.parse(f"{host}:80", "bind")


@pytest.mark.parametrize("port", ["0", "65536", "-1", "http", "", "1.5", "²", "٣", "9" * 5000, "+80", "8_0"])
def test_a_port_out_of_range_is_refused(port: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Address.parse(f"host:{port}", "/job:ps/task:0")
    assert caught.value.field == "/job:ps/task:0"
    assert caught.value.expected == "a port from 1 to 65535"


@settings(deadline=None, derandomize=True)
@given(st.text())
def test_no_text_breaks_the_reading_of_an_address(text: str) -> None:
    try:
        address = Address.parse(text, "x")
    except ConfigError:
        return
    assert Address.parse(str(address), "x") == address


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("10.0.0.1", False),
        ("0.0.0.0", False),
        ("::", False),
        ("example.org", False),
    ],
)
def test_loopback_is_known(host: str, loopback: bool) -> None:
    assert Address(host, 1).is_loopback is loopback


def test_a_task_has_a_name() -> None:
    assert str(Task("worker", 1)) == "/job:worker/task:1"
    assert Task.parse("/job:worker/task:1") == Task("worker", 1)
    assert Task("ps", 2) < Task("worker", 0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "worker",
        "/job:worker",
        "/job:worker/task:",
        "/job:worker/task:x",
        "/job:worker/task:-1",
        "job:a/task:1",
        "/job:a/task:1/cpu:0",
        "/job:worker/task:٣",
        "/job:worker/task:" + "9" * 5000,
        "/job:a/task:1\n",
    ],
)
def test_what_is_no_task_is_refused(text: str) -> None:
    """Such names come over the wire: nothing but a ConfigError may come of them."""
    with pytest.raises(ConfigError, match="task: expected /job:NAME/task:INDEX"):
        Task.parse(text)


def cluster() -> ClusterSpec:
    return ClusterSpec({"ps": ["a:1", "b:1"], "worker": ["c:1", "d:1", "[::1]:5"]})


def test_a_cluster_knows_its_tasks() -> None:
    spec = cluster()
    assert spec.jobs == ("ps", "worker")
    assert (spec.count("ps"), spec.count("worker"), spec.count("evaluator")) == (2, 3, 0)
    assert [str(task) for task in spec.tasks("ps")] == ["/job:ps/task:0", "/job:ps/task:1"]
    assert len(list(spec.tasks())) == 5
    assert spec.address(Task("worker", 1)) == Address("d", 1)
    assert spec.describe(Task("worker", 2)) == "/job:worker/task:2 at [::1]:5"


def test_a_cluster_is_what_it_was_made_of() -> None:
    spec = cluster()
    assert ClusterSpec(spec.as_dict()) == spec
    assert hash(ClusterSpec(spec.as_dict())) == hash(spec)
    assert repr(spec).startswith("ClusterSpec({'ps': ['a:1', 'b:1']")
    assert spec != ClusterSpec({"ps": ["a:1"]})
    assert spec != "a cluster"


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (Task("chief", 0), "job_name: expected a job of the cluster (ps, worker), got 'chief'"),
        (Task("ps", 2), "task_index: expected 0 to 1 in job ps, got 2"),
        (Task("ps", -1), "task_index: expected 0 to 1 in job ps, got -1"),
    ],
)
def test_a_task_that_is_not_there_is_refused(task: Task, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        cluster().require(task)
    assert str(caught.value) == message


def test_a_job_without_tasks_has_none() -> None:
    with pytest.raises(ConfigError, match="task_index: expected no task: the job is empty in job ps"):
        ClusterSpec({"ps": []}).require(Task("ps", 0))


@pytest.mark.parametrize(
    ("jobs", "field", "expected"),
    [
        (["a:1"], "cluster", "a mapping of job names"),
        ({"1job": ["a:1"]}, "cluster", "a job name of letters"),
        ({"a/b": ["a:1"]}, "cluster", "a job name of letters"),
        ({"": ["a:1"]}, "cluster", "a job name of letters"),
        ({3: ["a:1"]}, "cluster", "a job name of letters"),
        ({"ps": "a:1"}, "cluster job ps", "a list of host:port"),
        ({"ps": 5}, "cluster job ps", "a list of host:port"),
        ({"ps": [5]}, "/job:ps/task:0", "host:port"),
        ({"ps": ["a:1", "b"]}, "/job:ps/task:1", "host:port"),
        ({"ps": ["a:99999"]}, "/job:ps/task:0", "a port from 1 to 65535"),
        ({"ps": ["a:1"], "worker": ["b:1", "a:1"]}, "/job:worker/task:1", "an address of its own"),
    ],
)
def test_a_cluster_that_cannot_be_is_refused(jobs: object, field: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ClusterSpec(jobs)  # type: ignore[arg-type]
    assert caught.value.field == field
    assert caught.value.expected.startswith(expected)


def test_the_same_address_twice_names_both_tasks() -> None:
    with pytest.raises(ConfigError) as caught:
        ClusterSpec({"ps": ["a:1"], "worker": ["a:1"]})
    assert caught.value.field == "/job:worker/task:0"
    assert caught.value.got == "a:1, which is /job:ps/task:0's already"
