"""Writes `docs/support.md`: which models, stacks, devices and plan features go together, and why others are refused.

    python tools/support_matrix.py [-o docs/support.md]

Every cell is a question that is resolved and compiled as a prediction would be. It works; or it is refused, and the
reason is that of the error message; or the stack cannot run the plan, and the reason is its rule's. Of the four things
two vary in each table; the others are named above it.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from foretrain.cluster.catalog import nodes
from foretrain.errors import InputError
from foretrain.model import zoo
from foretrain.model.precision import precisions
from foretrain.plan.defaults import plan_defaults
from foretrain.plan.facts import facts_of
from foretrain.plan.schedules import SCHEDULES, meant
from foretrain.plan.short_form import parse
from foretrain.plan.supported import rules_of
from foretrain.report.md import table
from foretrain.resolving import ask
from foretrain.runtime import presets
from foretrain.simulate import compile_scenario, cost_scenario

HERE = Path(__file__).resolve().parents[1]
WORKS, CANNOT_RUN = "✓", "the stack cannot run it: "
PIPELINES = {
    name: f"pp2 {name} dp4" if meant(name, 2, 1)[0].name == name else f"pp2 vpp2 {name} dp4"
    for name in SCHEDULES
}
"""A pipeline of every schedule there is."""
FEATURES: Mapping[str, str] = {
    "data": "dp8",
    "tensor": "tp2 dp4",
    "sequence": "tp2 sp dp4",
    "context": "cp2 dp4",
    "expert": "ep4 dp8",
    "expert tensor": "tp2 sp ep4 etp1 dp4",
    **PIPELINES,
    "ZeRO-1": "dp8 zero1",
    "ZeRO-2": "dp8 zero2",
    "ZeRO-3": "dp8 zero3",
    "hybrid shard": "dp8 zero3 shard=4",
    "recompute": "dp8 recompute=full",
    "selective": "dp8 recompute=selective",
    "offload": "dp8 zero1 offload=optimizer",
    "split tables": "dp8 tables=rows",
}
"""Plan features by the words that ask for them, on eight devices."""
SUITED = {
    "expert": {"model": "mixtral-8x7b"},
    "expert tensor": {"model": "mixtral-8x7b"},
    "split tables": {"model": "dlrm-mlperf"},
}
"""Features that ask for a model of their own."""
MODELS = (
    "gpt3-1.3b", "llama3-8b", "mixtral-8x7b", "deepseek-v3", "bert-large", "t5-large", "vit-l", "resnet50",
    "vgg16", "inception-v3", "gnmt", "dlrm-mlperf",
)  # fmt: skip
"""One of every family of the zoo."""


@dataclass(frozen=True, slots=True)
class Question:
    """A cell: on eight devices, as large a batch as pipelines need."""

    model: str = "llama3-8b"
    stack: str = "megatron"
    on: str = "1 x dgx-h100"
    plan: str = "dp8"
    precision: str | None = None

    @staticmethod
    def _lacking(notes: Iterable[str]) -> tuple[str, ...]:
        """What devices have no units for; from where efficiencies are taken says each prediction."""
        return tuple(
            f"the device has{note.split(' has')[1]}" for note in notes if " has no " in note
        )

    def answer(self) -> tuple[bool, str]:
        """Whether it works on this stack, and why not or what it warns of."""
        words = {} if self.precision is None else {"precision": self.precision}
        try:
            asked = ask(
                self.model, on=self.on, plan=self.plan, runtime=self.stack, batch=64, micro_batch=1, **words
            )  # fmt: skip
            graph = compile_scenario(asked)
            lacks = self._lacking(cost_scenario(asked, graph).notes) if self.precision else ()
        except InputError as error:
            return False, _reason(str(error), self)
        whole = parse(self.plan, plan_defaults(asked.runtime, asked.workload.model), 8)
        for rule in rules_of(asked.runtime):
            if not rule.allows(replace(whole, micro=1), facts_of(asked.workload)):
                return False, f"{CANNOT_RUN}{rule.because}."
        return True, " ".join(_reason(warning, self) for warning in (*asked.warnings, *lacks))


def _reason(text: str, asked: Question) -> str:
    """The first sentence of a message, without what differs from cell to cell."""
    line = " ".join(text.replace("|", "/").replace(asked.model, "the model").split())
    return re.split(r"(?<=[a-z0-9)])\. (?=[A-Z])", line)[0].rstrip(".") + "."


@dataclass
class Reasons:
    """Footnotes, numbered as they are met."""

    numbers: dict[str, int] = field(default_factory=dict)

    def mark(self, works: bool, reason: str) -> str:
        if not reason:
            return WORKS
        number = self.numbers.setdefault(reason, len(self.numbers) + 1)
        return f"{WORKS} ({number})" if works else str(number)

    def listed(self) -> str:
        return "\n".join(f"{number}. {reason}" for reason, number in self.numbers.items())


def grid(rows: Mapping[str, Question], columns: Mapping[str, Mapping[str, str]], corner: str, reasons: Reasons) -> str:  # fmt: skip
    """Every row with the words of every column put in."""
    body = [
        [name, *(reasons.mark(*replace(row, **words).answer()) for words in columns.values())]
        for name, row in rows.items()
    ]
    return table([corner, *columns], body)


def stack_rows() -> dict[str, Question]:
    return {name: Question(stack=name) for name in presets()}


def model_rows() -> dict[str, Question]:
    """Each on the first stack that trains it in this matrix: one for transformers, one for the others."""
    splits = {name: any("heads" in op.size for _, op in zoo.build(name).ops()) for name in MODELS}
    return {
        name: Question(model=name, stack="megatron" if is_split else "ddp")
        for name, is_split in splits.items()
    }


def device_rows() -> dict[str, Question]:
    """One machine for each kind of device, the first of the catalogue that has it."""
    found: dict[str, str] = {}
    for name, node in nodes().items():
        if node.device_count == 8:
            found.setdefault(node.devices[0].name, name)
    return {device: Question(on=f"1 x {node}") for device, node in sorted(found.items())}


def features() -> dict[str, dict[str, str]]:
    return {name: {"plan": plan} for name, plan in FEATURES.items()}


def page() -> str:
    reasons = Reasons()
    suited = {name: {**words, **SUITED.get(name, {})} for name, words in features().items()}
    stacks = grid(stack_rows(), suited, "stack", reasons)
    models = grid(model_rows(), features(), "model", reasons)
    both = grid(stack_rows(), {name: {"model": name} for name in MODELS}, "stack", reasons)
    devices = grid(device_rows(), {name: {"precision": name} for name in precisions()}, "device", reasons)  # fmt: skip
    plans = "\n".join(f"- **{name}**: `{plan}`" for name, plan in FEATURES.items())
    return PAGE.format(
        plans=plans, stacks=stacks, models=models, both=both, devices=devices, reasons=reasons.listed()
    )  # fmt: skip


PAGE = """# What goes together

Written by `tools/support_matrix.py`; do not edit. Each cell is a question that was resolved and compiled: ✓ works, a
number is the [reason](#reasons) it is refused for or that the stack [cannot run](runtime.md#what-a-stack-can-run) it, one in
brackets a warning. Features of plans, by the [words](plans.md) that ask for them:

{plans}

## Stacks and plan features

Llama 3 8B on 8 H100; experts are those of Mixtral 8x7B, tables those of MLPerf's DLRM.

{stacks}

## Models and plan features

On 8 H100; models with attention under Megatron-LM, the others under DDP.

{models}

## Models and stacks

Data parallelism on 8 H100.

{both}

## Devices and precisions

Llama 3 8B, data parallelism, on a machine with 8 of each; whether it fits is another question.

{devices}

## Reasons

{reasons}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=HERE / "docs/support.md")
    options = parser.parse_args()
    options.output.write_text(page(), "utf-8")


if __name__ == "__main__":
    main()
