"""All-reduce among the ranks of a job: shared memory inside a host, Gloo among hosts.

`import argosy.ring` makes `torch.distributed.init_process_group("argosy")` work.
"""

from __future__ import annotations

from argosy.ring.backend import register

register()
