"""Who am I: flags, variables, TF_CONFIG, and which of them wins."""

from __future__ import annotations

import json
from typing import Any

import pytest

from argosy.cluster.discover import discover, take_flags
from argosy.cluster.settings import DEFAULT_WAIT, FLAGS, variable
from argosy.cluster.spec import Address, ClusterSpec, Task
from argosy.errors import ConfigError
from argosy.modes import Async, Local, Ring, Sync

HOSTS = {"ps_hosts": "a:1,b:1", "worker_hosts": "c:1,d:1"}
ME = {**HOSTS, "job_name": "worker", "task_index": "1"}


def tf_config(cluster: Any, task: Any = None) -> dict[str, str]:
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})}


def refusal(words: dict[str, str], environ: dict[str, str] | None = None, **given: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        discover(words, environ or {}, **given)
    assert "\n" not in str(caught.value)
    return caught.value


# --- flags ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("argv", "words", "rest"),
    [
        ([], {}, []),
        (["train.py", "--lr", "1"], {}, ["train.py", "--lr", "1"]),
        (["--job_name=ps", "--lr=1"], {"job_name": "ps"}, ["--lr=1"]),
        (["--job_name", "ps", "x"], {"job_name": "ps"}, ["x"]),
        (["--job-name", "ps", "--ps-hosts=a:1"], {"job_name": "ps", "ps_hosts": "a:1"}, []),
        (["--task_index", "-1"], {"task_index": "-1"}, []),
        (["--mode=sync", "--mode=async"], {"mode": "async"}, []),
        (["--ps_hosts="], {"ps_hosts": ""}, []),
        (["--insecure"], {"insecure": "true"}, []),
        (["--insecure", "data"], {"insecure": "true"}, ["data"]),
        (["--insecure", "no"], {"insecure": "no"}, []),
        (["--is_sync", "--lr=1"], {"is_sync": "true"}, ["--lr=1"]),
        (["--is_sync=True"], {"is_sync": "True"}, []),
        (["--is_sync", "False"], {"is_sync": "False"}, []),
        (["--", "--mode=sync"], {}, ["--", "--mode=sync"]),
        (["--mode", "sync", "--", "--mode", "x"], {"mode": "sync"}, ["--", "--mode", "x"]),
        (["mode=sync", "-mode", "---mode=x"], {}, ["mode=sync", "-mode", "---mode=x"]),
        (["--modes=sync", "--mod=sync"], {}, ["--modes=sync", "--mod=sync"]),
    ],
)
def test_our_flags_are_taken_and_the_rest_is_left(
    argv: list[str], words: dict[str, str], rest: list[str]
) -> None:
    assert take_flags(argv) == (words, rest)


@pytest.mark.parametrize("argv", [["--mode"], ["--job_name", "--task_index=1"]])
def test_a_flag_without_its_value_is_refused(argv: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"--\w+: expected a value, got none"):
        take_flags(argv)


@pytest.mark.parametrize("setting", FLAGS)
def test_every_setting_has_a_flag_and_a_variable(setting: str) -> None:
    assert take_flags([f"--{setting}=v", "x"]) == ({setting: "v"}, ["x"])
    assert take_flags([f"--{setting.replace('_', '-')}=v"]) == ({setting: "v"}, [])
    assert variable(setting) == f"ARGOSY_{setting.upper()}"


# --- precedence -------------------------------------------------------------------------------------------
def test_nothing_said_is_a_cluster_of_one() -> None:
    identity = discover({}, {})
    assert (identity.task, identity.mode, identity.wait) == (Task("worker", 0), Local(), DEFAULT_WAIT)
    assert identity.cluster.count("worker") == 1
    assert not identity.insecure
    assert identity.bind is None


def test_flags_say_it_all() -> None:
    words = {**ME, "wait": "2.5", "bind": "0.0.0.0:9", "insecure": "1", "num_gpus": "2", "mode": "sync"}
    identity = discover(words, {})
    assert identity.cluster == ClusterSpec({"ps": ["a:1", "b:1"], "worker": ["c:1", "d:1"]})
    assert (identity.task, identity.mode, identity.wait) == (Task("worker", 1), Sync(), 2.5)
    assert (identity.bind, identity.insecure, identity.num_gpus) == (Address("0.0.0.0", 9), True, 2)


def test_variables_say_the_same() -> None:
    environ = {variable(setting): value for setting, value in ME.items()}
    assert discover({}, environ) == discover(ME, {})


def test_a_flag_wins_over_a_variable_and_an_empty_one_does_not_count() -> None:
    environ = {"ARGOSY_TASK_INDEX": "0", "ARGOSY_WAIT": "7", "ARGOSY_BIND": ""}
    identity = discover({**ME, "wait": ""}, environ)
    assert identity.task.index == 1
    assert identity.wait == 7


def test_a_flag_of_the_mode_replaces_both_variables_of_it() -> None:
    assert discover({**ME, "mode": "async"}, {"ARGOSY_IS_SYNC": "true"}).mode == Async()
    assert discover({**ME, "is_sync": "True"}, {"ARGOSY_MODE": "async"}).mode == Sync()


def test_variables_win_over_tf_config() -> None:
    environ = {variable(setting): value for setting, value in ME.items()}
    environ |= tf_config({"worker": ["z:1"]}, {"type": "worker", "index": 0})
    assert discover({}, environ).task == Task("worker", 1)


def test_a_variable_with_the_whole_cluster() -> None:
    environ = {"ARGOSY_CLUSTER": '{"ps": ["a:1"], "worker": ["b:1"]}', "ARGOSY_JOB_NAME": "ps"}
    identity = discover({}, environ)
    assert identity.task == Task("ps", 0)
    assert identity.cluster.count("ps") == 1


def test_arguments_win_over_all() -> None:
    cluster = ClusterSpec({"ps": ["x:1"], "worker": ["y:1"]})
    identity = discover({**ME, "mode": "sync"}, {}, cluster=cluster, task=Task("ps", 0), mode=Async(3))
    assert (identity.cluster, identity.task, identity.mode) == (cluster, Task("ps", 0), Async(3))


def test_the_task_may_be_an_argument_while_flags_say_the_cluster() -> None:
    assert discover(HOSTS, {}, task=Task("ps", 1)).task == Task("ps", 1)


def test_the_index_is_0_when_only_the_job_is_said() -> None:
    assert discover({**HOSTS, "job_name": "ps"}, {}).task == Task("ps", 0)


def test_other_jobs_train_alone() -> None:
    cluster = ClusterSpec({"ps": ["a:1"], "worker": ["b:1"], "evaluator": ["c:1"]})
    assert discover({"mode": "sync"}, {}, cluster=cluster, task=Task("evaluator", 0)).mode == Local()


# --- TF_CONFIG --------------------------------------------------------------------------------------------
def test_tf_config_is_read() -> None:
    environ = tf_config({"ps": ["a:1"], "worker": ["b:1", "c:1"]}, {"type": "worker", "index": 1})
    identity = discover({}, environ)
    assert (identity.task, identity.mode) == (Task("worker", 1), Async())


@pytest.mark.parametrize("chief", ["chief", "master"])
@pytest.mark.parametrize(
    ("job", "index", "task"),
    [("CHIEF", 0, Task("worker", 0)), ("worker", 1, Task("worker", 2)), ("ps", 0, Task("ps", 0))],
)
def test_the_chief_of_tf_config_is_worker_0(chief: str, job: str, index: int, task: Task) -> None:
    jobs = {chief: ["h:1"], "ps": ["a:1"], "worker": ["b:1", "c:1"]}
    identity = discover({}, tf_config(jobs, {"type": chief if job == "CHIEF" else job, "index": index}))
    assert identity.task == task
    assert identity.cluster.as_dict()["worker"] == ["h:1", "b:1", "c:1"]
    assert identity.cluster.jobs == ("ps", "worker")


def test_a_chief_without_workers() -> None:
    environ = tf_config({"chief": ["h:1"], "ps": ["a:1"]}, {"type": "chief", "index": 0})
    assert discover({}, environ).cluster.as_dict() == {"ps": ["a:1"], "worker": ["h:1"]}


@pytest.mark.parametrize("text", ["{}", '{"cluster": {}}', '{"cluster": null, "task": null}', "  "])
def test_an_empty_tf_config_is_a_cluster_of_one(text: str) -> None:
    assert discover({}, {"TF_CONFIG": text}).mode == Local()


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("not json", "TF_CONFIG"),
        ("[1]", "TF_CONFIG"),
        ('"text"', "TF_CONFIG"),
        ('{"cluster": [1]}', "TF_CONFIG cluster"),
        ('{"cluster": {"worker": ["a:1"]}}', "TF_CONFIG task"),
        ('{"cluster": {"worker": ["a:1"]}, "task": 3}', "TF_CONFIG task"),
        ('{"cluster": {"worker": ["a:1"]}, "task": {"index": 0}}', "TF_CONFIG task"),
        ('{"cluster": {"worker": ["a:1"]}, "task": {"type": "ps", "index": "x"}}', "TF_CONFIG task index"),
        ('{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 4}}', "task_index"),
        ('{"cluster": {"worker": ["a:1"]}, "task": {"type": "ps", "index": 0}}', "job_name"),
        ('{"cluster": {"worker": "a:1"}, "task": {"type": "worker"}}', "cluster job worker"),
        ('{"cluster": {"chief": 5}, "task": {"type": "chief"}}', "TF_CONFIG cluster chief"),
        ('{"cluster": {"chief": "h:1"}, "task": {"type": "chief"}}', "TF_CONFIG cluster chief"),
        ('{"cluster": {"chief": ["h:1"], "worker": 1}, "task": {"type": "a"}}', "TF_CONFIG cluster worker"),
    ],
)
def test_a_tf_config_that_cannot_work_is_refused(text: str, field: str) -> None:
    assert refusal({}, {"TF_CONFIG": text}).field == field


# --- bad input --------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({**ME, "job_name": "boss"}, "job_name: expected a job of the cluster (ps, worker), got 'boss'"),
        ({**ME, "task_index": "2"}, "task_index: expected 0 to 1 in job worker, got 2"),
        ({**ME, "task_index": "two"}, "task_index: expected a whole number, 0 or more, got 'two'"),
        ({**ME, "task_index": "-1"}, "task_index: expected a whole number, 0 or more, got '-1'"),
        (
            {**ME, "worker_hosts": "c:1,a:1"},
            "/job:worker/task:1: expected an address of its own, got a:1, which is /job:ps/task:0's already",
        ),
        ({**ME, "ps_hosts": "a:70000"}, "/job:ps/task:0: expected a port from 1 to 65535, got 'a:70000'"),
        ({**ME, "ps_hosts": "a"}, "/job:ps/task:0: expected host:port, got 'a'"),
        ({**ME, "mode": "fast"}, "mode: expected one of sync, async, ring, got 'fast'"),
        (
            {**ME, "mode": "sync", "aggregate": "3"},
            "aggregate: expected at most the number of workers, 2, got 3; "
            "set tokens (and distinct=False in code) to take several gradients of one worker in a step",
        ),
        ({**ME, "wait": "soon"}, "wait: expected a number of seconds greater than 0, got 'soon'"),
        ({**ME, "wait": "inf"}, "wait: expected a number of seconds greater than 0, got 'inf'"),
        ({**ME, "wait": "nan"}, "wait: expected a number of seconds greater than 0, got 'nan'"),
        ({**ME, "insecure": "maybe"}, "insecure: expected true or false, got 'maybe'"),
        ({**ME, "num_gpus": "x"}, "num_gpus: expected a whole number, 0 or more, got 'x'"),
        ({**ME, "bind": "here"}, "bind: expected host:port, got 'here'"),
        (HOSTS, "job_name: expected the job of this task, such as ps or worker, got none; add --job_name"),
    ],
)
def test_bad_input_gets_one_line_with_the_field_what_was_expected_and_what_came(
    words: dict[str, str], message: str
) -> None:
    assert str(refusal(words)) == message


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_mode_of_servers_without_servers_is_refused(mode: str) -> None:
    words = {"worker_hosts": "a:1,b:1", "job_name": "worker", "mode": mode}
    error = refusal(words)
    assert error.field == "mode"
    assert error.expected == f"a cluster with at least one ps task for {mode}"
    assert error.got == "no ps task"


def test_a_job_without_addresses_is_refused() -> None:
    error = refusal({"job_name": "worker"})
    assert (error.field, error.got) == ("worker_hosts", "none")
    assert error.remedy == "add --ps_hosts and --worker_hosts"


def test_a_cluster_that_is_not_json_is_refused() -> None:
    assert refusal({"cluster": "{", "job_name": "ps"}).field == "cluster"


def test_workers_without_servers_are_a_ring_but_a_ring_of_one_is_alone() -> None:
    hosts = {"worker_hosts": "a:1,b:1", "job_name": "worker"}
    assert discover(hosts, {}).mode == Ring()
    assert discover({**hosts, "mode": "ring"}, {}).mode == Ring()
    assert refusal({**ME, "mode": "ring"}).got == "2 ps tasks"
    assert discover({"worker_hosts": "a:1", "job_name": "worker", "mode": "ring"}, {}).mode == Local()


def test_flags_say_which_task_this_is_beside_a_tf_config() -> None:
    environ = tf_config({"ps": ["a:1"], "worker": ["b:1", "c:1"]}, {"type": "worker", "index": 0})
    assert discover({"job_name": "worker", "task_index": "1"}, environ).task == Task("worker", 1)
    assert discover({}, environ).task == Task("worker", 0)


def test_hosts_in_flags_replace_a_cluster_in_a_variable() -> None:
    environ = {"ARGOSY_CLUSTER": '{"ps": ["x:1"], "worker": ["y:1"]}'}
    flags = {"ps_hosts": "a:1", "worker_hosts": "b:1", "job_name": "worker"}
    assert discover(flags, environ).cluster.as_dict() == {"ps": ["a:1"], "worker": ["b:1"]}


def test_a_bound_on_staleness_alone_means_the_asynchronous_mode() -> None:
    assert discover({**ME, "max_staleness": "3"}, {}).mode == Async(max_staleness=3)


TORCHRUN = {"RANK": "2", "WORLD_SIZE": "3", "LOCAL_RANK": "0", "MASTER_ADDR": "a", "MASTER_PORT": "29500"}


def test_torchruns_variables_make_a_ring() -> None:
    found = discover({}, TORCHRUN)
    assert (found.task, found.mode, found.by_torchrun) == (Task("worker", 2), Ring(), True)
    assert found.cluster.count("worker") == 3
    assert discover({}, {**TORCHRUN, "RANK": "0", "WORLD_SIZE": "1"}).mode == Local()


def test_flags_and_variables_of_our_own_win_over_torchruns() -> None:
    found = discover(ME, TORCHRUN)
    assert (found.task, found.by_torchrun) == (discover(ME, {}).task, False)
    assert not discover({}, {"RANK": "1", "WORLD_SIZE": "2"}).by_torchrun


@pytest.mark.parametrize(
    ("change", "field"),
    [({"RANK": "3"}, "task_index"), ({"RANK": "x"}, "RANK"), ({"WORLD_SIZE": "0"}, "WORLD_SIZE")],
)
def test_torchruns_variables_are_checked(change: dict[str, str], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        discover({}, TORCHRUN | change)
    assert caught.value.field == field
