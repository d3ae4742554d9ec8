"""Train PyTorch models on a fleet of machines, from one ordinary training loop.

    replica = argosy.join()
    optimizer = replica.distribute(torch.optim.Adam(model.parameters()))
    with replica.session(model, optimizer, last_step=2000) as session:
        for images, labels in session.batches(loader):
            ...

This module is the whole public interface. Names are imported when they are first used, so that
`import argosy` costs nothing and does not import torch.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from argosy import hooks as hooks
    from argosy.checkpoint.tensor_reader import load as load
    from argosy.cluster.spec import ClusterSpec as ClusterSpec
    from argosy.entry import Replica as Replica
    from argosy.entry import join as join
    from argosy.errors import ArgosyError as ArgosyError
    from argosy.errors import CheckpointDamaged as CheckpointDamaged
    from argosy.errors import ConfigError as ConfigError
    from argosy.errors import HookFailed as HookFailed
    from argosy.errors import JobFailed as JobFailed
    from argosy.errors import ModelMismatch as ModelMismatch
    from argosy.errors import RemoteError as RemoteError
    from argosy.errors import TaskLost as TaskLost
    from argosy.errors import WaitTimeout as WaitTimeout
    from argosy.modes import Async as Async
    from argosy.modes import Ring as Ring
    from argosy.modes import Sync as Sync
    from argosy.remote.client.capture import capture as capture
    from argosy.remote.client.cluster_client import Client as Client
    from argosy.remote.client.connect import connect as connect
    from argosy.remote.client.device_scope import device as device
    from argosy.remote.client.module_transfer import fetch as fetch
    from argosy.remote.client.module_transfer import place as place
    from argosy.replica.exchange import Verdict as Verdict
    from argosy.replica.learning_rate import scale_learning_rate as scale_learning_rate
    from argosy.server.serving_task import Server as Server
    from argosy.server.serving_task import create_local_server as create_local_server
    from argosy.session.session import Session as Session
    from argosy.store.placement import Greedy as Greedy
    from argosy.store.placement import RoundRobin as RoundRobin
    from argosy.store.placement import Split as Split

_NAMES = {
    "argosy": "hooks",
    "argosy.checkpoint.tensor_reader": "load",
    "argosy.cluster.spec": "ClusterSpec",
    "argosy.entry": "Replica join",
    "argosy.errors": "ArgosyError CheckpointDamaged ConfigError HookFailed JobFailed ModelMismatch "
    "RemoteError TaskLost WaitTimeout",
    "argosy.modes": "Async Ring Sync",
    "argosy.remote.client.capture": "capture",
    "argosy.remote.client.cluster_client": "Client",
    "argosy.remote.client.connect": "connect",
    "argosy.remote.client.device_scope": "device",
    "argosy.remote.client.module_transfer": "fetch place",
    "argosy.replica.exchange": "Verdict",
    "argosy.replica.learning_rate": "scale_learning_rate",
    "argosy.server.serving_task": "Server create_local_server",
    "argosy.session.session": "Session",
    "argosy.store.placement": "Greedy RoundRobin Split",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}

__all__ = sorted(_HOMES)

try:
    __version__ = version("argosy")
except PackageNotFoundError:  # run from a source tree that is not installed
    __version__ = "0"


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'argosy' has no attribute {name!r}")
    home = _HOMES[name]
    value = import_module(f"argosy.{name}") if home == "argosy" else getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
