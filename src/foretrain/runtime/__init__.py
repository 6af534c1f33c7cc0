"""How software stacks behave."""

from foretrain.runtime.checking import register
from foretrain.runtime.presets import (
    changed_options,
    folded,
    is_outside,
    names,
    preset_file,
    presets,
    releases,
    runtime,
)
from foretrain.runtime.runtime import RENAMED, Runtime, option_needs, option_table

__all__ = [
    "RENAMED",
    "Runtime",
    "changed_options",
    "folded",
    "is_outside",
    "names",
    "option_needs",
    "option_table",
    "preset_file",
    "presets",
    "register",
    "releases",
    "runtime",
]
