"""The command line: what it takes, what it refuses in one line, and that it stays light."""

from __future__ import annotations

import subprocess
import sys
import types
from pathlib import Path

import pytest

from argosy import cli
from argosy.errors import WaitTimeout
from argosy.launch.job import PRELOAD, JobSpec


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.touch()
    return path


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[JobSpec]:
    """The jobs that would have been run."""
    asked: list[JobSpec] = []

    def run(job: JobSpec) -> int:
        asked.append(job)
        return 7

    monkeypatch.setattr("argosy.launch.local.run", run)
    return asked


def test_defaults(script: Path, jobs: list[JobSpec]) -> None:
    assert cli.main(["run", str(script)]) == 7
    assert jobs == [JobSpec(script, servers=1, workers=2)]


def test_every_option(script: Path, jobs: list[JobSpec]) -> None:
    words = "--ps 3 --workers 4 --mode sync --aggregate 3 --late fold --tokens 2 --max-staleness 5"
    words += " --max-restarts 7 --on-loss shrink --min-workers 2 --stall-after 60"
    cli.main(["run", *words.split(), "--log-dir", "logs", "--threads", "2", str(script)])
    settings = {"mode": "sync", "aggregate": "3", "late": "fold", "tokens": "2", "max_staleness": "5"}
    settings |= {"max_restarts": "7", "on_loss": "shrink", "min_workers": "2", "stall_after": "60"}
    assert jobs == [JobSpec(script, (), 3, 4, settings, 2, Path("logs"))]


def test_a_ring_has_no_servers_unless_asked(script: Path, jobs: list[JobSpec]) -> None:
    cli.main(["run", "--mode", "ring", str(script)])
    cli.main(["run", "--mode", "ring", "--ps", "1", str(script)])
    assert [job.servers for job in jobs] == [0, 1]


def test_what_follows_the_script_is_not_parsed(script: Path, jobs: list[JobSpec]) -> None:
    cli.main(["run", "--ps", "2", str(script), "--ps", "9", "--help", "--", "-x"])
    assert jobs[0].servers == 2
    assert jobs[0].args == ("--ps", "9", "--help", "--", "-x")


def test_a_script_after_a_double_dash(script: Path, jobs: list[JobSpec]) -> None:
    cli.main(["run", "--", str(script), "--", "a"])
    assert jobs[0].args == ("--", "a")


def odd_scripts(folder: Path) -> dict[str, Path]:
    """What somebody might take for a script, by a name."""
    bytes_of = {
        "NOT_PYTHON": b"pass\nthis is no python\n",
        "NULL_BYTES": b"\x89PNG\x00",
        "LATIN": "print('é')".encode("latin-1"),
    }
    for name, content in bytes_of.items():
        (folder / f"{name}.py").write_bytes(content)
    if not (unreadable := folder / "unreadable.py").is_symlink():
        unreadable.symlink_to("/proc/self/mem")
    return {name: folder / f"{name}.py" for name in bytes_of} | {"UNREADABLE": unreadable}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run"], "SCRIPT"),
        (["run", "nope.py"], "'nope.py', which does not exist"),
        (["run", "--workers", "two", "SCRIPT"], "'two' is not a valid integer"),
        (["run", "--workers", "0", "SCRIPT"], "--workers: expected a whole number, 1 or more, got 0"),
        (["run", "--ps", "-1", "SCRIPT"], "--ps"),
        (["run", "--threads", "0", "SCRIPT"], "--threads"),
        (["run", "--server", "1", "SCRIPT"], "No such option '--server'"),
        (["run", "--ps", "0", "--mode", "async", "SCRIPT"], "at least one ps task for async"),
        (["run", "--ps", "1", "--mode", "ring", "SCRIPT"], "no ps task for ring"),
        (["run", "--mode", "fast", "SCRIPT"], "one of sync, async, ring"),
        (["run", "--mode", "sync", "--aggregate", "x", "SCRIPT"], "aggregate"),
        (["run", "--aggregate", "1", "SCRIPT"], "add --mode sync"),
        (["run", "--log-dir", "/dev/null/logs", "SCRIPT"], "--log-dir"),
        (["run", "--max-restarts", "x", "SCRIPT"], "max_restarts: expected a whole number, 0 or more"),
        (["run", "--on-loss", "cry", "SCRIPT"], "on_loss: expected one of wait, shrink, got 'cry'"),
        (["run", "--min-workers", "3", "SCRIPT"], "min_workers: expected at most 2, the number of workers"),
        (
            ["run", "--mode", "ring", "--max-restarts", "3", "SCRIPT"],
            "--max-restarts: expected a job with servers, got none; a ring ends with any of its workers",
        ),
        (["run", "--serve", "--min-workers", "2", "SCRIPT"], "--min-workers: expected no restarts together"),
        (["demo", "--steps", "many"], "'many' is not a valid integer"),
        (["demo", "--mode", "ring"], "mode"),
        (["demo", "--data", "/nowhere"], "/nowhere"),
        (["status", "host"], "HOST:PORT: expected host:port, got 'host'"),
        (["status"], "HOST:PORT"),
        (["status", "☃:1"], "HOST:PORT: expected a host name or address in ASCII letters, got '☃:1'"),
        (["status", "*:1"], "expected a host name"),
        (["status", "a..b:1"], "expected a host name"),
        (["status", f"{'x' * 254}:1"], "expected a host name"),
        (["status", "[zz]:1"], "expected an IPv6 address in brackets, got '[zz]:1'"),
        (["status", "localhost:0"], "expected a port from 1 to 65535"),
        (["status", "localhost:99999"], "expected a port from 1 to 65535"),
        (["run", "--workers", "999999", "SCRIPT"], "tasks on this machine ("),
        (["run", "--ps", "9" * 30, "SCRIPT"], f"got {int('9' * 30) + 2}"),
        (["run", "--serve", "--workers", "999999", "SCRIPT"], "tasks on this machine ("),
        (["run", "."], "'.', which is not a file"),
        (["run", "NOT_PYTHON"], "which is not Python, in line 2: "),
        (["run", "NULL_BYTES"], "which is not Python: source code string cannot contain null bytes"),
        (["run", "LATIN"], "which is not Python"),
        (["run", "UNREADABLE"], "which cannot be read (Input/output error)"),
        (["run", "--serve", "NOT_PYTHON"], "which is not Python, in line 2: "),
        (["demo", "--steps", "-1"], "--steps: expected a number of global steps, 0 or more, got -1"),
        (["serve"], "cluster: expected the addresses of the cluster, got none; add --cluster"),
        (
            ["serve", "--cluster", '{"local": ["☃:22"]}', "--job_name=local"],
            "/job:local/task:0: expected a host",
        ),
        (["serve", "--ps_hosts=", "--worker_hosts=", "--job_name=ps"], "got none"),
        (["checkpoints", "nowhere"], "a directory of checkpoints"),
        (["plot", "nowhere"], "No such file or directory"),
        (["fly"], "No such command 'fly'"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(
    script: Path, words: list[str], said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    files = {"SCRIPT": script} | odd_scripts(script.parent)
    assert cli.main([str(files.get(word, word)) for word in words]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("argosy: error: ")
    assert err.count("\n") == 1
    assert said in err


@pytest.mark.parametrize("command", [[], ["run"], ["demo"], ["status"]])
def test_help_teaches(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*command, "--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("Usage: argosy")
    assert command == ["status"] or "argosy demo" in text or "argosy run" in text


def test_options_of_run_are_those_pinned(capsys: pytest.CaptureFixture[str]) -> None:
    pinned = {"--ps", "--workers", "--mode", "--aggregate", "--late", "--tokens", "--max-staleness"}
    names = {name for parameter in cli.run.params for name in parameter.opts if name.startswith("--")}
    ours = {"--log-dir", "--threads", "--fork-server", "--evaluator", "--serve", "--grace"}
    ours |= {"--max-restarts", "--on-loss", "--min-workers", "--stall-after"}
    assert names == pinned | ours


@pytest.mark.parametrize(
    ("words", "variable", "forks"),
    [
        ([], None, True),
        (["--no-fork-server"], None, False),
        ([], "0", False),
        ([], "1", True),
        (["--fork-server"], "0", True),
        (["--no-fork-server"], "1", False),
    ],
)
@pytest.mark.parametrize("command", ["run", "demo"])
def test_the_fork_server_can_be_refused(
    script: Path,
    jobs: list[JobSpec],
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    words: list[str],
    variable: str | None,
    forks: bool,
) -> None:
    monkeypatch.delenv("ARGOSY_FORK_SERVER", raising=False)
    if variable is not None:
        monkeypatch.setenv("ARGOSY_FORK_SERVER", variable)
    cli.main([command, *words, *([str(script)] if command == "run" else [])])
    assert jobs[0].preload == (PRELOAD if forks else None)


def test_without_a_command_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    assert "Usage: argosy" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("argosy, version ")


def test_demo_is_the_packaged_script(jobs: list[JobSpec]) -> None:
    assert cli.main(["demo", "--mode", "sync", "--steps", "5"]) == 7
    (job,) = jobs
    assert job.script == Path(cli.__file__).with_name("demo.py")
    assert (job.servers, job.workers, job.settings) == (2, 2, {"mode": "sync"})
    assert job.args == ("--steps", "5")


def test_status_prints_what_a_server_tells(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = types.ModuleType("argosy.store.inquiry")
    monkeypatch.setattr(module, "query", lambda *asked: f"asked {asked}", raising=False)
    monkeypatch.setitem(sys.modules, "argosy.store.inquiry", module)
    assert cli.main(["status", "localhost:2222"]) == 0
    assert cli.main(["status", "localhost:2222", "--stacks"]) == 0
    assert capsys.readouterr().out == "asked ('localhost:2222', False)\nasked ('localhost:2222', True)\n"


def test_other_errors_are_one_line_with_exit_code_1(
    script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(job: JobSpec) -> int:
        raise WaitTimeout("nobody came", ["/job:ps/task:0"], 3)

    monkeypatch.setattr("argosy.launch.local.run", fail)
    assert cli.main(["run", str(script)]) == 1
    assert capsys.readouterr().err.startswith("argosy: error: nobody came after 3 s")


def test_an_early_ctrl_c_is_130(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(job: JobSpec) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("argosy.launch.local.run", interrupt)
    assert cli.main(["run", str(script)]) == 130


@pytest.mark.processes
@pytest.mark.timeout(30)
@pytest.mark.parametrize("words", [["--help"], ["run", "--help"], ["run"], ["run", "nope.py"], ["--version"]])
def test_torch_is_not_imported(words: list[str]) -> None:
    code = f"import sys; from argosy.cli import main; main({words!r}); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0
