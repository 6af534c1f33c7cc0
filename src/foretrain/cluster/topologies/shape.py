"""A row of the table of networks: builder, what users may say of it, how it may be routed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, get_type_hints

from foretrain.cluster.fabric import Fabric, Site
from foretrain.cluster.link import ClusterNetwork
from foretrain.errors import ClusterError, hint
from foretrain.loading import validated
from foretrain.named import named

MOST = 2**31
"""Of any whole number that a user gives."""


def _largest(value: Any) -> int:
    values = value if isinstance(value, tuple) else (value,)
    return max((one for one in values if isinstance(one, int)), default=0)


@dataclass(frozen=True, slots=True)
class NetworkShape:
    """Call it with a site and a network to get the fabric, routed as the network says."""

    home: str
    """File in this folder and function that builds it, whose last argument is the form of what users may say of it."""
    routings: tuple[str, ...] = ("shortest", "ecmp")
    """The first is the default."""
    own: tuple[str, ...] = ()
    """Routings that the builder brings itself; the others are found on the graph."""

    def __call__(self, site: Site, network: ClusterNetwork) -> Fabric:
        given = self._checked(dict(network.parameters))
        routing = network.routing or self.routings[0]
        self.expect_routing(routing, network.topology)
        fabric = self.build(site, network, given)
        if routing not in self.own:
            from foretrain.cluster.routing import GRAPH_ROUTINGS

            return GRAPH_ROUTINGS[routing](fabric)
        return fabric if routing == "ecmp" else replace(fabric, spread=None)

    @property
    def build(self) -> Callable[[Site, ClusterNetwork, Any], Fabric]:
        builder: Callable[[Site, ClusterNetwork, Any], Fabric]
        builder = named(f"foretrain.cluster.topologies.{self.home}")
        return builder

    @property
    def parameters(self) -> type:
        form: type = get_type_hints(self.build)["given"]
        return form

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters that a user may give."""
        return tuple(one.name for one in fields(self.parameters))

    def read(self, given: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
        """What the user gave as plain values, in one order, so that equal networks compare equal."""
        form = self._checked(given)
        return tuple((name, getattr(form, name)) for name in self.names if name in given)

    def _checked(self, given: Mapping[str, Any]) -> Any:
        if not given:  # the validator takes a moment to load
            return self.parameters()
        form: Any = validated(self.parameters, dict(given), "network", ClusterError)
        large = [name for name in given if _largest(getattr(form, name)) > MOST]
        if large:
            faults = [
                f"{name}: {str(given[name])[:40]} is too large; at most {MOST:,}." for name in large
            ]
            raise ClusterError("invalid network:", faults=faults)
        return form

    def expect_routing(self, routing: str, topology: str) -> None:
        if routing not in self.routings:
            fault = (
                f"routing: {routing!r} is not supported by topology "
                f"{topology}.{hint(routing, self.routings)}"
            )
            raise ClusterError("invalid network:", faults=[fault])
