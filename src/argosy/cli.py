"""The command line: `argosy run`, `serve`, `demo`, `status`, `checkpoints`, `plot` and `bench`.

Thin: it turns words into a JobSpec and errors into one line. Nothing here imports torch; what a command needs
is imported when it runs.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from argosy import __version__
from argosy.cluster.discover import take_flags
from argosy.cluster.spec import Address
from argosy.errors import USAGE_EXIT_CODE, ArgosyError, ConfigError, exit_code
from argosy.launch import local
from argosy.launch.job import GRACE, MAX_RESTARTS, PRELOAD, JobSpec, serving

_DEMO_SCRIPT = Path(__file__).with_name("demo.py")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line (default: this process's own); the exit code."""
    try:
        code = cli.main(args=None if argv is None else list(argv), prog_name="argosy", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return USAGE_EXIT_CODE
    except click.ClickException as error:
        return _fail(_one_line(error), error.exit_code)
    except (ArgosyError, OSError) as error:
        return _fail(str(error), exit_code(error))
    except (KeyboardInterrupt, click.Abort):
        return exit_code(KeyboardInterrupt())
    return code if isinstance(code, int) else 0


def _fail(message: str, code: int) -> int:
    click.echo(f"argosy: error: {message}", err=True)
    return code


def _one_line(error: click.ClickException) -> str:
    message = " ".join(error.format_message().split())
    context = error.ctx if isinstance(error, click.UsageError) else None
    return message if context is None else f"{message} See '{context.command_path} --help'."


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="argosy")
def cli() -> None:
    """Train PyTorch models on parameter servers, from one ordinary training loop.

    \b
    First steps:
      argosy demo                                   MNIST on 2 servers and 2 workers
      argosy run --ps 2 --workers 2 train.py        your own script
      argosy run --help                             modes, and more examples
    """


_fork_server = click.option(
    "--fork-server/--no-fork-server",
    default=True,
    envvar="ARGOSY_FORK_SERVER",
    show_envvar=True,
    help="Import torch once for all tasks, or once in each.  [default: once for all]",
)


@cli.command(context_settings={"allow_interspersed_args": False})
@click.option("--ps", type=int, metavar="P", help="Parameter servers.  [default: 1, and 0 for ring]")
@click.option("--workers", type=int, default=2, show_default=True, metavar="W", help="Workers.")
@click.option("--mode", metavar="sync|async|ring", help="How workers work together.  [default: async]")
@click.option("--aggregate", metavar="K", help="sync: a step goes on with the first K gradients.")
@click.option(
    "--late", metavar="drop|fold", help="sync: what becomes of a gradient that comes after its step."
)
@click.option("--tokens", metavar="M", help="sync: a worker may run up to M gradients ahead of the step.")
@click.option(
    "--max-staleness", metavar="S", help="async: at most S updates between a pull and its gradient."
)
@click.option(
    "--max-restarts",
    metavar="N",
    help=f"How often each task is started again that a signal has ended.  [default: {MAX_RESTARTS}]",
)
@click.option(
    "--on-loss",
    metavar="wait|shrink",
    help="sync: a step waits for a worker that is started again, or goes on without it.  [default: wait]",
)
@click.option("--min-workers", metavar="N", help="With fewer workers than this the job ends.  [default: 1]")
@click.option(
    "--stall-after",
    metavar="SECONDS",
    help="Without progress for so long the job ends, and says where it is stuck.  [default: never]",
)
@click.option(
    "--log-dir", metavar="DIR", type=click.Path(path_type=Path), help="Keep each task's output here."
)
@click.option("--evaluator", is_flag=True, help="Also a task that evaluates each checkpoint.")
@click.option(
    "--grace",
    type=float,
    default=GRACE,
    envvar="ARGOSY_GRACE",
    show_envvar=True,
    show_default=True,
    metavar="S",
    help="Seconds to save in after Ctrl-C or SIGTERM; a second one ends everything at once.",
)
@click.option("--threads", type=int, metavar="N", help="Threads of a task.  [default: cores / tasks]")
@click.option("--serve", is_flag=True, help="Tasks serve their devices; SCRIPT is the client that uses them.")
@_fork_server
@click.argument("script", type=click.Path(path_type=Path))
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def run(
    ps: int | None,
    workers: int,
    log_dir: Path | None,
    threads: int | None,
    serve: bool,
    evaluator: bool,
    grace: float,
    fork_server: bool,
    script: Path,
    args: tuple[str, ...],
    **settings: str | None,
) -> int:
    """Start every task of a job on this machine. What follows SCRIPT is the script's own.

    \b
    Examples:
      argosy run train.py
          1 server and 2 workers, each gradient applied when it arrives
      argosy run --ps 2 --workers 4 --mode sync train.py --epochs 3
          a step takes one gradient from each worker; train.py gets --epochs 3
      argosy run --workers 4 --mode sync --aggregate 3 --late fold train.py
          a step goes on with the first 3 of 4; the fourth counts in the next
      argosy run --workers 4 --mode ring train.py
          no servers: the workers average their gradients among themselves
      argosy run --mode async --max-staleness 8 --log-dir logs train.py
          no gradient older than 8 updates; logs/worker-0.log, logs/ps-0.log, …
      argosy run --workers 4 --mode sync --on-loss shrink --max-restarts 10 --min-workers 2 train.py
          tasks that are killed come back, up to 10 times each; meanwhile the others go on, 2 at least
      argosy run --serve --ps 1 --workers 2 client.py
          a cluster that waits for work, and client.py, whose argosy.connect() needs no address

    Every line of a task comes with its name. A task that is killed is started again, but for a ring. A worker
    that has no restarts left takes nobody with it; a server that has none, or a task that fails, ends the
    job, the first cause is printed last, and its exit code is ours (128+n for signal n). Ctrl-C ends
    everything; a second one at once.
    """
    given = {name: value for name, value in settings.items() if value is not None}
    servers = int(given.get("mode") != "ring") if ps is None else ps
    preload = PRELOAD if fork_server else None
    job = JobSpec(
        script,
        args,
        servers,
        workers,
        given,
        threads,
        log_dir,
        preload=preload,
        evaluator=evaluator,
        grace=grace,
    )
    return local.run(serving(job) if serve else job)


@cli.command("serve", context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
@click.option(
    "--visible-devices", metavar="LIST", help="What clients may use, such as cpu:0,gpu:1.  [default: all]"
)
@click.option(
    "--allow-growth/--no-allow-growth",
    default=True,
    help="Take a GPU's memory as needed, or nearly all at once.  [default: as needed]",
)
@click.pass_context
def serve_task(context: click.Context, visible_devices: str | None, allow_growth: bool) -> None:
    """Wait for clients (argosy.connect) and run what they send, until ended. Which task: the flags of any
    task.

    \b
    Examples:
      argosy serve --job_name=worker --task_index=0 --ps_hosts=a:2222 --worker_hosts=b:2222,c:2222
      argosy serve --cluster '{"local": ["localhost:2223"]}' --job_name=local
      (also --bind, --insecure, and the variables ARGOSY_JOB_NAME, ARGOSY_CLUSTER, …)
    """
    words, rest = take_flags(context.args)
    if rest:
        raise click.UsageError(f"unexpected {rest[0]!r}", context)
    from argosy.server.serving_task import serve_devices

    visible = None if visible_devices is None else [each.strip() for each in visible_devices.split(",")]
    serve_devices(words, visible, allow_growth)


@cli.command()
@click.option(
    "--steps", type=int, default=2000, show_default=True, metavar="N", help="Global steps to train."
)
@click.option(
    "--mode", metavar="async|sync", default="async", show_default=True, help="How workers work together."
)
@click.option(
    "--data", metavar="DIR", type=click.Path(path_type=Path), help="MNIST's own files, instead of ours."
)
@_fork_server
def demo(steps: int, mode: str, data: Path | None, fork_server: bool) -> int:
    """Train MNIST on 2 servers and 2 workers, on the digits that ship with the package.

    \b
    Examples:
      argosy demo
      argosy demo --mode sync --steps 500
      argosy demo --data ~/mnist          train-images-idx3-ubyte, …
    """
    if steps < 0:
        raise ConfigError("--steps", "a number of global steps, 0 or more", steps)
    args = ["--steps", str(steps)]
    if data is not None:
        from argosy.datasets.idx import require_files

        require_files(data)
        args += ["--data", str(data)]
    # -P: the script lies among the package's modules, whose names must not hide those of other packages.
    return local.run(
        JobSpec(
            _DEMO_SCRIPT,
            tuple(args),
            2,
            2,
            {"mode": mode},
            python_flags=("-P",),
            preload=PRELOAD if fork_server else None,
        )
    )


@cli.command()
@click.argument("address", metavar="HOST:PORT")
@click.option(
    "--stacks",
    is_flag=True,
    help="Also what was decided last, and the Python stacks of those waited for (or of all workers).",
)
def status(address: str, stacks: bool) -> None:
    """Who is in a job, who is waited for, and since when. Ask the first server of the job."""
    where = Address.parse(address, "HOST:PORT")
    from argosy.store.inquiry import query

    click.echo(query(str(where), stacks))


@cli.command()
@click.argument("directory", type=click.Path(path_type=Path))
def checkpoints(directory: Path) -> int:
    """The checkpoints in DIRECTORY: step, size, age, and whether each is sound (all of it is read)."""
    from argosy.checkpoint.listing import listing

    lines, sound = listing(directory)
    click.echo("\n".join(lines))
    return 0 if sound else 1


@cli.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Where to.  [default: DIRECTORY/plot.png]",
)
def plot(directory: Path, output: Path | None) -> None:
    """Draw loss and speed of a training, over steps and over time, to a PNG.

    \b
    Examples:
      argosy plot runs/mnist
      argosy plot runs/mnist -o mnist.png
    """
    from argosy.observe.plot import plot as draw

    click.echo(f"wrote {draw(directory, output)}")


@cli.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[OPTIONS] [PART]...")
def bench(arguments: tuple[str, ...]) -> None:
    """The benchmarks, with the peers beside them: in a source checkout. `argosy bench --help` lists them."""
    from argosy.bench import run as run_benchmarks

    sys.exit(run_benchmarks(arguments))


if __name__ == "__main__":
    sys.exit(main())
