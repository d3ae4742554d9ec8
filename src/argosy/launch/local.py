"""Runs a job on this machine: `run(JobSpec) -> exit code`.

One thread, one loop: it reads the tasks' output, collects those that ended, asks the supervisor, and does
what it decides. How a task becomes a process is `Starter`'s business alone.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from argosy.cluster.launcher import write_failure, write_given_up
from argosy.cluster.spec import Task
from argosy.launch import cause
from argosy.launch.capacity import check_room
from argosy.launch.core_pinning import assign_cores, pin
from argosy.launch.descriptors import Descriptors
from argosy.launch.final_report import conclude
from argosy.launch.guard import Guard
from argosy.launch.job import CLIENT, JobSpec, TaskPlan, check, describe_cluster, plan_task
from argosy.launch.job_events import Ended, Event, GiveUp, Interrupted, Restart, Say, SendSignal, Tell, Tick
from argosy.launch.output import Stream, TaskLog
from argosy.launch.ports import Ports
from argosy.launch.process import TaskProcess
from argosy.launch.screen import Screen
from argosy.launch.signal_socket import INTERRUPTS, SignalSocket
from argosy.launch.starting import Starter
from argosy.launch.status_poller import StatusPoller
from argosy.launch.supervise import Limits, Supervisor, count, exit_status
from argosy.launch.workspace import Workspace

if TYPE_CHECKING:
    from argosy.observe.progress import Progress

# After an interruption nobody may be reading any more.
_LAST_FLUSH = 1.0


def run(job: JobSpec) -> int:
    """Start every task, wait for the end, and report. Raises ConfigError before anything starts."""
    _fill_standard_streams()
    check_room(job.servers + job.workers)
    with ExitStack() as stack:
        ports = stack.enter_context(Ports(job.members, job.listens if job.serve else None))
        cluster = describe_cluster(ports.addresses)
        check(job, cluster, os.environ)
        # From here on there is something to clear away, which no signal may come in between of.
        with SignalSocket() as signals:
            guard = Guard()
            stack.callback(guard.dismiss)
            cores = sorted(os.sched_getaffinity(0))
            screen = Screen()
            lasting = [task for task in job.members if task.job == "ps"] if job.restarts.most else []
            descriptors = Descriptors(ports, lasting)
            stack.callback(descriptors.close)
            starter = stack.enter_context(Starter(job, guard, descriptors, len(cores), screen.warn))
            workspace = Workspace(guard, job.log_dir)
            stack.callback(workspace.close)
            plans = [
                plan_task(job, cluster, task, os.environ, len(cores), workspace.error_file(task))
                for task in job.tasks
            ]
            # Another job on this machine is likely to begin with another core.
            single = not job.serve and plans[0].environ["OMP_NUM_THREADS"] == "1"
            places = assign_cores(job.members, cores, first=os.getpid()) if single else {}
            if (interrupt := starter.wait_until_ready(signals)) is not None:
                return exit_status(-interrupt)
            poller = StatusPoller(cluster, workspace.status_file)
            stack.callback(poller.close)
            supervisor = _supervisor(job)
            with JobRun(plans, places, starter, screen, signals, poller, workspace, supervisor) as live:
                live.start()
                if not job.restarts.most:
                    starter.close()
                live.until_over()
        errors = {task: log.errors for task, log in live.logs.items()}
        code = conclude(job, supervisor, workspace, errors, screen.warn)
        screen.flush(None if supervisor.interrupt is None else _LAST_FLUSH)
        return code


def _supervisor(job: JobSpec) -> Supervisor:
    if job.serve:  # tasks that serve never end by themselves: they are ended with their client
        return Supervisor(job.tasks, Limits(servers=0.0, interrupt=job.grace), CLIENT.job)
    limits = Limits(interrupt=job.grace)
    return Supervisor(job.tasks, limits, survives=not job.is_ring, restarts=job.restarts)


class JobRun:
    """The tasks of a job while they live."""

    def __init__(
        self,
        plans: Sequence[TaskPlan],
        places: Mapping[Task, int],
        starter: Starter,
        screen: Screen,
        signals: SignalSocket,
        poller: StatusPoller,
        workspace: Workspace,
        supervisor: Supervisor,
    ) -> None:
        self.supervisor = supervisor
        self.screen = screen
        self.logs: dict[Task, TaskLog] = {}
        self._plans = {plan.task: plan for plan in plans}
        self._places = places
        self._starter = starter
        self._signals = signals
        self._poller = poller
        self._workspace = workspace
        self._viewed: tuple[Progress | None, str, tuple[int, int], str] = (None, "", (0, 0), "")
        self._processes: dict[Task, TaskProcess] = {}
        self._streams: dict[Task, list[Stream]] = {}
        self._began = time.monotonic()
        self._complained = False

    def __enter__(self) -> JobRun:
        return self

    def __exit__(self, *_: object) -> None:
        """Whatever happened, no task stays."""
        for task, process in self._processes.items():
            if not self.supervisor.given_up:
                process.end()
            for stream in self._streams.get(task, ()):
                stream.drain()
        for log in self.logs.values():
            log.close()

    def start(self) -> None:
        """Start every task."""
        for task in self._plans:
            self.logs[task] = TaskLog(self._workspace.log_file(task), self._complain)
            self._start(task)

    def _start(self, task: Task) -> None:
        """Start a task, on its core where it has one, and say so."""
        plan = self._plans[task]
        process = self._starter.start(plan, self.supervisor.may_restart(task))
        self._processes[task] = process
        pin(process.pid, task, self._places)
        self._streams[task] = [
            Stream(process.stdout, partial(self._relay, task, False)),
            Stream(process.stderr, partial(self._relay, task, True)),
        ]
        where = "" if plan.address is None else f" at {plan.address}"
        self.screen.say(f"started {task} pid {process.pid}{where}")

    def _start_again(self, task: Task) -> None:
        """With nothing of its earlier life but its log, and that it has joined."""
        self._plans[task].error_file.unlink(missing_ok=True)
        self.logs[task].forget_errors()
        self._start(task)
        self._poller.ask_again()

    def until_over(self) -> None:
        """Carry the supervisor's decisions out until nothing is left to wait for."""
        while not self.supervisor.over:
            self._wait()
            arrived = self._signals.take()
            for number in arrived:
                if number in INTERRUPTS:
                    self._decide(Interrupted(number))
            if self.screen.broken and self.supervisor.interrupt is None:
                self._decide(Interrupted(signal.SIGPIPE))
            if signal.SIGCHLD in arrived:
                self._collect()
            self._decide(Tick())
        self.screen.erase_status()

    def _wait(self) -> None:
        """Wait until something happens, and move output along."""
        self._report()
        poller = select.poll()
        poller.register(self._signals, select.POLLIN)
        if (blocked := self.screen.waits_for) is not None:
            poller.register(blocked, select.POLLOUT)
        sources = {} if self.screen.full else self._open_streams()
        for number in sources:
            poller.register(number, select.POLLIN)
        ready = [number for number, _ in poller.poll(self._timeout())]
        if blocked in ready:
            self.screen.advance()
        for number in ready:
            if number in sources:
                sources[number].read()

    def _open_streams(self) -> dict[int, Stream]:
        every = (stream for streams in self._streams.values() for stream in streams)
        return {stream.fileno(): stream for stream in every if stream.open}

    def _timeout(self) -> float:
        """Milliseconds until there is something to do even if nothing happens."""
        seconds = [self._poller.pause]
        if self.supervisor.deadline is not None:
            seconds.append(max(0.0, self.supervisor.deadline - time.monotonic()))
        return min(seconds) * 1000 + 1

    def _report(self) -> None:
        """On a terminal the live view; elsewhere a line now and then."""
        now = time.monotonic()
        self._poller.look(now)
        if self.screen.has_status:
            self.screen.show_status(self._view(self._poller.progress, self._status(), self.screen.room))
        elif (line := self._poller.line(now)) is not None:
            self.screen.warn(f"argosy: {line}")

    def _view(self, progress: Progress | None, tasks: str, room: tuple[int, int]) -> str:
        """Set only when it has changed: below every batch of lines, of which there may be thousands."""
        if self._viewed[:3] != (progress, tasks, room):
            from argosy.observe.view import render

            self._viewed = (progress, tasks, room, render(progress, tasks, *room))
        return self._viewed[3]

    def _status(self) -> str:
        jobs = [task.job for task in self.supervisor.running]
        seconds = time.monotonic() - self._began
        servers, workers = jobs.count("ps"), jobs.count("worker")
        return f"{count(servers, 'server')}, {count(workers, 'worker')} running, {seconds:.0f} s"

    def _collect(self) -> None:
        for task in sorted(self.supervisor.running):
            process = self._processes[task]
            code = process.collect()
            if code is not None:
                ended = Ended(task, process.pid, code, time.time())
                for stream in self._streams[task]:
                    stream.drain()
                self._decide(ended)

    def _decide(self, event: Event) -> None:
        for decision in self.supervisor.on(event, time.monotonic()):
            match decision:
                case Say(text):
                    self.screen.warn(f"argosy: {text}")
                case Tell(failure):
                    self._tell(failure)
                case SendSignal(tasks, number):
                    for task in tasks:
                        self._processes[task].send(number)
                case Restart(task):
                    self._start_again(task)
                case GiveUp(tasks):
                    self._note(self._workspace.given_up_file, partial(write_given_up, tasks=map(str, tasks)))
        if not isinstance(event, Tick):
            self._release()

    def _release(self) -> None:
        """Keep nothing for tasks that are not started again."""
        for task in self._plans:
            if not self.supervisor.may_restart(task):
                self._starter.release(task)

    def _tell(self, failure: Ended) -> None:
        """A task that failed early could tell nobody: those who wait for it look for our word."""
        record = cause.read_record(self._workspace.error_file(failure.task))
        reason = f"it {failure.how}" if record is None else record.brief or record.message
        address = self._plans[failure.task].address
        name = str(failure.task) if address is None else f"{failure.task} at {address}"
        self._note(self._workspace.failure_file, partial(write_failure, task=name, reason=reason))

    def _note(self, path: Path, write: Callable[[Path], None]) -> None:
        """A note for the tasks; a disk that is full costs the note, and not the job."""
        try:
            write(path)
        except OSError as error:
            self._complain(f"cannot write {path}: {error.strerror}")

    def _complain(self, text: str) -> None:
        """Once a job: what fills the disk for one task fills it for all."""
        if not self._complained:
            self._complained = True
            self.screen.warn(f"argosy: {text}")

    def _relay(self, task: Task, is_error: bool, lines: list[bytes]) -> None:
        self.logs[task].write(lines, is_error)
        self.screen.relay(task, lines, is_error)


def _fill_standard_streams() -> None:
    """Closed by the caller (`>&-`), their numbers would be given to our sockets, and be written to."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
