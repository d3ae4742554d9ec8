"""Where a ring meets: a torch.distributed store in worker 0, at its address; or the one torchrun has made.

The store's socket is bound here and handed over, because torch would listen on every network of the machine.
"""

from __future__ import annotations

import os
import socket
import time
from datetime import timedelta

from torch.distributed import PrefixStore, Store, TCPStore
from torch.distributed.rendezvous import rendezvous

from argosy.cluster.launcher import raise_failure_elsewhere
from argosy.cluster.spec import Address
from argosy.errors import ConfigError, WaitTimeout
from argosy.events import say_waiting

_NOTICE_EVERY = 5.0
_RETRY = 0.02
_BACKLOG = 1024


def host_store(bind: Address, handed: int | None, timeout: float) -> Store:
    """Worker 0's part: serve the store at an address, or on a socket that is bound there already."""
    listening = _bind(bind) if handed is None else socket.socket(fileno=handed)
    listening.listen(_BACKLOG)
    return TCPStore(
        bind.host,
        bind.port,
        is_master=True,
        timeout=timedelta(seconds=timeout),
        wait_for_workers=False,
        master_listen_fd=listening.detach(),
    )


def _bind(bind: Address) -> socket.socket:
    family = socket.AF_INET6 if ":" in bind.host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((bind.host, bind.port))
    except OSError as error:
        bound.close()
        raise ConfigError(
            "address of /job:worker/task:0", "a free address of this machine", f"{bind} ({error})"
        ) from None
    return bound


def join_store(address: Address, chief: str, timeout: float) -> Store:
    """Everybody else's part: connect, waiting until worker 0 is there."""
    began = time.monotonic()
    notice = began + _NOTICE_EVERY
    while not _answers(address):
        raise_failure_elsewhere()
        now = time.monotonic()
        if now - began > timeout:
            raise WaitTimeout("the ring is not complete", [f"{chief} at {address}"], now - began)
        if now > notice:
            notice = now + _NOTICE_EVERY
            say_waiting(f"{chief} at {address}", now - began)
        time.sleep(_RETRY)
    return TCPStore(address.host, address.port, timeout=timedelta(seconds=timeout), wait_for_workers=False)


def _answers(address: Address) -> bool:
    try:
        socket.create_connection((address.host, address.port), timeout=_NOTICE_EVERY).close()
    except OSError:
        return False
    return True


def torchrun_store(timeout: float) -> Store:
    """The store that torchrun's variables name; one for each time that it starts the workers anew."""
    store, _, _ = next(rendezvous("env://", timeout=timedelta(seconds=timeout)))
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return PrefixStore(f"argosy/{attempt}", store)
