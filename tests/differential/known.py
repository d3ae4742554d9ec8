"""What is known to be wrong: situations that are left out of the standing run until they are mended.

One entry each, with the reason in one line. Mend it, delete its entry, and the programs of it in `found` are
run with all others. This must end empty.
"""

from __future__ import annotations

KNOWN: dict[str, str] = {}
