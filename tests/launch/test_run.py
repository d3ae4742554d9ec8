"""`argosy run` with real processes: what comes out, and with which exit code."""

from __future__ import annotations

import json
import re
import subprocess

import pytest
from launching import Launcher

pytestmark = [pytest.mark.processes, pytest.mark.timeout(60)]

STARTED = re.compile(r"started (/job:\w+/task:\d+) pid (\d+) at (127\.0\.0\.1:\d+)")


def test_every_task_starts_and_says_so(launcher: Launcher) -> None:
    body = "print(os.getpid(), cluster[job][index], os.getppid())"
    done = launcher.run(body, "--ps", "2", "--workers", "2")
    assert done.process.returncode == 0
    started = [match for line in done.text.split("\n") if (match := STARTED.fullmatch(line))]
    assert [match[1] for match in started] == [
        "/job:ps/task:0",
        "/job:ps/task:1",
        "/job:worker/task:0",
        "/job:worker/task:1",
    ]
    for match in started:
        assert done.lines(match[1]) == [f"{match[2]} {match[3]} {done.process.pid}"]
    assert len({match[3] for match in started}) == 4
    assert done.errors == ""


def test_what_follows_the_script_is_the_scripts(launcher: Launcher) -> None:
    args = ("--ps", "7", "--help", "--", "-x", "a b", "")
    done = launcher.run("print(json.dumps(sys.argv[1:]))", "--ps", "0", "--workers", "1", args=args)
    assert json.loads(done.lines("/job:worker/task:0")[0]) == list(args)


def test_tasks_get_the_job_and_no_other(launcher: Launcher) -> None:
    stale = {"ARGOSY_TOKENS": "3", "ARGOSY_JOB_NAME": "evaluator", "TF_CONFIG": "{}", "KEPT": "yes"}
    body = "print(json.dumps(dict(os.environ)))"
    launch = launcher.start(body, "--mode", "sync", "--threads", "3", environ=stale)
    assert launch.finish() == 0
    for task, name, index in (("/job:ps/task:0", "ps", "0"), ("/job:worker/task:1", "worker", "1")):
        environ = json.loads(launch.lines(task)[0])
        assert (environ["ARGOSY_JOB_NAME"], environ["ARGOSY_TASK_INDEX"]) == (name, index)
        assert (environ["ARGOSY_MODE"], environ["OMP_NUM_THREADS"]) == ("sync", "3")
        assert environ["KEPT"] == "yes"
        assert not {"ARGOSY_TOKENS", "TF_CONFIG"} & set(environ)
        assert ("ARGOSY_LISTEN_FD" in environ) == (name == "ps")


def test_a_server_listens_before_it_runs(launcher: Launcher) -> None:
    body = """
    if job == "worker":
        host, port = cluster["ps"][0].split(":")
        with socket.create_connection((host, int(port))) as link:
            link.sendall(b"hello\\n")
            print("connected")
            print(link.makefile().readline().strip())
    else:
        wait()
        listener = socket.socket(fileno=int(os.environ["ARGOSY_LISTEN_FD"]))
        line = b""
        while line != b"hello\\n":  # the launcher looks how the job stands, and may be the first to connect
            link, _ = listener.accept()
            line = link.recv(6)
        print(line.decode().strip())
        link.sendall(b"welcome\\n")
    """
    launch = launcher.start(body, "--workers", "1")
    launch.until("connected\n")
    launch.open_gate()
    assert launch.finish() == 0
    assert launch.lines("/job:ps/task:0") == ["hello"]
    assert launch.lines("/job:worker/task:0") == ["connected", "welcome"]


def test_the_launcher_does_not_keep_a_dead_servers_port(launcher: Launcher) -> None:
    body = """
    if job == "worker":
        host, port = cluster["ps"][0].split(":")
        while True:  # a connection ends with the server, and the next one is refused
            with contextlib.suppress(ConnectionResetError):
                with socket.create_connection((host, int(port))) as link:
                    link.recv(1)
    else:
        link, _ = socket.socket(fileno=int(os.environ["ARGOSY_LISTEN_FD"])).accept()
    """
    launcher.keeps_logs = True
    done = launcher.run(body, "--workers", "1")
    assert done.errors.endswith("ConnectionRefusedError: [Errno 111] Connection refused\n")


def test_lines_are_never_mixed(launcher: Launcher) -> None:
    body = """
    for number in range(2000):
        stream = (sys.stdout, sys.stderr)[number % 2]
        stream.write("<" + str(number) + "x" * (number % 700))
        stream.write(">\\n")
    print("y" * 300_000, end="")
    """
    launch = launcher.start(body, "--ps", "2", stderr=subprocess.STDOUT)
    assert launch.finish() == 0
    lines = launch.text.split("\n")
    assert all(
        re.fullmatch(r"started .*|\[/job:\w+/task:\d\] (<\d+x*>|y{300000})|", line) for line in lines
    ), [line[:80] for line in lines if not line.startswith(("[/job", "started"))]
    for task in ("/job:ps/task:0", "/job:ps/task:1", "/job:worker/task:0", "/job:worker/task:1"):
        assert len(launch.lines(task)) == 2001


def test_any_bytes_come_through(launcher: Launcher) -> None:
    body = r"os.write(1, b'\xff\xfe\x00 [bold]x[/bold]\r10%\r\n\nend'); os.write(2, b'\x80')"
    launch = launcher.start(body, "--ps", "0", "--workers", "1")
    out, err = launch.process.communicate()
    assert out.split(b"\n", 1)[1] == (
        b"[/job:worker/task:0] \xff\xfe\x00 [bold]x[/bold]\r10%\r\n"
        b"[/job:worker/task:0] \n"
        b"[/job:worker/task:0] end\n"
    )
    assert err == b"[/job:worker/task:0] \x80\n"


def test_logs_are_kept_where_asked(launcher: Launcher) -> None:
    logs = launcher.directory / "some" / "logs"
    done = launcher.run("print('out'); print('err', file=sys.stderr)", "--log-dir", str(logs))
    assert done.process.returncode == 0
    assert {path.name for path in logs.iterdir()} == {"ps-0.log", "worker-0.log", "worker-1.log"}
    assert sorted((logs / "worker-1.log").read_text().split()) == ["err", "out"]


def test_a_failure_ends_the_job_and_comes_last(launcher: Launcher) -> None:
    launcher.keeps_logs = True
    body = """
    if (job, index) == ("worker", 1):
        raise ValueError("boom")
    """
    done = launcher.run(body)
    assert done.process.returncode == 1
    lines = done.errors.rstrip("\n").split("\n")
    assert lines[-1] == "ValueError: boom"
    header = next(number for number, line in enumerate(lines) if line.startswith("/job:"))
    assert re.fullmatch(r"/job:worker/task:1 failed with exit code 1 \(pid \d+\):", lines[header])
    assert lines[header + 1] == "Traceback (most recent call last):"
    named = lines[header - 1].rpartition(" ")[2]
    assert "ValueError: boom" in (launcher.directory / named / "worker-1.log").read_text()


def test_a_record_is_preferred_to_the_order_of_ends(launcher: Launcher) -> None:
    launcher.keeps_logs = True
    body = """
    if (job, index) == ("worker", 0):
        fail("lost /job:worker/task:1", caused_by="/job:worker/task:1", code=4)
    elif (job, index) == ("worker", 1):
        wait()
        fail("boom", traceback="Traceback (most recent call last):\\nKeyError: 'deep'\\n", code=3)
    """
    launch = launcher.start(body, stderr=subprocess.STDOUT)
    launch.until("/job:worker/task:0 failed with exit code 4")
    launch.open_gate()
    assert launch.finish() == 3
    lines = launch.text.rstrip("\n").split("\n")
    assert lines[-1] == "KeyError: 'deep'"
    assert lines[-3].startswith("/job:worker/task:1 failed with exit code 3")
    assert lines[-3].endswith("the first of 2 failures:")


def test_a_usage_error_of_the_script_is_one_line(launcher: Launcher) -> None:
    done = launcher.run("fail('directory: expected a folder, got 7', code=2)")
    assert done.process.returncode == 2
    assert done.errors.endswith("\nargosy: error: directory: expected a folder, got 7\n")


def test_a_script_that_cannot_be_parsed_is_refused_once(launcher: Launcher) -> None:
    done = launcher.run("this is no python")
    assert done.process.returncode == 2
    assert done.text == ""
    (line,) = done.errors.splitlines()
    assert re.search(
        r"SCRIPT: expected a Python file, got '.*train.py', which is not Python, in line \d+: ", line
    )


def test_a_worker_that_is_killed_takes_nobody_with_it(launcher: Launcher) -> None:
    launcher.keeps_logs = True
    body = """
    if (job, index) == ("worker", 1):
        os.kill(os.getpid(), signal.SIGKILL)
    elif job == "worker":
        wait()
        print("went on")
    """
    launch = launcher.start(body, "--max-restarts", "0", stderr=subprocess.STDOUT)
    launch.until("/job:worker/task:1 was killed by SIGKILL", "the others go on\n")
    launch.open_gate()
    assert launch.finish() == 137
    assert launch.lines("/job:worker/task:0") == ["went on"]
    assert re.search(r"\n/job:worker/task:1 was killed by SIGKILL \(pid \d+\)\n$", launch.text)


@pytest.mark.parametrize("launcher", ["forked"], indirect=True)  # the supervisor's patience, once
def test_a_worker_that_was_survived_is_not_blamed_for_what_follows(launcher: Launcher) -> None:
    launcher.keeps_logs = True
    body = """
    if (job, index) == ("worker", 1):
        os.kill(os.getpid(), signal.SIGKILL)
    if job == "worker":
        wait()
        fail("lost /job:ps/task:0: its connection ended", caused_by="/job:ps/task:0 at 127.0.0.1:1")
    hang()
    """
    launch = launcher.start(body, "--max-restarts", "0", stderr=subprocess.STDOUT)
    launch.until("/job:worker/task:1 was killed by SIGKILL", "the others go on\n")
    launch.open_gate()
    assert launch.finish() == 1
    assert re.search(r"\n/job:worker/task:0 failed with exit code 1 \(pid \d+\):\nlost /job:ps", launch.text)


@pytest.mark.parametrize("launcher", ["forked"], indirect=True)  # the supervisor's patience, once
def test_a_ring_ends_with_a_worker_that_is_killed(launcher: Launcher) -> None:
    launcher.keeps_logs = True
    body = """
    if index == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    hang()
    """
    done = launcher.run(body, "--mode", "ring")
    assert done.process.returncode == 137
    assert "SIGKILL" in done.errors
    assert "the others have 5 s to end" in done.errors
    assert "go on" not in done.errors


@pytest.mark.parametrize(
    ("options", "code"), [((), 1), (("--ps", "2"), 1), (("--ps", "0", "--mode", "ring"), 0)]
)
def test_tasks_that_never_joined_are_named(launcher: Launcher, options: tuple[str, ...], code: int) -> None:
    """Each trains on its own: with servers, which nobody used, that is not what was asked for."""
    script = launcher.directory / "alone.py"
    script.write_text("print('trained alone')")
    command = [*launcher.command("--workers", "2", *options), str(script)]
    done = subprocess.run(command, env=launcher.environ, capture_output=True, text=True, check=False)
    assert done.returncode == code
    last = done.stderr.rstrip("\n").split("\n")[-1]
    assert last.startswith("argosy: never joined: ")
    assert last.endswith("each ran the script on its own: call argosy.join() in it")
    servers = re.findall("/job:ps/task:[01]", last)
    assert len(servers) == {(): 1, ("--ps", "2"): 2}.get(options, 0)
    assert "/job:worker/task:0, /job:worker/task:1;" in last


def test_who_did_not_join_is_named_beside_those_who_did(launcher: Launcher) -> None:
    script = launcher.directory / "some.py"
    script.write_text("import os\nif os.environ['ARGOSY_JOB_NAME'] == 'ps': import train\n")
    launcher.script("")  # train.py, which joins
    command = [*launcher.command(), str(script)]
    done = subprocess.run(command, env=launcher.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "never joined: /job:worker/task:0, /job:worker/task:1; each" in done.stderr


def test_a_server_that_is_killed_is_the_cause_of_what_follows(launcher: Launcher) -> None:
    launcher.keeps_logs = True
    body = """
    if job == "ps":
        link, _ = socket.socket(fileno=int(os.environ["ARGOSY_LISTEN_FD"])).accept()
        os.kill(os.getpid(), signal.SIGKILL)
    host, port = cluster["ps"][0].split(":")
    try:
        socket.create_connection((host, int(port))).recv(1)
    except ConnectionError:
        pass
    fail("lost /job:ps/task:0", caused_by="/job:ps/task:0")
    """
    done = launcher.run(body, "--max-restarts", "0")
    assert done.process.returncode == 137
    last = done.errors.rstrip("\n").split("\n")[-1]
    assert last.startswith("/job:ps/task:0 was killed by SIGKILL")
    assert last.endswith("the first of 3 failures")


@pytest.mark.parametrize("launcher", ["forked"], indirect=True)  # the supervisor's patience, once
def test_others_that_do_not_end_after_a_failure_are_ended(launcher: Launcher) -> None:
    launcher.keeps_logs = True
    done = launcher.run("sys.exit('no such data') if (job, index) == ('worker', 0) else hang()")
    assert done.process.returncode == 1
    assert "still running, and ended now: /job:ps/task:0, /job:worker/task:1" in done.errors
    assert done.errors.endswith("no such data\n")
    assert "the first of" not in done.errors


def test_what_a_task_started_ends_with_it(launcher: Launcher) -> None:
    body = """
    if job == "worker":
        subprocess.Popen([sys.executable, "-S", "-c", "import signal; signal.pause()"])
    """
    assert launcher.run(body).process.returncode == 0


def test_a_closed_standard_output_is_no_disaster(launcher: Launcher) -> None:
    script = launcher.script("print('hello', file=sys.stderr)")
    command = ["sh", "-c", 'exec "$@" >&-', "sh", *launcher.command(), str(script)]
    done = subprocess.run(command, env=launcher.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "[/job:worker/task:0] hello" in done.stderr
