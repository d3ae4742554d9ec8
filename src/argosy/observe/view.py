"""The live view: a job's progress in a few lines of a terminal. Pure, text out; rich does the setting.

Whoever shows it writes the text below everything else, and takes it away before the next line.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from argosy.observe.lines import duration_text, number_text, step_text
from argosy.observe.progress import Progress, WorkerProgress

# More workers than this, and only those furthest behind are shown.
_MOST_WORKERS = 6
_MOST_NUMBERS = 4
_BAR_WIDTH = 30


def render(progress: Progress | None, tasks: str, width: int, height: int) -> str:
    """The view in at most `height` lines of at most `width` columns. `tasks`: who runs, in words."""
    lines = [] if progress is None else [_way(progress), _numbers(progress), *_workers(progress.workers)]
    if progress is not None and progress.waiting and progress.waited >= 1:
        who = ", ".join(progress.waiting)
        lines.append(Text(f"waiting for {who}, {progress.waited:.0f} s", style="yellow"))
    lines.append(Text(tasks, style="dim"))
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=True, color_system="standard", highlight=False)
    for line in lines[: max(1, height)]:
        line.truncate(width, overflow="crop")
        console.print(line, no_wrap=True, overflow="crop", end="\n")
    return file.getvalue().removesuffix("\n")


def _way(progress: Progress) -> Text:
    """How far: step, bar, time left."""
    text = Text(step_text(progress.step, progress.last_step), style="bold")
    if progress.last_step:
        share = min(1.0, progress.step / progress.last_step)
        filled = int(share * _BAR_WIDTH)
        text.append("  ")
        text.append("━" * filled, style="green")
        text.append("━" * (_BAR_WIDTH - filled), style="bright_black")
        text.append(f" {share:4.0%}", style="not bold")
    if progress.eta is not None:
        text.append(f"  {duration_text(progress.eta)} to go", style="not bold")
    return text


def _numbers(progress: Progress) -> Text:
    """How well, how fast."""
    text = Text()
    for name, value in list(progress.numbers.items())[:_MOST_NUMBERS]:
        text.append(f"{name} {number_text(value)}  ", style="cyan")
    text.append(f"{progress.rate:.1f} gradients/s", style="green")
    text.append(f"  staleness {progress.staleness:.1f}")
    if progress.dropped:
        text.append(f"  {progress.dropped} dropped", style="yellow")
    return text


def _workers(workers: Sequence[WorkerProgress]) -> Iterator[Text]:
    """A line a worker, where there are several."""
    if len(workers) < 2:
        return
    ranked = sorted(workers, key=lambda worker: (-worker.behind, worker.rate))
    shown = [worker for worker in workers if worker in ranked[:_MOST_WORKERS]]
    fastest = max(worker.rate for worker in workers)
    for worker in shown:
        here = worker.presence == "in the job"
        slow = here and worker.rate < 0.5 * fastest
        text = Text(f"  {worker.short:<10}")
        text.append(f"{worker.rate:7.1f}/s", style="yellow" if slow else "")
        text.append(f"  staleness {worker.staleness:5.1f}")
        if not here:
            text.append(f"  {worker.presence}", style="dim")
        elif slow and worker.behind:
            text.append(f"  behind by {worker.behind}", style="yellow")
        if worker.dropped:
            text.append(f"  {worker.dropped} dropped", style="yellow")
        yield text
    if rest := [worker.rate for worker in workers if worker not in shown]:
        yield Text(f"  {f'{len(rest)} more':<10}{min(rest):7.1f} to {max(rest):.1f}/s")
