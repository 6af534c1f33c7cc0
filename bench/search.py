"""Speed of a search: every plan of a space estimated, the best simulated; then walks with a strategy per layer.

    python bench/search.py [--json] [--part NAME]

Each search is the first of a process of its own, imports not counted. Beside ours stand published figures of other
planners for the same model and as many GPUs of the same kind, whose search compiles and measures on the cluster:
Alpa on GPT-39B, 64 V100s (Zheng et al., OSDI 2022, table 5: 2,393 s), and on Wide-ResNet-13B, 32 V100s of 32 GB, as
run by the authors of Aceso (Liu et al., EuroSys 2024, artifact, results/ref: 44,743 s). Calculon's search (Isaev et
al., SC 2023) is asked the same question just after ours if FORETRAIN_CALCULON names a checkout of
calculon-ai/calculon; else its rate of another run stands there.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

from measure import HERE, Row, one_core, rows_of, show
from peers import answered

GPT_39B = {
    "family": "gpt", "hidden_size": 8192, "num_hidden_layers": 48, "num_attention_heads": 64,
    "vocab_size": 51200, "max_position_embeddings": 1024,
}  # fmt: skip
CALCULON_RECORDED = {"configurations": 26_372, "seconds": 329.0}
"""Its own search of GPT-3 175B on 64 GPUs, on one core."""
CALCULON_SECONDS = 30


def searched(model: Any, **question: Any) -> tuple[Any, float, float]:
    """The result, wall and CPU seconds, all plans that are shown analysed."""
    from foretrain.searching import search

    wall, cpu = time.perf_counter(), time.process_time()
    found = search(model, **question)
    shown = [row.prediction for row in found.best]
    assert shown, "nothing fits"
    return found, time.perf_counter() - wall, time.process_time() - cpu


def told(found: Any, cpu: float) -> str:
    first = found.best[0]
    return (
        f"{found.plans_valid:,} plans, {found.plans_fitting:,} fit; {cpu:.1f} s of CPU; best "
        f"{first.prediction.step_seconds:.3g} s/step"
    )


def uniform() -> list[Row]:
    found, wall, cpu = searched("gpt3-175b", on="128 x dgx-a100-80gb", batch=1536)
    rate = found.plans_valid / wall
    return [
        Row("search, GPT-3 175B, 1,024 A100s", wall, "s", 10.0, told(found, cpu)),
        Row("  the same, CPU", cpu, "s", 6.0),
        Row("  plans looked at", rate, "/s", None, "all of the search, simulations included"),
        *against_calculon(
            named_plans(found) / cpu, found.plans_valid / cpu, os.environ.get("FORETRAIN_CALCULON")
        ),
    ]


def named_plans(found: Any) -> int:
    """All that the space's choices name, those included that cannot run: as Calculon counts its own."""
    fits = "does not fit in memory"  # these are among the valid ones already
    refused = sum(count for reason, count in found.plans_pruned.items() if reason != fits)
    return int(found.plans_valid + refused)


def against_calculon(named: float, valid: float, checkout: str | None) -> list[Row]:
    """Our plans to its configurations per second of CPU, for other work seldom slows both alike: all that the loops
    name, and those of them that are not refused at once. The same question if a checkout is given, else what was
    recorded of all it names."""
    if checkout is None:
        about = "GPT-3 on 64 GPUs, of another run (FORETRAIN_CALCULON is not set)"
        return [_ratio("all named", named, CALCULON_RECORDED, "configurations", about)]
    theirs = calculon(checkout, gpus=1024, batch=1536)
    about = "CPU time, same question, core and run"
    return [
        _ratio("all named", named, theirs, "configurations", about),
        _ratio("valid ones", valid, theirs, "valid", about),
    ]


def _ratio(name: str, ours: float, theirs: dict[str, Any], key: str, about: str) -> Row:
    rate = theirs[key] / theirs["seconds"]
    note = f"ours {ours:,.0f}/s, its {theirs[key]:,} in {theirs['seconds']:.0f} s ({rate:.0f}/s): {about}; wanted: 200"
    return Row(f"  against Calculon's search, {name}", ours / rate, "times", None, note)


def calculon(checkout: str, gpus: int, batch: int) -> dict[str, Any]:
    if not (Path(checkout) / "calculon" / "llm" / "optimal_execution.py").is_file():
        raise SystemExit(
            f"FORETRAIN_CALCULON={checkout}: no calculon/llm/optimal_execution.py there; "
            "name a checkout of github.com/calculon-ai/calculon, or unset it"
        )
    script = str(HERE / "calculon_search.py")
    return answered(script, checkout, str(gpus), str(batch), str(CALCULON_SECONDS))


def experts() -> list[Row]:
    """Searches of mixtures of experts, in seconds of CPU."""
    found, _, cpu = searched("mixtral-8x7b", on="8 x dgx-h100", batch=512)
    return [Row("search, Mixtral 8x7B, 64 H100s, CPU", cpu, "s", 6.0, told(found, cpu))]


def many_experts() -> list[Row]:
    found, _, cpu = searched("deepseek-v3", on="256 x dgx-h100", batch=4096)
    return [Row("search, DeepSeek-V3, 2,048 H100s, CPU", cpu, "s", 15.0, told(found, cpu))]


def catalogue() -> list[Row]:
    """A job on everything that can be rented."""
    from foretrain import recommend

    cpu = time.process_time()
    found = recommend("llama3-8b", tokens=1e12, batch=512)
    spent = time.process_time() - cpu
    note = f"{len(found.to_dict()['offers']):,} offers told of; Llama 3 8B, 1 T tokens"
    return [Row("recommend, whole catalogue, CPU", spent, "s", 15.0, note)]


def advice() -> list[Row]:
    """What would help, after a prediction: worked out when it is looked at."""
    from foretrain import predict

    rows = []
    for name, model, question in ADVISED:
        found = predict(model, **question)
        step = found.step_seconds
        cpu = time.process_time()
        count = len(found.what_would_help)
        spent = time.process_time() - cpu
        rows.append(
            Row(
                f"what would help, {name}, CPU",
                spent,
                "s",
                1.0,
                f"{count} remedies; {step:.3g} s/step",
            )
        )
    return rows


ADVISED: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("Llama 3 8B, 16 H100s", "llama3-8b", {"on": "2 x dgx-h100", "plan": "tp2 dp8 zero1", "batch": 256}),
    ("GPT-3 175B, 1,024 A100s", "gpt3-175b", {"on": "128 x dgx-a100-80gb", "plan": "tp8 pp16 dp8 recompute=full", "batch": 1536}),
    ("Mixtral 8x7B, 64 H100s", "mixtral-8x7b", {"on": "8 x dgx-h100", "plan": "pp2 dp32 ep8 zero1", "batch": 512}),
    ("DeepSeek-V3, 2,048 H100s", "deepseek-v3", {"on": "256 x dgx-h100", "plan": "pp16 dp128 ep64 zero1 recompute=full", "batch": 4096}),
)  # fmt: skip


def per_layer() -> list[Row]:
    found, wall, cpu = searched("gpt3-13b", on="8 x dgx-a100-80gb", batch=512, per_layer=True)
    return [Row("search per layer, GPT-3 13B, 64 A100s", wall, "s", 20.0, told(found, cpu))]


def against(
    name: str, published: float, wanted: float, target: float, **question: Any
) -> list[Row]:
    found, wall, cpu = searched(**question, per_layer=True)
    note = f"Alpa: {published:,.0f} s; wanted: {wanted:,.0f}"
    return [
        Row(f"search per layer, {name}", wall, "s", target, told(found, cpu)),
        Row("  against Alpa's search", published / wall, "times", None, note),
    ]


def gpt_39b() -> list[Row]:
    question = {"model": GPT_39B, "on": "8 x aws:p3.16xlarge", "batch": 1024, "seq": 1024}
    more = {"precision": "fp16", "runtime": "alpa"}
    return against("GPT-39B, 64 V100s", 2393.26, 400, 5.0, **question, **more)


def wide_resnet() -> list[Row]:
    question = {"model": "wide-resnet-13b", "on": "4 x aws:p3dn.24xlarge", "batch": 1536}
    more = {"precision": "fp16", "runtime": "alpa"}
    return against("Wide-ResNet-13B, 32 V100s", 44743.0, 4000, 10.0, **question, **more)


PARTS = {
    "uniform": uniform,
    "experts": experts,
    "many-experts": many_experts,
    "catalogue": catalogue,
    "advice": advice,
    "per-layer": per_layer,
    "gpt-39b": gpt_39b,
    "wide-resnet": wide_resnet,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="rows as JSON on stdout")
    parser.add_argument("--part", choices=("all", *PARTS), default="all")
    options = parser.parse_args()
    one_core()
    if options.part == "all":
        rows = [row for part in PARTS for row in rows_of("search.py", "--part", part)]
    else:
        import foretrain.searching  # noqa: F401 - its import is counted with the command line

        rows = PARTS[options.part]()
    show(rows, options.json)


if __name__ == "__main__":
    main()
