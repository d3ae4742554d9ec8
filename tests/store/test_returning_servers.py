"""Servers die and come back while a worker trains: it sees a pause, and every gradient counts once."""

from __future__ import annotations

import gc
import os
import random
import threading
import time
from pathlib import Path
from types import TracebackType

import msgspec
import pytest
import torch
from returning_servers import LEASE, ReturningServers, When, lives_there
from torch import nn

from argosy.cluster.launcher import write_failure
from argosy.cluster.spec import Task
from argosy.entry import Replica
from argosy.errors import JobFailed, TaskLost
from argosy.modes import Async, Mode, Sync
from argosy.protocol.asking import JobStatus
from argosy.protocol.header import Header
from argosy.protocol.joining import Describe, GradientMemory, Hello, Leave, Register
from argosy.protocol.training import GatherRequest, PushRequest
from argosy.replica.optimizer import DistributedOptimizer
from argosy.replica.server_exchange import ServerExchange
from argosy.store.caller_handshake import connect
from argosy.store.inquiry import Inquirer, query

SIZES = (3, 5, 2, 4)


class Training:
    """One worker of a job; a step of `n` takes n off every parameter, on all servers or on none."""

    def __init__(self, replica: Replica, *, overlap: bool = False) -> None:
        self.replica = replica
        assert replica._client is not None
        self.client = replica._client
        self.model = nn.ParameterList([torch.zeros(size) for size in SIZES])
        optimizer = torch.optim.SGD(self.model.parameters(), lr=1.0)
        self.optimizer: DistributedOptimizer = replica.distribute(optimizer, overlap=overlap)
        self.total = 0
        self.session = replica.session(self.model, self.optimizer)

    def __enter__(self) -> Training:
        self.session.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.session.__exit__(kind, error, traceback)

    def backward(self, amount: int) -> None:
        self.optimizer.zero_grad()
        loss = sum((parameter * amount).sum() for parameter in self.model)
        assert isinstance(loss, torch.Tensor)
        loss.backward()
        self.total += amount

    def step(self, amount: int) -> None:
        self.backward(amount)
        self.finish_step()

    def finish_step(self) -> None:
        verdict = self.optimizer.step()
        assert verdict.status == "applied"
        self.check()

    @property
    def at_home(self) -> bool:
        """Whether every parameter lives where its server writes it now."""
        exchange = self.optimizer._exchange
        assert isinstance(exchange, ServerExchange)
        layout = exchange._layout
        homes = [(layout.blocks[piece.block].server, piece.parameter) for piece in layout.pieces]
        return all(lives_there(self.client, server, self.model[number]) for server, number in homes)

    def check(self) -> None:
        for parameter in self.model:
            assert parameter.tolist() == [-self.total] * parameter.numel()


def pushes(servers: ReturningServers, server: int) -> list[PushRequest]:
    """The gradients that a server was sent by itself."""
    heard = list(servers.servers[server].heard)
    return [header for header in heard if isinstance(header, PushRequest) and header.kind == "gradient"]


# --- training ---------------------------------------------------------------------------------------------
@pytest.mark.timeout(60)
@pytest.mark.parametrize("use_lane", [True, False], ids=["memory", "network"])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("dying", [[0], [1], [0, 1]], ids=str)
def test_a_push_is_on_its_way_when_a_server_dies(dying: list[int], when: When, use_lane: bool) -> None:
    servers = ReturningServers(use_lane=use_lane)
    with Training(servers.replica()) as training:
        for amount in (1, 2):
            training.step(amount)
        for server in dying:
            if use_lane and server:  # it hears of pushes from the coordinator, and dies before it reads that
                servers.servers[server].die()
            else:
                servers.servers[server].die_at(PushRequest, when)
        for amount in (4, 8, 16, 32):
            training.step(amount)
        assert [each.count for each in servers.servers] == [int(index in dying) for index in (0, 1)]
        if use_lane:
            assert training.at_home
    servers.end()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("server", [0, 1])
def test_pushes_go_through_shared_memory_again(server: int) -> None:
    servers = ReturningServers()
    with Training(servers.replica()) as training:
        training.step(1)
        assert not pushes(servers, 1)
        servers.servers[server].die()
        training.step(2)
        direct = len(pushes(servers, 1))
        assert direct == server  # only one that came back is sent its share
        for amount in (4, 8, 16):
            training.step(amount)
        assert len(pushes(servers, 1)) == direct
        assert all(push.shared for push in pushes(servers, 0))
        assert training.at_home
    servers.end()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("use_lane", [True, False], ids=["memory", "network"])
def test_all_servers_die_while_the_worker_computes(use_lane: bool) -> None:
    servers = ReturningServers(use_lane=use_lane)
    with Training(servers.replica()) as training:
        for amount in (1, 2, 4):
            training.backward(amount)
            for server in servers.servers:
                server.die()
            training.finish_step()
        training.optimizer.pull()
        training.check()
    servers.end()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("use_lane", [True, False], ids=["memory", "network"])
def test_a_server_dies_again_while_it_is_called(use_lane: bool) -> None:
    servers = ReturningServers(use_lane=use_lane)
    with Training(servers.replica()) as training:
        training.step(1)
        for server in servers.servers:
            for when in ("before", "after", "before", "after"):
                server.die_at(Hello, when)
            server.die()
        for amount in (2, 4, 8):
            training.step(amount)
        assert [server.count for server in servers.servers] == [5, 5]
        assert not use_lane or training.at_home
    servers.end()


@pytest.mark.timeout(60)
def test_blocks_that_were_sent_ahead_are_lost_with_a_server() -> None:
    servers = ReturningServers(use_lane=False)
    with Training(servers.replica(), overlap=True) as training:
        for server, amount in enumerate((1, 2)):
            training.backward(amount)
            servers.servers[server].die()
            training.finish_step()
        training.step(4)
        assert any(push.ahead for push in pushes(servers, 1))
    servers.end()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("server", [0, 1])
def test_a_server_comes_back_while_the_memory_is_shared_again(server: int) -> None:
    """It may have said that it sees the memory, and its next process says so again without seeing it."""
    servers = ReturningServers()
    with Training(servers.replica()) as training:
        training.step(1)
        servers.servers[server].die()
        training.step(2)
        servers.servers[server].die_at(GradientMemory, "after")
        for amount in (4, 8, 16, 32):
            training.step(amount)
        assert servers.servers[server].count == 2
        direct = len(pushes(servers, 1))
        training.step(64)
        assert len(pushes(servers, 1)) == direct
        assert training.at_home
    servers.end()


@pytest.mark.timeout(60)
def test_parameters_keep_their_values_until_the_next_answer() -> None:
    servers = ReturningServers()
    with Training(servers.replica()) as training:
        training.step(1)
        for server in servers.servers:
            server.die()
        training.check()
        training.step(2)  # the new memory is there, and so are the values
        training.check()
        with torch.no_grad():
            assert sum(parameter.sum() for parameter in training.model) == -3 * sum(SIZES)
    assert [parameter.tolist() for parameter in training.model] == [[-3.0] * size for size in SIZES]
    servers.end()


def mapped() -> int:
    return Path("/proc/self/maps").read_text().count("memfd:argosy")


@pytest.mark.timeout(120)
@pytest.mark.parametrize("use_lane", [True, False], ids=["memory", "network"])
def test_nothing_is_kept_of_servers_that_are_gone(use_lane: bool) -> None:
    servers = ReturningServers(use_lane=use_lane)
    seen = {}
    with Training(servers.replica()) as training:
        for number in range(20):
            servers.servers[number % 2].die()
            training.step(1)
            training.step(1)
            if number in (3, 19):
                gc.collect()
                seen[number] = (mapped(), len(os.listdir("/proc/self/fd")))
    servers.end()
    assert seen[19] == seen[3]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("use_lane", [True, False], ids=["memory", "network"])
def test_a_worker_goes_on_soon(use_lane: bool) -> None:
    servers = ReturningServers(use_lane=use_lane)
    pauses = []
    with Training(servers.replica()) as training:
        training.step(1)
        for _ in range(5):
            for server in servers.servers:
                server.pause = 0.0
                server.die_at(PushRequest, "before")
            began = time.monotonic()
            servers.servers[1].die()
            training.step(1)
            pauses.append(time.monotonic() - began)
    servers.end()
    assert min(pauses) < 0.7, pauses


# --- other waits ------------------------------------------------------------------------------------------
@pytest.mark.timeout(60)
@pytest.mark.parametrize("use_lane", [True, False], ids=["memory", "network"])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    ("server", "kind"), [(0, Describe), (0, Register), (1, Register), (0, GradientMemory)]
)
def test_a_server_dies_before_the_training_begins(
    server: int, kind: type[Header], when: When, use_lane: bool
) -> None:
    if kind is GradientMemory and not use_lane:
        pytest.skip("nothing is shown over a network")
    servers = ReturningServers(use_lane=use_lane)
    servers.servers[server].die_at(kind, when)
    with Training(servers.replica()) as training:
        for amount in (1, 2, 4):
            training.step(amount)
        assert servers.servers[server].count == 1
    servers.end()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("use_lane", [True, False], ids=["memory", "network"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_the_coordinator_dies_in_a_gather(when: When, use_lane: bool) -> None:
    servers = ReturningServers(workers=2, use_lane=use_lane)
    servers.servers[0].die_at(GatherRequest, when)
    got: dict[int, list[list[int]]] = {}

    def work(worker: int) -> None:
        replica = servers.replica(worker)
        got[worker] = [replica.gather(10 * turn + worker) for turn in range(4)]
        replica.leave()

    threads = [threading.Thread(target=work, args=(worker,)) for worker in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30.0)
    assert got == {worker: [[10 * turn, 10 * turn + 1] for turn in range(4)] for worker in (0, 1)}
    assert servers.servers[0].count == 1
    servers.end()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("use_lane", [True, False], ids=["memory", "network"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_the_coordinator_dies_when_a_worker_leaves(when: When, use_lane: bool) -> None:
    servers = ReturningServers(use_lane=use_lane)
    with Training(servers.replica()) as training:
        training.step(1)
        servers.servers[0].die_at(Leave, when)
    servers.end()
    assert servers.servers[0].count == 1


# --- two workers ------------------------------------------------------------------------------------------
@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", range(12))
def test_every_gradient_counts_once_whoever_dies(seed: int) -> None:
    chance = random.Random(seed)
    mode: Mode = Sync() if chance.random() < 0.5 else Async()
    count, use_lane = chance.randint(1, 3), chance.random() < 0.7
    servers = ReturningServers(count, 2, mode, use_lane=use_lane)
    steps, ended = 40, threading.Event()
    results: dict[int, tuple[int, int, set[float]]] = {}

    def work(worker: int) -> None:
        replica = servers.replica(worker)
        model = nn.ParameterList([torch.zeros(size) for size in SIZES])
        optimizer = replica.distribute(torch.optim.SGD(model.parameters(), lr=1.0))
        applied = 0
        with replica.session(model, optimizer, last_step=steps) as session:
            for _ in session.batches(range(10**6)):
                for parameter in model:
                    parameter.grad = torch.ones_like(parameter)
                applied += optimizer.step().status == "applied"
        values = torch.cat([parameter.detach() for parameter in model])
        results[worker] = (applied, session.global_step, set(values.tolist()))

    threads = [threading.Thread(target=work, args=(worker,)) for worker in (0, 1)]
    for thread in threads:
        thread.start()
    for _ in range(6):
        if ended.wait(chance.random() * 0.1) or not all(thread.is_alive() for thread in threads):
            break
        victim = chance.choice(servers.servers)
        victim.pause = chance.choice([0.0, 0.02, 0.1])
        victim.die_at(PushRequest, chance.choice(["before", "after"]))
        if chance.random() < 0.3:
            chance.choice(servers.servers).die_at(Hello, chance.choice(["before", "after"]))
    for thread in threads:
        thread.join(60.0)
    servers.end()
    assert {step for _, step, _ in results.values()} == {steps}
    assert all(values == {-float(steps)} for _, _, values in results.values())
    made = [applied for applied, _, _ in results.values()]
    assert made == [steps, steps] if isinstance(mode, Sync) else sum(made) == steps


# --- the end of patience ----------------------------------------------------------------------------------
@pytest.mark.timeout(60)
@pytest.mark.parametrize("use_lane", [True, False], ids=["memory", "network"])
def test_a_server_that_does_not_come_back_is_waited_for_so_long(
    use_lane: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("argosy.store.conversation.NOTICE_EVERY", 0.5)
    servers = ReturningServers(1, use_lane=use_lane, wait=1.5)
    client = servers.client()
    servers.servers[0].pause = 20.0
    servers.servers[0].die_at(GatherRequest, "before")
    began = time.monotonic()
    with pytest.raises(TaskLost, match="its connection ended, and it was not back after 2 s"):
        client.gather(msgspec.Raw(b"\xc0"))
    assert 1.5 <= time.monotonic() - began < 5.0
    assert "still waiting for /job:ps/task:0" in capsys.readouterr().err
    began = time.monotonic()
    client.fail("it is over")
    assert time.monotonic() - began < 3.0
    servers.servers[0].gone.set()
    for thread in servers._threads:
        thread.join(20.0)


@pytest.mark.timeout(60)
def test_the_launchers_word_ends_the_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARGOSY_ERROR_FILE", str(tmp_path / "error.json"))
    servers = ReturningServers(1)
    client = servers.client()
    servers.servers[0].pause = 20.0
    servers.servers[0].die_at(GatherRequest, "before")
    timer = threading.Timer(0.5, write_failure, (tmp_path / "failure", "/job:ps/task:0", "too often"))
    timer.start()
    with pytest.raises(JobFailed, match="too often"):
        client.gather(msgspec.Raw(b"\xc0"))
    client.fail("it is over")
    servers.servers[0].gone.set()
    for thread in servers._threads:
        thread.join(20.0)


# --- who only looks ---------------------------------------------------------------------------------------
@pytest.mark.timeout(60)
def test_questions_are_answered_by_a_coordinator_that_came_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("argosy.store.stack_reporter._LOOK_EVERY", 0.2)
    servers = ReturningServers(1)
    with Training(servers.replica()) as training:
        me = Task("worker", 0)
        training.client.offer_stacks(lambda: connect(servers.spec, me, Task("ps", 0), LEASE))
        inquirer = training.client.inquire()
        training.step(1)
        assert asked(inquirer).step == 1
        servers.servers[0].die()
        assert asked(inquirer).step == 1
        training.step(2)
        assert asked(inquirer).step == 2
        inquirer.close()
        deadline = time.monotonic() + 20.0
        while "is in:" not in query(str(servers.servers[0].address), stacks=True):
            assert time.monotonic() < deadline
    servers.end()


def asked(inquirer: Inquirer) -> JobStatus:
    for _ in range(20):
        if (status := inquirer.ask(1.0)) is not None:
            return status
    raise AssertionError("no answer")
