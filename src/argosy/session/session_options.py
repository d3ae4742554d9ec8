"""What a session is told about saving and beginning, checked before anything starts."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from argosy.checkpoint.safetensors import Reader
from argosy.errors import ConfigError
from argosy.replica.exchange import Keeping

SAVE_SECONDS = 600.0


def plan(
    directory: str | os.PathLike[str] | None,
    save_every: int | None,
    save_seconds: float | None,
    keep: int,
) -> tuple[Keeping | None, float | None]:
    """Where checkpoints are kept, and after how many seconds one is due."""
    if save_every is not None and save_every < 1:
        raise ConfigError("save_every", "a number of updates, 1 or more", save_every)
    if save_seconds is not None and not save_seconds > 0:
        raise ConfigError("save_seconds", "a number of seconds greater than 0", save_seconds)
    if keep < 1:
        raise ConfigError("keep", "a number of checkpoints, 1 or more", keep)
    if directory is None:
        if save_every is not None or save_seconds is not None:
            raise ConfigError("directory", "a place for the checkpoints", None, "session(directory=...)")
        return None, None
    if save_every is None and save_seconds is None:
        save_seconds = SAVE_SECONDS
    return Keeping(str(Path(directory).absolute()), save_every, keep), save_seconds


def initial_values(model: nn.Module, path: str | os.PathLike[str]) -> Callable[[], None]:
    """Reads a `state_dict` from a file, now; what it returns puts it into the model."""
    file = Path(path)
    try:
        if file.suffix == ".safetensors":
            reader = Reader(file)
            values = {name: reader.read(name) for name in reader.places}
        else:
            values = torch.load(file, map_location="cpu", weights_only=True)
    except OSError as error:
        raise ConfigError("initial", "a file with a state_dict", f"{file}: {error.strerror}") from None
    except Exception as error:  # torch raises anything at all for a file that is none of its own
        why = str(error).partition("\n")[0] or type(error).__name__
        remedy = "save model.state_dict(), not the model"
        raise ConfigError("initial", "a file with a state_dict", f"{file}: {why}", remedy) from None

    def put() -> None:
        try:
            model.load_state_dict(values)
        except (RuntimeError, AttributeError, TypeError) as error:
            raise ConfigError("initial", "a state_dict of this model", " ".join(str(error).split())) from None

    return put
