"""Runs the text of a program on Argosy, all workers in threads of this process, and notes how it ends."""

from __future__ import annotations

import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from model_text import model_text
from programs import Phase, Program
from reference import Ended, Final
from rendering import body, mode_text
from torch import nn

import argosy
from argosy.entry import Replica
from argosy.testing import LocalCluster
from local_ring import in_ring

Script = Callable[[Replica], Final]


def run(program: Program, wait: float = 20.0) -> list[Ended]:
    """How each phase ends; raises what the program raises."""
    code = compile(model_text(program) + body(program), f"seed {program.seed}", "exec")
    with tempfile.TemporaryDirectory(prefix="differential-") as directory, redirect_stderr(StringIO()):
        ends = []
        for number, phase in enumerate(program.phases):

            def script(replica: Replica, number: int = number) -> Final:
                return _execute(code, replica, number, directory)

            finals = _start(phase, script, wait)
            ends.append(_ended(program, finals, directory))
        return ends


def _execute(code: Any, replica: Replica, phase: int, directory: str) -> Final:
    namespace: dict[str, Any] = {
        "torch": torch,
        "nn": nn,
        "argosy": argosy,
        "replica": replica,
        "PHASE": phase,
        "DIRECTORY": directory,
        "print": lambda *_: None,
    }
    exec(code, namespace)
    model: nn.Module = namespace["model"]
    values = {name: value.detach().clone() for name, value in model.state_dict().items()}
    return Final(values, namespace["verdicts"], namespace["average"], namespace["kept"], namespace["seen"])


def _ended(program: Program, finals: list[Final], directory: str) -> Ended:
    if not program.saves or not any(Path(directory).glob("step-*")):
        return Ended(finals)
    average = argosy.load(directory, average=True) if program.average is not None else None
    return Ended(finals, argosy.load(directory), average)


def _start(phase: Phase, script: Script, wait: float) -> list[Final]:
    with warnings.catch_warnings():
        # A worker whose first turn is a skip steps its scheduler before its optimizer.
        warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step")
        if phase.way == "local":
            return [script(_alone())]
        if phase.way == "ring":
            return in_ring(phase.workers, script, wait)
        mode = eval(mode_text(phase), {"argosy": argosy})
        cluster = LocalCluster(phase.servers, phase.workers, mode, lane=phase.lane, wait=wait)
        return cluster.run(script)


def _alone() -> Replica:
    words, sys.argv = sys.argv, ["program.py"]
    try:
        return argosy.join()
    finally:
        sys.argv = words


def orders(program: Program) -> Sequence[Sequence[int]]:
    """The order of the rows in each epoch, as a loader of a replica alone deals them, one by one."""
    if program.feed is None:
        return ()
    rows = torch.utils.data.TensorDataset(torch.arange(program.feed.rows))
    loader = _alone().loader(rows, batch_size=1, seed=3)
    return [[int(row) for (row,) in loader] for _ in range(sum(program.feed.calls))]
