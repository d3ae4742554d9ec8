"""Situations in which numbers were once wrong: what a program does to come upon one.

`known` says which of them are not mended yet: programs of these are left out of the standing run. `found` has
small programs of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

from programs import MOVING, Deed, Phase, Program, Turn


def _gives(deed: Deed, turn: Turn) -> bool:
    """Whether a worker gives a gradient in a turn."""
    return bool(deed) and deed[-1].act in ("step", "none") and len(deed) >= turn.every


def _turns(program: Program, *ways: str) -> Iterator[tuple[Phase, int, Turn]]:
    return (each for each in program.turns if each[0].way in ways)


def _served(program: Program) -> list[Phase]:
    return [phase for phase in program.phases if phase.served]


# --- the ring ---------------------------------------------------------------------------------------------
def _somebody_skips(turn: Turn) -> bool:
    deeds = [deed for deed in turn.deeds if deed]
    gives = [_gives(deed, turn) for deed in deeds]
    return any(gives) and not all(gives)


def ring_skip_and_scale(program: Program) -> bool:
    own = program.clip == "own" and program.averages_in_backward
    return any(
        _somebody_skips(turn) and (turn.every > 1 or program.scaler or own)
        for _, _, turn in _turns(program, "ring")
    )


def ring_every_begins(program: Program) -> bool:
    if not program.averages_in_backward:
        return False
    before: Turn | None = None
    for phase, number, turn in program.turns:
        if phase.way == "ring" and turn.every > 1 and not any(d and d[0].act == "add" for d in turn.deeds):
            starts = any(number == program.first_turn(n) for n in range(len(program.phases)))
            if starts or before is None or before.every == 1 or _not_plain(before):
                return True
        before = turn
    return False


def _not_plain(turn: Turn) -> bool:
    return any(each.act not in ("step", "none") for deed in turn.deeds for each in deed)


def ring_none_beside_scaled(program: Program) -> bool:
    """A worker has no backward pass in a step whose gradients are divided or unscaled."""
    return program.averages_in_backward and any(
        (turn.every > 1 or program.scaler) and any(each.act == "none" for deed in turn.deeds for each in deed)
        for _, _, turn in _turns(program, "ring")
    )


def ring_infinity_among_passes(program: Program) -> bool:
    """One worker has an infinity, and passes are not alike: it may be in one that nobody averages."""
    found = [turn for _, _, turn in _turns(program, "ring")]
    return (
        program.averages_in_backward
        and any(turn.every > 1 for turn in found)
        and any(0 < [d[-1].act for d in t.deeds if d].count("inf") < len(t.deeds) for t in found)
    )


def scale_grows_among_passes(program: Program) -> bool:
    """The loss scale doubles with every second pass, in the middle of an accumulation too."""
    whole = not any(each.act in ("skip", "undo", "none") for each in program.passes)
    return program.scaler and whole and any(turn.every > 1 for _, _, turn in program.turns)


def ring_goes_on_with_scales(program: Program) -> bool:
    """With servers a worker that finds an infinity lowers its own scale; the ring averages what is scaled."""
    infinite = [
        any(each.act == "inf" for turn in phase.turns for deed in turn.deeds for each in deed)
        for phase in program.phases
    ]
    return any(phase.way == "ring" and any(infinite[:n]) for n, phase in enumerate(program.phases))


def ring_passes_after_a_skip(program: Program) -> bool:
    """Who skips does not see how many passes the others make."""
    found = [(turn.every, _somebody_skips(turn)) for _, _, turn in _turns(program, "ring")]
    return program.averages_in_backward and any(
        skips and any(every != other for other, _ in found) for every, skips in found
    )


def means_after_leaving(program: Program) -> bool:
    moving = program.buffers == "mean" and MOVING & set(program.parts)
    return bool(moving) and any(
        not deed for phase in _served(program) for t in phase.turns for deed in t.deeds
    )


def ring_stale_skip(program: Program) -> bool:
    return any(each.stale for _, _, t in _turns(program, "ring") for deed in t.deeds for each in deed)


def ring_warm(program: Program) -> bool:
    return program.warm and program.phases[0].way == "ring" and program.phases[0].workers > 1


def ring_clips_what_joins(program: Program) -> bool:
    return (
        program.late_at is not None
        and program.clip == "own"
        and program.averages_in_backward
        and any(phase.way == "ring" and phase.workers > 1 for phase in program.phases)
    )


def ring_buffers_when_joining(program: Program) -> bool:
    ring = any(phase.way == "ring" and phase.workers > 1 for phase in program.phases)
    return (
        ring
        and program.late_at is not None
        and program.buffers == "mean"
        and bool({"norm", "normed"} & set(program.parts))
    )


def ring_mean_beside_skip(program: Program) -> bool:
    moving = program.buffers == "mean" and MOVING & set(program.parts)
    return bool(moving) and any(_somebody_skips(turn) for _, _, turn in _turns(program, "ring"))


def more_workers(program: Program) -> bool:
    counts = [phase.workers for phase in program.phases]
    keeps = bool(program.feed or program.scheduler or program.scaler)
    return keeps and any(max(counts[:n], default=9) < counts[n] for n in range(1, len(counts)))


def first_momentum(program: Program) -> bool:
    """A parameter that servers have never updated is updated for the first time without them."""
    ways = [phase.served for phase in program.phases]
    leaves = any(a and not b for a, b in pairwise(ways))
    return leaves and program.optimizer == "SGD" and "momentum" in dict(program.options)


def ring_mean_of_flags(program: Program) -> bool:
    ring = any(phase.way == "ring" for phase in program.phases)
    return ring and program.buffers == "mean" and "flag" in program.parts


def ring_mean_of_counters(program: Program) -> bool:
    """Workers make different numbers of passes."""
    if program.buffers != "mean" or not MOVING & set(program.parts):
        return False
    return any(
        len({(len(deed), deed[0].discard) for deed in turn.deeds if deed}) > 1
        for _, _, turn in _turns(program, "ring")
    )


def ring_empty_bucket(program: Program) -> bool:
    """The empty parameter is the only one of its dtype."""
    others = set(program.parts) - {"empty", "short", "single", "count", "flag", "late", "constant"}
    return "empty" in program.parts and not others and any(p.way == "ring" for p in program.phases)


def ring_joins_without_gradient(program: Program) -> bool:
    joins = program.late_at is not None and any(phase.way == "ring" for phase in program.phases)
    return joins and any(each.act == "none" for each in program.passes)


def joins_an_idle_server(program: Program) -> bool:
    """A server has nothing to keep before the group joins."""
    if program.late_at is None:
        return False
    return any(_keeps_nothing(program, phase) for phase in _served(program))


# --- servers ----------------------------------------------------------------------------------------------
def overlap_discards(program: Program) -> bool:
    far = any(phase.far for phase in program.phases)
    return far and program.overlap is True and any(each.discard for each in program.passes)


def momentum_to_servers(program: Program) -> bool:
    ways = [phase.served for phase in program.phases]
    momentum = program.optimizer == "SGD" and "momentum" in dict(program.options)
    return momentum and any(not a and b for a, b in pairwise(ways))


def wire_and_scale(program: Program) -> bool:
    return program.wire is not None and any(
        phase.far and (program.scaler or turn.every > 1) for phase, _, turn in program.turns
    )


def wire_and_two(program: Program) -> bool:
    """Two gradients in half precision become one mean: the smallest of it must not be rounded once more."""
    wire = program.wire == "float16" and "normed" in program.parts
    return wire and any(phase.far and phase.workers < 3 for phase in program.phases)


def wire_when_joining(program: Program) -> bool:
    joins = program.wire is not None and program.late_at is not None
    return joins and any(phase.far for phase in program.phases)


def ring_saves_nothing(program: Program) -> bool:
    if not program.saves:
        return False
    return any(
        phase.way == "ring" and not any(_gives(d, turn) for turn in phase.turns for d in turn.deeds)
        for phase in program.phases
    )


def weighted_every(program: Program) -> bool:
    return any(phase.weighted and turn.every > 1 for phase, _, turn in program.turns)


def zero_weight(program: Program) -> bool:
    return any(each.weight == 0.0 for each in program.passes)


def tokens_unfinished(program: Program) -> bool:
    return any(len(deed) == 1 for _, _, turn in _turns(program, "tokens") for deed in turn.deeds)


def chief_is_quiet(program: Program) -> bool:
    if program.buffers != "chief" or not MOVING & set(program.parts):
        return False
    return any(
        not _gives(phase.turns[0].deeds[0], phase.turns[0]) for phase in _served(program) if phase.workers > 1
    )


def _tensors(program: Program) -> int:
    """How many the optimizer has at the start."""
    single = {"scalar", "empty", "unused", "sparse", "strided"}
    outside = {"late", "constant", "count", "flag"}
    more = {"tied": 3, "normed": 3}
    return sum(0 if p in outside else 1 if p in single else more.get(p, 2) for p in program.parts)


def _keeps_nothing(program: Program, phase: Phase) -> bool:
    """Whether some server does."""
    all_on_one = phase.servers > 1 and (phase.placement or "").startswith("lambda")
    return all_on_one or phase.servers > _tensors(program)


def idle_server(program: Program) -> bool:
    if program.average is None:
        return False
    return any(_keeps_nothing(program, phase) for phase in _served(program))


# --- all of them ------------------------------------------------------------------------------------------
def late_and_saved(program: Program) -> bool:
    return program.late_at is not None and program.saves


def late_and_averaged(program: Program) -> bool:
    return program.late_at is not None and program.average is not None


def late_and_skipped(program: Program) -> bool:
    if program.late_at is None:
        return False
    starts = [program.first_turn(number) for number in range(len(program.phases))]
    joins = {program.late_at, *(start for start in starts if start > program.late_at)}
    return any(
        number in joins and not all(_gives(d, t) for d in t.deeds if d) for _, number, t in program.turns
    )


def feed_in_calls(program: Program) -> bool:
    return program.feed is not None and len(program.feed.calls) > 1


def no_gradient_at_all(program: Program) -> bool:
    """Nobody has any, and yet gradients are divided."""
    return any(
        (turn.every > 1 or program.scaler or len([d for d in turn.deeds if d]) == 1)
        and any(each.act == "none" for deed in turn.deeds for each in deed)
        for _, _, turn in program.turns
    )


def empty_is_read(program: Program) -> bool:
    return "empty" in program.parts and program.reads and bool(_served(program))


# What a program comes upon, and the features by which the generator comes upon it soon.
SITUATIONS: dict[str, tuple[Callable[[Program], bool], tuple[str, ...]]] = {
    "ring: a skip beside every, a scaler or clipping": (
        ring_skip_and_scale,
        ("ring, skip, every, no overlap", "ring, inf, no overlap", "ring, skip, own clip"),
    ),
    "ring: an accumulation begins": (ring_every_begins, ("ring, skip, every", "ring, every, resume, same")),
    "ring: no gradient beside one that is divided": (
        ring_none_beside_scaled,
        ("ring, none, every", "ring, none, scaler"),
    ),
    "ring: an infinity on one worker, among passes": (
        ring_infinity_among_passes,
        ("ring, inf, every", "ring, inf, every, overlap"),
    ),
    "a loss scale grows in the middle of an accumulation": (
        scale_grows_among_passes,
        ("local, scaler, every", "ring, scaler, every", "sync, scaler, every"),
    ),
    "ring: goes on from loss scales that differ": (
        ring_goes_on_with_scales,
        ("sync, ring, inf, resume",),
    ),
    "ring: passes after a skip": (ring_passes_after_a_skip, ("ring, skip, every",)),
    "the mean of buffers after a worker has left": (
        means_after_leaving,
        ("sync, uneven, norm, mean buffers", "tokens, uneven, norm, mean buffers"),
    ),
    "ring: a skip without zero_grad": (ring_stale_skip, ("ring, skip, stale, branch",)),
    "ring: an optimizer that was stepped before": (ring_warm, ("ring, warm, Adam",)),
    "ring: clipping when a group joins": (ring_clips_what_joins, ("ring, late, own clip",)),
    "ring: buffers when a group joins": (ring_buffers_when_joining, ("ring, late, norm, mean buffers",)),
    "ring: the mean of buffers beside a skip": (ring_mean_beside_skip, ("ring, norm, skip, mean buffers",)),
    "ring: the mean of flags": (ring_mean_of_flags, ("ring, flag, mean buffers",)),
    "ring: the mean of counters": (ring_mean_of_counters, ("ring, norm, discard, mean buffers, no overlap",)),
    "ring: an empty parameter alone": (ring_empty_bucket, ("ring, empty",)),
    "ring: a group joins without a gradient": (ring_joins_without_gradient, ("ring, late, none",)),
    "a group joins on a server that kept nothing": (joins_an_idle_server, ("sync, late, many servers",)),
    "ring: nothing to save": (ring_saves_nothing, ("ring, undo, saves",)),
    "overlap: a gradient that was discarded": (overlap_discards, ("sync, overlap, discard, network",)),
    "momentum of SGD goes on on servers": (
        momentum_to_servers,
        ("ring, sync, momentum, resume", "local, sync, momentum, resume"),
    ),
    "first momentum after servers": (first_momentum, ("sync, local, dampening, frozen",)),
    "resumed on more workers": (
        more_workers,
        ("ring, resume, scheduler", "sync, resume, feed", "sync, resume, scheduler"),
    ),
    "wire_dtype with a scaler or every": (
        wire_and_scale,
        ("sync, wire, scaler, network", "sync, wire, every, network"),
    ),
    "wire_dtype: a mean of two": (
        wire_and_two,
        ("sync, wire, normed, network", "tokens, wire, normed, queue"),
    ),
    "wire_dtype when a group joins": (wire_when_joining, ("sync, wire, late, network",)),
    "weighted accumulation": (weighted_every, ("sync, weighted, every",)),
    "a weight of 0": (zero_weight, ("sync, weighted, zero weights",)),
    "held at the end": (tokens_unfinished, ("tokens, unfinished, saves",)),
    "the chief has not brought its buffers yet": (chief_is_quiet, ("sync, norm, skip, watches",)),
    "averages on a server that keeps nothing": (idle_server, ("sync, average, many servers",)),
    "a group that joins, saved": (
        late_and_saved,
        ("local, late, resume", "ring, late, resume", "sync, late, resume"),
    ),
    "a group that joins, averaged": (
        late_and_averaged,
        ("local, late, average", "ring, late, average", "local, late, average, saves"),
    ),
    "a skip when a group joins": (late_and_skipped, ("sync, late, skip", "ring, late, skip")),
    "several calls of batches": (feed_in_calls, ("feed",)),
    "no gradient at all": (no_gradient_at_all, ("local, none, every", "ring, none, scaler")),
    "the state of an empty parameter": (empty_is_read, ("sync, empty, reads, momentum",)),
}
