"""Pictures of the results, where matplotlib is installed (the `bench` extra)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.networks import NETWORKS

Result = Mapping[str, Any]


def draw_all(results: Mapping[str, Result], directory: Path) -> list[Path]:
    """A picture for each part that has one; none without matplotlib."""
    try:
        import_module("matplotlib").use("Agg")
    except ImportError:
        return []
    pyplot = import_module("matplotlib.pyplot")
    drawn = []
    for name, result in results.items():
        draw = _KINDS.get(result["kind"])
        if draw is None:
            continue
        figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
        draw(axes, result)
        path = directory / f"{name}.png"
        figure.savefig(path, dpi=120)
        pyplot.close(figure)
        drawn.append(path)
    return drawn


def _training(axes: Any, result: Result) -> None:
    rows = [row for row in result["contenders"].values() if any(row["rates"])]
    rates = [[rate for rate in row["rates"] if rate is not None] for row in rows]
    middles = [median(values) for values in rates]
    errors = [
        [middle - min(values) for middle, values in zip(middles, rates, strict=True)],
        [max(values) - middle for middle, values in zip(middles, rates, strict=True)],
    ]
    colours = ["tab:blue" if row["title"].startswith("Argosy") else "tab:gray" for row in rows]
    axes.barh([row["title"] for row in rows], middles, xerr=errors, color=colours)
    axes.invert_yaxis()
    axes.set_xlabel("gradients a second")
    axes.set_title(NETWORKS[result["network"]].title, fontsize="medium")


def _size(axes: Any, result: Result) -> None:
    sizes = [row["bytes"] for row in result["rows"]]
    for key, label in (("cost", "push and pull"), ("plain", "two plain copies")):
        axes.loglog(sizes, [1000 * row[key] for row in result["rows"]], marker="o", label=label)
    axes.set_xlabel("bytes of parameters")
    axes.set_ylabel("ms")
    axes.legend()


def _shape(axes: Any, result: Result) -> None:
    grows = "servers" if len({row["servers"] for row in result["rows"]}) > 1 else "workers"
    rows = result["rows"]
    axes.plot([row[grows] for row in rows], [row["rate"] for row in rows], marker="o")
    axes.set_xlabel(grows)
    axes.set_ylabel("exchanges of 2.6 MB a second")
    axes.set_ylim(bottom=0)


def _memory(axes: Any, result: Result) -> None:
    for task, seen in sorted(result["jobs"][0]["tasks"].items()):
        axes.plot(
            [time for time, _, _ in seen["samples"]],
            [pss / 1e6 for _, _, pss in seen["samples"]],
            label=task,
        )
    axes.set_xlabel("seconds")
    axes.set_ylabel("PSS, MB")
    axes.set_ylim(bottom=0)
    axes.legend()


_KINDS: dict[str, Callable[[Any, Result], None]] = {
    "training": _training,
    "size": _size,
    "shape": _shape,
    "memory": _memory,
}
