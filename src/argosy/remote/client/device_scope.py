"""`argosy.device`: operations inside it run on the device that it names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from argosy.remote.client.active_scope import current_client, scope
from argosy.remote.client.cluster_client import Client
from argosy.remote.client.device_name import DeviceName
from argosy.remote.client.dispatch import dispatch
from argosy.torch_private import TorchDispatchMode


class _DispatchMode(TorchDispatchMode):
    """Dispatches operations without remote tensors too, while a scope is open in this thread."""

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return dispatch(func, args, kwargs)


class device:  # noqa: N801
    """`with argosy.device("/job:worker/task:0"):` runs the operations of this thread on that device.

    Scopes nest: what a name leaves out comes from the scope around it. With `None`, there is no device: local
    tensors stay local, and operations run where most of their input is. It is also a decorator.
    """

    def __init__(self, name: str | None, client: Client | None = None) -> None:
        self._name = None if name is None else DeviceName.parse(name)
        self._client = client
        self._before: list[tuple[Any, Any, _DispatchMode | None]] = []

    def __enter__(self) -> device:
        outer = scope.name or DeviceName()
        before = (scope.device, scope.name)
        if self._name is None:
            name, found = None, None
        else:
            name = self._name.within(outer)
            found = (self._client or current_client()).device(name)
        mode = None
        if found is not None and not scope.watched:
            mode = _DispatchMode()  # type: ignore[no-untyped-call]
            mode.__enter__()  # type: ignore[no-untyped-call]
            scope.watched = True
        scope.device = found
        scope.name = name
        self._before.append((*before, mode))
        return self

    def __exit__(self, *error: Any) -> None:
        scope.device, scope.name, mode = self._before.pop()
        if mode is not None:
            scope.watched = False
            mode.__exit__(*error)  # type: ignore[no-untyped-call]

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def placed(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        placed.__name__ = getattr(function, "__name__", "placed")
        placed.__doc__ = function.__doc__
        return placed
