"""Writes `docs/questions.md`: questions with nothing but a model, machines and a batch, and what is assumed for them.

    python tools/questions.py [-o docs/questions.md]

The second half asks for runs whose figures are public, with the words their reports give.
"""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import Any

from foretrain import predict
from foretrain.analysis.prediction import Prediction
from foretrain.units import show_bytes, show_seconds

QUESTIONS: tuple[tuple[str, str, int], ...] = (
    ("resnet50", "1 x rtx-4090", 256),
    ("resnet50", "1 x dgx-a100-80gb", 2048),
    ("vit-l", "1 x dgx-a100-80gb", 1024),
    ("bert-base", "1 x rtx-4090", 64),
    ("bert-large", "1 x dgx-a100-80gb", 512),
    ("gpt2", "1 x rtx-4090", 32),
    ("llama3.2-1b", "1 x a100-80gb", 32),
    ("t5-3b", "2 x dgx-a100-80gb", 256),
    ("llama2-7b", "16 x dgx-a100-80gb", 1024),
    ("llama3-8b", "1 x dgx-h100", 64),
    ("llama3-8b", "2 x dgx-h100", 256),
    ("llama3-8b", "4 x aws:p4d.24xlarge", 128),
    ("llama2-13b", "4 x dgx-a100-80gb", 256),
    ("llama3-70b", "1 x dgx-h100", 32),
    ("llama3-70b", "32 x dgx-h100", 1024),
    ("gpt3-175b", "128 x dgx-a100-80gb", 1536),
    ("llama3.1-405b", "256 x dgx-h100", 2048),
    ("mixtral-8x7b", "8 x dgx-h100", 512),
    ("qwen3-30b-a3b", "4 x dgx-h100", 512),
    ("dlrm-dcnv2", "2 x dgx-h100", 55296),
)

FMS = {
    "on": "16 x dgx-a100-80gb on 4x100G-RoCE", "batch": 256, "runtime": "fms-fsdp", "plan": "dp128 zero3 shard=8",
}  # fmt: skip
Run = tuple[str, str, str, dict[str, Any]]
PUBLIC: tuple[Run, ...] = (
    (
        "MFU 38–43 % (Llama 3 report, arXiv 2407.21783, table 4)", "MFU", "llama3.1-405b",
        {"on": "2048 x dgx-h100", "batch": 2048},
    ),
    (
        "1,543 tokens/s/device: 2.664 M device hours for 14.8 T tokens, pauses included (DeepSeek-V3 report, arXiv "
        "2412.19437, table 1)", "tokens/s/device", "deepseek-v3",
        {"on": "256 x hgx-h800", "batch": 15360, "precision": "fp8", "runtime": "hai-llm", "plan": "pp16 dp128 ep64"},
    ),
    (
        "MFU 57 % (PyTorch and IBM, Maximizing training throughput using PyTorch FSDP, 2024; hybrid shards: "
        "foundation-model-stack/fms-fsdp, README; its network of 400 Gb/s is taken as four ports of RoCE per node)", "MFU", "llama2-7b",
        {**FMS, "runtime_options": {"compile": False}},
    ),
    (
        "MFU 68 %, the same compiled (PyTorch and IBM, Maximizing training throughput using torch.compile, 2024)", "MFU",
        "llama2-7b", FMS,
    ),
    (
        "MFU 51.4 % (Korthikanti et al. 2022, arXiv 2205.05198, table 5)", "MFU", "gpt3-175b",
        {"on": "8 x dgx-a100-80gb", "batch": 64, "micro_batch": 1, "plan": "tp8 pp8 vpp3 recompute=selective"},
    ),
)  # fmt: skip
"""What was published, in which unit, and the question."""

HEAD = """# Questions that leave things open

Someone who gives a model, machines and a global batch gets the software stack, plan and micro-batch that a practitioner would
run there. Every default stands among the answer's assumptions with the word that changes it. This page is written by
`python tools/questions.py`; the table of defaults is `src/foretrain/resolving/defaults.yaml`.
"""


def command(model: str, words: dict[str, Any]) -> str:
    """The command line that asks the same."""
    said = ["foretrain", "predict", model]
    for name, value in words.items():
        if name == "runtime_options":
            said += [text for key, v in value.items() for text in ("--set", f"{key}={str(v).lower()}")]  # fmt: skip
        else:
            said += [f"--{name.replace('_', '-')}", str(value)]
    return shlex.join(said).replace("'", '"')


def told(found: Prediction) -> list[str]:
    asked = found.to_dict()["question"]
    low, high = found.interval
    mfu = "" if found.mfu is None else f", MFU {100 * found.mfu:.0f} %"
    fits = "fits" if found.memory.fits else "**does not fit**"
    return [
        f"- **{asked['runtime']}**, `{asked['plan']}`, micro-batch {asked['micro_batch']}",
        f"- {show_seconds(found.step_seconds)} per step ({show_seconds(low)}–{show_seconds(high)}){mfu}; {fits}: "
        f"{show_bytes(found.memory.peak_bytes)} of {show_bytes(found.memory.usable_bytes)} usable",
        *(f"  - {line}" for line in found.assumptions),
    ]


def public_row(run: Run) -> str:
    published, unit, model, words = run
    found = predict(model, **words)
    low, high = found.interval
    if unit == "MFU":
        assert found.mfu is not None
        rates = [100 * found.mfu * found.step_seconds / s for s in (found.step_seconds, high, low)]
        shown = "{:.1f} % ({:.1f}–{:.1f} %)".format(*rates)
    else:
        devices = found.to_dict()["question"]["devices"]
        each = found.tokens_per_second / devices
        rates = [each * found.step_seconds / s for s in (found.step_seconds, high, low)]
        shown = "{:,.0f} ({:,.0f}–{:,.0f})".format(*rates)
    plan = found.to_dict()["question"]["plan"]
    return f"| `{command(model, words)}` | {published} | {shown} | `{plan}` |"


def page() -> str:
    lines = [HEAD]
    for model, on, batch in QUESTIONS:
        words = {"on": on, "batch": batch}
        lines += [
            "",
            f"## {model} on {on}, batch {batch:,}",
            "",
            f"    {command(model, words)}",
            "",
        ]
        lines += told(predict(model, **words))
    lines += [
        "", "## Runs whose figures are public", "",
        "| asked | published | predicted (80 % interval) | plan |", "|---|---|---|---|",
        *map(public_row, PUBLIC), "",
    ]  # fmt: skip
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", type=Path, default=Path("docs/questions.md"))
    parser.parse_args().o.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
