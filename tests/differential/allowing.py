"""Which programs mean something: those of which the pages say what they do. The generator and the shrinker
make no others.
"""

from __future__ import annotations

from programs import MOVING, Deed, Phase, Program, Turn

TOKENS = 1  # how far ahead a worker may run in the mode of that name
HALF_WAVE = 12  # steps in which the "cosine" scheduler comes down
SERVERS_RUN = frozenset({"SGD", "Adam", "AdamW", "Adagrad", "RMSprop"})
_WITH_GRADIENT = frozenset(
    {"linear", "tied", "scalar", "sparse", "single", "short", "strided", "norm", "normed"}
)


def allowed(program: Program) -> bool:
    """Whether the pages say how this program ends."""
    return (
        _model(program)
        and _options(program)
        and all(_saves_a_step(phase) for phase in program.phases[:-1])
        and all(_phase(program, phase) for phase in program.phases)
        and all(_turn(program, phase, number, turn) for phase, number, turn in program.turns)
        and (program.feed is None or _fed(program))
    )


def _saves_a_step(phase: Phase) -> bool:
    """A training that has made no step leaves no checkpoint to go on from."""
    return any(each.act == "step" for turn in phase.turns for deed in turn.deeds if deed for each in deed)


def _model(program: Program) -> bool:
    parts = set(program.parts)
    events = {"late": program.late_at, "frozen": program.thaw_at, "freezes": program.freeze_at}
    return (
        bool(parts & _WITH_GRADIENT)
        and all((at is None) or part in parts for part, at in events.items())
        and ("late" not in parts or program.late_at is not None)
        and ("freezes" not in parts or program.freeze_at is not None)
    )


def _options(program: Program) -> bool:
    families = {phase.served for phase in program.phases}
    options = dict(program.options)
    plain = program.optimizer == "SGD" and options.keys() <= {"lr"}
    simple = {phase.way for phase in program.phases} & {"local", "ring"}
    return (
        (len(program.phases) == 1 or program.saves)
        and (True not in families or program.optimizer in SERVERS_RUN)
        and not ("short" in program.parts and (len(families) > 1 or program.warm))
        # torch's own optimizers take sparse gradients only in their simplest form, and clip none.
        and not ("sparse" in program.parts and (program.clip or program.scaler or (simple and not plain)))
        and not (program.linear and (not plain or program.average is not None or program.reads))
        and not (program.linear and (program.last_step is not None or program.watches))
        # Without a gradient a scaler has to be told its scale again.
        and not (program.scaler and {"none", "inf"} <= {each.act for each in program.passes})
        and not (program.wire == "float16" and "short" in program.parts)
        # torch's own scheduler refuses a group that was added when it turns around.
        and not (
            program.late_at is not None and program.scheduler == "cosine" and len(program.turns) > HALF_WAVE
        )
        and not _exchanges_what_it_discards(program)
        # A script that adds up by itself clears gradients once a turn, in which there may be several pushes.
        and not (
            any(phase.way == "tokens" for phase in program.phases)
            and any(each.act == "add" for each in program.passes)
        )
    )


def _exchanges_what_it_discards(program: Program) -> bool:
    """In the ring a backward pass that is averaged brings its buffers, also if it is thrown away afterwards.

    The mean of all is the same, but not what each has brought last.
    """
    ring = program.averages_in_backward and any(phase.way == "ring" for phase in program.phases)
    brings = program.buffers == "mean" and bool(MOVING & set(program.parts))
    skips = any(each.act != "step" for each in program.passes)
    return ring and brings and skips and any(each.discard for each in program.passes)


def _phase(program: Program, phase: Phase) -> bool:
    joins = program.late_at
    ends = [sum(bool(turn.deeds[worker]) for turn in phase.turns) for worker in range(phase.workers)]
    even = len(set(ends)) == 1
    moving = bool(MOVING & set(program.parts))
    return (
        min(ends) > 0
        and max(ends) == len(phase.turns)
        # A worker whose data has ended does not come back.
        and all(
            bool(turn.deeds[w]) == (n < ends[w])
            for n, turn in enumerate(phase.turns)
            for w in range(len(ends))
        )
        and phase.served == bool(phase.servers)
        and (phase.way != "local" or phase.workers == 1)
        and (not phase.weighted or phase.way in ("sync", "tokens"))
        and (phase.placement is None or phase.served)
        and (not moving or ends[0] == max(ends))
        and not (phase.way == "ring" and program.saves and _chief_ends_first(phase, ends))
        and (even or program.last_step is None)
        and not (program.linear and moving)
        and (len(program.phases) == 1 or even)
        and (joins is None or even or min(ends) > joins)  # a group joins in every worker
    )


def _chief_ends_first(phase: Phase, ends: list[int]) -> bool:
    """It saves; what the others do after it is in no checkpoint."""
    last = phase.turns[-1]
    unfinished = [deed[-1].act in ("step", "none") and len(deed) < last.every for deed in last.deeds if deed]
    return ends[0] < max(ends) or (unfinished[0] and not all(unfinished))


def _turn(program: Program, phase: Phase, number: int, turn: Turn) -> bool:
    deeds = [deed for deed in turn.deeds if deed]
    acts = {each.act for deed in deeds for each in deed}
    passes = [each for deed in deeds for each in deed]
    moving = bool(MOVING & set(program.parts))
    last = number == program.turns[-1][1]
    return (
        all(_deed_is_whole(program, phase, turn, deed, last and not moving) for deed in deeds)
        and not ("inf" in acts and not program.scaler)
        and not (moving and acts & {"undo", "inf", "none"})
        and not (moving and any(each.weight == 0.0 for each in passes))  # it is skipped after its pass
        and not (moving and any(len(deed) > 1 and deed[-1].act == "skip" for deed in deeds))
        # The script looks, and its scheduler steps, at every verdict that is not "held".
        and not (
            phase.way == "tokens"
            and (program.watches or program.scheduler)
            and any(each.weight == 0.0 for deed in deeds for each in deed[:TOKENS])
        )
        and not (program.clip == "own" and (turn.every > 1 or phase.way == "tokens"))
        and not (program.clip == "own" and "none" in acts)
        and not (any(each.weight is not None for each in passes) and not phase.weighted)
        and not ("add" in acts and (program.scaler or phase.weighted))
        # What is held at the end is applied by whoever is the last out, and nobody looks at it inside.
        and not (
            phase.way == "tokens"
            and any(len(deed) <= TOKENS for deed in deeds)
            and not _ends_alone(program, phase)
        )
        and not any(each.stale and each.act != "skip" for each in passes)
        and not any(each.discard for deed in deeds for each in deed[1:])
        and not any(each.discard and each.act in ("skip", "none") for each in passes)
        and not (phase.way == "ring" and program.averages_in_backward and not _in_step(turn))
    )


def _ends_alone(program: Program, phase: Phase) -> bool:
    return phase.workers == 1 and program.average is None and not program.reads


def _deed_is_whole(program: Program, phase: Phase, turn: Turn, deed: Deed, may_end: bool) -> bool:
    acts = [each.act for each in deed]
    if phase.way == "tokens":
        return set(acts) == {"step"} and turn.every == 1 and (len(acts) == TOKENS + 1 or may_end)
    if "add" in acts:
        return acts == ["add"] * (turn.every - 1) + ["step"]
    ends = acts[-1] in ("skip", "undo", "inf") or program.breaks_off(phase, turn)
    if any(act in ("skip", "undo", "inf") for act in acts[:-1]):
        return False
    return len(acts) <= turn.every if ends or may_end else len(acts) == turn.every


def _in_step(turn: Turn) -> bool:
    """Where a backward pass makes the mean, all workers must do alike."""
    deeds = [deed for deed in turn.deeds if deed]
    discards = {deed[0].discard for deed in deeds}
    last = [deed[-1].act for deed in deeds]
    if len(discards) > 1:
        return False
    counts = {len(deed) for deed in deeds}
    if "undo" in last:
        return set(last) == {"undo"} and counts == {turn.every}
    return "inf" not in last or (set(last) <= {"step", "inf"} and len(counts) == 1)


def _fed(program: Program) -> bool:
    """Data from loaders is for plain steps."""
    feed = program.feed
    assert feed is not None
    plain = all(each.act == "step" and not each.discard for each in program.passes)
    rows = sum(len(phase.turns) * phase.workers * feed.batch for phase in program.phases)
    whole = rows == feed.rows * sum(feed.calls)
    return plain and whole and all(turn.every == 1 for _, _, turn in program.turns)
