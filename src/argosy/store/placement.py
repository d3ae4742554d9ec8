"""Which server gets which parameter: pure functions of the parameters' names and sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol, TypeAlias

from argosy.errors import ConfigError
from argosy.protocol.layout import ParameterSpec, Share


class Placement(Protocol):
    """A rule that spreads parameters over servers."""

    def place(self, parameters: Sequence[ParameterSpec], loads: Sequence[int]) -> list[list[Share]]:
        """The shares of each parameter, on servers that hold `loads` bytes already."""


UserPlacement: TypeAlias = Placement | Callable[[str], int] | Mapping[str, int]


def _whole(spec: ParameterSpec, server: int) -> list[Share]:
    return [Share(server, 0, spec.count)]


@dataclass(frozen=True)
class Greedy:
    """The largest first, each to the server that holds the fewest bytes: an even load. The default."""

    def place(self, parameters: Sequence[ParameterSpec], loads: Sequence[int]) -> list[list[Share]]:
        filled = list(loads)
        shares: list[list[Share]] = [[] for _ in parameters]
        for index in sorted(range(len(parameters)), key=lambda i: (-parameters[i].nbytes, i)):
            server = filled.index(min(filled))
            filled[server] += parameters[index].nbytes
            shares[index] = _whole(parameters[index], server)
        return shares


@dataclass(frozen=True)
class RoundRobin:
    """In order of registration, one server after the other, as TensorFlow's `replica_device_setter` did."""

    def place(self, parameters: Sequence[ParameterSpec], loads: Sequence[int]) -> list[list[Share]]:
        return [_whole(spec, index % len(loads)) for index, spec in enumerate(parameters)]


@dataclass(frozen=True)
class Split:
    """A tensor of more than `over` bytes is cut evenly over all servers; the rest is placed greedily."""

    over: int = 2**20

    def __post_init__(self) -> None:
        if self.over < 0:
            raise ConfigError("Split(over)", "a number of bytes, 0 or more", self.over)

    def place(self, parameters: Sequence[ParameterSpec], loads: Sequence[int]) -> list[list[Share]]:
        filled = list(loads)
        shares: list[list[Share]] = [[] for _ in parameters]
        for index, spec in enumerate(parameters):
            if spec.nbytes > self.over:
                shares[index] = _even(spec.count, len(loads))
                for share in shares[index]:
                    filled[share.server] += spec.nbytes * (share.stop - share.start) // spec.count
        rest = [index for index, spec in enumerate(parameters) if not shares[index]]
        for index, parts in zip(rest, Greedy().place([parameters[i] for i in rest], filled), strict=True):
            shares[index] = parts
        return shares


def _even(count: int, servers: int) -> list[Share]:
    bounds = [count * server // servers for server in range(servers + 1)]
    pairs = enumerate(pairwise(bounds))
    return [Share(server, start, stop) for server, (start, stop) in pairs if stop > start]


def place(
    placement: UserPlacement, parameters: Sequence[ParameterSpec], loads: Sequence[int]
) -> list[list[Share]]:
    """The shares that a placement, a function of the name, or a mapping of names gives."""
    if isinstance(placement, Mapping):
        return [_whole(spec, _named(placement, spec.name, len(loads))) for spec in parameters]
    if hasattr(placement, "place"):
        return placement.place(parameters, loads)
    if not callable(placement):
        raise ConfigError("placement", "a placement, a function or a mapping of names", repr(placement))
    return [_whole(spec, _server(placement(spec.name), spec.name, len(loads))) for spec in parameters]


def _named(mapping: Mapping[str, int], name: str, servers: int) -> int:
    if name not in mapping:
        raise ConfigError("placement", "a server for every parameter", f"none for {name}")
    return _server(mapping[name], name, servers)


def _server(server: object, name: str, servers: int) -> int:
    if not isinstance(server, int) or not 0 <= server < servers:
        raise ConfigError(f"placement of {name}", f"a server from 0 to {servers - 1}", repr(server))
    return server
