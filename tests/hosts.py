"""Two hosts for tests: network namespaces with 1 Gbit between them. They need root."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import uuid

import pytest

needed = [
    pytest.mark.skipif(os.getuid() != 0, reason="network namespaces need root"),
    pytest.mark.skipif(not (shutil.which("ip") and shutil.which("tc")), reason="needs ip and tc (iproute2)"),
]


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, timeout=20)


class Hosts:
    """Two namespaces, 10.77.0.1 and 10.77.0.2."""

    def __init__(self) -> None:
        mark = uuid.uuid4().hex[:8]
        self.names = [f"argosy-{mark}-{host}" for host in (1, 2)]
        links = [f"av{mark}{host}" for host in (1, 2)]
        for name in self.names:
            _run("ip", "netns", "add", name)
        _run("ip", "link", "add", links[0], "type", "veth", "peer", "name", links[1])
        for host, (name, link) in enumerate(zip(self.names, links, strict=True), start=1):
            _run("ip", "link", "set", link, "netns", name)
            _run("ip", "-n", name, "addr", "add", f"10.77.0.{host}/24", "dev", link)
            _run("ip", "-n", name, "link", "set", "lo", "up")
            _run("ip", "-n", name, "link", "set", link, "up")
            limit = ("tbf", "rate", "1gbit", "burst", "256kb", "latency", "50ms")
            _run("ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", link, "root", *limit)

    @classmethod
    def make(cls) -> Hosts:
        """Two hosts, or the reason why there are none."""
        try:
            return cls()
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no network namespaces here: {error.stderr.decode().strip()}")

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

    def close(self) -> None:
        """Remove them."""
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True, timeout=20)
