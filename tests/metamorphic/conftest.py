"""Chunks of drawn questions. All properties of one chunk run one after the other, so its answers are shared."""

from __future__ import annotations

import pytest

from .cases import CHUNK, CHUNKS, Case


@pytest.fixture(
    scope="session", params=CHUNKS, ids=lambda n: f"{n * CHUNK}-{n * CHUNK + CHUNK - 1}"
)
def cases(request: pytest.FixtureRequest) -> list[Case]:
    return [Case(request.param * CHUNK + k) for k in range(CHUNK)]
