"""A table, and how it looks as Markdown and on the screen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import rich.table


@dataclass(frozen=True)
class Table:
    """A title, a header, rows of as many words, and notes below."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = field(default_factory=tuple)

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.header):
                raise ValueError(f"{self.title}: a row of {len(row)} under a header of {len(self.header)}")


def markdown(table: Table) -> str:
    """The table in Markdown, numbers to the right."""
    lines = [f"## {table.title}", "", _line(table.header)]
    lines.append(
        "|" + "|".join("---" if column == 0 else "---:" for column in range(len(table.header))) + "|"
    )
    lines += [_line(row) for row in table.rows]
    for note in table.notes:
        lines += ["", note]
    return "\n".join([*lines, ""])


def _line(words: Sequence[str]) -> str:
    return "| " + " | ".join(word.replace("|", "\\|") for word in words) + " |"


def on_screen(table: Table) -> rich.table.Table:
    """The table for rich."""
    result = rich.table.Table(title=table.title, caption="\n".join(table.notes) or None, title_justify="left")
    for column, name in enumerate(table.header):
        result.add_column(name, justify="left" if column == 0 else "right")
    for row in table.rows:
        result.add_row(*row)
    return result
