from foretrain.arrays import Floats, Ints32
from foretrain.engine.program import Bytes

def simulate(
    duration: Floats,
    volume: Floats,
    route: Ints32,
    stream_ptr: Ints32,
    stream_ids: Ints32,
    succ_ptr: Ints32,
    succ: Ints32,
    route_ptr: Ints32,
    route_link: Ints32,
    route_weight: Floats,
    route_cap: Floats,
    capacity: Floats,
    streams: int,
    stream_place: Ints32 | None,
    activity: Bytes | None,
    sensitivity: Floats | None,
    slowdown: Floats | None,
    start: Floats,
    end: Floats,
    waited_for: Ints32,
) -> None: ...
def max_min(
    route_ptr: Ints32,
    route_link: Ints32,
    route_weight: Floats,
    route_cap: Floats,
    capacity: Floats,
    rates: Floats,
) -> None: ...
