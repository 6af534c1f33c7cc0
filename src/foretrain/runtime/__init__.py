"""How software stacks behave."""

from foretrain.runtime.runtime import (
    Runtime,
    changed_options,
    fields_of,
    folded,
    names,
    preset_file,
    presets,
    register,
    runtime,
)

__all__ = [
    "Runtime",
    "changed_options",
    "fields_of",
    "folded",
    "names",
    "preset_file",
    "presets",
    "register",
    "runtime",
]
