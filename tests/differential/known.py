"""What is known to be wrong: situations that are left out of the standing run until they are mended.

One entry each, with the reason in one line. Mend it, delete its entry, and the programs of it in `found` are
run with all others. This must end empty.
"""

from __future__ import annotations

KNOWN: dict[str, str] = {
    "ring: the mean of buffers beside a skip": "it is of this step's givers, not of what each brought last",
    "ring: a group joins without a gradient": "the worker without one is in another round: the ring hangs",
    "ring: an empty parameter alone": "a bucket of no bytes: ZeroDivisionError",
    "a group joins on a server that kept nothing": "the server fails if a gradient was added early",
    "a weight of 0": "it is skipped, and the reference still counts it as given",
    "remote: normalised data": "the backward of BatchNorm fails where the data needs no gradient",
}
