"""Measured memory: what a figure means, and figures rank by rank."""

from __future__ import annotations

from typing import Any

import pytest

from foretrain.cases import predict_case
from foretrain.report.validation import validation_document
from foretrain.validation.cases import blind, report
from foretrain.validation.figures import Scored, figures, row_document
from foretrain.validation.memory import GIB, by_rank, meaning_of


def case(**measured: Any) -> dict[str, Any]:
    """Two stages of two ranks; the second has the logits."""
    return {
        "id": "g/1", "group": "g", "quality": "high", "source": "a paper", "seq_len": 128,
        "model": {
            "family": "gpt", "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4,
            "num_key_value_heads": 4, "intermediate_size": 1024, "vocab_size": 4000,
            "tie_word_embeddings": False, "hidden_act": "gelu",
        },
        "cluster": {"device": "b200", "devices_per_node": 4, "nodes": 1, "intra_node": "nvlink5-nvswitch"},
        "devices": 4,
        "plan": {"dp": 2, "tp": 1, "pp": 2, "zero": 1, "recompute": "none"},
        "batch": {"global": 8, "micro": 1},
        "precision": "bf16", "optimizer": "adam", "runtime": "megatron", "runtime_options": {},
        "measured": {"step_time_s": 0.01, "ok": True, **measured},
    }  # fmt: skip


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return predict_case(blind(case()))


def held(document: dict[str, Any], key: str) -> list[float]:
    return [stage[key] / GIB for stage in document["memory"]["by_stage"]]


def test_ranks_are_compared_with_their_stage(document: dict[str, Any]) -> None:
    first, second = held(document, "allocated_bytes")
    assert first != second
    found = by_rank(case(memory_by_rank_gib=[first, first, 2 * second, second]), document["memory"])
    assert [rank.stage for rank in found] == [0, 0, 1, 1]
    assert [rank.error for rank in found] == pytest.approx([0.0, 0.0, -0.5, 0.0])


@pytest.mark.parametrize(
    "names", [("1", "2"), ("rank1", "rank2"), ("rank_1", "rank_2"), (1, 2)], ids=str
)
def test_a_mapping_names_the_ranks_it_has(document: dict[str, Any], names: tuple[Any, Any]) -> None:
    first, second = held(document, "peak_bytes")
    measured = case(reserved_by_rank_gib=dict(zip(names, (first, second), strict=True)))
    found = by_rank(measured, document["memory"])
    assert [(rank.rank, rank.stage, rank.meaning) for rank in found] == [
        (1, 0, "reserved"),
        (2, 1, "reserved"),
    ]
    assert [rank.error for rank in found] == pytest.approx([0.0, 0.0])


def test_a_list_as_long_as_the_pipeline_goes_by_stage(document: dict[str, Any]) -> None:
    measured = case(memory_by_rank_gib=held(document, "allocated_bytes"))
    found = by_rank(measured, document["memory"])
    assert [(rank.rank, rank.stage) for rank in found] == [(0, 0), (2, 1)]
    assert [rank.error for rank in found] == pytest.approx([0.0, 0.0])


def test_ranks_without_a_figure_are_passed_over(document: dict[str, Any]) -> None:
    found = by_rank(case(memory_by_rank_gib=[None, 1.0, 0.0, 1.0, 5.0]), document["memory"])
    assert [rank.rank for rank in found] == [1, 3]  # there is no fifth rank


def test_figures_tell_allocated_and_reserved_apart(document: dict[str, Any]) -> None:
    tensors, cached = held(document, "allocated_bytes"), held(document, "peak_bytes")
    measured = case(
        memory_gib=max(tensors),
        memory_by_rank_gib=[tensors[0]] * 2 + [tensors[1]] * 2,
        reserved_by_rank_gib=[2 * cached[0]] * 2 + [2 * cached[1]] * 2,
    )
    row = Scored(measured, document)
    assert meaning_of(measured) == "allocated"
    assert row.memory_error == pytest.approx(0.0)
    found = figures([row])
    assert found["ranks_n"] == 8
    assert found["ranks_allocated_mape"] == pytest.approx(0.0, abs=1e-12)
    assert found["ranks_reserved_mape"] == pytest.approx(0.5)
    shown = row_document(row)["memory_by_rank"]
    assert len(shown) == 8
    assert shown[0].keys() == {"rank", "stage", "is", "predicted_gib", "measured_gib"}
    page = validation_document(report([row], {}))
    titles = [section.title for section in page.sections]
    assert "Memory error by rank" in titles


def test_what_a_figure_means_is_stated_or_remarked(document: dict[str, Any]) -> None:
    memory = document["memory"]
    plain, stated = case(memory_gib=1.0), case(memory_gib=1.0, memory_is="total")
    remarked = {**plain, "caveats": "memory read from nvidia-smi style output"}
    assert [meaning_of(c) for c in (plain, stated, remarked)] == ["reserved", "total", "total"]
    errors = [Scored(c, document).memory_error for c in (plain, stated, remarked)]
    assert errors == pytest.approx(
        [memory[key] / GIB - 1.0 for key in ("peak_bytes", "total_bytes", "total_bytes")]
    )


def test_cases_without_ranks_show_no_table_of_them(document: dict[str, Any]) -> None:
    row = Scored(case(memory_gib=1.0), document)
    assert figures([row])["ranks_n"] == 0
    page = validation_document(report([row], {}))
    assert all("rank by rank" not in section.title for section in page.sections)
