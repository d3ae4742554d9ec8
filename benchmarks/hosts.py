"""The part that goes from host to host: two network namespaces with 1 Gbit between them. Needs root."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

from benchmarks.running import ROOT, Launch, Run, run
from benchmarks.settings import Settings

SCRIPT = ROOT / "benchmarks" / "micro" / "across.py"
MEGABYTES = 40
BANDWIDTH = 1e9 / 8
# 256 kB at once: the timer of the kernel is too coarse to hold this rate with less.
_LIMIT = ("tbf", "rate", "1gbit", "burst", "256kb", "latency", "50ms")
_LINK = "eth0"


def missing() -> str | None:
    """Why there can be no network namespaces here, or None."""
    if os.getuid() != 0:
        return "network namespaces need root"
    if not (shutil.which("ip") and shutil.which("tc")):
        return "needs ip and tc (iproute2)"
    return None


@contextmanager
def two_hosts() -> Iterator[list[str]]:
    """Namespaces, 10.77.0.1 and 10.77.0.2, with 1 Gbit between them."""
    mark = uuid.uuid4().hex[:8]
    names = [f"argosy-{mark}-{host}" for host in (1, 2)]
    try:
        for name in names:
            _do("ip", "netns", "add", name)
        ends = ("type", "veth", "peer", "name", _LINK, "netns", names[1])
        _do("ip", "link", "add", _LINK, "netns", names[0], *ends)
        for host, name in enumerate(names, start=1):
            _do("ip", "-n", name, "addr", "add", f"10.77.0.{host}/24", "dev", _LINK)
            _do("ip", "-n", name, "link", "set", "lo", "up")
            _do("ip", "-n", name, "link", "set", _LINK, "up")
            _do("ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", _LINK, "root", *_LIMIT)
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True, timeout=20)


def _do(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, timeout=20)


def measure_hosts(settings: Settings) -> dict[str, Any]:
    """Seconds, by round and by way, of what moves so many bytes between two hosts."""
    nbytes = 4 * min(MEGABYTES * 250_000, settings.most_floats)
    result: dict[str, Any] = {"kind": "hosts", "bytes": nbytes, "ideal": nbytes / BANDWIDTH, "seconds": {}}
    if (reason := missing()) is not None:
        settings.say(f"hosts: left out, {reason}")
        return result | {"skipped": reason}
    with two_hosts() as names:
        for number in range(settings.rounds):
            for way, taken in _round(settings, names, nbytes).items():
                result["seconds"].setdefault(way, []).append(median(taken))
                settings.say(f"two hosts, round {number + 1}: {way} {1e3 * median(taken):.0f} ms")
    return result


def _round(settings: Settings, names: list[str], nbytes: int) -> dict[str, list[float]]:
    out = settings.out()
    repeats = max(3, settings.repeats // max(1, settings.rounds))
    words = ("--floats", str(nbytes // 4), "--repeats", str(repeats), "--out", str(out))
    addresses = [f"10.77.0.{host}:15001" for host in (1, 2)]
    task = ("--insecure", "--job_name=worker", f"--worker_hosts={','.join(addresses)}")
    script = (sys.executable, str(SCRIPT), *words, *task)
    launches = [
        Launch(f"worker-{index}", ("ip", "netns", "exec", name, *script, f"--task_index={index}"))
        for index, name in enumerate(names)
    ]
    environ = {"GLOO_SOCKET_IFNAME": _LINK, "ARGOSY_INSECURE": "1"}
    plan = Run(launches, out, ["worker-0.json", "worker-1.json"], settings.start_limit, environ=environ)
    files: list[dict[str, list[float]]] = run(plan).files
    return files[0]
