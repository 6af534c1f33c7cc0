"""Megatron Core on eight devices, stage by stage, against memory added up by hand.

The sums follow Korthikanti et al. 2022 (arXiv 2205.05198) with what changed since: flash attention keeps a
log-sum-exp instead of scores, gated activations keep both halves, and experts keep the tokens sent to them
(Megatron Core, all-to-all dispatcher, weights multiplied into the activation). Weights take 2 bytes, fp32 gradients
4, and states 12 over the ranks that share them (distributed optimizer).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from foretrain.cases import scenario_from_case
from foretrain.simulate import answer

HIDDEN, HEADS, GROUPS, WIDTH, FFN, VOCAB, SEQ = 4096, 32, 8, 128, 14336, 128256, 4096
EXPERTS, CHOSEN, EXPERT_FFN = 32, 4, 2048
SIXTEEN_BIT, FP32 = 2, 4


@dataclass(frozen=True)
class Run:
    """Devices are tp x pp x dp = 8."""

    layers: int
    tp: int = 1
    pp: int = 1
    vpp: int = 1
    ep: int = 1
    micro: int = 1
    batches: int = 16
    has_experts: bool = False

    @property
    def dp(self) -> int:
        return 8 // self.tp // self.pp

    @property
    def tokens(self) -> int:
        return SEQ * self.micro

    def case(self) -> dict[str, Any]:
        model: dict[str, Any] = {
            "family": "llama", "hidden_size": HIDDEN, "num_hidden_layers": self.layers,
            "num_attention_heads": HEADS, "num_key_value_heads": GROUPS, "head_dim": WIDTH,
            "intermediate_size": FFN, "vocab_size": VOCAB, "tie_word_embeddings": False,
            "hidden_act": "silu-gated", "norm": "rmsnorm", "position": "rope",
        }  # fmt: skip
        if self.has_experts:
            model |= {
                "family": "moe", "num_experts": EXPERTS, "num_experts_per_tok": CHOSEN,
                "moe_intermediate_size": EXPERT_FFN,
            }  # fmt: skip
        return {
            "id": "by-hand", "model": model, "seq_len": SEQ, "devices": 8,
            "cluster": {
                "device": "b200-sxm-180gb", "devices_per_node": 8, "nodes": 1,
                "intra_node": "nvlink5-nvswitch", "network": {"kind": None, "gbps_per_node": None},
            },
            "plan": {
                "dp": self.dp, "tp": self.tp, "pp": self.pp, "vpp": self.vpp, "cp": 1, "ep": self.ep,
                "zero": 1, "sequence_parallel": self.tp > 1, "recompute": "none",
                "schedule": "interleaved" if self.vpp > 1 else "1f1b", "optimizer_offload": False,
            },
            "batch": {"global": self.batches * self.micro * self.dp, "micro": self.micro},
            "precision": "bf16", "optimizer": "adam", "runtime": "megatron",
            "runtime_options": {"attention": "flash", "moe_grouped_gemm": True},
        }  # fmt: skip

    # --- weights of one rank ---

    def attention_weights(self) -> float:
        return 2 * HIDDEN * WIDTH * (HEADS + GROUPS) / self.tp

    def shared(self) -> float:
        """Of a layer, held alike by data-parallel ranks: attention, norms, router or MLP."""
        inner = HIDDEN * EXPERTS if self.has_experts else 3 * HIDDEN * FFN / self.tp
        return self.attention_weights() + 2 * HIDDEN + inner

    def experts(self) -> float:
        return 3 * EXPERTS / self.ep * HIDDEN * EXPERT_FFN if self.has_experts else 0.0

    def table(self) -> float:
        return VOCAB * HIDDEN / self.tp

    def per_stage(self) -> int:
        return self.layers // self.pp

    def shared_of(self, stage: int) -> float:
        ends = (stage == 0) * self.table() + (stage == self.pp - 1) * (self.table() + HIDDEN)
        return self.per_stage() * self.shared() + ends

    def experts_of_stage(self) -> float:
        return self.per_stage() * self.experts()

    def states(self, stage: int) -> float:
        sharing = self.dp * self.tp // self.ep  # ranks that hold the same experts
        return 12 * (self.shared_of(stage) / self.dp + self.experts_of_stage() / sharing)

    # --- what backward needs ---

    def layer(self) -> float:
        """Bytes that a layer keeps of one micro-batch."""
        stream = 4 * HIDDEN  # input, its norm, the residual, its norm
        attention = 2 * WIDTH * (HEADS + GROUPS)  # q, k, v and what comes out
        inner = 3 * FFN  # gate, up and their product
        if self.has_experts:
            inner = CHOSEN * (HIDDEN + 3 * EXPERT_FFN)  # the tokens sent there as well
        sums = FP32 * HEADS
        kept = SIXTEEN_BIT * (stream + attention + inner) + sums
        return self.tokens * kept / self.tp

    def in_flight(self, stage: int) -> int:
        """Chunks of layers kept at once (Narayanan et al. SC21: warm-up and the one at work)."""
        behind = self.pp - 1 - stage
        if self.vpp == 1:
            return min(self.batches, behind + 1)
        return min(self.batches * self.vpp, 2 * behind + (self.vpp - 1) * self.pp + 1)

    def activations(self, stage: int) -> float:
        kept = self.in_flight(stage) * self.per_stage() // self.vpp * self.layer()
        if stage < self.pp - 1:
            return kept
        logits = self.tokens * VOCAB / self.tp
        head = SIXTEEN_BIT * 2 * self.tokens * HIDDEN / self.tp
        return kept + head + logits * (FP32 + SIXTEEN_BIT)


RUNS = (
    Run(8),
    Run(16, tp=2),
    Run(32, tp=4, pp=2, micro=2),
    Run(32, pp=4),
    Run(32, tp=2, pp=4, vpp=2, micro=2),
    Run(32, pp=8, vpp=4, batches=16),
    Run(8, ep=8, has_experts=True),
    Run(16, pp=2, ep=4, has_experts=True, micro=2),
    Run(16, tp=2, pp=2, ep=4, has_experts=True, micro=2),
    Run(16, pp=4, vpp=2, ep=2, has_experts=True),
)


@pytest.mark.parametrize("run", RUNS, ids=str)
def test_memory_of_every_stage_is_what_is_added_up_by_hand(run: Run) -> None:
    memory = answer(scenario_from_case(run.case())).memory
    assert len(memory.by_stage) == run.pp
    for found in memory.by_stage:
        held = found.by_kind
        weights = run.shared_of(found.stage) + run.experts_of_stage()
        assert held["weights"] == pytest.approx(SIXTEEN_BIT * weights, rel=0.005)
        assert held["gradients"] == pytest.approx(FP32 * weights, rel=0.005)
        assert held["optimizer"] == pytest.approx(run.states(found.stage), rel=0.005)
        assert held["activations"] == pytest.approx(run.activations(found.stage), rel=0.08)
        by_hand = 6 * weights + run.states(found.stage) + run.activations(found.stage)
        assert found.allocated_bytes == pytest.approx(by_hand, rel=0.05)
