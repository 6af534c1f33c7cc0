"""What launch files say, in the words of a question."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from foretrain.model.lora import Adapters
from foretrain.plan.short_form import Words

WORDS = frozenset(one.name for one in fields(Words))


@dataclass(frozen=True)
class Launch:
    """A run as its files have it.

    `plan`: fields of `Words`; those that are not there are as in a plan that does not split, but for those in `script`,
    which the training script decides. `optimizers`: names that the files may mean, the likeliest first. `options`: of the
    runtime. `shape`: fields of a `TransformerShape`; empty where the model is the script's. None: not said.
    """

    plan: Mapping[str, Any]
    script: tuple[str, ...] = ()
    batch: int | None = None
    passes: int | None = None  # micro-batches of a replica, where these are counted
    seq: int | None = None
    precision: str | None = None
    optimizers: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    shape: Mapping[str, Any] = field(default_factory=dict)
    devices: int | None = None
    adapters: Adapters | None = None  # as PEFT names what they stand beside

    def words(self, like: Words | None = None) -> Words:
        """The plan; what the script decides is as in `like`."""
        words = Words(**self.plan)
        left = {name: getattr(like, name) for name in self.script} if like else {}
        return replace(words, **left)
