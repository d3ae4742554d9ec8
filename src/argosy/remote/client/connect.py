"""`argosy.connect`: makes a client from an address, or from the environment under `argosy run --serve`."""

from __future__ import annotations

import json
import os

from argosy.cluster.settings import DEFAULT_WAIT, read_seconds, variable
from argosy.cluster.spec import Address, ClusterSpec
from argosy.errors import ConfigError
from argosy.remote.client.active_scope import open_clients
from argosy.remote.client.cluster_client import Client


def connect(
    target: str | None = None,
    *,
    log_device_placement: bool = False,
    allow_soft_placement: bool = False,
    wait: float | None = None,
) -> Client:
    """A client of the cluster of which a task is at `target` (`host:port`, also `grpc://host:port`).

    Without a target, it is the cluster of `argosy run --serve`. Waits for tasks that are not up yet, prints
    which every few seconds, and gives up after `wait` seconds. `log_device_placement` prints once for each
    operation and device where it runs; with `allow_soft_placement`, a device that a task lacks is replaced by
    its CPU.
    """
    address = _read_target(target)
    if wait is None:
        text = os.environ.get(variable("wait"), "")
        wait = read_seconds("wait", text) if text else DEFAULT_WAIT
    client = Client(
        address,
        log_device_placement=log_device_placement,
        allow_soft_placement=allow_soft_placement,
        wait=wait,
    )
    open_clients.append(client)
    return client


def _read_target(target: str | None) -> Address:
    if target is not None:
        return Address.parse(target.rpartition("//")[2], "target")
    text = os.environ.get(variable("cluster"), "")
    if not text:
        raise ConfigError("target", "host:port of a task", "none", "pass one, or use argosy run --serve")
    try:
        cluster = ClusterSpec(json.loads(text))
    except json.JSONDecodeError as error:
        raise ConfigError(variable("cluster"), "a JSON object", f"{text[:60]!r} ({error})") from None
    jobs = [job for job in ("worker", *cluster.jobs) if cluster.count(job)]
    return cluster.address(next(cluster.tasks(jobs[0])))
