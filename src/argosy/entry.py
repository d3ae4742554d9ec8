"""`join()` and the `Replica` that it gives: the way into a job."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from argosy.cluster.cores import share_cores
from argosy.cluster.discover import Identity, discover, take_flags
from argosy.cluster.launcher import mark_joined
from argosy.cluster.malloc import keep_freed_memory
from argosy.cluster.spec import ClusterSpec, Task
from argosy.errors import CallError, ConfigError
from argosy.events import say
from argosy.modes import BufferRule, Local, Mode, Ring
from argosy.replica import task_exit
from argosy.replica.worker import Worker
from argosy.script import calling_line
from argosy.server.serving_task import serve
from argosy.stacks import report_on_signal
from argosy.store.caller_handshake import connect
from argosy.store.client import StoreClient
from argosy.store.inquiry import query

if TYPE_CHECKING:
    from torch import nn

    from argosy.replica.optimizer import DistributedOptimizer
    from argosy.session.hook import Hook
    from argosy.session.own_state import Stateful
    from argosy.session.session import Session

_joined = ""  # the script's line that has joined a cluster, of which a process is one task


def join(
    *,
    cluster: ClusterSpec | Mapping[str, Sequence[str]] | None = None,
    job_name: str | None = None,
    task_index: int | None = None,
    mode: Mode | None = None,
) -> Replica:
    """Find this task's place in its cluster, and take it.

    Reads flags (and takes them out of `sys.argv`), ARGOSY_* variables and TF_CONFIG; with none of them this
    is a cluster of one. In a ps task it serves until the job is done, and then the process exits.
    """
    global _joined
    where = calling_line()
    if _joined:
        problem = f"this process joined its cluster at {_joined}"
        raise CallError(where, "join()", problem, "call it once, and pass the replica on")
    task_exit.install(Task("task", 0), lambda: None, lambda reason: None)
    mark_joined()
    words, rest = take_flags(sys.argv[1:])
    if job_name is not None:
        words["job_name"] = job_name
    if task_index is not None:
        words["task_index"] = str(task_index)
    spec = ClusterSpec(cluster) if isinstance(cluster, Mapping) else cluster
    identity = discover(words, os.environ, cluster=spec, mode=mode)
    sys.argv[1:] = rest
    if identity.task.job == "ps":
        _serve(identity)
    replica = _enter(identity)
    _joined = "" if isinstance(identity.mode, Local) else where
    return replica


def _serve(identity: Identity) -> None:
    try:
        serve(
            identity,
            wait=identity.wait,
            lease=identity.lease.seconds,
            use_lane=identity.use_lane,
            remote=False,
            losses=identity.losses,
        ).join()
    except Exception as error:
        task_exit.write_record(identity.task, error)
        raise
    sys.exit(0)


def _enter(identity: Identity) -> Replica:
    keep_freed_memory()
    if isinstance(identity.mode, Local):
        return Replica(identity, None)
    share_cores(identity.cluster, identity.task)
    if isinstance(identity.mode, Ring):
        from argosy.replica.ring_entry import enter_ring

        member = enter_ring(identity)
        task_exit.install(identity.task, member.leave, member.fail)
        report_on_signal(list)
        return Replica(identity, None, member)
    me, cluster = identity.task, identity.cluster
    client = StoreClient(
        cluster,
        me,
        lambda server: connect(cluster, me, server, identity.lease),
        identity.wait,
        identity.use_lane,
        identity.lease,
        restarts=identity.max_restarts > 0,
    )
    task_exit.install(me, client.leave, client.fail)
    report_on_signal(lambda: query(str(cluster.address(Task("ps", 0)))).splitlines())
    client.hello()
    client.offer_stacks(lambda: connect(cluster, me, Task("ps", 0), identity.lease))
    return Replica(identity, client)


class Replica(Worker):
    """One worker of the job."""

    def session(
        self,
        model: nn.Module,
        optimizer: DistributedOptimizer,
        *,
        last_step: int | None = None,
        directory: str | os.PathLike[str] | None = None,
        save_every: int | None = None,
        save_seconds: float | None = None,
        keep: int = 5,
        average: float | None = None,
        initial: str | os.PathLike[str] | None = None,
        state: Mapping[str, Stateful] | None = None,
        hyperparameters: Literal["checkpoint", "script"] = "checkpoint",
        evaluate: Callable[[nn.Module], Any] | None = None,
        buffers: BufferRule = "chief",
        hooks: Sequence[Hook] = (),
    ) -> Session:
        """The frame of a training: begins from the chief's parameters, ends for all at `last_step` updates.

        `directory`: checkpoints are kept there, the newest `keep`, one every `save_every` updates or every
        `save_seconds` (600 if neither is said) and one at the end; a training that finds one goes on from it.
        `average`: keep moving averages of the parameters with this decay, for `session.averaged()`.
        `initial`: a file with a `state_dict` to begin from. `state`: what else is kept with the checkpoints,
        such as `{"scheduler": scheduler}`. `hyperparameters`: when a training is resumed, those of the
        "checkpoint" count, or those of the "script". `evaluate`: what an evaluator does with each checkpoint.
        `buffers`: whose running statistics (of BatchNorm and the like) everybody gets, the "chief"'s or the
        "mean" of all. `hooks`: what else happens along with it, see `argosy.hooks`.
        """
        from argosy.hooks.save_checkpoint import SaveCheckpoint
        from argosy.replica.exchange import Training
        from argosy.session.session import Session
        from argosy.session.session_options import initial_values, plan

        if last_step is not None and last_step < 0:
            raise ConfigError("last_step", "a number of updates, 0 or more", last_step)
        if buffers not in ("chief", "mean"):
            raise ConfigError("buffers", "chief or mean", repr(buffers))
        if hyperparameters not in ("checkpoint", "script"):
            raise ConfigError("hyperparameters", "checkpoint or script", repr(hyperparameters))
        if average is not None and not 0 < average < 1:
            raise ConfigError("average", "a decay between 0 and 1, such as 0.999", average)
        keeping, seconds = plan(directory, save_every, save_seconds, keep)
        training = Training(
            model,
            last_step,
            buffers,
            keeping,
            average,
            None if initial is None else initial_values(model, initial),
            hyperparameters=hyperparameters,
        )
        if self.is_evaluator:
            from argosy.session.evaluation import EvaluatorSession

            return EvaluatorSession(self, optimizer, training, evaluate, self._identity.wait)
        if (note := self.calls.check_model(model, optimizer)) and self.is_chief:
            say(note)
        saving = [] if seconds is None else [SaveCheckpoint(seconds=seconds)]
        return Session(self, optimizer, training, [*saving, *hooks], state)
