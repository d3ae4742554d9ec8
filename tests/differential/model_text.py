"""The model and the data of a program, as the text of plain PyTorch. Both sides run this text."""

from __future__ import annotations

from collections.abc import Iterator

from programs import Part, Program

# Of each part: how it is made, and the term that it adds to the loss.
_PARTS: dict[Part, tuple[list[str], str]] = {
    "linear": (["self.linear = nn.Linear(3, 2, dtype=D)"], "cost(self.linear(x))"),
    "tied": (
        [
            "self.tied, self.twin = nn.Linear(3, 2, dtype=D), nn.Linear(3, 2, dtype=D)",
            "self.twin.weight = self.tied.weight",
        ],
        "cost(self.tied(x) + 2 * self.twin(x))",
    ),
    "scalar": (["self.scalar = nn.Parameter(torch.tensor(0.5, dtype=D))"], "cost(self.scalar * x)"),
    "empty": (["self.empty = nn.Parameter(torch.zeros(0, 3, dtype=D))"], "self.empty.sum()"),
    "unused": (["self.unused = nn.Parameter(torch.ones(3, dtype=D))"], ""),
    "branch": (["self.branch = nn.Linear(3, 1, dtype=D)"], "cost(self.branch(x))"),
    "sparse": (
        ["self.sparse = nn.Embedding(5, 2, sparse=True, dtype=D)"],
        "cost(self.sparse((10 * x[:, 0]).long() % 5))",
    ),
    "short": (
        ["self.short = nn.Linear(3, 2, dtype=torch.bfloat16)"],
        "cost(self.short(x.bfloat16()))",
    ),
    "single": (
        ["self.single = nn.Linear(3, 2, dtype=torch.float32)"],
        "cost(self.single(x.float()))",
    ),
    "strided": (
        ["self.strided = nn.Parameter(torch.ones(2, 3, dtype=D).t())"],
        "cost(x @ self.strided)",
    ),
    "frozen": (
        ["self.frozen = nn.Linear(3, 2, dtype=D).requires_grad_(False)"],
        "cost(self.frozen(x))",
    ),
    "freezes": (["self.freezes = nn.Linear(3, 2, dtype=D)"], "cost(self.freezes(x))"),
    "constant": (
        ["self.constant = nn.Linear(3, 3, dtype=D).requires_grad_(False)"],
        "",
    ),
    "late": (["self.late = nn.Linear(3, 2, dtype=D)"], "cost(self.late(x))"),
    "norm": (["self.norm = nn.BatchNorm1d(3, dtype=D)"], "cost(self.norm(x))"),
    "normed": (
        ["self.normed = nn.Sequential(nn.Linear(3, 3, bias=False, dtype=D), nn.BatchNorm1d(3, dtype=D))"],
        "cost(self.normed(x))",
    ),
    "count": (['self.register_buffer("count", torch.tensor(0))'], ""),
    "flag": (['self.register_buffer("flag", torch.tensor(False))'], ""),
}
_BEFORE: dict[Part, str] = {
    "constant": "x = self.constant(x)",
    "count": "self.count += 1",
    "flag": "self.flag.fill_(True)",
}
NOT_IN_THE_OPTIMIZER: tuple[Part, ...] = ("late", "constant")


def model_text(program: Program) -> str:
    """Defines `Model`, `fill` and `data`."""
    return "\n".join(_lines(program)) + "\n"


def _lines(program: Program) -> Iterator[str]:
    parts = program.parts
    yield "D = torch.float64"
    yield ""
    yield "def cost(out):"
    yield "    return out.mean()" if program.linear else "    return (out.sin() + out**2).mean()"
    yield ""
    yield "class Model(nn.Module):"
    yield "    def __init__(self):"
    yield "        super().__init__()"
    for part in parts:
        yield from (f"        {line}" for line in _PARTS[part][0])
    yield ""
    yield "    def forward(self, x, branch=True):" if "branch" in parts else "    def forward(self, x):"
    yield from (f"        {_BEFORE[part]}" for part in parts if part in _BEFORE)
    terms = [_PARTS[part][1] for part in parts if _PARTS[part][1] and part != "branch"]
    yield f"        loss = {' + '.join(terms) if terms else 'x.new_zeros(()).requires_grad_()'}"
    if "branch" in parts:
        yield f"        return loss + {_PARTS['branch'][1]} if branch else loss"
    else:
        yield "        return loss"
    yield ""
    yield "def fill(model, seed):"
    yield "    generator = torch.Generator().manual_seed(seed)"
    yield "    with torch.no_grad():"
    yield "        for p in model.parameters():"
    yield "            p.copy_(torch.rand(p.shape, generator=generator, dtype=D) - 0.5)"
    yield "    return model"
    yield ""
    yield "def data(turn, place, worker, size):"
    yield "    generator = torch.Generator().manual_seed(1000 * turn + 10 * place + worker)"
    yield "    return torch.randn(size, 3, generator=generator, dtype=D)"


def trained_text(program: Program) -> str:
    """The expression for the parameters that the optimizer has from the start."""
    outside = tuple(part for part in NOT_IN_THE_OPTIMIZER if part in program.parts)
    if not outside:
        return "list(model.parameters())"
    words = repr(outside) if len(outside) > 1 else repr(outside[0])
    return f"[p for name, p in model.named_parameters() if not name.startswith({words})]"
