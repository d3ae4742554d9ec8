"""Clusters for the tests of remote devices: tasks in this process, over real sockets, or in processes."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import zmq

import argosy
from argosy.remote.client.cluster_client import Client
from argosy.server.serving_task import Server

ONE_THREAD = {"OMP_NUM_THREADS": "1"}


def _begin_what_lasts() -> None:
    """pyzmq frees what was sent without a copy in a thread that lives as long as the process: no leak."""
    with zmq.Context() as context, context.socket(zmq.PULL) as pull, context.socket(zmq.PUSH) as push:
        port = pull.bind_to_random_port("tcp://127.0.0.1")
        push.connect(f"tcp://127.0.0.1:{port}")
        push.send(bytearray(100_000), copy=False)
        pull.recv()


_begin_what_lasts()


@contextlib.contextmanager
def local_client() -> Iterator[Client]:
    """A cluster of one in this process, and its client; the same number of threads on both sides."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with argosy.create_local_server() as server, argosy.connect(server.target, wait=20) as client:
        yield client
    torch.set_num_threads(before)


def listening() -> tuple[socket.socket, str]:
    """A socket that listens on a port of its own, to be handed to a task, and its address."""
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    bound.bind(("127.0.0.1", 0))
    bound.listen()
    host, port = bound.getsockname()
    return bound, f"{host}:{port}"


@contextlib.contextmanager
def cluster_here(**jobs: int) -> Iterator[str]:
    """Servers of all these tasks in this process; the address of the first."""
    sockets = {job: [listening() for _ in range(count)] for job, count in jobs.items()}
    spec = {job: [address for _, address in pairs] for job, pairs in sockets.items()}
    with contextlib.ExitStack() as stack:
        for job, pairs in sockets.items():
            for index, (bound, _) in enumerate(pairs):
                stack.enter_context(Server(spec, job, index, listen_fd=bound.detach()))
        yield next(iter(spec.values()))[0]


@dataclass
class Processes:
    """Tasks in processes of their own."""

    target: str
    tasks: dict[str, subprocess.Popen[bytes]]

    def kill(self, task: str) -> None:
        """End a task without a word."""
        self.tasks[task].kill()
        self.tasks[task].wait()


@contextlib.contextmanager
def processes(**jobs: int) -> Iterator[Processes]:
    """`argosy serve` for each task."""
    sockets = {job: [listening() for _ in range(count)] for job, count in jobs.items()}
    spec = {job: [address for _, address in pairs] for job, pairs in sockets.items()}
    tasks: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for job, pairs in sockets.items():
            for index, (bound, _) in enumerate(pairs):
                flags = [f"--cluster={json.dumps(spec)}", f"--job_name={job}", f"--task_index={index}"]
                with bound:
                    tasks[f"/job:{job}/task:{index}"] = subprocess.Popen(
                        [sys.executable, "-m", "argosy.cli", "serve", *flags],
                        env=dict(os.environ) | ONE_THREAD | {"ARGOSY_LISTEN_FD": str(bound.fileno())},
                        pass_fds=(bound.fileno(),),
                        stderr=subprocess.DEVNULL,
                    )
        yield Processes(next(iter(spec.values()))[0], tasks)
    finally:
        for process in tasks.values():
            process.kill()
            process.wait()
