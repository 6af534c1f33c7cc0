"""Another predictor beside ours: seconds per evaluation and predicted step, same model, cluster and plan.

    python bench/peers.py [--json] [--runs N]

Makes .venv-peers and installs llm-analysis there. It evaluates a closed form; we compile a graph, simulate it
and keep its timeline, memory and stalls. The speeds are those of different answers, so no ratio is given.

Calculon (calculon-ai/calculon) is not published on PyPI, where `calculon` is an unrelated producer-consumer library:
search.py measures its search if FORETRAIN_CALCULON names a checkout of it. What it needs is installed here as well.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from measure import HERE, Row, environment, one_core, show

VENV = HERE.parent / ".venv-peers"
PACKAGES = ("llm-analysis==0.2.2", "psutil==7.2.2", "numpy==2.4.6")

# Runs inside .venv-peers. Efficiencies are left at the package's defaults, which are ideal (1.0): what a user
# gets who gives none.
LLM_ANALYSIS = """
import json, logging, sys, time
from llm_analysis.analysis import ActivationRecomputation, LLMAnalysis
from llm_analysis.config import (
    ModelConfig, ParallelismConfig, get_dtype_config_by_name, get_gpu_config_by_name,
)

logging.disable(logging.CRITICAL)
model = ModelConfig(
    name="gpt3-175b", num_layers=96, n_head=96, hidden_dim=12288, vocab_size=50257,
    max_seq_len=2048, ffn_embed_dim=49152,
)

def evaluate():
    analysis = LLMAnalysis(
        model,
        get_gpu_config_by_name("a100-sxm-80gb"),
        get_dtype_config_by_name("w16a16e16"),
        ParallelismConfig(tp_size=8, pp_size=16, dp_size=8, sp_size=1),
    )
    return analysis.training(
        batch_size_per_gpu=1, global_batch_size=1536, seq_len=2048,
        activation_recomputation=ActivationRecomputation.FULL, flash_attn=True,
    )

answer = evaluate()
best = float("inf")
for _ in range(int(sys.argv[1])):
    before = time.perf_counter()
    evaluate()
    best = min(best, time.perf_counter() - before)
print("ANSWER " + json.dumps({"seconds": best, "step_seconds": answer["latency_per_iter"]}))
"""


def python() -> Path:
    """The interpreter of the peers' environment, made at the first call."""
    interpreter = VENV / "bin" / "python"
    stamp = VENV / ".installed"
    if not stamp.exists() or stamp.read_text() != "\n".join(PACKAGES):
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
        install = [str(interpreter), "-m", "pip", "install", "-q", "-q", *PACKAGES]
        subprocess.run(install, check=True, stdout=sys.stderr)
        stamp.write_text("\n".join(PACKAGES))
    return interpreter


def answered(*command: str) -> dict[str, Any]:
    """What Python of the peers' environment answers to these arguments."""
    command = (str(python()), *command)
    answer = subprocess.run(command, check=True, capture_output=True, text=True, env=environment())
    line = next(line for line in answer.stdout.splitlines() if line.startswith("ANSWER "))
    found: dict[str, Any] = json.loads(line.removeprefix("ANSWER "))
    return found


def rows(runs: int) -> list[Row]:
    found = answered("-c", LLM_ANALYSIS, str(runs))
    name = PACKAGES[0].replace("==", " ")
    return [
        Row(f"{name}, 1,024 GPUs, warm", found["seconds"] * 1e3, "ms", None, "a closed form"),
        Row(
            "  its answer", found["step_seconds"], "s/step", None, "its default efficiencies (1.0)"
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="rows as JSON on stdout")
    parser.add_argument("--runs", type=int, default=20)
    options = parser.parse_args()
    one_core()
    show(rows(options.runs), options.json)


if __name__ == "__main__":
    main()
