"""How the replicas of a ring become alike: the same model, and the chief's values and optimizer state."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
import torch
from torch import nn

from argosy.errors import ConfigError, ModelMismatch
from argosy.ring.member import RingMember


def check_alike(
    member: RingMember,
    names: Sequence[str],
    parameters: Sequence[torch.Tensor],
    buffers: Sequence[torch.Tensor],
) -> None:
    """That every worker trains the same model."""
    mine = [(name, list(p.shape), str(p.dtype)) for name, p in zip(names, parameters, strict=True)]
    mine += [("buffer", list(buffer.shape), str(buffer.dtype)) for buffer in buffers]
    chiefs = msgspec.msgpack.decode(member.gather(msgspec.msgpack.encode(mine))[0])
    ours = [list(each) for each in mine]
    if ours == chiefs:
        return
    if len(ours) != len(chiefs):
        raise ModelMismatch("model", f"{len(chiefs)} tensors, as the chief has", len(ours))
    theirs, own = next((a, b) for a, b in zip(chiefs, ours, strict=True) if a != b)
    raise ModelMismatch(f"parameter {own[0]}", f"{theirs}, as the chief has", own)


@torch.no_grad()
def take_values(member: RingMember, tensors: Iterable[torch.Tensor], root: int = 0) -> bool:
    """Set these to what they are on the worker `root`; whether that has changed any."""
    changed = False
    for tensor in tensors:
        own = tensor.detach().to("cpu", copy=True).contiguous()
        flat = own.view(-1).clone()
        member.group.broadcast(flat.view(torch.uint8), root)
        values = flat.view(tensor.shape)
        changed |= not torch.equal(own, values)
        tensor.detach().copy_(values)
    return changed


# --- the optimizer's state --------------------------------------------------------------------------------
class _Tensor(msgspec.Struct, tag="tensor"):
    """A tensor of the state; `near`: on its parameter's device."""

    dtype: str
    shape: list[int]
    near: bool


class _Many(msgspec.Struct, tag="many"):
    items: list[_Kept]
    is_tuple: bool


class _Named(msgspec.Struct, tag="named"):
    items: dict[str, _Kept]


class _Plain(msgspec.Struct, tag="plain"):
    value: bool | int | float | str | None


_Kept: TypeAlias = _Tensor | _Many | _Named | _Plain


def take_state(
    member: RingMember, optimizer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter]
) -> None:
    """The optimizer's state becomes the chief's: one that was loaded, or none."""
    chief = member.rank == 0
    tensors: list[torch.Tensor] = []
    mine = [_named(optimizer.state.get(p, {}), p, tensors.append) for p in parameters] if chief else []
    told = msgspec.msgpack.encode(mine if any(each.items for each in mine) else [])
    states = msgspec.msgpack.decode(member.gather(told)[0], type=list[_Named])
    given = iter(tensors)

    def receive(kept: _Tensor, parameter: nn.Parameter) -> torch.Tensor:
        dtype = getattr(torch, kept.dtype)
        flat = next(given).view(-1) if chief else torch.empty(math.prod(kept.shape), dtype=dtype)
        if flat.numel():
            member.group.broadcast(flat.view(torch.uint8), 0)
        return flat.view(kept.shape).to(parameter.device if kept.near else "cpu")

    for number, parameter in enumerate(parameters):
        taken = _rebuild(states[number], parameter, receive) if states else {}
        if not chief:
            optimizer.state.pop(parameter, None)
        if taken and not chief:
            optimizer.state[parameter] = taken


def _named(state: Mapping[Any, Any], parameter: nn.Parameter, give: Callable[[torch.Tensor], None]) -> _Named:
    return _Named({str(key): _describe(each, parameter, give) for key, each in state.items()})


def _describe(value: Any, parameter: nn.Parameter, give: Callable[[torch.Tensor], None]) -> _Kept:
    if isinstance(value, torch.Tensor):
        dense = value.detach().to_dense() if value.is_sparse else value.detach()
        give(dense.cpu().contiguous())
        dtype = str(value.dtype).removeprefix("torch.")
        return _Tensor(dtype, list(value.shape), value.device == parameter.device)
    if isinstance(value, Mapping):
        return _named(value, parameter, give)
    if isinstance(value, list | tuple):
        return _Many([_describe(each, parameter, give) for each in value], isinstance(value, tuple))
    if value is None or isinstance(value, bool | int | float | str):
        return _Plain(value)
    raise ConfigError("state of the optimizer", "tensors and plain values", type(value).__name__)


def _rebuild(
    kept: _Kept, parameter: nn.Parameter, receive: Callable[[_Tensor, nn.Parameter], torch.Tensor]
) -> Any:
    match kept:
        case _Tensor():
            return receive(kept, parameter)
        case _Plain(value):
            return value
        case _Many(items, is_tuple):
            many = [_rebuild(each, parameter, receive) for each in items]
            return tuple(many) if is_tuple else many
        case _Named(named):
            return {key: _rebuild(each, parameter, receive) for key, each in named.items()}
