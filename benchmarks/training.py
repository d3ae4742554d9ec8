"""Parts that train: every contender on one network, interleaved; and the time to a first step."""

from __future__ import annotations

from typing import Any

from benchmarks.catalogue import BY_NAME, CONTENDERS, Contender, Training
from benchmarks.figures import NoWindow, gradients_per_second
from benchmarks.running import Outcome, Run, RunFailed, run
from benchmarks.settings import Settings

STARTERS = ("limit", "argosy-async", "argosy-sync")


def chosen(settings: Settings, network: str) -> list[Contender]:
    """The contenders of this network that were asked for."""
    return [
        contender
        for contender in CONTENDERS
        if network in contender.networks
        and (settings.with_peers or not contender.is_peer)
        and (not settings.only or contender.name in settings.only)
    ]


def train(settings: Settings, network: str, contender: Contender, seconds: float) -> Outcome:
    """One run of one contender."""
    out = settings.out()
    launches = contender.launches(Training(network, settings.data, out, seconds))
    limit = seconds + settings.start_limit
    return run(Run(launches, out, contender.expected, limit, contender.grace))


def measure_network(settings: Settings, network: str) -> dict[str, Any]:
    """Gradients a second of each contender in each round; None where a run failed."""
    contenders = chosen(settings, network)
    table = {contender.name: _empty_row(contender) for contender in contenders}
    for number in range(settings.rounds):
        # Each round begins with another one, so that nobody always follows the same neighbour.
        turn = number % len(contenders)
        for contender in contenders[turn:] + contenders[:turn]:
            row = table[contender.name]
            try:
                outcome = train(settings, network, contender, settings.warmup + settings.seconds)
                stamps = [file["stamps"] for file in outcome.files]
                rate = gradients_per_second(stamps, settings.warmup)
            except (RunFailed, NoWindow) as failure:
                settings.say(f"{network}, round {number + 1}: {contender.name} failed: {failure}")
                row["rates"].append(None)
                row["failures"].append(str(failure))
                continue
            row["rates"].append(rate)
            row["first_step"].append(max(worker[0] for worker in stamps) - outcome.started)
            row["versions"] = outcome.files[0]["versions"]
            settings.say(f"{network}, round {number + 1}: {contender.name} {rate:.1f} gradients/s")
    return {"kind": "training", "network": network, "contenders": table}


def _empty_row(contender: Contender) -> dict[str, Any]:
    return {
        "title": contender.title,
        "flags": contender.flags,
        "workers": contender.workers,
        "versions": {},
        "rates": [],
        "first_step": [],
        "failures": [],
    }


def measure_start(settings: Settings) -> dict[str, Any]:
    """Seconds from the command until every worker has made its first step."""
    taken: dict[str, list[float]] = {name: [] for name in STARTERS}
    for number in range(settings.rounds):
        for name in STARTERS:
            outcome = train(settings, "mnist", BY_NAME[name], 0.1)
            first = max(file["stamps"][0] for file in outcome.files) - outcome.started
            taken[name].append(first)
            settings.say(f"start, round {number + 1}: {name} {first:.2f} s")
    return {"kind": "start", "seconds": {BY_NAME[name].title: values for name, values in taken.items()}}
