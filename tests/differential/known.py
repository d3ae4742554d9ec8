"""What is known to be wrong: situations that are left out of the standing run until they are mended.

One entry each, with the reason in one line. Mend it, delete its entry, and the programs of it in `found` are
run with all others. This must end empty.
"""

from __future__ import annotations

KNOWN: dict[str, str] = {
    "ring: a skip beside every, a scaler or clipping": "skip() steps with the raw mean, the others do not",
    "ring: an accumulation begins": "the first pass is averaged on its own",
    "ring: a skip without zero_grad": "an old .grad of a parameter that nobody used is applied",
    "ring: an optimizer that was stepped before": "each worker keeps its own state, not the chief's",
    "ring: clipping when a group joins": "backward does not average the new group: clipped by another norm",
    "ring: buffers when a group joins": "what the others brought with that step is lost",
    "ring: the mean of buffers beside a skip": "it is of this step's givers, not of what each brought last",
    "ring: the mean of flags": "a bool buffer has no mean: error",
    "ring: the mean of counters": "the mean, cut to a whole number, and not the largest",
    "ring: an empty parameter alone": "a bucket of no bytes: ZeroDivisionError",
    "ring: a group joins without a gradient": "the worker without one is in another round: the ring hangs",
    "a group joins on a server that kept nothing": "the server fails if a gradient was added early",
    "ring: nothing to save": "the chief removes the folder of notes before the others have written: error",
    "overlap: a gradient that was discarded": "it is applied if its successor lies at the same address",
    "momentum of SGD goes on on servers": "no count is saved for SGD, so momentum begins anew",
    "first momentum after servers": "a parameter that was never updated comes back with momentum of zeros",
    "wire_dtype with a scaler or every": "rounded before it is unscaled or divided",
    "weighted accumulation": "weighed by the last micro-batch",
    "a weight of 0": "the push is thrown away as garbage, and its worker waits for ever",
    "held at the end": "what is held at the end is in the checkpoint, but not in the workers",
    "the chief has not brought its buffers yet": "the others keep their own until then",
    "averages on a server that keeps nothing": "the server fails",
    "a group that joins, saved": "not restored; its values in the checkpoint are those before it joined",
    "a group that joins, averaged": "it has no average",
    "a skip when a group joins": "the group is not registered: the job hangs, or values are old",
    "several calls of batches": "the last pass of a call is counted twice",
    "no gradient at all": "an empty list of gradients cannot be divided: error",
    "the state of an empty parameter": "missing in state_dict()",
    "remote: normalised data": "the backward of BatchNorm fails where the data needs no gradient",
    "remote: statistics elsewhere": "BatchNorm's statistics are lost where its buffers are on another task",
    "remote: an error in a captured step": "what waits to be sent is overwritten by the next operation",
    "remote: gradients of an earlier recording": ".grad is that of the other recording",
}
