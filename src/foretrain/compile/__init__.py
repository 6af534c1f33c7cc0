"""From descriptions to an execution graph."""

from foretrain.compile.compile import Compilation, micro_batches
from foretrain.compile.execution import ExecutionGraph

__all__ = ["Compilation", "ExecutionGraph", "micro_batches"]
