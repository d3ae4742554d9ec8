"""Tasks that are killed and started again, as real processes; none of these scripts trains."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import textwrap
import time

import pytest
from launching import Launch, Launcher

pytestmark = [pytest.mark.processes, pytest.mark.timeout(60)]

# How often this task has lived, with this time.
LIFE = """
with open(f"{os.environ['TEST_GATE']}-{job}-{index}", "a") as lives:
    lives.write("x")
    lives.flush()
    life = lives.tell()

def die(number=signal.SIGKILL):
    os.kill(os.getpid(), number)
    hang()

over = os.environ["TEST_GATE"] + "-over"

def stay():  # as a server does: with its end, the job is over
    while not os.path.exists(over):
        time.sleep(0.01)

def end():
    open(over, "w").close()

def call(word, server=0):
    host, port = cluster["ps"][server].split(":")
    with socket.create_connection((host, int(port))) as link:
        link.sendall(word)
        with contextlib.suppress(ConnectionResetError):
            return link.recv(100).decode()
"""
# A server that remembers in the memory which the launcher keeps, and dies when it is told to.
SERVE = """
def serve():
    memory = int(os.environ["ARGOSY_MEMORY_FD"])
    listener = socket.socket(fileno=int(os.environ["ARGOSY_LISTEN_FD"]))
    while True:  # the launcher looks how the job stands, and is one of those who connect
        link, _ = listener.accept()
        word = link.recv(100)
        if word.startswith(b"keep "):
            os.pwrite(memory, word[5:], os.fstat(memory).st_size)
            link.sendall(b"kept")
        elif word == b"die":
            die()
        elif word == b"tell":
            link.sendall(b"%d %s" % (life, os.pread(memory, 100, 0)))
        elif word == b"end":
            return
        link.close()
"""


def pids(launch: Launch, task: str) -> list[int]:
    """Its processes so far, in order."""
    return [int(pid) for pid in re.findall(rf"^started {task} pid (\d+) at \S+$", launch.text, re.MULTILINE)]


def test_a_server_comes_back_at_its_port_and_with_its_memory(launcher: Launcher) -> None:
    body = """
    if job == "ps":
        serve()
    elif index == 0:
        for number in range(3):
            print(call(b"keep %d;" % number), call(b"die"), call(b"tell"))
        for server in (0, 1):
            call(b"end", server)
    else:
        print(call(b"tell", 1))
    """
    done = launcher.run(LIFE + SERVE + body_of(body), "--ps", "2")
    assert done.process.returncode == 0, done
    assert done.lines("/job:worker/task:0") == ["kept  2 0;", "kept  3 0;1;", "kept  4 0;1;2;"]
    assert done.lines("/job:worker/task:1") == ["1 "]  # each server has memory of its own
    started = re.findall(r"^started /job:ps/task:0 pid (\d+) at (\S+)$", done.text, re.MULTILINE)
    assert len({pid for pid, _ in started}) == 4
    assert len({address for _, address in started}) == 1
    said = [
        f"argosy: /job:ps/task:0 was killed by SIGKILL (pid {pid}); it is started again ({number} of 3)"
        for number, (pid, _) in enumerate(started[:3], 1)
    ]
    assert done.errors.splitlines() == said


def test_a_worker_comes_back_as_it_was(launcher: Launcher) -> None:
    body = """
    if job == "worker" and index == 1:
        names = ("ARGOSY_MEMORY_FD", "ARGOSY_LISTEN_FD")
        kept = [os.environ.get(name) for name in (*names, "ARGOSY_MAX_RESTARTS")]
        record = os.environ["ARGOSY_ERROR_FILE"]
        print("life", life, kept, os.sched_getaffinity(0), os.path.exists(record))
        if life == 1:
            open(record, "w").write("{}")
            print("no newline", end="", flush=True)
            print("ready", file=sys.stderr)
            hang()
        end()
    elif job == "ps":
        stay()
    """
    logs = launcher.directory / "logs"
    options = ("--log-dir", str(logs), "--max-restarts", "2")
    launch = launcher.start(LIFE + body_of(body), *options, stderr=subprocess.STDOUT)
    launch.until("[/job:worker/task:1] ready\n")
    os.kill(pids(launch, "/job:worker/task:1")[0], signal.SIGKILL)
    assert launch.finish() == 0
    first, second = pids(launch, "/job:worker/task:1")
    assert first != second
    told = f"/job:worker/task:1 was killed by SIGKILL (pid {first}); it is started again (1 of 2)\n"
    assert launch.text.index(told) < launch.text.index(f"started /job:worker/task:1 pid {second}")
    lives = [line for line in launch.lines("/job:worker/task:1") if line.startswith("life")]
    assert lives[0].replace("life 1", "life 2") == lives[1]
    assert "[None, None, '2']" in lives[0]
    assert lives[1].endswith("False")
    log = (logs / "worker-1.log").read_text().splitlines()
    assert sorted(log) == sorted([*lives, "no newline", "ready"])


def test_all_of_them_at_once(launcher: Launcher) -> None:
    body = """
    print("life", life)
    if life == 1:
        hang()
    """
    tasks = ("/job:ps/task:0", "/job:ps/task:1", "/job:worker/task:0", "/job:worker/task:1")
    launch = launcher.start(LIFE + body_of(body), "--ps", "2")
    launch.until(*(f"[{task}] life 1\n" for task in tasks))
    for task in tasks:
        os.kill(pids(launch, task)[0], signal.SIGKILL)
    assert launch.finish() == 0
    assert launch.errors.count("it is started again (1 of 3)") == 4
    assert all(launch.lines(task) == ["life 1", "life 2"] for task in tasks[2:])


def test_a_worker_without_restarts_is_given_up(launcher: Launcher) -> None:
    launcher.keeps_logs = True
    body = """
    from argosy.cluster.launcher import tasks_given_up
    if job == "worker":
        if index == 1:
            die(signal.SIGSEGV)
        while not tasks_given_up():
            time.sleep(0.01)
        print("without", *tasks_given_up())
        end()
    else:
        stay()
    """
    done = launcher.run(LIFE + body_of(body), "--max-restarts", "2")
    assert done.process.returncode == 128 + signal.SIGSEGV
    assert done.lines("/job:worker/task:0") == ["without /job:worker/task:1"]
    assert len(pids(done, "/job:worker/task:1")) == 3
    said = [line.partition(")")[2] for line in done.errors.splitlines() if line.startswith("argosy: /job")]
    assert said == [
        "; it is started again (1 of 2)",
        "; it is started again (2 of 2)",
        ", after 2 restarts; the others go on",
    ]
    assert re.search(r"\n/job:worker/task:1 was killed by SIGSEGV \(pid \d+\)\n?$", done.errors)


def test_a_server_without_restarts_ends_the_job_and_its_port_is_closed(launcher: Launcher) -> None:
    launcher.keeps_logs = True
    body = """
    if job == "ps":
        serve()
    try:
        while True:
            call(b"die")
            time.sleep(0.01)
    except ConnectionRefusedError:
        fail("lost /job:ps/task:0", caused_by="/job:ps/task:0 at somewhere")
    """
    done = launcher.run(LIFE + SERVE + body_of(body), "--max-restarts", "1")
    assert done.process.returncode == 137
    assert len(pids(done, "/job:ps/task:0")) == 2
    assert ", after 1 restart; the others have 5 s to end\n" in done.errors
    last = done.errors.splitlines()[-1]
    assert re.fullmatch(r"/job:ps/task:0 was killed by SIGKILL \(pid \d+\), the first of 3 failures", last)


def test_too_few_workers_end_the_job(launcher: Launcher) -> None:
    launcher.keeps_logs = True
    body = """
    from argosy.cluster.launcher import raise_failure_elsewhere
    if (job, index) == ("worker", 2):
        die()
    while True:
        raise_failure_elsewhere()
        time.sleep(0.01)
    """
    options = ("--workers", "3", "--max-restarts", "1", "--min-workers", "3")
    done = launcher.run(LIFE + body_of(body), *options)
    assert done.process.returncode != 0
    assert ", after 1 restart; 2 workers left of at least 3; the others have 5 s to end\n" in done.errors
    assert "JobFailed: the job was ended by /job:worker/task:2" in done.errors


def test_an_exception_is_not_made_good(launcher: Launcher) -> None:
    launcher.keeps_logs = True
    done = launcher.run(LIFE + "if (job, index) == ('worker', 1): raise ValueError(f'in life {life}')\n")
    assert done.process.returncode == 1
    assert done.errors.endswith("\nValueError: in life 1\n")


def test_what_an_earlier_life_said_is_not_its_last_word(launcher: Launcher) -> None:
    launcher.keeps_logs = True
    body = """
    if (job, index) == ("worker", 1):
        if life == 1:
            print("Traceback (most recent call last):\\nKeyError: handled", file=sys.stderr)
            die()
        os._exit(3)
    elif job == "ps":
        stay()
    """
    done = launcher.run(LIFE + body_of(body))
    assert done.process.returncode == 3
    assert re.search(r"\n/job:worker/task:1 failed with exit code 3 \(pid \d+\)\n$", done.errors)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_the_end_of_the_launcher_in_a_pause(launcher: Launcher, number: signal.Signals) -> None:
    body = """
    if (job, index) == ("worker", 1):
        die()
    hang()
    """
    launch = launcher.start(LIFE + body_of(body), "--max-restarts", "9", stderr=subprocess.STDOUT)
    launch.until("it is started again (4 of 9)\n")  # after 1.6 s
    began = time.monotonic()
    launch.process.send_signal(number)
    assert launch.finish() == (130 if number == signal.SIGINT else -number)
    assert launcher.still_alive(seconds=1.2) == []
    assert time.monotonic() - began < 1.5
    assert len(pids(launch, "/job:worker/task:1")) == 4
    assert not list(launcher.temporary.iterdir())


def test_kill_9_of_the_launcher_after_a_restart_leaves_nothing(launcher: Launcher) -> None:
    body = """
    if life == 1 and index == 0:
        die()
    print("life", life)
    hang()
    """
    launch = launcher.start(LIFE + body_of(body))
    launch.until("[/job:ps/task:0] life 2", "[/job:worker/task:0] life 2")
    launch.process.kill()
    launch.finish()
    assert launcher.still_alive(seconds=2) == []
    assert not list(launcher.temporary.iterdir())


def test_without_its_fork_server_a_task_comes_back_cold(forking_launcher: Launcher) -> None:
    body = """
    print("life", life)
    if job == "ps":
        stay()
    elif index == 1:
        if life == 1:
            hang()
        end()
    """
    launch = forking_launcher.start(LIFE + body_of(body))
    launch.until("[/job:worker/task:1] life 1\n")
    forking_launcher.fork_server().kill()
    os.kill(pids(launch, "/job:worker/task:1")[0], signal.SIGKILL)
    assert launch.finish() == 0
    assert launch.lines("/job:worker/task:1") == ["life 1", "life 2"]
    assert launch.errors.endswith(
        "argosy: no fork server, so each task imports torch for itself: it was killed by SIGKILL\n"
    )


@pytest.mark.parametrize(
    ("options", "with_memory"),
    [((), {"ps"}), (("--max-restarts", "0"), set()), (("--ps", "0"), set())],
)
def test_who_is_handed_memory(launcher: Launcher, options: tuple[str, ...], with_memory: set[str]) -> None:
    body = """
    memory = os.environ.get("ARGOSY_MEMORY_FD")
    print(memory and (os.readlink(f"/proc/self/fd/{memory}"), os.fstat(int(memory)).st_size))
    """
    done = launcher.run(body, *options)
    assert done.process.returncode == 0
    said = dict(re.findall(r"^\[/job:(\w+)/task:0\] (.*)$", done.text, re.MULTILINE))
    assert {job for job, memory in said.items() if memory == "('/memfd:argosy-server (deleted)', 0)"} == (
        with_memory
    )
    assert {job for job, memory in said.items() if memory == "None"} == said.keys() - with_memory


def body_of(text: str) -> str:
    """The text without the indentation of the test, to be joined with what has none."""
    return textwrap.dedent(text)
