"""The example, as a user runs it: alone, and refused in one line when it is called wrongly."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from idx_files import ROOT

EXAMPLE = ROOT / "examples" / "mnist.py"
pytestmark = pytest.mark.processes


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLE), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


def test_alone_it_learns_and_says_so() -> None:
    done = run("--steps", "300")
    assert done.returncode == 0, done.stderr
    progress, elapsed, result = done.stdout.splitlines()[:3], *done.stdout.splitlines()[3:]
    for step, line in zip((100, 200, 300), progress, strict=True):
        words = rf"Worker 0: training step {step} done \(global step: {step}\), loss \d+\.\d{{4}}"
        assert re.fullmatch(rf"\d+\.\d{{6}}: {words}", line)
    assert re.fullmatch(r"Training elapsed time: \d+\.\d{6} s", elapsed)
    words = r"After 300 training step\(s\), validation cross entropy = (\S+), accuracy = (\S+)"
    found = re.fullmatch(words, result)
    assert found is not None, result
    assert float(found[1]) < 1
    assert float(found[2]) > 0.8


@pytest.mark.slow
def test_a_seed_repeats_a_run_alone() -> None:
    first, again, other = (run("--steps", "20", "--seed", seed).stdout.splitlines()[-1] for seed in "445")
    assert first == again != other


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--steps", "many"], "--steps"),
        (["--batch", "0"], "batch_size: expected"),
        (["--data", "nowhere"], "data: expected a folder at nowhere"),
    ],
)
def test_a_wrong_call_is_refused_in_one_line(arguments: list[str], complaint: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert complaint in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_the_demo_is_the_example() -> None:
    demo = ROOT / "src" / "argosy" / "demo.py"
    assert demo.read_bytes() == EXAMPLE.read_bytes(), (
        "demo.py is a link to examples/mnist.py: check out links"
    )
    assert demo.is_symlink()
    assert not Path(demo.readlink()).is_absolute()
