from foretrain.engine.program import Bytes, Floats, Ints

def simulate(
    duration: Floats,
    volume: Floats,
    route: Ints,
    stream_ptr: Ints,
    stream_ids: Ints,
    succ_ptr: Ints,
    succ: Ints,
    route_ptr: Ints,
    route_link: Ints,
    route_weight: Floats,
    route_cap: Floats,
    capacity: Floats,
    streams: int,
    stream_place: Ints | None,
    activity: Bytes | None,
    sensitivity: Floats | None,
    slowdown: Floats | None,
    start: Floats,
    end: Floats,
    waited_for: Ints,
) -> None: ...
def max_min(
    route_ptr: Ints,
    route_link: Ints,
    route_weight: Floats,
    route_cap: Floats,
    capacity: Floats,
    rates: Floats,
) -> None: ...
