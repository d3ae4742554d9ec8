"""torch's own distributed tests on the backend, beside Gloo: what passes there passes here, or is listed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(1500)]
PROGRAM = Path(__file__).with_name("torch_suite.py")
ANY_SOURCE = "src: expected the rank to receive from, got None"
# Features that are not there, and what is said about them.
MISSING = {
    "test_send_recv_any_source": ANY_SOURCE,
    "test_send_recv_any_source_autograd_profiler": ANY_SOURCE,
    "test_send_recv_any_source_torch_profiler": ANY_SOURCE,
    # Asks for the name that the tests were told.
    "test_get_backend": "'argosy' != 'gloo'",
    # torch has it for groups of Gloo only, and asks for the name.
    "test_monitored_barrier_gloo": "monitored_barrier is only implemented for GLOO backend",
    "test_monitored_barrier_gloo_subgroup": "monitored_barrier is only implemented for GLOO backend",
    "test_monitored_barrier_gloo_rank_0_timeout": "No backend type associated with device type cpu",
}


def outcomes(backend: str, folder: Path) -> dict[str, tuple[str, str]]:
    """How each test ended, and why, by its name."""
    folder.mkdir()
    with (folder / "log").open("w") as log:
        ended = subprocess.run(
            [sys.executable, str(PROGRAM), backend, str(folder)],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            timeout=700,
        )
    assert ended.returncode == 0, (folder / "log").read_text()[-2000:]
    told = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
    return {each["test"]: (each["how"], each["why"]) for each in told}


def test_what_passes_on_gloo_passes_here(tmp_path: Path) -> None:
    theirs, ours = (outcomes(backend, tmp_path / backend) for backend in ("gloo", "argosy"))
    passed = {name for name, (how, _) in theirs.items() if how == "passed"}
    assert len(passed) > 80
    assert passed >= MISSING.keys()
    wrong = {name: ours[name][1][-3000:] for name in passed - MISSING.keys() if ours[name][0] != "passed"}
    assert not wrong
    for name, reason in MISSING.items():
        how, why = ours[name]
        assert how == "failed", f"{name} passes now: take it from the list"
        assert reason in why, why
