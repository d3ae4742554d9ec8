"""Hosts for tests: network namespaces with 1 Gbit between them. They need root."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence

import pytest

needed = [
    pytest.mark.skipif(os.getuid() != 0, reason="network namespaces need root"),
    pytest.mark.skipif(not (shutil.which("ip") and shutil.which("tc")), reason="needs ip and tc (iproute2)"),
]
needed_to_break = [
    *needed,
    pytest.mark.skipif(not shutil.which("nft"), reason="needs nft (nftables)"),
]
_LIMIT = ("tbf", "rate", "1gbit", "burst", "256kb", "latency", "50ms")
# So long every packet of a connection that is to break is answered with a reset.
_RESET_FOR = 0.04


def _run(*words: str) -> str:
    done = subprocess.run(words, check=True, capture_output=True, timeout=20)
    return done.stdout.decode()


class Hosts:
    """Namespaces, 10.77.0.1, 10.77.0.2 and so on, all at one switch."""

    def __init__(self, count: int) -> None:
        mark = uuid.uuid4().hex[:8]
        self._switch = f"argosy-{mark}-switch"
        self.names = [f"argosy-{mark}-{host}" for host in range(1, count + 1)]
        try:
            self._make(mark)
        except subprocess.CalledProcessError:
            self.close()
            raise

    def _make(self, mark: str) -> None:
        for name in (self._switch, *self.names):
            _run("ip", "netns", "add", name)
        _run("ip", "-n", self._switch, "link", "add", "switch", "type", "bridge")
        _run("ip", "-n", self._switch, "link", "set", "switch", "up")
        for host, name in enumerate(self.names, start=1):
            link, port = f"av{mark}{host}", f"ap{mark}{host}"
            there = ("peer", "name", port, "netns", self._switch)
            _run("ip", "link", "add", link, "netns", name, "type", "veth", *there)
            _run("ip", "-n", self._switch, "link", "set", port, "master", "switch", "up")
            _run("ip", "-n", name, "addr", "add", f"{self.address(host)}/24", "dev", link)
            _run("ip", "-n", name, "link", "set", "lo", "up")
            _run("ip", "-n", name, "link", "set", link, "up")
            _run("ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", link, "root", *_LIMIT)

    @classmethod
    def make(cls, count: int = 2) -> Hosts:
        """So many hosts, or the reason why there are none."""
        try:
            return cls(count)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no network namespaces here: {error.stderr.decode().strip()}")

    def address(self, host: int) -> str:
        """Where a host is reached; they are counted from 1."""
        return f"10.77.0.{host}"

    def start(self, host: int, *words: str, **environ: str) -> subprocess.Popen[str]:
        """Python on one of them, with one thread; its output in one stream."""
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("ARGOSY_", "TF_"))}
        return subprocess.Popen(
            ["ip", "netns", "exec", self.names[host - 1], sys.executable, *words],
            env=clean | {"OMP_NUM_THREADS": "1"} | environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def break_connections(self, one: int, other: int) -> None:
        """Reset TCP connections between two hosts on which anything is sent, for a moment; one at least."""
        with self.resetting(one, other):
            deadline = time.monotonic() + 20
            time.sleep(_RESET_FOR)
            while not self._resets(one, other) + self._resets(other, one):
                assert time.monotonic() < deadline, f"nothing goes between host {one} and host {other}"
                time.sleep(_RESET_FOR)

    def resetting(self, one: int, other: int) -> contextlib.AbstractContextManager[None]:
        """As long as this lasts, whatever is sent between two hosts is answered with a reset."""
        return self._rejecting(((one, other), (other, one)), "reject", "with", "tcp", "reset")

    def losing_packets(
        self, one: int, other: int, both_ways: bool = True
    ) -> contextlib.AbstractContextManager[None]:
        """As long as this lasts, no packet of one host comes to another, nor back if it is `both_ways`."""
        pairs = ((one, other), (other, one))
        return self._rejecting(pairs if both_ways else pairs[:1], "drop")

    @contextlib.contextmanager
    def _rejecting(self, pairs: Sequence[tuple[int, int]], *verdict: str) -> Iterator[None]:
        for here, there in pairs:
            table = ("inet", f"to-{there}")
            self._nft(here, "add", "table", *table)
            self._nft(here, "add", "chain", *table, "out", "{ type filter hook output priority 0; }")
            which = ("ip", "daddr", self.address(there), "meta", "l4proto", "tcp")
            self._nft(here, "add", "rule", *table, "out", *which, "counter", *verdict)
        try:
            yield
        finally:
            for here, there in pairs:
                self._nft(here, "delete", "table", "inet", f"to-{there}")

    def _resets(self, here: int, there: int) -> int:
        """How many packets were answered with a reset."""
        told = json.loads(self._nft(here, "--json", "list", "table", "inet", f"to-{there}"))
        parts = [part for entry in told["nftables"] for part in entry.get("rule", {}).get("expr", ())]
        return sum(int(part["counter"]["packets"]) for part in parts if "counter" in part)

    def _nft(self, host: int, *words: str) -> str:
        return _run("ip", "netns", "exec", self.names[host - 1], "nft", *words)

    def close(self) -> None:
        """Remove them."""
        for name in (*self.names, self._switch):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True, timeout=20)
