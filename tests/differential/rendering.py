"""A program as the text of a script that a person can run. `executing` runs the same text, so what is printed
for a failing seed is what has failed.
"""

from __future__ import annotations

from collections.abc import Iterator

from allowing import HALF_WAVE, TOKENS
from model_text import model_text, trained_text
from programs import Pass, Phase, Program


def render(program: Program) -> str:
    """The whole script, with the commands that run it."""
    return "\n".join([*_heading(program), model_text(program), body(program)])


def _heading(program: Program) -> Iterator[str]:
    yield f"# Seed {program.seed} of tests/differential."
    for number, phase in enumerate(program.phases):
        yield f"# Run: {_command(program, phase)}{f' {number}' if len(program.phases) > 1 else ''}"
    yield "import sys"
    yield ""
    yield "import torch"
    yield "from torch import nn"
    yield ""
    yield "import argosy"
    yield ""
    if len(program.phases) > 1:
        yield "PHASE = int(sys.argv[-1])"
        yield f"MODES = [{', '.join(mode_text(phase) for phase in program.phases)}]"
        yield "replica = argosy.join(mode=MODES[PHASE])"
    else:
        yield f"replica = argosy.join(mode={mode_text(program.phases[0])})"
    if program.saves:
        yield f'DIRECTORY = "runs/seed-{program.seed}"'
    yield ""


def _command(program: Program, phase: Phase) -> str:
    if phase.way == "local":
        return "python program.py"
    if phase.way == "ring":
        return f"argosy run --mode ring --workers {phase.workers} program.py"
    lane = "ARGOSY_LANE=network " if phase.far else ""
    return f"{lane}argosy run --ps {phase.servers} --workers {phase.workers} program.py"


def mode_text(phase: Phase) -> str:
    """The mode, as it is said in Python."""
    match phase.way:
        case "local":
            return "None"
        case "ring":
            return "argosy.Ring()"
        case "async":
            return "argosy.Async()"
        case "sync":
            return f"argosy.Sync({'weighted=True' if phase.weighted else ''})"
        case "tokens":
            weighted = ", weighted=True" if phase.weighted else ""
            count = (TOKENS + 1) * phase.workers
            return f"argosy.Sync(aggregate={count}, distinct=False, tokens={TOKENS}{weighted})"


def body(program: Program) -> str:
    """The training itself: needs `replica`, and `PHASE` and `DIRECTORY` if the program has them."""
    columns = Columns(program)
    lines = [*_plan(program, columns), *_optimizer(program), *_session(program)]
    lines += _loop(program, columns)
    lines += _end(program)
    return "\n".join(lines) + "\n"


class Columns:
    """What differs from pass to pass in this program, and is therefore a column of its plan."""

    def __init__(self, program: Program) -> None:
        passes = list(program.passes)
        self.acts = {each.act for each in passes}
        self.every = any(turn.every > 1 for _, _, turn in program.turns)
        self.branch = any(not each.branch for each in passes) and "branch" in program.parts
        self.discard = any(each.discard for each in passes)
        self.stale = any(each.stale for each in passes)
        self.weight = any(each.weight is not None for each in passes)

    def names(self) -> list[str]:
        chosen = {
            "act": self.acts != {"step"},
            "every": self.every,
            "branch": self.branch,
            "discard": self.discard,
            "stale": self.stale,
            "weight": self.weight,
        }
        return [name for name, used in chosen.items() if used]

    def values(self, each: Pass, every: int) -> list[object]:
        return [every if name == "every" else getattr(each, name) for name in self.names()]


# --- before the loop --------------------------------------------------------------------------------------
def _plan(program: Program, columns: Columns) -> Iterator[str]:
    if program.feed is not None:
        yield f"ROWS = torch.arange({program.feed.rows}.0, dtype=D).view(-1, 1).expand(-1, 3) / 7"
        return
    names = ", ".join(["turn", "place", "size", *columns.names()])
    yield f"PLAN = [  # of each worker: {names}"
    several = len(program.phases) > 1
    for number, phase in enumerate(program.phases):
        if several:
            yield f"    [  # phase {number}"
        for worker in range(phase.workers):
            yield f"    {'    ' if several else ''}{_passes(program, number, worker, columns)},"
        if several:
            yield "    ],"
    yield f"]{'[PHASE]' if several else ''}"


def _passes(program: Program, number: int, worker: int, columns: Columns) -> list[tuple[object, ...]]:
    first = program.first_turn(number)
    return [
        (turn_number, place, each.size, *columns.values(each, turn.every))
        for turn_number, turn in enumerate(program.phases[number].turns, start=first)
        for place, each in enumerate(turn.deeds[worker])
    ]


def _optimizer(program: Program) -> Iterator[str]:
    yield "model = fill(Model(), seed=replica.index)"
    yield f"trained = {trained_text(program)}"
    options = "".join(f", {name}={value!r}" for name, value in program.options)
    groups = "trained"
    if program.groups == 2:
        groups = '[{"params": trained[::2]}, {"params": trained[1::2], "lr": 0.05}]'
    yield f"inner = torch.optim.{program.optimizer}({groups}{options})"
    if program.warm:
        yield "for p in trained:"
        yield "    p.grad = torch.full_like(p, 0.1 * (replica.index + 1))"
        yield "inner.step()"
        yield "inner.zero_grad()"
    if program.scaler:
        yield f'scaler = torch.amp.GradScaler("cpu", growth_interval={_growth_interval(program)})'
    yield f"optimizer = replica.distribute(inner{_distribute_options(program)})"
    if program.scheduler is not None:
        yield f"scheduler = torch.optim.lr_scheduler.{_SCHEDULERS[program.scheduler]}"


def _growth_interval(program: Program) -> str:
    """A scale may grow if all scalers hear of the same passes: in the ring they must agree."""
    return "10**6" if any(each.act in ("skip", "undo", "none") for each in program.passes) else "2"


_SCHEDULERS = {
    "step": "StepLR(optimizer, 2, gamma=0.5)",
    "exponential": "ExponentialLR(optimizer, 0.8)",
    "cosine": f"CosineAnnealingLR(inner, T_max={HALF_WAVE})",
}


def _distribute_options(program: Program) -> str:
    words = []
    placements = [phase.placement for phase in program.phases]
    if any(placements):
        chosen = ", ".join(placement or "None" for placement in placements)
        words.append(f"placement=[{chosen}][PHASE]" if len(placements) > 1 else f"placement={chosen}")
    if program.clip == "norm":
        words.append("clip_norm=0.3")
    if program.wire is not None:
        words.append(f"wire_dtype=torch.{program.wire}")
    if program.overlap is not None:
        words.append(f"overlap={program.overlap}")
    return "".join(f", {word}" for word in words)


def _session(program: Program) -> Iterator[str]:
    words = ["model", "optimizer"]
    if program.feed is not None and len(program.phases) > 1:
        ends = [program.first_turn(number + 1) for number in range(len(program.phases))]
        words.append(f"last_step={ends}[PHASE]")
    elif program.last_step is not None:
        words.append(f"last_step={program.last_step}")
    if program.saves:
        words.append("directory=DIRECTORY")
        kept = [name for name in ("scheduler", "scaler") if getattr(program, name)]
        if kept:
            pairs = ", ".join(f'"{name}": {name}' for name in kept)
            words.append(f"state={{{pairs}}}")
    if program.average is not None:
        words.append(f"average={program.average}")
    if program.buffers != "chief":
        words.append(f'buffers="{program.buffers}"')
    yield "verdicts, seen, average, kept = [], [], None, None"
    yield f"with replica.session({', '.join(words)}) as session:"


# --- the loop ---------------------------------------------------------------------------------------------
def _loop(program: Program, columns: Columns) -> list[str]:
    if program.feed is not None:
        return [
            "    rows = torch.utils.data.TensorDataset(ROWS)",
            f"    loader = replica.loader(rows, {program.feed.batch}, seed=3)",
            f"    for epochs in {program.feed.calls}:",
            "        for (x,) in session.batches(loader, epochs=epochs):",
            *(f"            {line}" for line in _pass(program, columns)),
        ]
    names = ", ".join(["turn", "place", *columns.names()])
    return [
        "    batches = [",
        f"        (data(turn, place, replica.index, size), {names})",
        f"        for {', '.join(['turn', 'place', 'size', *columns.names()])} in PLAN[replica.index]",
        "    ]",
        f"    for x, {names} in session.batches(iter(batches)):",
        *(f"        {line}" for line in [*_events(program), *_pass(program, columns)]),
    ]


def _events(program: Program) -> Iterator[str]:
    if program.thaw_at is not None:
        yield f"model.frozen.requires_grad_(turn >= {program.thaw_at})"
    if program.freeze_at is not None:
        yield f"model.freezes.requires_grad_(turn < {program.freeze_at})"
    if program.late_at is not None:
        yield f"if turn >= {program.late_at} and len(inner.param_groups) == {program.groups}:"
        yield '    optimizer.add_param_group({"params": list(model.late.parameters()), "lr": 0.05})'


def _pass(program: Program, columns: Columns) -> Iterator[str]:
    """What is done with a batch."""
    unless = ["place == 0"] * ("add" in columns.acts) + ["not stale"] * columns.stale
    if unless:
        yield f"if {' and '.join(unless)}:"
        yield "    optimizer.zero_grad()"
    else:
        yield "optimizer.zero_grad()"
    loss = "model(x, branch)" if columns.branch else "model(x)"
    yield from _discard(program, columns, loss)
    without = [act for act in ("skip", "none") if act in columns.acts]
    indent = ""
    step = _step(program, columns)
    if "skip" in without:
        yield 'if act == "skip":'
        yield "    verdict = optimizer.skip()"
    if "none" in without:
        yield f'{"elif" if "skip" in without else "if"} act == "none":'
        if program.scaler:
            yield "    scaler.scale(x.sum())"  # it makes its scale when it is first used
        yield f"    verdict = {step}"
        if program.scaler:
            yield "    scaler.update(2.0**16)"  # nothing was checked
    if without:
        yield "else:"
        indent = "    "
    for line in _backward(program, columns, loss, step):
        yield indent + line
    yield "verdicts.append((verdict.status, verdict.global_step))"
    if program.watches:
        yield 'if verdict.status != "held":'
        yield "    seen.append([value.clone() for value in model.state_dict().values()])"
    if program.scheduler is not None:
        yield 'if verdict.status != "held":'
        yield "    scheduler.step()"


def _discard(program: Program, columns: Columns, loss: str) -> Iterator[str]:
    if columns.discard:
        yield "if discard:"
        scaled = f"scaler.scale({loss}.mul(2))" if program.scaler else f"{loss}.mul(2)"
        yield f"    {scaled}.backward()"
        yield "    optimizer.zero_grad()"


def _step(program: Program, columns: Columns) -> str:
    words = (["every=every"] if columns.every and "add" not in columns.acts else []) + (
        ["weight=weight"] if columns.weight else []
    )
    if program.scaler:
        return f"scaler.step({', '.join(['optimizer', *words])})"
    return f"optimizer.step({', '.join(words)})"


def _backward(program: Program, columns: Columns, loss: str, step: str) -> Iterator[str]:
    divided = " / every" if "add" in columns.acts else ""
    yield f"loss = {loss}{divided}"
    if "inf" in columns.acts:
        yield 'if act == "inf":'
        yield '    loss = loss * float("inf")'
    backward = "scaler.scale(loss).backward()" if program.scaler else "loss.backward()"
    if "add" in columns.acts:
        yield 'if act == "add":'
        yield "    with optimizer.no_sync():"
        yield f"        {backward}"
        yield "    continue"
    yield backward
    if program.clip == "own":
        if program.scaler:
            yield "scaler.unscale_(optimizer)"
        everything = '[p for group in inner.param_groups for p in group["params"]]'
        trained = "trained" if program.late_at is None else everything
        yield f"nn.utils.clip_grad_norm_({trained}, 0.3)"
    if "undo" in columns.acts:
        yield f'verdict = optimizer.skip() if act == "undo" else {step}'
    else:
        yield f"verdict = {step}"
    if program.scaler and "undo" in columns.acts and program.clip != "own":
        yield 'if act != "undo":'  # nothing was checked then
        yield "    scaler.update()"
    elif program.scaler:
        yield "scaler.update()"


# --- after the loop ---------------------------------------------------------------------------------------
def _end(program: Program) -> Iterator[str]:
    if program.linear:
        yield "    replica.barrier()"
    if program.average is not None:
        yield "    with session.averaged():"
        yield "        average = {name: value.clone() for name, value in model.state_dict().items()}"
    if program.reads:
        yield '    kept = optimizer.state_dict()["state"]'
    yield "print(replica.task, verdicts, {name: p.sum().item() for name, p in model.named_parameters()})"
