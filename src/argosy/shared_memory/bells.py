"""A bell wakes who polls it, a thread of this process or of another: an eventfd, passed on as a descriptor.

Who rings has first written what is to be seen, and who has heard it looks afterwards. The kernel's lock of an
eventfd keeps that order on every processor.
"""

from __future__ import annotations

import os

hear = os.eventfd_read  # of a bell that was rung: it is silent until it is rung again


def new_bell() -> int:
    """A bell; to be closed with `os.close`."""
    return os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)


def ring(bell: int) -> None:
    """Wake who polls it now, or else who does so next."""
    os.eventfd_write(bell, 1)
