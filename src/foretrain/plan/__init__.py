"""Plans: meshes of ranks and strategy trees."""

from foretrain.plan.mesh import Mesh
from foretrain.plan.plan import Plan
from foretrain.plan.strategy import Cut, Schedule, StrategyNode

__all__ = ["Cut", "Mesh", "Plan", "Schedule", "StrategyNode"]
