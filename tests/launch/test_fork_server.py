"""The fork server: a script cannot tell how it was started, and a job runs whatever becomes of the server."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from launching import Launch, Launcher

from argosy.launch import fork_client
from argosy.launch.fork_client import ForkFailed, ForkServer
from argosy.launch.guard import Guard

pytestmark = [pytest.mark.processes, pytest.mark.timeout(60)]

SURROUNDINGS = """
import __main__, gc, threading
for name in sorted(signal.valid_signals()):
    print(name, signal.getsignal(name))
names = {name: str(value).partition(" at ")[0] for name, value in sorted(vars(__main__).items())}
print({name: value for name, value in names.items() if name.startswith("__")})
print(sys.argv, sys.orig_argv, sys.path, sys.flags, sys.warnoptions)
print({name: value for name, value in sorted(os.environ.items()) if name not in drawn})
print(os.getcwd(), repr(sys.stdin.read()), os.getsid(0) == os.getpgrp() == os.getpid())
for stream in (sys.stdin, sys.stdout, sys.stderr):
    print(stream.encoding, stream.errors, stream.line_buffering, stream.write_through, stream.fileno())
files = [name for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")]
print(len(files), [os.get_inheritable(int(name)) for name in files])
print(signal.pthread_sigmask(signal.SIG_BLOCK, []), gc.isenabled(), gc.get_threshold())
print(threading.current_thread() is threading.main_thread(), sys.excepthook is sys.__excepthook__)
print(len(os.listdir("/proc/self/task")), os.umask(0o22), os.sched_getaffinity(0), sys.getswitchinterval())
"""
# One a worker.
ENDS = """
import atexit, threading
atexit.register(print, "at exit")
def deep(): raise ValueError("boom")
def hook(kind, error, where):
    print("hook", kind, error, where.tb_frame.f_code.co_name, error.__traceback__ is where, where.tb_lineno)
def chained():
    try: deep()
    except ValueError as error: raise KeyError("second") from error
def own_hook():
    sys.excepthook = hook
    deep()
def late():
    threading.Thread(target=lambda: (time.sleep(0.1), print("late"))).start()
def unflushed():
    print("no newline", end="")
    sys.stderr.write("here neither")
def closed():
    sys.stdout.close()
def exit_in_thread():
    thread = threading.Thread(target=deep); thread.start(); thread.join()
def group():
    raise ExceptionGroup("several", [ValueError(1), KeyError(2)])
def note():
    error = ValueError("noted"); error.add_note("a note"); raise error
ends = [
    sys.exit, lambda: sys.exit(3), lambda: sys.exit("words"), lambda: sys.exit(256 + 7), lambda: sys.exit(-1),
    lambda: os._exit(9), deep, chained, own_hook, late, unflushed, closed, exit_in_thread, group, note,
    lambda: exec("raise KeyboardInterrupt"), lambda: os.kill(os.getpid(), signal.SIGTERM),
    lambda: os.kill(os.getpid(), signal.SIGINT), lambda: compile("a b", "x", "exec"),
    lambda: atexit.register(deep),
]
if job == "worker":
    ends[index]()
"""
COUNT_OF_ENDS = 20
ADDRESS = re.compile("0x[0-9a-f]+")


def both_ways(launcher: Launcher, body: str, *options: str) -> tuple[Launch, Launch]:
    """Forked, and cold."""
    forked = launcher.run(body, *options)
    launcher.forked = False
    return forked, launcher.run(body, *options)


def test_a_script_sees_what_it_would_see(forking_launcher: Launcher) -> None:
    # Addresses are drawn anew for each job.
    files = "'ARGOSY_ERROR_FILE', 'ARGOSY_STATUS_FILE', 'ARGOSY_LISTEN_FD', 'ARGOSY_MEMORY_FD'"
    drawn = f"drawn = {{'ARGOSY_CLUSTER', {files}}}\n"
    forked, cold = both_ways(forking_launcher, drawn + SURROUNDINGS, "--workers", "1")
    assert forked.process.returncode == 0
    for task in ("/job:ps/task:0", "/job:worker/task:0"):
        assert forked.lines(task) == cold.lines(task)
        assert len(forked.lines(task)) > 60


@pytest.mark.parametrize("name", ["sub/../train.py", "./link.py"])
def test_the_script_may_be_named_in_many_ways(forking_launcher: Launcher, name: str) -> None:
    script = forking_launcher.script("print(__file__, sys.argv, sys.path[0]); raise ValueError(__file__)")
    (script.parent / "sub").mkdir()
    (script.parent / "sub" / "real.py").write_bytes(script.read_bytes())
    (script.parent / "link.py").symlink_to("sub/real.py")
    forking_launcher.keeps_logs = True
    done = [
        subprocess.run(
            [*forking_launcher.command("--ps", "0", "--workers", "1"), way, name, "-x"],
            cwd=script.parent,
            env=forking_launcher.environ,
            capture_output=True,
            text=True,
            check=False,
        )
        for way in ("--fork-server", "--no-fork-server")
    ]
    assert done[0].returncode == 1
    said = [
        [line for line in (each.stdout + each.stderr).split("\n") if line.startswith("[/job")]
        for each in done
    ]
    assert said[0] == said[1]
    assert "ValueError: " in said[0][-1]


def test_it_ends_as_it_would_end(forking_launcher: Launcher) -> None:
    forking_launcher.keeps_logs = True
    options = ("--workers", str(COUNT_OF_ENDS))
    logs = [forking_launcher.directory / way for way in ("forked", "cold")]
    forked = forking_launcher.run(ENDS, *options, "--log-dir", str(logs[0]))
    forking_launcher.forked = False
    cold = forking_launcher.run(ENDS, *options, "--log-dir", str(logs[1]))
    ends = re.compile(r"^argosy: (/job:\S+ (?:failed|was killed) .*?) \(pid", re.MULTILINE)
    assert sorted(ends.findall(forked.errors)) == sorted(ends.findall(cold.errors))
    assert len(ends.findall(cold.errors)) >= 12
    for index in range(COUNT_OF_ENDS):
        ours, theirs = (ADDRESS.sub("0x", (log / f"worker-{index}.log").read_text()) for log in logs)
        assert sorted(ours.split("\n")) == sorted(theirs.split("\n"))  # two streams, in any order
        assert "launch/fork" not in ours


def test_no_two_tasks_draw_alike(forking_launcher: Launcher) -> None:
    pytest.importorskip("numpy")
    forking_launcher.preload = ("numpy.random", "random", "multiprocessing.process")
    body = """
    import multiprocessing.process, random, numpy.random
    print(random.random(), numpy.random.rand(), multiprocessing.process.current_process().authkey, sep="\\n")
    """
    done = forking_launcher.run(body)
    tasks = ("/job:ps/task:0", "/job:worker/task:0", "/job:worker/task:1")
    assert len({line for task in tasks for line in done.lines(task)}) == 9
    assert done.errors == ""


def test_modules_beside_the_script_are_found_first(forking_launcher: Launcher) -> None:
    (forking_launcher.directory / "colorsys.py").write_text("mine = True\nprint('imported')\n")
    forking_launcher.preload = ("colorsys",)
    done = forking_launcher.run("print('colorsys' in sys.modules); import colorsys; print(colorsys.mine)")
    assert done.lines("/job:worker/task:1") == ["True", "True"]
    assert done.errors == "imported\n"  # once


def test_what_an_extension_checks_at_exit_is_freed(forking_launcher: Launcher) -> None:
    """nanobind complains of what was not freed; such an object can but be looked for by its type."""
    module = """
    import os
    class Function:
        def __init__(self): self.itself = self  # only the collector frees it
        def __del__(self): os.write(2, b"freed\\n")
    Function.__module__ = "nanobind"
    function = Function()
    """
    (forking_launcher.directory / "heavy.py").write_text(textwrap.dedent(module))
    forking_launcher.preload = ("heavy",)
    done = forking_launcher.run("import heavy")
    assert done.process.returncode == 0
    assert done.errors.count("freed") == 3, done.errors  # each task's own


@pytest.mark.parametrize(
    ("module", "why"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("raise SystemExit('not here')", "SystemExit: not here"),
        (
            "import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
            "2 threads",
        ),
        ("import os; os._exit(3)", "it ended with exit code 3"),
        ("import os; os.kill(os.getpid(), 9)", "it was killed by SIGKILL"),
    ],
)
def test_tasks_start_cold_if_it_cannot_import(forking_launcher: Launcher, module: str, why: str) -> None:
    (forking_launcher.directory / "heavy.py").write_text(module)
    forking_launcher.preload = ("heavy",)
    done = forking_launcher.run("print('heavy' in sys.modules)")
    assert done.process.returncode == 0
    assert done.lines("/job:worker/task:1") == ["False"]
    (line,) = done.errors.splitlines()
    assert line.startswith(f"argosy: no fork server, so each task imports torch for itself: {why}")


def test_only_source_is_forked(forking_launcher: Launcher) -> None:
    script = forking_launcher.script("print('ran')", "train")
    done = subprocess.run(
        [*forking_launcher.command(), str(script)],
        env=forking_launcher.environ,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.count("ran\n") == 3
    assert done.stderr.endswith("is not a .py file\n")


@pytest.fixture
def importing(forking_launcher: Launcher) -> Launch:
    """A launcher whose fork server is in the middle of an import, until the gate opens."""
    (forking_launcher.directory / "heavy.py").write_text("import os; open(os.environ['TEST_GATE']).read()")
    forking_launcher.preload = ("heavy",)
    return forking_launcher.start("print('ran')")


def test_kill_9_of_the_server_leaves_the_job(importing: Launch, forking_launcher: Launcher) -> None:
    forking_launcher.fork_server().kill()
    assert importing.finish() == 0
    assert importing.text.count("ran\n") == 3
    assert importing.errors.endswith("it was killed by SIGKILL\n")


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)]
)
def test_the_end_of_the_launcher_while_it_imports(
    importing: Launch, forking_launcher: Launcher, number: int, code: int
) -> None:
    forking_launcher.fork_server()
    importing.process.send_signal(number)
    assert importing.finish() == code
    assert "started" not in importing.text
    assert forking_launcher.still_alive(seconds=5) == []


def test_the_server_does_not_stay(forking_launcher: Launcher) -> None:
    launch = forking_launcher.start("print('there'); wait()", "--ps", "0", "--workers", "1")
    launch.until("there\n")
    assert len(forking_launcher.alive()) == 3  # the launcher, its guard, the task
    launch.open_gate()
    assert launch.finish() == 0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ForkServer]:
    """One that is ready to fork a script, in this process."""
    script = tmp_path / "train.py"
    script.write_text(
        "import os, time; print(os.getppid(), os.environ); os.environ['STAY'] and time.sleep(60)"
    )
    guard = Guard()
    made = ForkServer((), (str(script),), dict(os.environ), (), guard)
    made.wait_until_ready()
    yield made
    made.close()
    guard.dismiss()


def test_a_task_outlives_the_server(server: ForkServer) -> None:
    task = server.start({"STAY": "1"}, {})
    server.close()
    said = task.stdout.readline()
    assert said.startswith(b"%d environ({'STAY': '1'})" % os.getpid())
    assert os.getpgid(task.pid) == os.getsid(task.pid) == task.pid
    assert os.waitid(os.P_PID, task.pid, os.WEXITED | os.WNOHANG) is None
    os.kill(task.pid, signal.SIGTERM)
    assert (task.wait(), task.returncode) == (-signal.SIGTERM, -signal.SIGTERM)
    task.stdout.close()
    task.stderr.close()


def test_a_large_environment(server: ForkServer) -> None:
    task = server.start({"STAY": "", "BYTES": "\udcff" * 400_000}, {})
    with task.stdout, task.stderr:
        assert len(task.stdout.read()) > 400_000
    assert task.wait() == 0


def test_a_server_that_was_killed_forks_nothing(server: ForkServer) -> None:
    os.kill(server.pid, signal.SIGKILL)
    with pytest.raises(ForkFailed, match="it was killed by SIGKILL"):
        server.start({"STAY": ""}, {})


def test_a_server_that_was_stopped_forks_nothing(server: ForkServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork_client, "_PATIENCE", 0.1)
    monkeypatch.setattr(fork_client, "_LAST_MOMENT", 0.1)
    os.kill(server.pid, signal.SIGSTOP)
    with pytest.raises(ForkFailed, match="it does not answer"):
        server.start({"STAY": "", "BYTES": "x" * 1_000_000}, {})


def test_processes_of_a_task(launcher: Launcher) -> None:
    body = """
    import multiprocessing
    def child(queue):
        queue.put((__name__, job))
    def main():
        for way in ("fork", "spawn"):
            context = multiprocessing.get_context(way)
            queue = context.SimpleQueue()
            process = context.Process(target=child, args=(queue,))
            process.start()
            print(*queue.get(), process.join() or process.exitcode)
    if __name__ == "__main__" and job == "worker":
        main()
    """
    done = launcher.run(body, "--workers", "1")
    assert (done.process.returncode, done.errors) == (0, "")
    assert done.lines("/job:worker/task:0") == ["__main__ worker 0", "__mp_main__ worker 0"]


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_torch_is_as_after_a_cold_start(forking_launcher: Launcher) -> None:
    forking_launcher.preload = ("torch", "argosy.entry", "argosy.server.parameter_server")
    body = """
    def threads():
        return len(os.listdir("/proc/self/task"))
    if job == "worker":
        print(threads())
        import torch
        from torch.utils.data import DataLoader, TensorDataset
        print("seed", torch.initial_seed())
        before = threads()
        a = torch.rand(400, 400, requires_grad=True)
        (a @ a).sin().sum().backward()
        print(torch.get_num_threads(), torch.get_num_interop_threads(), threads() - before)
        data = TensorDataset(torch.arange(8.0))
        print([batch[0].tolist() for batch in DataLoader(data, batch_size=4, num_workers=1)])
    """
    forked = forking_launcher.run(body, "--threads", "2", "--workers", "2")
    assert (forked.process.returncode, forked.errors) == (0, "")
    forking_launcher.forked = False
    cold = forking_launcher.run(body, "--threads", "2", "--workers", "1")
    tasks = (forked, 0), (forked, 1), (cold, 0)
    said = [launch.lines(f"/job:worker/task:{index}") for launch, index in tasks]
    assert len({lines.pop(1) for lines in said}) == 3
    assert said == [["1", "2 2 1", "[[0.0, 1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0]]"]] * 3
