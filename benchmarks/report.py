"""From results to tables: one function a kind of result. Pure; `__main__` prints and writes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

from benchmarks.figures import Spread, bootstrap, ratios, short, spread
from benchmarks.networks import NETWORKS
from benchmarks.tables import Table, markdown

Result = Mapping[str, Any]
# Gradients from which on a run says something about growth.
LONG_RUN = 10_000
# numerator, denominator, at least, aim: what is asked for on the MNIST network.
COMPARISONS = (
    ("argosy-async", "tensorflow-async", 4.0, 6.0),
    ("argosy-sync", "tensorflow-sync", 4.0, 6.0),
    ("argosy-async", "tensorflow-async-greedy", 4.0, 6.0),
    ("argosy-sync", "tensorflow-sync-greedy", 4.0, 6.0),
    ("argosy-sync", "ddp", 1.6, 2.0),
    ("argosy-ring", "ddp", 1.7, 2.5),
    ("ddp-argosy", "ddp", 1.4, 1.8),
    ("argosy-async", "limit", 0.5, 0.7),
    ("argosy-async", "limit-both", None, None),
    ("argosy-sync", "limit", None, None),
    ("argosy-async", "rpc-async", None, None),
    ("argosy-async", "ray-async", None, None),
)


def training(result: Result) -> list[Table]:
    """The rates of every contender on one network, and Argosy's ratios."""
    network = NETWORKS[result["network"]]
    rows, tuned, notes = [], [], []
    for row in result["contenders"].values():
        rates = [rate for rate in row["rates"] if rate is not None]
        if row["failures"]:
            notes.append(f"{row['title']}: {len(row['failures'])} runs failed.")
        if not rates:
            continue
        first = f"{median(row['first_step']):.1f} s"
        rows.append([row["title"], str(spread(rates)), first])
        versions = ", ".join(f"{name} {version}" for name, version in row["versions"].items())
        tuned.append([row["title"], versions, row["flags"]])
    header = ["contender", "gradients/s", "to first step"]
    title = f"Training: {network.title}, batch {network.batch}"
    notes.append(
        f"Median of {_rounds(result)} interleaved rounds (smallest–largest), Adam, one thread a process, "
        "in the window in which all workers run. A synchronous step of 2 workers is 2 gradients."
    )
    compared = comparisons(result)
    return [
        Table(title, header, rows, notes),
        *([compared] if compared.rows else []),
        Table(f"Versions and flags, {network.name}", ["contender", "versions", "flags"], tuned),
    ]


def _rounds(result: Result) -> int:
    return max((len(row["rates"]) for row in result["contenders"].values()), default=0)


def comparisons(result: Result) -> Table:
    """Argosy over the others, paired by round."""
    cores = result["machine"]["cores"]
    rows = []
    for over, under, least, aim in COMPARISONS:
        found = paired(result, over, under, cores if under == "limit" else 1)
        if found is not None:
            against = f"{cores} x limit" if under == "limit" else under
            required = "" if result["network"] != "mnist" or least is None else f"{least} / {aim}"
            rows.append([f"{over} / {against}", str(found), required])
    header = ["ratio of gradients/s", "median (range)", "at least / aim"]
    return Table(f"Ratios, {result['network']}", header, rows, ["Paired by round."])


def paired(result: Result, over: str, under: str, times: int = 1) -> Spread | None:
    """The ratio of two contenders, from the rounds in which both ran."""
    contenders = result["contenders"]
    if over not in contenders or under not in contenders:
        return None
    both = zip(contenders[over]["rates"], contenders[under]["rates"], strict=True)
    kept = [(a, b * times) for a, b in both if a is not None and b is not None]
    return spread(ratios([a for a, _ in kept], [b for _, b in kept])) if kept else None


def start(result: Result) -> list[Table]:
    """Time to the first step."""
    rows = [[title, str(spread(values))] for title, values in result["seconds"].items()]
    note = "From the command until every worker has made its first step; the MNIST network."
    return [Table("Time from command to first step", ["command", "seconds"], rows, [note])]


def alone(result: Result) -> list[Table]:
    """A cluster of one."""
    pairs = result["pairs"]
    plain, ours = [pair["plain"] for pair in pairs], [pair["argosy"] for pair in pairs]
    interval = bootstrap(ratios(ours, plain))
    row = [f"{median(plain):.1f}", f"{median(ours):.1f}"]
    row.append(f"{interval.median:.3f} ({interval.low:.3f}–{interval.high:.3f})")
    note = (
        f"{len(pairs)} pairs, each in a process of its own that runs blocks of both loops in turns; median "
        "and 95 % bootstrap interval of it."
    )
    header = ["plain loop, steps/s", "Argosy, steps/s", "ratio", "at least / aim"]
    return [Table("A cluster of one against plain PyTorch", header, [[*row, "0.97 / 1"]], [note])]


def copies(result: Result) -> list[Table]:
    """An exchange against copies."""
    names = {
        "bare": ("push and pull, without the update", "two copies"),
        "adam": ("push, fused Adam, pull", "copy, fused Adam, copy"),
    }
    rows = []
    for what, file in result["rows"].items():
        ratio = bootstrap(ratios(file["costs"], file["plain"]))
        cost, plain = 1000 * median(file["costs"]), 1000 * median(file["plain"])
        ours, theirs = names[what]
        rows.append([f"{ours} / {theirs}", f"{cost:.1f}", f"{plain:.1f}", str(ratio), "1.5 / 1.2"])
    header = ["through a server / in one process", "ms", "ms", "ratio", "at most / aim"]
    note = "1 server, one thread a process; paired, median of the ratio and its 95 % bootstrap interval."
    return [Table(f"{result['floats'] / 1e6:.0f} M parameters on one host", header, rows, [note])]


def saving(result: Result) -> list[Table]:
    """A checkpoint every 100 steps."""
    rows, cuts = [], []
    for mode, file in result["jobs"].items():
        with_, without = file["rates"]["with"], file["rates"]["without"]
        ratio = bootstrap(ratios(with_, without))
        figure = f"{ratio.median:.3f} ({ratio.low:.3f}–{ratio.high:.3f})"
        rows.append([mode, f"{median(without):.1f}", f"{median(with_):.1f}", figure, "0.965"])
    names = {"shard": "a server's share of the MNIST network", "wide": "12.5 M parameters"}
    for name, taken in next(iter(result["jobs"].values()))["cuts"].items():
        ratio = bootstrap(ratios(taken["cut"], taken["copies"]))
        cost, plain = 1000 * median(taken["cut"]), 1000 * median(taken["copies"])
        cuts.append([names[name], f"{cost:.2f}", f"{plain:.2f}", str(ratio), "1"])
    note = "Blocks of 300 steps with and without, in turns, in one job of 2 servers and 2 workers."
    header = ["mode", "without, steps/s", "with, steps/s", "ratio", "at least"]
    cut_header = ["with both slots of Adam", "cut, ms", "two copies, ms", "ratio", "at most"]
    return [
        Table("A checkpoint every 100 steps", header, rows, [note]),
        Table("How long a cut stops a server", cut_header, cuts, []),
    ]


def size(result: Result) -> list[Table]:
    """The cost by size."""
    rows = [
        [
            _bytes(row["bytes"]),
            *(f"{1000 * row[key]:.3f}" for key in ("cost", "p90", "plain")),
            short(row["cost"] / row["plain"]),
            str(row["count"]),
        ]
        for row in result["rows"]
    ]
    header = ["parameters", "median, ms", "90 %, ms", "two plain copies, ms", "ratio", "exchanges"]
    note = "1 worker, 1 server, plain SGD (its update is included), no network to compute."
    return [Table("A push and pull as the parameters grow", header, rows, [note])]


def shape(result: Result) -> list[Table]:
    """The rate by workers and servers."""
    rows = [
        [
            str(row["servers"]),
            str(row["workers"]),
            short(row["rate"]),
            *(f"{1000 * row[key]:.2f}" for key in ("cost", "p90")),
        ]
        for row in result["rows"]
    ]
    header = ["servers", "workers", "exchanges/s", "median, ms", "90 %, ms"]
    grows = "servers" if len({row["servers"] for row in result["rows"]}) > 1 else "workers"
    note = "2.6 MB of parameters, plain SGD, asynchronous, no network to compute."
    return [Table(f"A push and pull as the {grows} grow", header, rows, [note])]


def allreduce(result: Result) -> list[Table]:
    """The ring alone."""
    rows = []
    for row in result["rows"]:
        ours = row["seconds"]["argosy"]
        for name, theirs in row["seconds"].items():
            what = [f"{row['ranks']}", _bytes(row["bytes"]), name, f"{1000 * median(theirs):.3f}"]
            ratio = "" if name == "argosy" else str(spread(ratios(theirs, ours)))
            rows.append([*what, ratio, row["required"].get(name, "")])
    header = ["ranks", "bytes", "by", "median, ms", "Argosy is so many times faster", "at least / aim"]
    note = "One thread a rank; medians of interleaved rounds, ratios paired by round."
    return [Table("All-reduce on one host", header, rows, [note])]


def hosts(result: Result) -> list[Table]:
    """The ring between hosts."""
    asked = {"a whole step": "1.15 / 1.05", "all-reduce": "1.15 / 1.05"}
    rows = []
    for name, seconds in result["seconds"].items():
        ratio = spread([each / result["ideal"] for each in seconds])
        rows.append([name, f"{1000 * median(seconds):.0f}", str(ratio), asked.get(name, "")])
    notes = [
        f"Two network namespaces, one worker in each. {_bytes(result['bytes'])} need "
        f"{1000 * result['ideal']:.0f} ms: 2(N-1)/N of them over the bandwidth. A step's gradient is there "
        "when it begins, so nothing overlaps; its time includes the update."
    ]
    if "skipped" in result:
        notes = [f"Not measured: {result['skipped']}."]
    header = ["what moves the bytes", "median, ms", "against the bandwidth", "at most / aim"]
    return [Table("Two hosts at 1 Gbit", header, rows, notes)]


def memory(result: Result) -> list[Table]:
    """The memory of each task."""
    rows = []
    for job in result["jobs"]:
        name = f"{job['network']}, {job['mode']}"
        for task, seen in sorted(job["tasks"].items()):
            allowed = _bytes(job["allowed"]) if task.startswith("/job:ps") else ""
            # A short run has not settled: what it shows is no growth of training.
            settled = job["gradients"] >= LONG_RUN
            grown = [_bytes(seen["growth"]) if settled else "", f"{job['gradients']:,}"]
            rows.append([name, task, _bytes(seen["rss"]), _bytes(seen["pss"]), allowed, *grown])
    header = ["job", "task", "RSS", "PSS", "allowed RSS", "growth", "gradients"]
    notes = [
        f"Import of torch alone: {_bytes(result['imported']['rss'])} RSS. Allowed: parameters, Adam's two "
        "slots, an accumulator if synchronous, two slots a worker, the import, and 10 %. Growth: PSS in the "
        "last quarter of the run over the second quarter; gradients: of the whole run."
    ]
    return [Table("Memory of each task, 2 servers and 2 workers", header, rows, notes)]


def remote(result: Result) -> list[Table]:
    """One client and its tasks."""
    rounds, peer, monarch = result["rounds"], result["tensorflow"], result.get("monarch", [])

    def row(what: str, values: list[float], asked: str) -> list[str]:
        return [what, str(spread(values)), asked]

    def column(name: str) -> list[float]:
        return [each[name] for each in rounds]

    rows = [
        row("small operations sent a second, uncaptured", column("sent"), "25,000 / 50,000"),
        row("captured MNIST step over 2 tasks, ms", column("step"), ""),
        row("of that in the client, ms", column("client"), "at most 0.5"),
        row("the same with the client running ahead, ms", column("ahead"), ""),
    ]
    if peer:
        rows.append(row("the same placement in a TensorFlow session, ms", peer, ""))
        rows.append(["its time / ours", str(spread(ratios(peer, column("step")))), "3"])
    if monarch:
        sent, step = ([each[name] for each in monarch] for name in ("sent", "step"))
        rows.append(row("small operations a second, torchmonarch 0.7.0", sent, ""))
        rows.append(row("the step on one of its tasks, uncaptured, ms", step, ""))
    rows.append(row("two pipelined stages on two tasks / on one", column("stages"), "1.4"))
    note = (
        f"Median of {len(rounds)} interleaved rounds (smallest–largest). Parameters and updates on a ps, "
        "forward and backward on a worker: 784-500-500-10, batch 32, SGD with momentum, the loss read at "
        "each step; one thread a process."
    )
    return [Table("One client, remote devices", ["what", "median (range)", "at least / aim"], rows, [note])]


def _bytes(count: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(count) >= size:
            return f"{short(count / size)} {unit}"
    return f"{count:.0f} B"


KINDS: dict[str, Callable[[Result], list[Table]]] = {
    "training": training,
    "start": start,
    "alone": alone,
    "copies": copies,
    "saving": saving,
    "size": size,
    "shape": shape,
    "allreduce": allreduce,
    "hosts": hosts,
    "remote": remote,
    "memory": memory,
}


def tables(result: Result) -> list[Table]:
    """The tables of one part's result."""
    return KINDS[result["kind"]](result)


def page(results: Mapping[str, Result]) -> str:
    """All results as one page of Markdown."""
    parts = [
        "# Benchmarks\n\nWritten by `python -m benchmarks`; the numbers themselves are in results.json.\n"
    ]
    for name, result in results.items():
        parts += [markdown(table) for table in tables(result)]
        machine = result["machine"]
        parts.append(
            f"*{name}: {machine['when']}, {machine['cores']} cores of {machine['cpu']}, "
            f"{_bytes(machine['memory'])}, {machine['system']}, Python {machine['python']}, "
            f"torch {machine['torch']}, argosy {machine['argosy']}; load before: {machine['load']:.2f}.*\n"
        )
    return "\n".join(parts)
