"""Turns in short, for programs that are kept: `"2: step step | skip"` is a turn with `step(every=2)` in which
worker 0 makes two passes and worker 1 skips. After a comma: `n4` a batch of 4, `w0.5` a weight, `branch` not
used, `discard`, `stale`. A worker with `-` has left.
"""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

from programs import Act, Deed, Pass, Turn


def turns(*texts: str) -> tuple[Turn, ...]:
    """Turns from their texts."""
    return tuple(_turn(text) for text in texts)


def _turn(text: str) -> Turn:
    head, colon, rest = text.partition(":")
    deeds = (rest if colon else head).split("|")
    return Turn(tuple(_deed(deed.split()) for deed in deeds), int(head) if colon else 1)


def _deed(words: list[str]) -> Deed:
    return () if words == ["-"] else tuple(_pass(word) for word in words)


def _pass(word: str) -> Pass:
    name, *flags = word.split(",")
    act = next(act for act in get_args(Act) if act == name)
    each = Pass(act)
    for flag in flags:
        if flag.startswith("n"):
            each = replace(each, size=int(flag[1:]))
        elif flag.startswith("w"):
            each = replace(each, weight=float(flag[1:]))
        elif flag == "branch":
            each = replace(each, branch=False)
        else:
            each = replace(
                each, discard=each.discard or flag == "discard", stale=each.stale or flag == "stale"
            )
    return each


def text_of(turn: Turn) -> str:
    """The text that makes a turn."""
    deeds = " | ".join(" ".join(_word(each) for each in deed) or "-" for deed in turn.deeds)
    return deeds if turn.every == 1 else f"{turn.every}: {deeds}"


def _word(each: Pass) -> str:
    flags = [name for name in ("discard", "stale") if getattr(each, name)]
    flags += ["branch"] if not each.branch else []
    flags += [f"n{each.size}"] if each.size != Pass().size else []
    flags += [f"w{each.weight}"] if each.weight is not None else []
    return ",".join([each.act, *flags])
