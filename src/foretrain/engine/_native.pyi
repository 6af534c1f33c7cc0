from foretrain.engine.program import Floats, Ints

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
