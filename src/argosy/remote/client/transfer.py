"""Brings the arguments of an operation to the device where it runs: from task to task, or from the client.

Also the uncommon calls: those with local tensors or a generator of the client, factories, and lists of
tensors on several devices.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch

from argosy.events import say
from argosy.remote.client import call_sites
from argosy.remote.client.dispatch import OperationCall, RemoteTensor, dispatch_in_place, issue, wrap
from argosy.remote.client.handle import Handle, RemoteDevice, RemoteStorage, device_with_most_bytes, meta_of
from argosy.remote.client.recording import replaced, tensors_in
from argosy.remote.client.shape_inference import infer
from argosy.remote.operations.instructions import EXPECT, PUT, SEND
from argosy.remote.operations.mutation import argument_names, mutated
from argosy.remote.transport.tensor_codec import dense_strides, pack
from argosy.torch_private import current_node, schema_of, version_of

if TYPE_CHECKING:
    from argosy.remote.client.cluster_client import Client


# The file in which torch makes uninitialized parameters, which have a class of their own.
_LAZY = "torch/nn/parameter.py"


class Transfer:
    """Moves the values of one client."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._lazy = False
        self._sent: dict[int, tuple[Any, int, dict[RemoteDevice, Handle]]] = {}

    def bring(self, value: Any, device: RemoteDevice) -> Any:
        """Arguments with every tensor on one device."""
        if type(value) is RemoteTensor:
            return value if value.handle.device is device else wrap(self.copy(value.handle, device))
        if isinstance(value, torch.Tensor):
            return wrap(self.put(value, device))
        if type(value) in (list, tuple):
            return type(value)(self.bring(each, device) for each in value)
        if type(value) is dict:
            return {name: self.bring(each, device) for name, each in value.items()}
        return value

    def copy(self, handle: Handle, device: RemoteDevice) -> Handle:
        """A copy of a value on another device; the same one again until the value is written to."""
        if handle.device.client is not device.client:
            raise RuntimeError(
                f"a tensor on {handle.device} belongs to another client: fetch it, then place it"
            )
        known = handle.copies.get(device) if handle.copies is not None else None
        client, there, here = self._client, device.outbox, handle.device.outbox
        recording = client.recording
        first = 0 if recording is None else recording.start  # a replay must not use an older copy
        if known is not None and known[0] == handle.storage.version and known[1].number >= first:
            return known[1]
        if handle.origin is not None:
            return self._keep(handle, device, self._view_there(handle.origin, device))
        if recording is not None:
            recording.note_copy(handle)
        there.check()
        here.check()
        meta = handle.meta
        dense = meta_of(meta.shape, dense_strides(meta.shape, meta.stride), meta.dtype)
        site = call_sites.here()
        with client.lock:
            number = client.number
            client.number += 1
            here.batch.extend((SEND, handle.number, there.name, number, site))
            there.batch.extend((EXPECT, number, here.name))
        client.connections.wake_if_asleep()
        return self._keep(handle, device, Handle(number, dense, device, RemoteStorage()))

    @staticmethod
    def _keep(handle: Handle, device: RemoteDevice, made: Handle) -> Handle:
        if handle.copies is None:
            handle.copies = {}
        handle.copies[device] = (handle.storage.version, made)
        return made

    def _view_there(self, origin: Any, device: RemoteDevice) -> Handle:
        """The same view of a copy on another device: the copy travels once for all its views."""
        base, func, args, kwargs = origin
        viewed: Handle = dispatch_in_place(func, [wrap(self.copy(base, device)), *args], kwargs).handle
        return viewed

    def put(self, tensor: torch.Tensor, device: RemoteDevice) -> Handle:
        """Send a local tensor, as it is now, to a device."""
        client, outbox = self._client, device.outbox
        outbox.check()
        if (known := self._sent_before(tensor, device)) is not None:
            return known
        packing, frames = pack(tensor)
        meta = meta_of(packing.shape, packing.stride, tensor.dtype)
        with client.lock:
            number = client.number
            client.number += 1
            first = outbox.attach_frames(frames)
            outbox.batch.extend((PUT, number, packing, first, len(frames)))
            if outbox.full:
                outbox.flush()
        client.connections.wake_if_asleep()
        made = Handle(number, meta, device, RemoteStorage())
        if client.recording is not None:
            client.recording.note_feed(outbox.name, made, tensor)
        return self._note_sent(tensor, device, made)

    def _sent_before(self, tensor: torch.Tensor, device: RemoteDevice) -> Handle | None:
        """In a backward pass, what the forward pass has sent: autograd does not allow that it has changed."""
        if current_node() is None:
            return None
        found = self._sent.get(id(tensor))
        if found is None or found[0]() is not tensor or found[1] != version_of(tensor):
            return None
        handle = found[2].get(device)
        recording = self._client.recording
        return None if handle is not None and recording and handle.number < recording.start else handle

    def _note_sent(self, tensor: torch.Tensor, device: RemoteDevice, handle: Handle) -> Handle:
        key, sent = id(tensor), self._sent
        found = sent.get(key)
        if found is not None and found[0]() is tensor and found[1] == version_of(tensor):
            found[2][device] = handle
        elif tensor.requires_grad or torch.is_grad_enabled():
            sent[key] = (
                weakref.ref(tensor, lambda _: sent.pop(key, None)),
                version_of(tensor),
                {device: handle},
            )
        return handle

    # --- uncommon calls -----------------------------------------------------------------------------------
    def uncommon(self, call: OperationCall, wanted: RemoteDevice | None) -> Any:
        """Run a call with local tensors or a generator, or without tensors."""
        func, args, kwargs = call.func, call.args, call.kwargs
        writes = list(mutated(func, args, kwargs, torch.is_tensor))
        here = any(not hasattr(each, "handle") for each in writes)
        if here or call.generator or _is_view_of_ordinary(call):
            return self._run_here(call, writes, wanted)
        if stays := list(mutated(func, args, kwargs, torch.is_tensor, side_effects=False)):
            device = stays[0].handle.device
        elif wanted is not None:
            device = wanted
        else:
            device = device_with_most_bytes(call.tensors)
        if not call.tensors and not call.ordinary:
            return self._factory(call, device)
        if func is torch.ops.aten.lift_fresh.default and not call.tensors:
            return wrap(self.put(args[0], device))
        return self.run_at(func, args, kwargs, device, bool(writes))

    def run_at(
        self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], device: RemoteDevice, writes: bool
    ) -> Any:
        """Run an operation on a device with copies of its arguments; those that it writes are copied back."""
        if self._client.observer is not None:
            self._client.observer.note_leaves(tensors_in((args, kwargs)))
        mine, more = self.bring(args, device), self.bring(kwargs, device)
        returned = dispatch_in_place(func, mine, more)
        if not writes:
            return returned
        written = mutated(func, args, kwargs, torch.is_tensor)
        pairs = zip(written, mutated(func, mine, more, torch.is_tensor), strict=True)
        moved = {id(there): (own, there) for own, there in pairs if own is not there}
        for own, there in moved.values():
            own.copy_(there)
        return replaced(returned, {key: own for key, (own, _) in moved.items()})

    def _factory(self, call: OperationCall, device: RemoteDevice) -> Any:
        """Run an operation that has no tensors among its arguments, and makes one."""
        func, args, kwargs = call.func, call.args, call.kwargs
        names = argument_names(func)
        if "device" not in names:
            return func(*args, **kwargs)
        if _called_by(_LAZY):
            if not self._lazy:
                self._lazy = True
                say("a lazy module is local until its first forward pass: call argosy.place() after that")
            return func(*args, **kwargs)
        asked = kwargs.get("device")
        if asked is not None and torch.device(asked).type == "meta":
            return func(*args, **kwargs)
        kwargs = {**kwargs, "device": torch.device("cpu"), "pin_memory": None}
        if "pin_memory" not in names:
            del kwargs["pin_memory"]
        call = OperationCall(func, args, kwargs)
        key = tuple(call.key)
        inferred = self._client.inferred.get(key)
        if inferred is None:
            inferred = infer(call)
            self._client.keep_inferred(key, inferred)
        return issue(call, device, inferred)

    def _run_here(self, call: OperationCall, writes: Sequence[Any], wanted: RemoteDevice | None) -> Any:
        """Run it in the client, because what it writes to, or its generator, is there."""
        remote = call.tensors
        values = dict(zip(map(id, remote), self._client.fetch(remote), strict=True)) if remote else {}
        returned = call.func(*replaced(call.args, values), **replaced(call.kwargs, values))
        back: dict[int, Any] = {}
        for each in writes:
            if hasattr(each, "handle"):
                each.copy_(values[id(each)])
                back[id(values[id(each)])] = each
        device = wanted or (remote[0].handle.device if remote else None)
        if device is not None and call.generator:
            for each in tensors_in(returned):
                if id(each) not in back:
                    back[id(each)] = wrap(self.put(each, device))
        return replaced(returned, back)

    def split(self, call: OperationCall) -> Any:
        """Run an operation on lists of tensors, once for each of their devices."""
        lists = [each for each in call.args if isinstance(each, list | tuple) and each]
        length = len(lists[0])
        places: dict[RemoteDevice, list[int]] = {}
        for position, tensor in enumerate(lists[0]):
            places.setdefault(tensor.handle.device, []).append(position)
        made: list[Any] = [None] * length
        for device, positions in places.items():

            def part(value: Any, positions: list[int] = positions) -> Any:
                whole = isinstance(value, list | tuple) and len(value) == length
                return [value[each] for each in positions] if whole else value

            mine = [part(each) for each in call.args]
            more = {name: part(each) for name, each in call.kwargs.items()}
            returned = self.run_at(call.func, mine, more, device, True)
            if isinstance(returned, list | tuple) and len(returned) == len(positions):
                for position, each in zip(positions, returned, strict=True):
                    made[position] = each
        return made if schema_of(call.func).returns else None


def _is_view_of_ordinary(call: OperationCall) -> bool:
    """A view shares memory with its tensor, and so cannot be made on another device."""
    if call.tensors or not call.ordinary or call.func is torch.ops.aten.lift_fresh.default:
        return False
    return any(each.alias_info is not None for each in schema_of(call.func).returns)


def _called_by(file: str) -> bool:
    """Whether one of the last few stack frames is of this file."""
    frame: FrameType | None = sys._getframe(2)
    for _ in range(12):
        if frame is None:
            return False
        if frame.f_code.co_filename.endswith(file):
            return True
        frame = frame.f_back
    return False
