"""Writes `docs/recommended-jobs.md`: eight jobs, what `recommend` picks for each of the whole catalog, and why.

    python tools/recommended_jobs.py [--only TITLE] [-o docs/recommended-jobs.md]

With --only, the other jobs of a page stay as they are.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foretrain import recommend
from foretrain.recommendation.answer import Recommendation
from foretrain.recommendation.choosing import choice
from foretrain.recommendation.offers import Offer
from foretrain.report.md import table, text
from foretrain.report.recommendation import hours
from foretrain.report.words import energy, usd

HERE = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Asked:
    """A job, how it is asked on the command line, and what an engineer would remark."""

    title: str
    model: str
    words: Mapping[str, Any]
    remark: str


JOBS = (
    Asked(
        "ResNet-50, 90 epochs of ImageNet", "resnet50",
        {"epochs": 90, "data": "imagenet-1k", "batch": 1024, "precision": "fp16", "optimizer": "sgd"},
        "A night on one device. Many fast ones are done within the hour, but wait for launches, for images to be decoded and for start-up.",
    ),
    Asked(
        "BERT-large, 230 M sequences of 512", "bert-large", {"samples": "230M", "seq": 512, "batch": 4096},
        "About what its authors trained on. An hour of many machines costs little, but start-up is a good part of it.",
    ),
    Asked(
        "ViT-L, 300 epochs of ImageNet", "vit-l", {"epochs": 300, "data": "imagenet-1k", "batch": 4096},
        "Data parallel throughout. Watch storage and decoding: they are those of the machine, unless `--storage` says better.",
    ),
    Asked(
        "GPT-2 XL, 300 B tokens", "gpt2-xl", {"tokens": "300B", "batch": 512},
        "A batch of half a million tokens is what bounds the cluster: with more replicas, each has too little to do between exchanges.",
    ),
    Asked(
        "Llama 3 8B, 1 T tokens", "llama3-8b", {"tokens": "1T"},
        "Nearly linear up to the limit on devices, so the knee is at the limit; with `--deadline 14d` an eighth of it is enough.",
    ),
    Asked(
        "Llama 3 70B, 15 T tokens in 60 days", "llama3-70b", {"tokens": "15T", "deadline": "60d"},
        "No rental of 512 devices does it; the answer says how many would, and the next job asks for them.",
    ),
    Asked(
        "The same with 4,096 devices and batches of 16 M tokens", "llama3-70b",
        {"tokens": "15T", "deadline": "60d", "max_devices": 4096, "batch": "16Mtok"},
        "Llama 3 ended at 16 M tokens per step. Such a cluster is a contract, not an order: see `--reserved` and `--discount`.",
    ),
    Asked(
        "Mixtral 8x7B, 1 T tokens in 30 days", "mixtral-8x7b", {"tokens": "1T", "deadline": "30d"},
        "Experts stay inside a machine, where the exchange of tokens is fast; replicas of machines go over the network.",
    ),
    Asked(
        "DLRM of MLPerf, 4.2 G samples", "dlrm-mlperf", {"samples": "4.2B", "batch": 65536},
        "One pass over Criteo 1TB; reading it is not counted without `--data`. The tables (97 GiB) fit one large device and are "
        "split by rows over smaller ones. Start-up and writing the tables once, at 1 GB/s, take longer than training.",
    ),
)  # fmt: skip

PAGE = """# Eight jobs

Written by `tools/recommended_jobs.py`; do not edit. What [`recommend`](recommend.md) picks for eight jobs of the whole catalog,
on demand at list prices, and why. The first offer is the cheapest within the deadline, or without a deadline the knee of cost
over time. Prices and availability change: what a cloud has to rent today is not known here.

{summary}

{jobs}
"""


def command(asked: Asked) -> str:
    options = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in asked.words.items())
    return f"foretrain recommend {asked.model} {options}"


def section(asked: Asked, found: Recommendation, seconds: float) -> Iterator[str]:
    yield f"## {asked.title}\n"
    yield f"    {command(asked)}\n"
    if not found.offers:
        yield f"No feasible offer. Closest: {text(found.nearest)} {text(found.remedy)}\n"
    else:
        yield f"{choice(found.job).sentence}.\n"
        best = found.offers[0]
        yield table(HEAD, [_row("pick", best), *_others(found)]) + "\n"
        yield f"- `{best.name}`: {text(best.why)}.\n{_notes(found)}"
    alike = len(found.offers) - len(found.distinct)
    yield (
        f"{asked.remark} {found.looked_at:,} clusters evaluated in {seconds:.0f} CPU seconds, {len(found.offers):,} feasible, "
        f"{alike:,} of them no better than another of as many devices.\n"
    )


HEAD = ("", "offer", "plan", "time", "cost", "energy", "network and interconnect", "goodput")


def _row(kind: str, one: Offer) -> tuple[str, ...]:
    waits = sum(one.stalls.get(name, 0.0) for name in ("network", "interconnect"))
    kwh = one.energy_kwh
    return (
        kind, one.name, one.plan, hours(one.hours), usd(one.usd), "unknown" if kwh is None else energy(kwh),
        f"{100 * waits / one.step_seconds:.0f} %", f"{100 * one.goodput:.0f} %",
    )  # fmt: skip


def _others(found: Recommendation) -> Iterator[tuple[str, ...]]:
    """Runners-up: the cheapest, the fastest, and the best of other clouds."""
    seen = {found.offers[0].name}
    kinds = {
        "cheapest": min(found.offers, key=lambda o: o.usd),
        "fastest": min(found.offers, key=lambda o: o.hours),
        **{f"best of {name}": one for name, one in found.by_cloud.items()},
    }
    for kind, one in kinds.items():
        if one.name not in seen:
            seen.add(one.name)
            yield _row(kind, one)


def _notes(found: Recommendation) -> str:
    told = [note for note in found.notes if "critical batch" in note]
    return "".join(f"- {text(note)}.\n" for note in told)


def undominated(found: Recommendation) -> bool:
    """Whether no other offer beats the pick in both time and money."""
    best = found.offers[0]
    return not any(
        o.usd <= best.usd and o.hours <= best.hours and (o.usd, o.hours) != (best.usd, best.hours)
        for o in found.offers[1:]
    )


def _kept(page: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Sections and rows of the summary of a page, by title."""
    said = page.read_text(encoding="utf-8")
    sections = [f"## {part.strip()}\n" for part in said.split("\n## ")[1:]]
    lines = {line.split(" | ")[0].removeprefix("| "): line for line in said.splitlines()}
    parts = {one.splitlines()[0].removeprefix("## "): one for one in sections}
    return parts, {title: lines[title] for title in parts}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=HERE / "docs" / "recommended-jobs.md")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    parts, rows = _kept(options.output) if options.only else ({}, {})
    for asked in JOBS:
        if options.only.lower() not in asked.title.lower():
            continue
        began = time.process_time()
        found = recommend(asked.model, **asked.words)
        parts[asked.title] = "\n".join(section(asked, found, time.process_time() - began))
        if found.offers:
            if not undominated(found):
                raise SystemExit(f"{asked.title}: the pick is dominated.")
            best = found.offers[0]
            row = (asked.title, best.name, hours(best.hours), usd(best.usd))
        else:
            row = (asked.title, "none", "", found.remedy)
        rows[asked.title] = table(row, ()).splitlines()[0]
        print(rows[asked.title], file=sys.stderr)
    titles = [asked.title for asked in JOBS if asked.title in parts]
    head = table(("job", "pick", "time", "cost"), ())
    summary = "\n".join((head, *(rows[title] for title in titles)))
    page = PAGE.format(summary=summary, jobs="\n".join(parts[title] for title in titles))
    options.output.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
