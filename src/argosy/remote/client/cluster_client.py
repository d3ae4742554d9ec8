"""A client of a cluster: `argosy.connect()`. Knows every task's devices, and keeps what is not yet sent.

The tensors of a program hold it alive through their handles; `close` ends its connections, after which they
cannot be used any more.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, NoReturn

import torch

from argosy.cluster.settings import DEFAULT_WAIT, NOTICE_EVERY
from argosy.cluster.spec import Address, ClusterSpec, Task
from argosy.errors import ConfigError, RemoteError, TaskLost, WaitTimeout
from argosy.events import say, say_waiting
from argosy.protocol.remote_work import Attach, Attached, Bereft, CutOff, Detach, Fault, Packing, Reply
from argosy.remote.client import call_sites as sites
from argosy.remote.client.connections import Answer, Link
from argosy.remote.client.device_name import DeviceName
from argosy.remote.client.gradient_tracking import Rehearsal
from argosy.remote.client.handle import Device
from argosy.remote.client.numbers import Numbers
from argosy.remote.client.outbox import Post
from argosy.remote.client.placement_log import readable
from argosy.remote.client.recording import Recording
from argosy.remote.client.seeds import Seeds
from argosy.remote.client.shape_inference import Output, Recipe, results_of
from argosy.remote.client.transfer import Placer
from argosy.remote.operations.instructions import (
    DEFINE,
    FETCH,
    FORGET,
    PROBE,
    REPORT,
    SEEN,
    WAIT,
    Template,
    write_argument,
)
from argosy.remote.transport.tensor_codec import frame_count, unpack
from argosy.wire.message import Message

# So many signatures are kept; a program with more begins anew.
_MANY_RECIPES = 20_000
# An operation whose results are not known beforehand gets this many numbers for them.
_ROOM = 1024


class Client(Numbers):
    """A connection to every task of a cluster. Use it in a `with` statement, or `close()` it."""

    def __init__(
        self,
        target: Address,
        *,
        log_device_placement: bool = False,
        allow_soft_placement: bool = False,
        wait: float = DEFAULT_WAIT,
    ) -> None:
        super().__init__()
        self.recipes: dict[Any, Recipe] = {}
        self.placer = Placer(self)
        self._seeds = Seeds(self)
        self._template = 0
        self._request = 0
        self._answers: dict[int, Answer] = {}
        self._arrivals: dict[str, Attached] = {}
        self._changed = threading.Condition()
        self._log = log_device_placement
        self._logged: set[tuple[str, str]] = set()
        self._soft = allow_soft_placement
        self._softened: set[str] = set()
        self.closed = False
        self.recording: Recording | None = None
        self.observer: Recording | Rehearsal | None = None  # is told of every operation
        self.widths: dict[int, tuple[int, int, int]] = {}
        self._devices: dict[tuple[Task, str], Device] = {}
        self._identity = uuid.uuid4().hex
        self.link = Link(self._identity)
        self.link.on_message = self._on_message
        self.link.on_loss = self._on_loss
        self.link.on_tick = self._on_tick
        try:
            self.home, self.cluster = self._meet(target, wait)
        except BaseException:
            self.link.close()
            raise
        if log_device_placement:
            say("device mapping:")
            for device in self._devices.values():
                say(f"  {device} -> {self.cluster.address(Task.parse(device.post.name))}")

    # --- meeting the cluster ------------------------------------------------------------------------------
    def _meet(self, target: Address, wait: float) -> tuple[Task, ClusterSpec]:
        """Ask the task at an address who else there is, and attach to all of them."""
        deadline = time.monotonic() + wait
        first = str(target)
        self.link.open(first, target)
        self.link.send(first, Attach(self._identity))
        self._await({first: f"a task at {target}"}, wait, deadline)
        answer = self._arrivals[first]
        home, cluster = Task.parse(answer.task), ClusterSpec(answer.cluster)
        self.link.rename(first, answer.task)
        self._arrivals[answer.task] = answer
        others = {str(task): cluster.describe(task) for task in cluster.tasks() if task != home}
        for name in others:
            self.link.open(name, cluster.address(Task.parse(name)))
            self.link.send(name, Attach(self._identity))
        self._await(others, wait, deadline)
        for task in cluster.tasks():
            if (found := self._arrivals[str(task)]).task != str(task):
                raise ConfigError(
                    f"address of {task}", f"{task}", f"{found.task}", "is the cluster the same everywhere?"
                )
            self.link.shorten(str(task), cluster.address(task))
            post = self.posts[str(task)] = Post(str(task), self.link)
            for kind in self._arrivals[str(task)].devices:
                self._devices[task, kind] = Device(self, post, kind)
        return home, cluster

    def _await(self, names: dict[str, str], wait: float, deadline: float) -> None:
        began = time.monotonic()
        notice = began + NOTICE_EVERY
        with self._changed:
            while missing := [text for name, text in names.items() if name not in self._arrivals]:
                now = time.monotonic()
                if now >= deadline:
                    raise WaitTimeout(
                        f"only {len(names) - len(missing)} of {len(names)} tasks arrived", missing, wait
                    )
                if now >= notice:
                    say_waiting(", ".join(missing), now - began)
                    notice = now + NOTICE_EVERY
                self._changed.wait(min(deadline, notice) - now)

    # --- from the link's thread ---------------------------------------------------------------------------
    def _on_message(self, task: str, message: Message[Any]) -> None:
        header = message.header
        if isinstance(header, Reply):
            if (answer := self._answers.pop(header.request, None)) is not None:
                answer.put(message)
        elif isinstance(header, Attached):
            with self._changed:
                self._arrivals[task] = header
                self._changed.notify_all()
        elif isinstance(header, CutOff):
            self._lose(task, f"it does no more for this client: {header.reason}")

    def _on_loss(self, task: str) -> None:
        if task in self.posts:  # else it was not there yet, and may come back
            self._lose(task, "its connection has ended")

    def _lose(self, task: str, why: str) -> None:
        post = self.posts[task]
        post.lost = f"{why}; what was there is lost, the other tasks can be used"
        for name, other in self.posts.items():
            if not other.lost:
                self.link.send(name, Bereft(task))
        for request, answer in list(self._answers.items()):
            if answer.task == task and self._answers.pop(request, None) is not None:
                answer.put(None)

    def _on_tick(self) -> bool:
        """Send what has lain for a moment; whether there was any."""
        posts = [post for post in self.posts.values() if not post.idle]
        if posts:
            with self.lock:
                for post in posts:
                    post.flush()
        return bool(posts)

    # --- asking -------------------------------------------------------------------------------------------
    def _ask(self, post: Post, *record: Any) -> Answer:
        """Add a record that will be answered; `None` in it stands for the number of the request."""
        self._check_open()
        post.check()
        answer = Answer(post.name)
        with self.lock:
            self._request += 1
            self._answers[self._request] = answer
            post.batch.extend(self._request if each is None else each for each in record)
        return answer

    def _wait(self, answer: Answer) -> Message[Reply]:
        answer.wait()
        if answer.message is None:
            lost = self.posts[answer.task].lost if answer.task in self.posts else ""
            raise TaskLost(answer.task, lost or "its connection ended while a value was waited for")
        if (fault := answer.message.header.fault) is not None:
            self._raise(fault)
        return answer.message

    def _raise(self, fault: Fault) -> NoReturn:
        if fault.number >= 0 and fault.task in self.posts:
            with self.lock:  # it need not be raised again at the end
                self.posts[fault.task].batch.extend((SEEN, fault.number))
        if fault.lost:
            raise TaskLost(fault.task, "a value that was waited for depended on it")
        raise RemoteError(
            fault.task,
            fault.operation,
            f"{fault.kind}: {fault.message}",
            sites.describe(fault.site),
            fault.trace,
        )

    def fetch(self, tensors: Sequence[Any]) -> list[torch.Tensor]:
        """The values of remote tensors, as ordinary tensors; waits for them."""
        by_post: dict[Post, list[int]] = {}
        for position, each in enumerate(tensors):
            by_post.setdefault(each.handle.device.post, []).append(position)
        asked = [
            (self._ask(post, FETCH, None, [tensors[p].handle.number for p in positions]), positions)
            for post, positions in by_post.items()
        ]
        self.flush()
        values: list[Any] = [None] * len(tensors)
        for answer, positions in asked:
            message = self._wait(answer)
            first = 0
            for position, wire in zip(positions, message.header.results, strict=True):
                packing = Packing(wire[0], tuple(wire[1]), tuple(wire[2]))
                last = first + frame_count(packing)
                values[position] = unpack(packing, message.tensors[first:last])
                first = last
        return values

    def ask_paces(self, posts: Iterable[Post]) -> list[Answer]:
        """Let tasks tell when they have read what they were sent until now."""
        return [self._ask(post, FETCH, None, []) for post in posts]

    def await_paces(self, asked: Sequence[Answer]) -> None:
        """Wait for that."""
        for answer in asked:
            self._wait(answer)

    def probe(
        self,
        recipe: Recipe,
        device: Device,
        tensors: Sequence[Any],
        floats: Sequence[float],
        args: Sequence[Any],
        kwargs: dict[str, Any],
    ) -> tuple[list[Output], int]:
        """Run an operation whose results only the task can tell; what they are, and the number of the
        first.
        """
        template = recipe.templates.get(device)
        if template is None:
            template = self.define(recipe, device, args, kwargs)
        with self.lock:
            first = self.number
            self.number += _ROOM
        numbers = [each.handle.number for each in tensors]
        site = sites.here()
        answer = self._ask(device.post, PROBE, None, template, first, site, numbers, list(floats))
        self.flush()
        message = self._wait(answer)
        if len(message.header.results) > _ROOM:
            raise RemoteError(
                device.post.name, recipe.name, f"more than {_ROOM} results", sites.describe(site), ""
            )
        return [Output.read(wire) for wire in message.header.results], first

    def synchronize(self) -> None:
        """Wait until every task has done what it was sent; raises the first error that nobody has seen."""
        asked = [self._ask(post, WAIT, None) for post in self.posts.values() if not post.lost]
        self.flush()
        for answer in asked:
            self._wait(answer)

    def ran(self, task: str) -> dict[str, int]:
        """What a task has run for this client: its own record, as operations and how often."""
        return dict(self._report(task)[0])

    def held(self, task: str) -> tuple[int, int]:
        """How many values a task holds for this client, and how many bytes of memory they take."""
        _, values, size = self._report(task)
        return values, size

    def _report(self, task: str) -> list[Any]:
        answer = self._ask(self.device(DeviceName.parse(task)).post, REPORT, None)
        self.flush()
        return self._wait(answer).header.results

    # --- recipes and templates ----------------------------------------------------------------------------
    def keep_recipe(self, key: Any, recipe: Recipe) -> None:
        """Remember what comes of a signature."""
        if len(self.recipes) >= _MANY_RECIPES:
            with self.lock:
                self.recipes = {}
                for post in self.posts.values():
                    post.batch.append(FORGET)
        self.recipes[key] = recipe

    def define(self, recipe: Recipe, device: Device, args: Sequence[Any], kwargs: dict[str, Any]) -> int:
        """Tell a task what a number stands for."""
        self._check_open()
        device.post.check()
        holes = recipe.floats > 0
        picks, results = results_of(recipe)
        with self.lock:
            number = self._template
            self._template += 1
            template = Template(
                number,
                recipe.name,
                [write_argument(each, lambda _: holes) for each in args],
                {
                    name: write_argument(each, lambda _: holes)
                    for name, each in kwargs.items()
                    if name != "pin_memory"
                },
                recipe.inputs,
                recipe.floats,
                device.kind,
                picks,
                None if recipe.probe else results,
                recipe.random,
                recipe.grad,
            )
            device.post.batch.extend((DEFINE, template))
            recipe.templates[device] = number
            self.widths[number] = (recipe.inputs, recipe.floats, recipe.made)
        if self._log and (entry := (readable(recipe.name), device.name)) not in self._logged:
            self._logged.add(entry)
            say(f"{entry[0]}: {entry[1]}")
        return number

    def keep_seeds(self, device: Device) -> None:
        """Before a random operation: let the task follow `torch.manual_seed`."""
        self._seeds.follow(device)

    # --- devices ------------------------------------------------------------------------------------------
    def devices(self) -> list[str]:
        """The names of all devices, such as `/job:worker/task:0/cpu:0`."""
        return [device.name for device in self._devices.values()]

    def device(self, name: DeviceName) -> Device:
        """The device that a name means here."""
        self._check_open()
        task, kind = name.complete(self.home)
        self.cluster.require(task)
        if (found := self._devices.get((task, kind))) is not None:
            return found
        have = ", ".join(k for t, k in self._devices if t == task)
        wanted = f"{task}/{kind}"
        if not self._soft:
            raise ConfigError(
                "device", f"one that {task} has: {have}", wanted, "or connect(allow_soft_placement=True)"
            )
        fallback = self._devices.get((task, "cpu:0"))
        assert fallback is not None
        if wanted not in self._softened:
            self._softened.add(wanted)
            say(f"{wanted} is not there: its operations run on {fallback}")
        return fallback

    # --- the end ------------------------------------------------------------------------------------------
    def _check_open(self) -> None:
        if self.closed:
            raise ConfigError("client", "one that is open", "one that was closed")

    def close(self) -> None:
        """End the connections; the tasks forget this client's values."""
        if self.closed:
            return
        self.closed = True
        for name, post in self.posts.items():
            if not post.lost:
                self.link.send(name, Detach())
        self.link.close()
        for request in list(self._answers):
            if (answer := self._answers.pop(request, None)) is not None:
                answer.put(None)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.synchronize()
        finally:
            self.close()
