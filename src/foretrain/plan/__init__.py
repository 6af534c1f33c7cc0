"""Plans: meshes of ranks and strategy trees."""

from foretrain.plan.mesh import Mesh
from foretrain.plan.plan import Plan
from foretrain.plan.strategy import Cut, Node, Schedule

__all__ = ["Cut", "Mesh", "Node", "Plan", "Schedule"]
