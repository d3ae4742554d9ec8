"""What only long runs show: how well the full digits are learnt, and that nothing grows. `make soak`.

Left out of `make test`: each takes a minute or more, and the full digits are not part of the project.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from statistics import median

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]

# Many pushes of little work: 100,000 updates of a small model, two servers, two workers.
SMALL = """
import torch
import argosy

replica = argosy.join()
model = torch.nn.Linear(100, 100)
optimizer = replica.distribute(torch.optim.Adam(model.parameters(), lr=1e-4))
for parameter in model.parameters():
    parameter.grad = torch.full_like(parameter, 1e-3)
with replica.session(model, optimizer, last_step=100_000) as session:
    for _ in session.batches([0]):
        optimizer.step()
        if session.global_step >= 100_000:
            print("reached", session.global_step, flush=True)
"""


def run(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "argosy.cli", "run", *arguments]


def full_digits() -> Path:
    folder = Path(os.environ.get("ARGOSY_TEST_DATA", ROOT.parent / "shared" / "data" / "mnist"))
    if not folder.is_dir():
        pytest.skip("the full MNIST files are not here: name their folder by ARGOSY_TEST_DATA")
    return folder


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("mode", "steps"), [("async", 10_000), ("sync", 8_000)])
def test_the_full_digits_are_learnt(mode: str, steps: int) -> None:
    command = run("--ps", "2", "--workers", "2", "--mode", mode, str(ROOT / "examples" / "mnist.py"))
    command += ["--steps", str(steps), "--data", str(full_digits())]
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=560).stdout
    results = re.findall(r"After (\d+) training step\(s\), .* accuracy = ([\d.]+)", output)
    print(mode, results)
    assert [int(count) for count, _ in results] == [steps, steps]
    assert all(float(accuracy) >= 0.97 for _, accuracy in results)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("lane", ["auto", "network"])
def test_nothing_grows_over_100_000_steps(lane: str, tmp_path: Path) -> None:
    script = tmp_path / "small.py"
    script.write_text(SMALL)
    command = run("--ps", "2", "--workers", "2", "--mode", "async", str(script))
    environ = {**os.environ, "ARGOSY_LANE": lane}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ) as process:
        assert process.stdout is not None
        lines = process.stdout
        pids: dict[int, str] = {}
        while len(pids) < 4:
            if started := re.match(r"started (\S+) pid (\d+)", lines.readline()):
                pids[int(started[2])] = started[1]
        sizes: dict[int, list[int]] = {pid: [] for pid in pids}
        ended = threading.Event()
        watch = threading.Thread(target=_watch, args=(sizes, ended))
        watch.start()
        reached = [line for line in lines if "reached 100000" in line]
        ended.set()
        watch.join()
    assert process.returncode == 0
    assert len(reached) == 2
    for pid, seen in sizes.items():
        quarter = len(seen) // 4
        growth = median(seen[3 * quarter :]) - median(seen[quarter : 2 * quarter])
        print(f"{lane}: {pids[pid]} {max(seen) / 2**20:.0f} MB, {growth / 2**20:+.2f} MB from half to end")
        assert growth < 2 * 2**20, f"{pids[pid]} grew by {growth} bytes"


def _watch(sizes: dict[int, list[int]], ended: threading.Event) -> None:
    """Note the memory of each process every quarter of a second while it lives."""
    while not ended.wait(0.25):
        for pid, seen in sizes.items():
            try:
                seen.append(psutil.Process(pid).memory_info().rss)
            except psutil.NoSuchProcess:
                continue
