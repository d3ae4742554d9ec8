"""Whether a model that nobody has told us of keeps running statistics: found by the parameters it shares."""

from __future__ import annotations

import gc
from collections.abc import Iterable

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

# These agree on their statistics by themselves.
_ALIKE = (nn.SyncBatchNorm,)


def keeps_statistics(parameters: Iterable[nn.Parameter]) -> bool:
    """Whether a model with one of these parameters has a layer such as BatchNorm."""
    known = {id(parameter) for parameter in parameters}
    # By type and not by isinstance: some objects pretend to be of another class, and load it to do so.
    modules = [each for each in gc.get_objects() if issubclass(type(each), nn.Module)]
    layers = [each for each in modules if issubclass(type(each), _NormBase) and type(each) not in _ALIKE]
    layers = [layer for layer in layers if layer.running_mean is not None]
    if any(id(parameter) in known for layer in layers for parameter in layer.parameters()):
        return True
    without = {id(layer) for layer in layers if not list(layer.parameters())}
    return bool(without) and any(
        any(id(part) in without for part in each.modules())
        and any(id(parameter) in known for parameter in each.parameters())
        for each in modules
    )
