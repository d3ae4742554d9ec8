"""Messages: what is encoded comes back as it was, and nothing but a WireError comes of anything else."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy.errors import ConfigError, WireError
from argosy.protocol import frames as limits
from argosy.protocol.decisions import Answer, Apply, Decision, Forget, Part, Status
from argosy.protocol.frames import ITEMSIZE, FrameSpec
from argosy.protocol.header import Header, LogEntry
from argosy.protocol.joining import Leave
from argosy.protocol.training import Orders, PushAnswer, PushRequest
from argosy.wire.message import decode, encode
from argosy.wire.tensor_bytes import dtype_name, torch_dtype
from examples import EXAMPLES

KINDS = get_args(Header)
DTYPES = [torch_dtype(name) for name in ITEMSIZE]


def parts_of(header: Header, tensors: list[torch.Tensor] | None = None) -> list[bytearray]:
    """A message as it comes from the network: parts that own their memory."""
    return [bytearray(part) for part in encode(header, tensors or [])]


def packed(envelope: Any, *frames: bytes) -> list[bytearray]:
    """A message with any header at all."""
    return [bytearray(msgspec.msgpack.encode(envelope)), *(bytearray(frame) for frame in frames)]


LEAVE = {"type": "leave"}


# --- there and back ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("header", EXAMPLES, ids=lambda header: type(header).__name__)
def test_every_header_comes_back_as_it_was(header: Header) -> None:
    message = decode(parts_of(header))
    assert message.header == header
    assert type(message.header) is type(header)
    assert list(message.tensors) == []


def test_no_header_is_left_out_above() -> None:
    assert {type(header) for header in EXAMPLES} == set(KINDS)


counts = st.integers(0, 2**62)
decisions = st.one_of(
    st.builds(
        Apply, counts, st.lists(st.builds(Part, counts, counts, st.floats(0, 9)), max_size=3).map(tuple)
    ),
    st.builds(Answer, counts, counts, st.sampled_from(get_args(Status)), counts, counts, st.booleans()),
    st.builds(Forget, counts, counts),
)


@settings(deadline=None, derandomize=True)
@given(st.lists(decisions, max_size=5).map(tuple))
def test_orders_come_back_as_they_were(orders: tuple[Decision, ...]) -> None:
    assert decode(parts_of(LogEntry(1, 1, Orders(orders)))).header == LogEntry(1, 1, Orders(orders))


@settings(deadline=None, derandomize=True)
@given(
    st.lists(
        st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 4), max_size=4), st.integers(0, 2**31)),
        max_size=4,
    )
)
def test_tensors_come_back_bit_by_bit(shapes: list[tuple[torch.dtype, list[int], int]]) -> None:
    tensors = []
    for dtype, shape, seed in shapes:
        values = torch.randint(-100, 100, shape, generator=torch.Generator().manual_seed(seed))
        tensors.append((values > 0) if dtype == torch.bool else values.to(dtype))
    message = decode(parts_of(PushAnswer(1, "applied", 1), tensors))
    assert len(message.tensors) == len(tensors)
    for mine, theirs in zip(message.tensors, tensors, strict=True):
        assert mine.dtype == theirs.dtype
        assert mine.shape == theirs.shape
        assert torch.equal(mine, theirs)


def test_floats_that_are_no_numbers_travel_too() -> None:
    odd = torch.tensor([float("nan"), float("inf"), -0.0])
    (mine,) = decode(parts_of(Leave(), [odd])).tensors
    assert torch.equal(mine.view(torch.int32), odd.view(torch.int32))


def test_sending_copies_nothing() -> None:
    tensor = torch.zeros(3)
    _, memory = encode(Leave(), [tensor])
    tensor.fill_(1)
    assert bytes(memory) == b"\x00\x00\x80?" * 3


def test_a_received_tensor_lives_on_what_was_received() -> None:
    received = parts_of(Leave(), [torch.zeros(2)])
    (tensor,) = decode(received).tensors
    tensor.fill_(1)
    assert bytes(received[1]) == b"\x00\x00\x80?" * 2


def test_a_dtype_that_may_not_travel_is_refused_with_its_name() -> None:
    with pytest.raises(ConfigError, match=r"dtype of weight: expected one of .*, got torch.complex64"):
        dtype_name(torch.complex64, "weight")


# --- what is refused --------------------------------------------------------------------------------------
def refused(received: list[bytearray]) -> str:
    with pytest.raises(WireError) as caught:
        decode(received)
    return str(caught.value)


@pytest.mark.parametrize(
    ("envelope", "frames"),
    [
        ([LEAVE, [["float32", [3]]]], [b"x" * 8]),
        ([LEAVE, [["float32", [3]]]], [b"x" * 16]),
        ([LEAVE, [["float32", [3]]]], []),
        ([LEAVE, []], [b""]),
        ([LEAVE, [["float32", [1]], ["float32", [1]]]], [b"xxxx"]),
    ],
    ids=["too short", "too long", "no frame", "a frame too many", "one of two"],
)
def test_frames_that_are_not_what_the_header_says(envelope: Any, frames: list[bytes]) -> None:
    assert "expected" in refused(packed(envelope, *frames))


@pytest.mark.parametrize(
    "frame",
    [
        ["float32", [2**40, 2**40]],
        ["float32", [2**62]],
        ["float32", [2**64 - 1]],
        ["float32", [0, 2**40, 2**40]],
        ["float32", [2**40, 2**40, 0]],
        ["float32", [1] * 17],
        ["float32", [-1]],
        ["float32", [-2, -2]],
        ["float32", [1.5]],
        ["float32", ["3"]],
        ["float32", 3],
        ["complex64", [1]],
        ["object", [1]],
        ["", [1]],
        [None, [1]],
        ["float32"],
        [],
        "float32",
        None,
    ],
    ids=str,
)
@pytest.mark.parametrize("data", [b"", b"xxxx"])
def test_frames_that_cannot_be(frame: Any, data: bytes) -> None:
    """Shapes that overflow, also those without elements; dtypes that do not exist; and the like."""
    refused(packed([LEAVE, [frame]], data))


@pytest.mark.parametrize(
    "envelope",
    [
        None,
        {},
        [],
        [LEAVE],
        [{}, []],
        [{"type": "no such header"}, []],
        [{"type": 3}, []],
        [{"type": "hello"}, []],
        [{"type": "push", "seq": -1, "version": 0}, []],
        [{"type": "push", "seq": 2**63, "version": 0}, []],
        [{"type": "push", "seq": 1, "version": 0, "weight": 0.0}, []],
        [{"type": "push", "seq": 1, "version": 0, "weight": float("nan")}, []],
        [{"type": "push", "seq": 1, "version": 0, "kind": "theft"}, []],
        [{"type": "push", "seq": 1, "version": 0, "absent": [-1]}, []],
        [{"type": "describe", "parameters": [], "mode": {"type": "sync", "aggregate": -5}}, []],
        [{"type": "orders", "decisions": [{"type": "shutdown"}]}, []],
    ],
    ids=str,
)
def test_headers_that_are_none_of_ours(envelope: Any) -> None:
    assert refused(packed(envelope)).startswith("header: ")


def test_nothing_at_all_is_no_message() -> None:
    assert "expected a header" in refused([])
    assert refused([bytearray()]).startswith("header: ")


def test_too_many_frames_are_not_even_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    message = "argosy.wire.message"
    monkeypatch.setattr(f"{message}.MAX_FRAMES", 3)
    assert "at most 3 frames" in refused(packed([LEAVE, []], b"", b"", b"", b""))


def test_a_header_that_is_too_large_is_not_even_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("argosy.wire.message.MAX_HEADER_BYTES", 100)
    assert refused([bytearray(101)]) == "header: expected at most 100 bytes, got 101"
    assert limits.MAX_HEADER_BYTES < 2**30


@pytest.mark.parametrize("opening", [b"\x91", b"\x81\xa1a", b"\xdd\x00\x00\x00\x01"])
def test_deep_nesting_is_refused(opening: bytes) -> None:
    value = opening * 200_000
    refused([bytearray(value)])
    header = msgspec.msgpack.encode({"type": "meet", "number": 1})
    meet = b"\x92" + b"\x83" + header[1:] + b"\xa5value" + value
    refused([bytearray(meet)])


@pytest.mark.parametrize("claim", [b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff"])
def test_a_claim_of_gigabytes_allocates_nothing(claim: bytes) -> None:
    refused([bytearray(claim)])
    refused([bytearray(b"\x92" + msgspec.msgpack.encode(LEAVE) + claim)])


@settings(deadline=None, derandomize=True, max_examples=500)
@given(st.lists(st.binary(max_size=64), max_size=4))
def test_random_bytes_are_refused_or_harmless(garbage: list[bytes]) -> None:
    try:
        decode([bytearray(part) for part in garbage])
    except WireError:
        return


SAMPLES: list[tuple[Header, list[torch.Tensor]]] = [
    *((header, []) for header in EXAMPLES),
    (PushRequest(5, 3), [torch.ones(5)]),
    (PushAnswer(5, "applied", 3), [torch.ones(2, 2), torch.zeros(3, dtype=torch.bfloat16)]),
]


@settings(deadline=None, derandomize=True, max_examples=800)
@given(
    sample=st.sampled_from(SAMPLES),
    changes=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=6),
    cut=st.none() | st.integers(0, 200),
    dropped=st.booleans(),
)
def test_a_damaged_message_is_refused_or_well_formed(
    sample: tuple[Header, list[torch.Tensor]],
    changes: list[tuple[int, int]],
    cut: int | None,
    dropped: bool,
) -> None:
    """Nothing but a WireError escapes, and what is taken has the tensors that it says."""
    received = parts_of(*sample)
    for position, value in changes:
        received[0][position % len(received[0])] = value
    received[0] = received[0][:cut] if cut is not None else received[0]
    received = received[:-1] if dropped else received
    try:
        message = decode(received)
    except WireError:
        return
    assert isinstance(message.header, KINDS)
    sizes = [tensor.numel() * tensor.element_size() for tensor in message.tensors]
    assert sizes == [len(part) for part in received[1:]]


def test_a_frame_knows_its_size() -> None:
    assert FrameSpec("bfloat16", (3, 4)).nbytes == 24
    assert FrameSpec("float64", ()).nbytes == 8
    assert FrameSpec("float64", (0, 5)).nbytes == 0
