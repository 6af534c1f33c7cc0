"""From descriptions to an execution graph."""

from foretrain.compile.compile import compile_step, micro_batches
from foretrain.compile.execution import ExecutionGraph

__all__ = ["ExecutionGraph", "compile_step", "micro_batches"]
