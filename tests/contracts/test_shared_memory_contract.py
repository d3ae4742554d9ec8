"""What holds for all that shares memory: the servers' channel, remote devices, the ring."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from memory_peers import COUNT, FENCED, READERS

from argosy.shared_memory import counters

ROUNDS = 300


@pytest.mark.processes
@pytest.mark.parametrize("way", READERS)
def test_a_reader_sees_all_that_was_written_for_it_and_nothing_newer(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time the writer fills the memory with the next number: a mix of two is too early or too late.

    Nothing is asleep for good, either: a bell that was missed ends this with "nobody rings".
    """
    monkeypatch.setattr(counters, "ORDERED", counters.ORDERED and way != FENCED)
    peers: list[subprocess.Popen[bytes]] = []

    def start(name: str) -> None:
        script = Path(__file__).with_name("memory_peers.py")
        peers.append(subprocess.Popen([sys.executable, str(script), way, name, str(ROUNDS)]))

    try:
        for number, tensor in enumerate(READERS[way](start, ROUNDS), 1):
            low, high = tensor.aminmax()
            assert (len(tensor), int(low), int(high)) == (COUNT, number, number)
            del tensor
        assert number == ROUNDS
        assert peers[0].wait(60) == 0
    finally:
        for peer in peers:
            peer.kill()
            peer.wait()
