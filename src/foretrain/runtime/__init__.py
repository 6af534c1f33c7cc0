"""How software stacks behave."""

from foretrain.runtime.runtime import (
    Runtime,
    fields_of,
    folded,
    names,
    preset_file,
    presets,
    runtime,
)

__all__ = ["Runtime", "fields_of", "folded", "names", "preset_file", "presets", "runtime"]
