"""What sends and gathers do to each other on links, in numbers small enough to count by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from foretrain.arrays import Floats
from foretrain.planning import exposed_communication, steps
from foretrain.planning.contention import Contention, TimedPlans, beside
from foretrain.planning.replicas import INSIDE, NETWORK

NONE, ONE = np.array([False]), np.array([True])


def leaving(send: Floats) -> Floats:
    """Of two parts: what the first sends forward and the second back."""
    return np.array([[[send[0, 0], 0.0]], [[0.0, send[0, 0]]]])


def plans(*, follows: Any = NONE, puts_off: Any = NONE, way: int = NETWORK, **more: Any) -> Any:
    """One plan of two stages that send 3 seconds of flow each way."""
    sends = SimpleNamespace(flow=np.array([[3.0]]), leaving=leaving)
    replicas = SimpleNamespace(gathers_by=way)
    return SimpleNamespace(follows=follows, puts_off=puts_off, sends=sends, replicas=replicas, **more)  # fmt: skip


def test_sends_are_met_on_links_out_of_a_node_and_into_it() -> None:
    """Of twenty seconds of work both ways, six of sends: 0.3 on the links out and 0.3 on those in."""
    layers = SimpleNamespace(forward=np.full((1, 1, 1), 8.0), backward=np.full((1, 1, 1), 12.0))
    task = SimpleNamespace(runtime=SimpleNamespace(pipeline=SimpleNamespace(overlaps_pipeline=True)))  # fmt: skip
    batch = SimpleNamespace(
        task=task, layers=layers, rows=np.array([0]), share=np.ones((1, 1)), choices=_Choices()
    )
    flowing = (np.zeros((1, 1)), np.zeros((1, 1)))
    t: Any = plans(
        f=batch,
        flowing=flowing,
        slow=np.ones(2),
        slowed=np.ones(2),
        at_end=lambda: np.ones(1),
        crowded=lambda: np.ones(1),
    )
    found = beside(t, [np.array([[8.0]]), np.array([[12.0]]), np.array([[4.0]])], np.array([0]))
    assert found.forward.sent.tolist() == pytest.approx([1.0 - 0.7 * 0.7])
    assert found.forward.on(NETWORK).tolist() == pytest.approx([0.51])
    assert found.forward.on(INSIDE).tolist() == [0.0]


@pytest.mark.parametrize(
    ("follows", "puts_off", "before_forward", "before_backward"),
    [
        (NONE, NONE, [0.0, 3.0], [3.0, 0.0]),  # in turn: a backward step has sent back
        (ONE, NONE, [3.0, 0.0], [0.0, 3.0]),  # phases apart
        (NONE, ONE, [0.0, 0.0], [3.0, 0.0]),  # after a weight step, which sends nothing
    ],
)
def test_what_the_step_before_has_sent(
    follows: Any, puts_off: Any, before_forward: list[float], before_backward: list[float]
) -> None:
    ahead, back = steps._sent_before(plans(follows=follows, puts_off=puts_off))
    assert ahead[0].tolist() == before_forward
    assert back[0].tolist() == before_backward


def test_a_gather_that_starts_with_a_send_waits_for_the_shorter_of_them() -> None:
    gathers, sent = np.array([[2.0, 5.0, 2.0]]), np.array([[3.0, 3.0, 0.0]])
    by_chance = Contention(np.zeros((1, 2)), np.array([0.25]))
    found = steps._behind_sends(plans(), gathers, sent, by_chance)
    assert found[0].tolist() == pytest.approx([2.0 - 0.5, 3.0 - 1.25, 0.0])
    assert not steps._behind_sends(plans(way=INSIDE), gathers, sent, by_chance).any()


def streaming(t: Any, monkeypatch: pytest.MonkeyPatch) -> float:
    monkeypatch.setattr(exposed_communication, "_first_backward", lambda *_: np.array([[7.0]]))
    return float(exposed_communication._streaming(t, (None, None, None), None)[0, 0])  # type: ignore[arg-type]


class _Choices:
    zero = np.array([3])

    def __len__(self) -> int:
        return 1


def one_stage(*, follows: Any = NONE) -> Any:
    """Ten micro-batches, each with 4 s of reductions, 3 s of gathers a pass, 1 and 2 s of collectives between 5 and 8 s of
    kernels; kernels make what moves beside them take a quarter longer."""
    wires = {"wire_forward": 1.0, "wire_backward": 2.0}
    layers = SimpleNamespace(
        forward=np.full((1, 1, 1), 6.0),
        backward=np.full((1, 1, 1), 10.0),
        **{name: np.array([[[0.0, each]]]) for name, each in wires.items()},
    )
    batch = SimpleNamespace(
        layers=layers,
        counts=np.array([10.0]),
        stages=1,
        share=np.ones((1, 1)),
        choices=_Choices(),
        summed=lambda parts: parts,
        by_stage=lambda column: column,
    )
    replicas = SimpleNamespace(crosses=True, gathers_by=NETWORK, gathers=lambda *_: np.array([[3.0]]))  # fmt: skip
    return SimpleNamespace(
        f=batch,
        follows=follows,
        replicas=replicas,
        moved=np.array([[4.0]]),
        slow=np.array([1.0, 1.1]),
        slowed=np.array([1.0, 1.25]),
        crowded=lambda: np.array([0.8]),
        of_replicas=lambda column: column,
        sends=SimpleNamespace(sent=lambda: np.array([[[0.5]], [[0.25]]])),
    )


def test_links_that_decide_carry_gathers_slowed_by_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    beside_kernels = 10 * (4.0 + 3.0 * 1.8)
    kernels = 10 * (5.0 + 8.0)
    slower = min(kernels * 1.1, beside_kernels * 1.25) * (1.0 - 1.0 / 1.25)
    wires, sent = 10 * (2.0 + 0.8 * 1.0), 10 * (0.25 + 0.8 * 0.5)
    found = streaming(one_stage(), monkeypatch)
    assert found == pytest.approx(7.0 + beside_kernels + slower + wires + sent)


def test_where_phases_are_apart_links_carry_what_goes_back_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slower = min(10 * 8.0 * 1.1, 10 * 7.0 * 1.25) * (1.0 - 1.0 / 1.25)
    found = streaming(one_stage(follows=ONE), monkeypatch)
    assert found == pytest.approx(7.0 + 10 * 7.0 + slower + 10 * 2.0 + 10 * 0.25)


def test_names_of_columns_that_tests_stand_in_for_are_those_of_plans() -> None:
    names = set(TimedPlans.__dataclass_fields__)
    assert {"f", "follows", "puts_off", "replicas", "sends", "moved", "slow", "slowed"} <= names
