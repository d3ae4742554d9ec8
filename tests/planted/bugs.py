"""Small bugs, as plain data: the file, what is changed in it, and the tests of which one must fail then.

`old` is found exactly once in the file. Tests are as pytest names them; a bug is planted alone.
"""

from __future__ import annotations

from bug import Bug
from log_bugs import LOG_BUGS
from recovery_bugs import RECOVERY_BUGS
from replacement_bugs import REPLACEMENT_BUGS
from ring_bugs import RING_BUGS
from store_bugs import STORE_BUGS

BUGS: tuple[Bug, ...] = (
    # --- update: decisions ----------------------------------------------------------------------------------
    Bug(
        "a late gradient is taken for one of this step",
        "update/admission.py",
        "        if push.version < self.step:\n            return self._late(push)\n",
        "",
        ("update/test_sync_admission.py",),
    ),
    Bug(
        "parts are summed in the order of arrival",
        "update/admission.py",
        "tuple(sorted([*self._fresh, *self._folded]))",
        "tuple([*self._fresh, *self._folded])",
        ("update/test_sync_admission.py", "simulation/test_schedules.py"),
    ),
    Bug(
        "the bound of staleness is one too wide",
        "update/admission.py",
        "all(self.step + 1 + place <= version + self._bound",
        "all(self.step + place <= version + self._bound",
        ("update/test_async_admission.py",),
    ),
    Bug(
        "one step is made after the last",
        "update/admission.py",
        "            return _refuse(push, self.step, stop=True)\n        if self._bound is None",
        "            pass\n        if self._bound is None",
        ("update/test_async_admission.py",),
    ),
    Bug(
        "a cut that was due while another was written is forgotten",
        "update/checkpoints.py",
        "if self._next is None or step < self._next or self._busy or self._over:",
        "if self._next is None or step != self._next or self._busy or self._over:",
        ("update/test_checkpoint_states.py",),
    ),
    Bug(
        "the norm is of one server's share",
        "update/clipping.py",
        "math.fsum(squares[s] for s in sorted(squares))",
        "max(squares.values())",
        ("update/test_roster_and_norm.py",),
    ),
    # --- store: numbers -------------------------------------------------------------------------------------
    Bug(
        "weights do not count in a mean of two",
        "server/gradient_sums.py",
        "return torch.lerp(first, second, other_weight / total, out=sums)",
        "return torch.lerp(first, second, 0.5, out=sums)",
        ("replica/test_equivalence.py::test_weighted_mean",),
    ),
    Bug(
        "a mean of half precision is rounded before its weight",
        "server/gradient_sums.py",
        "torch.mul(first, sums.new_tensor([its_weight / total]), out=sums)",
        "torch.mul(first, its_weight / total, out=sums)",
        ("server/test_shard.py",),
    ),
    Bug(
        "what was added early is added again",
        "server/gradient_sums.py",
        "return len(early) if agrees else 0",
        "return 0 if agrees else len(early)",
        ("server/test_shard.py", "server/test_order_executor.py"),
    ),
    Bug(
        "a parameter that nobody used is updated",
        "store/ranges.py",
        "for start, stop in zip(edges[::2], edges[1::2], strict=True) if start < stop]",
        "for start, stop in [(0, count)] if start < stop and edges]",
        ("server/test_shard.py",),
    ),
    Bug(
        "averages keep to their decay from the first step on",
        "store/update_rules.py",
        "return min(decay, (1.0 + step) / (10.0 + step))",
        "return decay",
        ("session/test_averages.py",),
    ),
    Bug(
        "buffers are the mean's, and not the chief's",
        "server/model_buffers.py",
        'for worker, mine in brought if self.rule == "mean" or worker == 0]',
        "for worker, mine in brought]",
        ("server/test_buffers_and_gathers.py", "replica/test_equivalence.py"),
    ),
    Bug(
        "a group that joins gets the first group's hyperparameters",
        "server/shard.py",
        "FlatOptimizer(spec.name, spec.groups[group], masters",
        "FlatOptimizer(spec.name, spec.groups[0], masters",
        ("server/test_shard.py", "replica/test_equivalence.py"),
    ),
    # --- wire -----------------------------------------------------------------------------------------------
    Bug(
        "a frame of another size is taken",
        "protocol/frames.py",
        "if spec.nbytes != size:",
        "if spec.nbytes < size:",
        ("wire/test_messages.py",),
    ),
    Bug(
        "half precision counts as four bytes",
        "protocol/frames.py",
        '"bfloat16": 2,',
        '"bfloat16": 4,',
        ("wire/test_messages.py", "protocol/test_layout.py"),
    ),
    # --- ring -----------------------------------------------------------------------------------------------
    Bug(
        "half precision is summed in half precision",
        "ring/reduction.py",
        "    if inputs[0].dtype in NARROW:\n",
        "    if inputs[0].dtype in NARROW and out.dtype not in NARROW:\n",
        ("ring/test_collectives.py",),
    ),
    Bug(
        "ranks write to one cache line",
        "ring/schedule.py",
        "line = max(1, _LINE // itemsize)",
        "line = 1",
        ("ring/test_schedule.py",),
    ),
    Bug(
        "three ranks have two chunk buffers",
        "ring/schedule.py",
        "return DEPTH if ranks <= 2 else DEPTH + 1",
        "return DEPTH",
        ("ring/test_schedule.py",),
    ),
    Bug(
        "a number is seen before what it tells of",
        "shared_memory/counters.py",
        "        if not ORDERED:\n            fence(self._fence)\n        words[self._mine + kind] = value\n",
        "        words[self._mine + kind] = value\n",
        ("shared_memory/test_counters.py",),
    ),
    Bug(
        "a number is seen, and what is read next is older",
        "shared_memory/counters.py",
        "                return row\n        if not ORDERED:\n            fence(self._fence)\n",
        "                return row\n",
        ("shared_memory/test_counters.py",),
    ),
    Bug(
        "who falls asleep looks before it can be seen asleep",
        "shared_memory/counters.py",
        "number * _KINDS + kind\n        fence(self._fence)\n",
        "number * _KINDS + kind\n",
        ("shared_memory/test_counters.py",),
    ),
    Bug(
        "one lock is taken for a fence on every processor",
        "shared_memory/counters.py",
        "    if not ORDERED:\n        with lock:\n            pass\n",
        "",
        ("shared_memory/test_counters.py",),
    ),
    # --- replica --------------------------------------------------------------------------------------------
    Bug(
        "zero_grad drops what an accumulation has gathered",
        "replica/optimizer.py",
        "        if self._gathered:\n            return\n",
        "",
        ("session/test_session.py", "replica/test_ring.py", "replica/test_equivalence.py"),
    ),
    Bug(
        "the mean of an accumulation is its sum",
        "replica/turn.py",
        "return self.unscale / self.passes",
        "return self.unscale",
        ("replica/test_ring.py", "replica/test_equivalence.py"),
    ),
    Bug(
        "the warm-up begins at the full rate",
        "replica/learning_rate.py",
        "factor = low + (1 - low) * step / self._steps",
        "factor = 1 - low * step / self._steps",
        ("replica/test_learning_rate.py",),
    ),
    # --- session --------------------------------------------------------------------------------------------
    Bug(
        "a loader deals the same order in every epoch",
        "replica/loader.py",
        "generator = torch.Generator().manual_seed(_mixed(self._seed, epoch))",
        "generator = torch.Generator().manual_seed(_mixed(self._seed, 0))",
        ("session/test_loader.py",),
    ),
    Bug(
        "random generators are not put back",
        "session/own_state.py",
        "    torch.set_rng_state(_tensor(state.torch))\n",
        "",
        ("session/test_loader.py", "session/test_training_modes.py", "session/test_checkpoints.py"),
    ),
    # --- checkpoint -----------------------------------------------------------------------------------------
    Bug(
        "an old checkpoint is removed too soon",
        "checkpoint/folder.py",
        "if each.step <= step][:-keep]:",
        "if each.step <= step][: 1 - keep or None]:",
        ("checkpoint/test_folder.py", "session/test_checkpoints.py"),
    ),
    Bug(
        "a part of a tensor is read from its beginning",
        "checkpoint/safetensors.py",
        "file.seek(place.offset + start * size)",
        "file.seek(place.offset)",
        ("checkpoint/test_files.py",),
    ),
    Bug(
        "a file is not on the disk when it has its name",
        "checkpoint/disk.py",
        "            write(descriptor, part)\n        sync(descriptor)\n",
        "            write(descriptor, part)\n",
        ("checkpoint/test_kills.py", "checkpoint/test_files.py", "checkpoint/test_folder.py"),
    ),
    *STORE_BUGS,
    *LOG_BUGS,
    *RECOVERY_BUGS,
    *REPLACEMENT_BUGS,
    *RING_BUGS,
)
