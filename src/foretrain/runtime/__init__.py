"""How software stacks behave."""

from foretrain.runtime.checking import register as register
from foretrain.runtime.presets import changed_options as changed_options
from foretrain.runtime.presets import folded as folded
from foretrain.runtime.presets import is_outside as is_outside
from foretrain.runtime.presets import names as names
from foretrain.runtime.presets import preset_file as preset_file
from foretrain.runtime.presets import presets as presets
from foretrain.runtime.presets import releases as releases
from foretrain.runtime.presets import runtime as runtime
from foretrain.runtime.runtime import RENAMED as RENAMED
from foretrain.runtime.runtime import Runtime as Runtime
from foretrain.runtime.runtime import option_needs as option_needs
from foretrain.runtime.runtime import option_table as option_table
