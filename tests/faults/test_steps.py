"""Steps that workers make in different ways, as real processes: all end with the same number."""

from __future__ import annotations

import pytest
from jobs import Jobs, RunningTask, jobs

__all__ = ["jobs"]

pytestmark = [pytest.mark.processes, pytest.mark.timeout(90)]

STEPS = """
import sys
import torch, argosy

what = sys.argv[1]
replica = argosy.join()
used, idle = torch.nn.Parameter(torch.zeros(1)), torch.nn.Parameter(torch.zeros(1))
late = torch.nn.Parameter(torch.full((1,), 10.0 + replica.index))
options = {} if replica.has_servers else {"overlap": what != "scaler"}
optimizer = replica.distribute(torch.optim.SGD([used, idle], lr=1.0), **options)
scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
with replica.session(torch.nn.ParameterList([used, idle]), optimizer) as session:
    for turn in range(4):
        odd = replica.index == 1 and turn in (0, 2)
        if what == "every":
            for _ in range(1 if odd else 2):
                if odd:
                    with optimizer.no_sync():
                        (used * 100).sum().backward()
                    optimizer.skip()
                    used.grad = None
                else:
                    optimizer.zero_grad()
                    used.sum().backward()
                    optimizer.step(every=2)
        elif what == "scaler":
            optimizer.zero_grad()
            scaler.scale((used * (float("inf") if odd else 1.0)).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
        elif what == "clip":
            if odd:
                optimizer.skip()
            else:
                optimizer.zero_grad()
                (used * 2.0**20).sum().backward()
                torch.nn.utils.clip_grad_norm_([used], 1.0)
                optimizer.step()
        elif what == "stale":
            if turn == 0:
                (used + idle).sum().backward()
                optimizer.step()
            elif replica.index == 1 and turn == 1:
                optimizer.skip()  # without zero_grad
            else:
                optimizer.zero_grad()
                used.sum().backward()
                optimizer.step()
        elif what == "group":
            if turn == 1:
                optimizer.add_param_group({"params": [late]})
            if turn == 1 and replica.index == 0:
                optimizer.skip()
            else:
                optimizer.zero_grad()
                (used + (late if turn else 0)).sum().backward()
                optimizer.step()
    replica.barrier()
print(f"done {used.item():.3f} {idle.item():.3f} {late.item():.3f}", flush=True)
"""


@pytest.mark.parametrize(
    ("mode", "what", "expected"),
    [
        ("ring", "every", "-4.000 0.000"),
        pytest.param("ring", "scaler", "-4.000 0.000", marks=pytest.mark.faults),
        pytest.param("ring", "clip", "-4.000 0.000", marks=pytest.mark.faults),
        ("ring", "stale", "-4.000 -1.000"),
        pytest.param("ring", "group", "-4.000 0.000 7.000", marks=pytest.mark.faults),
        ("sync", "group", "-4.000 0.000 7.000"),
        ("sync", "scaler", "-4.000 0.000"),
    ],
)
def test_every_worker_makes_the_right_step(jobs: Jobs, mode: str, what: str, expected: str) -> None:
    launcher = run(jobs, mode, STEPS, what)
    assert launcher.wait() == 0, launcher
    assert launcher.out.count(f"done {expected}") == 2, launcher


def run(jobs: Jobs, mode: str, script: str, *words: object, **settings: str) -> RunningTask:
    servers = 0 if mode == "ring" else 2
    command = ["-m", "argosy.cli", "run", "--ps", servers, "--workers", 2, "--mode", mode]
    logs = ["--log-dir", jobs.folder / "logs"]
    return jobs.start(
        "launcher", [*command, *logs, jobs.script(script), *words], ARGOSY_WAIT="20", **settings
    )


# Python gives the identity of the first gradient to the second one in most of these turns.
THROWN_AWAY = """
import torch, argosy
replica = argosy.join()
model = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(5)) for _ in range(2)])
optimizer = replica.distribute(torch.optim.SGD(model.parameters(), lr=1.0), overlap=True)
with replica.session(model, optimizer):
    for _ in range(50):
        optimizer.zero_grad()
        (sum(p.sum() for p in model) * 100).backward()
        ids = [id(p.grad) for p in model.parameters()]
        optimizer.zero_grad()
        sum(p.sum() for p in model).backward()
        hits = sum(a == id(p.grad) for a, p in zip(ids, model.parameters()))
        optimizer.step()
print("done", [p[0].item() for p in model], flush=True)
"""


def test_a_gradient_that_was_thrown_away_is_not_applied(jobs: Jobs) -> None:
    launcher = run(jobs, "sync", THROWN_AWAY, ARGOSY_LANE="network")
    assert launcher.wait() == 0, launcher
    assert launcher.out.count("done [-50.0, -50.0]") == 2, launcher
