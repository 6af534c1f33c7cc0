"""From descriptions to an execution graph."""

from foretrain.compile.compile import Compilation, compile_step, micro_batches
from foretrain.compile.execution import ExecutionGraph

__all__ = ["Compilation", "ExecutionGraph", "compile_step", "micro_batches"]
