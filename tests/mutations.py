"""What becomes of real packets on a bad day: a few bytes changed, left out, put in or taken from another."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

# What parsers stumble over: lengths, the ends of ranges, bytes that begin or continue a character of UTF-8.
_AWKWARD = b"\x00\x01\x7f\x80\x85\x90\x91\x92\xa5\xbf\xc0\xc1\xc2\xc6\xcb\xcf\xd9\xdb\xdc\xdd\xde\xdf\xed\xff"


def mutate(packet: bytes, others: Sequence[bytes], chance: random.Random) -> bytes:
    """A packet with one to four changes."""
    data = bytearray(packet)
    for _ in range(chance.randint(1, 4)):
        place = chance.randint(0, len(data))
        match chance.randrange(6):
            case 0 if data:
                data[place % len(data)] = chance.choice(_AWKWARD)
            case 1 if data:
                data[place % len(data)] ^= 1 << chance.randrange(8)
            case 2:
                del data[place : place + chance.randint(1, 8)]
            case 3:
                data[place:place] = bytes(chance.choices(_AWKWARD, k=chance.randint(1, 8)))
            case 4:
                other = chance.choice(others)
                data[place:] = other[chance.randint(0, len(other)) :]
            case _:
                del data[place:]
    return bytes(data)


def mutations(packets: Sequence[bytes], count: int, seed: int) -> Iterator[bytes]:
    """So many of them; the same ones for a seed."""
    chance = random.Random(seed)
    return (mutate(chance.choice(packets), packets, chance) for _ in range(count))
