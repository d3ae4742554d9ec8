"""Runs a remote program twice: on tasks of a cluster, and as plain PyTorch, where devices mean nothing.

Both run the same text. What is compared has the same bits, as the pages say.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from io import StringIO
from types import SimpleNamespace
from typing import Any

import torch
from model_text import model_text
from programs import Program
from remote_programs import TASKS, RemoteProgram
from torch import Tensor, nn

import argosy


def render_remote(program: RemoteProgram) -> str:
    """The script that a person can run: the cluster is `argosy run --serve`'s."""
    return "\n".join(
        [
            f"# Seed {program.seed} of tests/differential, remote.",
            "# Run: argosy run --serve --ps 1 --workers 2 program.py",
            "import torch",
            "from torch import nn",
            "",
            "import argosy",
            "",
            _model_text(program),
            "def pick(values, index):",
            "    return torch.index_select(values, 0, index)",
            "",
            "with argosy.connect() as client:",
            *(f"    {line}".rstrip() for line in body_remote(program).splitlines()),
            "print(seen[-1], {name: value.sum().item() for name, value in state.items()})",
        ]
    )


def _model_text(program: RemoteProgram) -> str:
    return model_text(Program(program.seed, (), parts=program.parts))


def body_remote(program: RemoteProgram) -> str:
    """The training: needs `client`, `pick` and the model."""
    return "\n".join([*_setup(program), *_step(program), *_calls(program)]) + "\n"


def _setup(program: RemoteProgram) -> Iterator[str]:
    yield f'HOME, AWAY = "{TASKS[program.home]}", "{TASKS[program.away]}"'
    yield "model = argosy.place(fill(Model(), seed=0), HOME)"
    yield f"optimizer = torch.optim.{program.optimizer}"
    if program.counts:
        yield "counter = argosy.place(torch.zeros(4), HOME)"


def _step(program: RemoteProgram) -> Iterator[str]:
    uses = "branch" in program.parts
    yield f"def step(x, factor, index{', branch' if uses else ''}):"
    yield "    with argosy.device(AWAY):"
    yield "        optimizer.zero_grad()"
    yield f"        loss = factor * model(x{', branch' if uses else ''})"
    yield "        loss.backward()"
    if program.counts:
        yield "        before = counter + 0"
    yield "    with argosy.device(HOME):"
    if program.counts:
        yield "        picked = pick(counter, index)"
        yield "        counter.add_(1)"
        yield "        picked = picked.sum()"
    if program.clips:
        yield "        nn.utils.clip_grad_norm_(model.parameters(), 0.3)"
    yield "        optimizer.step()"
    yield f"    return loss.detach(){', before, picked' if program.counts else ''}"
    if program.captured:
        yield "step = argosy.capture(step)"


def _calls(program: RemoteProgram) -> Iterator[str]:
    uses = "branch" in program.parts
    plan = [
        (call.factor, 9 if call.fails else 1, call.waits, *([call.branch] if uses else []))
        for call in program.calls
    ]
    extra = ", branch" if uses else ""
    yield "seen = []"
    yield f"for number, (factor, index, waits{extra}) in enumerate({plan}):"
    call = f"step(data(number, 0, 0, 3), factor, torch.tensor([index]){extra})"
    if program.counts:
        yield f"    loss, before, picked = {call}"
        yield "    seen.append(before)"
        yield "    if index == 9:"
        yield "        for ask in (picked.item, client.synchronize):"
        yield "            try:"
        yield "                ask()"
        yield "            except argosy.RemoteError:"
        yield "                pass"
    else:
        yield f"    loss = {call}"
    yield "    seen.append(loss.cpu() if waits else loss)"
    if program.grads:
        yield "    seen += [p.grad.cpu().clone() for p in model.parameters() if p.grad is not None]"
    yield "seen = [value.cpu() for value in seen]"
    yield "state = argosy.fetch(model.state_dict())"


# --- both sides -------------------------------------------------------------------------------------------
def _execute(program: RemoteProgram, **names: Any) -> tuple[list[Tensor], dict[str, Tensor]]:
    namespace: dict[str, Any] = {"torch": torch, "nn": nn, **names}
    text = _model_text(program) + "\n" + body_remote(program)
    exec(compile(text, f"remote seed {program.seed}", "exec"), namespace)
    return namespace["seen"], {name: value.clone() for name, value in namespace["state"].items()}


def reference_remote(program: RemoteProgram) -> tuple[list[Tensor], dict[str, Tensor]]:
    """In plain PyTorch: an operation that fails does nothing but to those who ask for its value."""
    plain = SimpleNamespace(
        place=lambda value, device: value,
        fetch=lambda state: state,
        capture=lambda step: step,
        device=lambda name: contextlib.nullcontext(),
        RemoteError=RuntimeError,
    )

    def pick(values: Tensor, index: Tensor) -> Tensor:
        return values[index % len(values)].clone()

    client = SimpleNamespace(synchronize=lambda: None)
    return _execute(program, argosy=plain, pick=pick, client=client)


def run_remote(program: RemoteProgram, wait: float) -> tuple[list[Tensor], dict[str, Tensor]]:
    """On tasks in threads of this process, over real sockets."""

    def pick(values: Tensor, index: Tensor) -> Tensor:
        return torch.index_select(values, 0, index)

    with contextlib.redirect_stderr(StringIO()), contextlib.ExitStack() as stack:
        target = _cluster(stack)
        client = stack.enter_context(argosy.connect(target, wait=wait))
        return _execute(program, argosy=argosy, pick=pick, client=client)


def _cluster(stack: contextlib.ExitStack) -> str:
    bound = {job: [socket.create_server(("127.0.0.1", 0)) for _ in range(n)] for job, n in _JOBS.items()}
    spec = {job: [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets] for job, sockets in bound.items()}
    for job, sockets in bound.items():
        for index, each in enumerate(sockets):
            stack.enter_context(argosy.Server(spec, job, index, listen_fd=each.detach()))
    return spec["ps"][0]


_JOBS = {"ps": 1, "worker": 2}


def remote_differences(program: RemoteProgram, wait: float = 20.0) -> list[str]:
    """What is not as in plain PyTorch; an error is a difference too."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    expected, right = reference_remote(program)
    try:
        got, state = run_remote(program, wait)
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]
    if len(got) != len(expected):
        return [f"values seen: expected {len(expected)}, got {len(got)}"]
    pairs = [(f"value {n}", mine, theirs) for n, (mine, theirs) in enumerate(zip(got, expected, strict=True))]
    pairs += [(name, state[name], value) for name, value in right.items()]
    return [
        f"{name}: expected {theirs.flatten()[:4].tolist()}, got {mine.flatten()[:4].tolist()}"
        for name, mine, theirs in pairs
        if not torch.equal(mine, theirs)
    ]
