"""How software stacks behave."""

from foretrain.runtime.from_case import runtime_from_case
from foretrain.runtime.runtime import Runtime, presets, runtime

__all__ = ["Runtime", "presets", "runtime", "runtime_from_case"]
