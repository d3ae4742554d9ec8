"""Calls every operation that a client may name with arguments that do not make sense, as a task would.

    python fuzzing.py SEED COUNT [operations...]

Each operation has a process of its own, which is forked: one that ends by a signal is printed, with what it
was given. Arguments are those of torch's tables of samples, changed here and there, and some made of nothing.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import random
import resource
import signal
import sys
from collections.abc import Iterator
from itertools import chain
from typing import Any

import torch
import torch_tables as tables
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from argosy.remote.operations.allowed import ALLOWED, find_operation
from argosy.remote.operations.instructions import Template, write_argument
from argosy.remote.operations.kernel import Kernel

SAMPLES, LARGEST = 4, 100_000
DTYPES = (
    torch.float32,
    torch.float64,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
    torch.complex64,
    torch.bfloat16,
    torch.int16,
)
INTEGERS = (0, 1, -1, 2, -2, 3, 5, 7, 64, 1000, 2**31, -(2**31), 2**62, -(2**63), 2**63 - 1)
FLOATS = (0.0, -1.0, 1e-30, 1e30, float("nan"), float("inf"), -float("inf"), 0.5, 2.5)
INDICES = (-1, -2, 5, 100, 10**6, -(10**6), 10**12, -(10**12), 2**62, -(2**62))
WORDS = ("mean", "sum", "none", "max", "linear", "reduced", "")
# What belongs to the call and not to the operation.
SET_ASIDE = {"generator", "device", "layout", "pin_memory"}
SECONDS = 3.0
_MEMORY = 6 * 2**30


class Collector(TorchDispatchMode):
    """Keeps a few calls of every operation."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.samples: dict[str, list[tuple[Any, Any]]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        kept = self.samples.setdefault(func.name(), [])
        given = [each for each in tree_flatten((args, kwargs))[0] if isinstance(each, torch.Tensor)]
        if len(kept) < SAMPLES and sum(each.numel() for each in given) < LARGEST:
            with torch._C._DisableTorchDispatch():
                kept.append(tables.copied((tuple(args), dict(kwargs))))
        return func(*args, **kwargs)


class Mutator:
    """Arguments by chance."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)

    def call(self, operation: Any, samples: list[tuple[Any, Any]]) -> tuple[list[Any], dict[str, Any]]:
        """The arguments of a call."""
        chance = self.chance
        if not samples or chance.random() < 0.2:
            return self._out_of_nothing(operation)
        args, kwargs = tables.copied(chance.choice(samples))
        args = list(args)
        for position, argument in enumerate(operation._schema.arguments):
            left_out = position >= len(args) and argument.name not in kwargs | dict.fromkeys(SET_ASIDE)
            if left_out and chance.random() < 0.15:
                kwargs[argument.name] = self._made(argument)
        places = [*range(len(args)), *(name for name in kwargs if name not in SET_ASIDE)]
        for place in chance.choices(places, k=chance.choice((1, 1, 2, 3))) if places else ():
            if isinstance(place, int):
                args[place] = self._changed(args[place])
            else:
                kwargs[place] = self._changed(kwargs[place])
        return args, {name: each for name, each in kwargs.items() if name != "generator"}

    def _out_of_nothing(self, operation: Any) -> tuple[list[Any], dict[str, Any]]:
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for argument in operation._schema.arguments:
            if argument.name in SET_ASIDE:
                continue
            if argument.kwarg_only:
                kwargs[argument.name] = self._made(argument)
            else:
                args.append(self._made(argument))
        return args, kwargs

    def _made(self, argument: Any) -> Any:
        chance, kind = self.chance, str(argument.type)
        if kind.startswith("Optional["):
            if chance.random() < 0.4:
                return None
            kind = kind[9:-1]
        if kind.startswith("List["):
            inner = kind[5:-1].removeprefix("Optional[").removesuffix("]")
            return [self._made_of(inner, argument.name) for _ in range(chance.choice((0, 1, 2, 2, 3, 4)))]
        return self._made_of(kind, argument.name)

    def _made_of(self, kind: str, name: str) -> Any:
        chance = self.chance
        if kind == "Tensor":
            return self.tensor()
        if kind == "int" and "dtype" in name:
            return chance.choice(DTYPES)
        if kind == "int" and name == "memory_format":
            return chance.choice((torch.contiguous_format, torch.preserve_format, torch.channels_last))
        choices: dict[str, Any] = {
            "int": (0, 1, 2, 3, -1, 5, chance.choice(INTEGERS)),
            "bool": (True, False),
            "str": WORDS,
            "Device": (torch.device("cpu"),),
        }
        return chance.choice(choices.get(kind, (*FLOATS, *INTEGERS[:8])))

    def tensor(self, dtype: torch.dtype | None = None, shape: list[int] | None = None) -> torch.Tensor:
        """A small one, with gaps, overlaps and odd values at times."""
        chance = self.chance
        dtype = dtype if dtype in DTYPES else chance.choice(DTYPES)
        if shape is None:
            shape = chance.choices((0, 1, 1, 2, 3, 4, 7), k=chance.choice((0, 1, 1, 2, 2, 3, 4, 5)))
        if dtype is torch.bool:
            made = torch.randint(0, 256, shape, dtype=torch.uint8)
            made = made.view(torch.bool) if chance.random() < 0.5 else made > 128
        elif dtype.is_floating_point or dtype.is_complex:
            made = torch.randn(shape).to(dtype)
            if made.numel() and chance.random() < 0.2:
                made.view(-1)[0] = chance.choice(FLOATS)
        else:
            made = self._with_odd_ones(torch.randint(-3 if dtype.is_signed else 0, 5, shape).to(dtype))
        form = chance.random()
        if form < 0.1 and made.dim() > 1:
            return made.transpose(0, -1)
        if form < 0.15 and made.dim() < 5:
            return made.expand(3, *made.shape)
        return made[::2] if form < 0.2 and made.dim() else made

    def _with_odd_ones(self, tensor: torch.Tensor) -> torch.Tensor:
        flat = tensor.clone().reshape(-1)
        limits = torch.iinfo(tensor.dtype)
        for _ in range(self.chance.choice((0, 1, 1, 3)) if flat.numel() else 0):
            value = self.chance.choice(INDICES)
            flat[self.chance.randrange(flat.numel())] = max(limits.min, min(limits.max, value))
        return flat.reshape(tensor.shape)

    def _changed(self, value: Any) -> Any:
        chance = self.chance
        if isinstance(value, torch.Tensor):
            return self._changed_tensor(value)
        if isinstance(value, bool):
            return chance.random() < 0.5
        if isinstance(value, int):
            return chance.choice(INTEGERS) if chance.random() < 0.6 else value + chance.choice((-1, 1))
        if isinstance(value, float):
            return chance.choice(FLOATS)
        if isinstance(value, torch.dtype):
            return chance.choice(DTYPES)
        return self._changed_list(list(value)) if isinstance(value, list | tuple) else value

    def _changed_list(self, values: list[Any]) -> list[Any]:
        chance, way = self.chance, self.chance.random()
        if not values or way < 0.05:
            return []
        if way < 0.65:
            place = chance.randrange(len(values))
            return [*values[:place], self._changed(values[place]), *values[place + 1 :]]
        if way < 0.8:
            return values[:-1]
        return [*values, values[0]] if way < 0.95 else [self._changed(each) for each in values]

    def _changed_tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        chance, way, shape = self.chance, self.chance.random(), list(tensor.shape)
        if way < 0.35:
            return self.tensor(tensor.dtype, shape)
        if way < 0.5:
            if shape:
                place = chance.randrange(len(shape))
                shape[place] = chance.choice(
                    (0, 1, shape[place] + 1, max(shape[place] - 1, 0), shape[place] * 3)
                )
            return self.tensor(tensor.dtype, shape)
        if way < 0.6:
            return tensor if tensor.is_complex() else tensor.to(chance.choice(DTYPES))
        if way < 0.75:
            return self.tensor(tensor.dtype)
        if way < 0.85:
            return tensor.flatten() if way < 0.8 else tensor[..., None]
        is_index = not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype is torch.bool)
        return self._with_odd_ones(tensor) if is_index else tensor


def attempt(name: str, args: list[Any], kwargs: dict[str, Any], generator: torch.Generator) -> None:
    """Let a task's own code run it, as if a client had asked."""
    tensors = [each for each in _leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
    wire = [write_argument(each, False) for each in args]
    more = {key: write_argument(each, False) for key, each in kwargs.items() if key != "pin_memory"}
    template = Template(0, name, wire, more, len(tensors), 0, "cpu:0", (), None)
    Kernel(template, torch.device("cpu")).call(tensors, [], generator)


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for each in value:
            yield from _leaves(each)
    else:
        yield value


def _show(value: Any) -> str:
    def text(each: Any) -> str:
        if not isinstance(each, torch.Tensor):
            return repr(each)
        few = not each.is_floating_point() and each.numel() <= 12
        return f"{each.dtype}{list(each.shape)}{each.tolist() if few else ''}".removeprefix("torch.")

    return str(tree_map(text, value))


def _try_out(name: str, samples: Any, seed: int, count: int, notes: mmap.mmap) -> None:
    """In a process of its own; `notes` says afterwards what it was at."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    operation, generator = find_operation(name), torch.Generator()
    for number in range(count):
        torch.manual_seed(number)
        try:
            args, kwargs = Mutator(seed * 1_000_003 + number).call(operation, samples)
        except Exception:  # a change that cannot be made
            continue
        text = _show((args, kwargs)).encode()[:3000]
        notes.seek(0)
        notes.write(len(text).to_bytes(4, "little") + text)
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
        with contextlib.suppress(Exception):  # of which a client is told
            attempt(name, args, kwargs, generator)
    signal.setitimer(signal.ITIMER_REAL, 0)


def crashes(seed: int, count: int, names: list[str]) -> Iterator[str]:
    """Operations that ended their process, one line each. What takes long is left alone: it may."""
    collector = Collector()
    calls = tables.calls_of_operations((torch.float32, torch.int64, torch.complex64), 4)
    tables.run_all(chain(calls, tables.calls_of_modules(), tables.calls_of_optimizers()), collector)
    notes = mmap.mmap(-1, 4096)
    for name in names:
        child = os.fork()
        if not child:
            _try_out(name, collector.samples.get(name, []), seed, count, notes)
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status not in (0, -signal.SIGALRM):
            text = notes[4 : 4 + int.from_bytes(notes[:4], "little")].decode(errors="replace")
            yield f"{name} {status}: {text}"


if __name__ == "__main__":
    torch.set_num_threads(1)
    for line in crashes(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:] or sorted(ALLOWED)):
        print(line, flush=True)
