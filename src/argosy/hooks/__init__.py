"""Things that happen along with a training: `replica.session(..., hooks=[argosy.hooks.SaveCheckpoint(60)])`.

A hook of your own is a small class with any of `begin`, `before_step`, `after_step` and `end`; derive it from
`Hook`.
"""

from argosy.hooks.log_steps import LogSteps as LogSteps
from argosy.hooks.nan_guard import NanGuard as NanGuard
from argosy.hooks.profile import Profile as Profile
from argosy.hooks.save_checkpoint import SaveCheckpoint as SaveCheckpoint
from argosy.hooks.stop_at_step import StopAtStep as StopAtStep
from argosy.hooks.tensorboard import TensorBoard as TensorBoard
from argosy.session.hook import Hook as Hook

__all__ = ["Hook", "LogSteps", "NanGuard", "Profile", "SaveCheckpoint", "StopAtStep", "TensorBoard"]
