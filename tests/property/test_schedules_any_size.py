"""Pipeline schedules at random sizes."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from foretrain.plan.schedules import SCHEDULES
from foretrain.testing.schedules import check_bubble, check_orders


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(sorted(SCHEDULES)),
    stages=st.integers(1, 9),
    micro_batches=st.integers(1, 30),
    chunks=st.integers(1, 4),
)
def test_schedules_hold_at_any_size(
    name: str, stages: int, micro_batches: int, chunks: int
) -> None:
    subject = SCHEDULES[name]
    chunks = min(max(chunks, subject.chunks.start), subject.chunks.stop - 1)
    while not subject.fits(stages, micro_batches):
        micro_batches += 1
    check_orders(subject, stages, micro_batches, chunks)
    check_bubble(subject, stages, micro_batches, chunks)
