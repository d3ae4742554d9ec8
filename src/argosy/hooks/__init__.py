"""Things that happen along with a training: `replica.session(..., hooks=[argosy.hooks.SaveCheckpoint(60)])`.

A hook of your own is a small class with any of `begin`, `before_step`, `after_step` and `end`; derive it from
`Hook`.
"""

from argosy.hooks.hook import Hook as Hook
from argosy.hooks.saving import SaveCheckpoint as SaveCheckpoint

__all__ = ["Hook", "SaveCheckpoint"]
