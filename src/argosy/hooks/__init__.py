"""Things that happen along with a training: `replica.session(..., hooks=[argosy.hooks.NanGuard()])`.

A hook of your own is a small class with any of `begin`, `before_step`, `after_step` and `end`; derive it from
`Hook`.
"""

from argosy.hooks.hook import Hook as Hook

__all__ = ["Hook"]
