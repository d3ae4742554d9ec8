"""The evaluator: follows the checkpoints of a job, evaluates each new one, and leaves after the last."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from argosy.checkpoint import folder
from argosy.checkpoint.tensor_reader import load
from argosy.cluster.launcher import raise_failure_elsewhere
from argosy.cluster.settings import NOTICE_EVERY
from argosy.errors import CheckpointDamaged, ConfigError, WaitTimeout
from argosy.events import say, say_waiting
from argosy.replica.exchange import Training
from argosy.replica.optimizer import DistributedOptimizer
from argosy.replica.worker import Worker
from argosy.session.batch_feed import Resuming
from argosy.session.session import Session

T = TypeVar("T")
Evaluate = Callable[[nn.Module], Any]
_LOOK_EVERY = 0.25


class EvaluatorSession(Session):
    """What `replica.session` gives in an evaluator, which does its work on entering: no batches come."""

    def __init__(
        self,
        replica: Worker,
        optimizer: DistributedOptimizer,
        training: Training,
        evaluate: Evaluate | None,
        wait: float,
    ) -> None:
        super().__init__(replica, optimizer, training)
        if evaluate is None:
            raise ConfigError("evaluate", "a function of the model", None, "session(evaluate=...)")
        if training.keeping is None:
            raise ConfigError("directory", "that of the job's checkpoints", None, "session(directory=...)")
        self._evaluate = evaluate
        self._directory = Path(training.keeping.directory)
        self._wait = wait
        self._step = 0

    def __enter__(self) -> EvaluatorSession:
        for saved in self._checkpoints():
            self._evaluate_one(saved)
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Nothing is left to do."""

    def _checkpoints(self) -> Iterator[folder.Saved]:
        """Every new one, the oldest first, until the last step is evaluated or the job has ended."""
        started = time.monotonic()
        running = False
        while True:
            over = not folder.is_written_to(self._directory)  # asked first: the last one may come just before
            new = [each for each in folder.saved(self._directory) if each.step > self._step]
            if new:
                yield new[0]
                if self.last_step is not None and self._step >= self.last_step:
                    return
                continue
            if over and (running or self._step):
                return
            running |= not over
            raise_failure_elsewhere()
            if not running:
                self._wait_for_job(started)
            time.sleep(_LOOK_EVERY)

    def _wait_for_job(self, started: float) -> None:
        waited = time.monotonic() - started
        if waited > self._wait:
            what = f"the first checkpoint in {self._directory}"
            raise WaitTimeout(f"{self.replica.task} gave up waiting", [what], self._wait)
        if int(waited / NOTICE_EVERY) > int((waited - _LOOK_EVERY) / NOTICE_EVERY):
            say_waiting(f"the first checkpoint in {self._directory}", waited)

    def _evaluate_one(self, saved: folder.Saved) -> None:
        self._step = saved.step
        model = self._training.model
        try:
            values = load(saved.path)
        except CheckpointDamaged as error:  # or removed meanwhile, as too old
            if saved.path.exists():
                say(str(error))
            return
        if model is None:
            raise ConfigError("model", "the model of the job", None)
        model.load_state_dict(values)
        training = model.training
        model.eval()
        with torch.no_grad():
            result = self._evaluate(model)
        model.train(training)
        self._write(saved.step, _plain(result))

    def _write(self, step: int, result: Any) -> None:
        """Beside the checkpoint, where it stays when the checkpoint is too old."""
        record = {"step": step, "time": time.time(), "result": result}
        path = self._directory / f"step-{step}.evaluation.json"
        whole = path.with_name(f".{path.name}")
        whole.write_text(json.dumps(record) + "\n", encoding="utf-8")
        whole.replace(path)
        say(f"evaluated step {step}: {json.dumps(result)}")

    @property
    def global_step(self) -> int:
        """The step that was evaluated last."""
        return self._step

    @property
    def should_stop(self) -> bool:
        """Always: an evaluator does not train."""
        return True

    def batches(
        self, loader: Iterable[T], epochs: int | None = None, resume: Resuming = "leave"
    ) -> Iterator[T]:
        """None: an evaluator does not train."""
        return iter(())


def _plain(result: Any) -> Any:
    """Numbers of what an evaluation returned; raises ConfigError for what cannot be written."""
    if isinstance(result, torch.Tensor):
        return result.tolist()
    if isinstance(result, dict):
        return {str(key): _plain(value) for key, value in result.items()}
    if isinstance(result, list | tuple):
        return [_plain(value) for value in result]
    if result is None or isinstance(result, bool | int | float | str):
        return result
    raise ConfigError("the result of evaluate", "numbers, or a mapping of names to numbers", type(result))
