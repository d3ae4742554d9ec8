"""How a job has ended: what is said last, and the exit code. Called by `launch.local` after the last task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from argosy.cluster.launcher import joined_file
from argosy.cluster.spec import Task
from argosy.errors import USAGE_EXIT_CODE
from argosy.launch import cause
from argosy.launch.cause import ErrorRecord
from argosy.launch.job import JobSpec
from argosy.launch.job_events import Ended
from argosy.launch.supervise import Supervisor, exit_status
from argosy.launch.workspace import Workspace

_NEVER_JOINED = 1


def conclude(
    job: JobSpec,
    supervisor: Supervisor,
    workspace: Workspace,
    errors: Mapping[Task, Sequence[str]],
    warn: Callable[[str], None],
) -> int:
    """Say what failed first, last; the exit code of the job. `errors`: what each task last said."""
    found = {task: cause.read_record(workspace.error_file(task)) for task in job.tasks}
    records = {task: record for task, record in found.items() if record is not None}
    if supervisor.interrupt is not None:
        _say_what_went_wrong(records, warn)
        return exit_status(-supervisor.interrupt)
    first = cause.first_cause(supervisor.failures, records, supervisor.survived)
    if first is not None:
        return _report(first, records, supervisor, workspace, errors, warn)
    if supervisor.given_up:
        return 1
    return 0 if job.serve else _check_joined(job, workspace, warn)


def _report(
    first: Ended,
    records: Mapping[Task, ErrorRecord],
    supervisor: Supervisor,
    workspace: Workspace,
    errors: Mapping[Task, Sequence[str]],
    warn: Callable[[str], None],
) -> int:
    if first.code != USAGE_EXIT_CODE:
        workspace.keep_logs = True
    if workspace.keep_logs:
        warn(f"argosy: logs of every task are in {workspace.logs}")
    total = len(supervisor.failures) - len(supervisor.survived)
    warn(cause.report(first, records.get(first.task), errors[first.task], total))
    return exit_status(first.code)


def _say_what_went_wrong(records: Mapping[Task, ErrorRecord], warn: Callable[[str], None]) -> None:
    """After an interrupt: what a task could not do any more, such as to save; not how it was interrupted."""
    for task, record in sorted(records.items()):
        if not record.traceback and record.caused_by is None:
            warn(f"argosy: {task}: {record.message.strip()}")


def _check_joined(job: JobSpec, workspace: Workspace, warn: Callable[[str], None]) -> int:
    """A script that never joins trains as many copies as there are tasks, each on its own."""
    never = [task for task in job.tasks if not joined_file(workspace.error_file(task)).exists()]
    if not never:
        return 0
    names = ", ".join(map(str, never))
    warn(f"argosy: never joined: {names}; each ran the script on its own: call argosy.join() in it")
    return _NEVER_JOINED if job.servers else 0
