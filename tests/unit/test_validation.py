"""Predicted against measured: halves, figures, reasons, reading, processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from foretrain.errors import CaseError, InputError
from foretrain.validation import validate
from foretrain.validation.cases import read_cases, report
from foretrain.validation.figures import Scored, figures, likely_reason, row_document
from foretrain.validation.running import run_all
from foretrain.validation.split import half_of


def case(**changes: Any) -> dict[str, Any]:
    """A small run that predicts in milliseconds."""
    return {
        "id": "g/1",
        "group": "g",
        "source": "a paper",
        "model": {
            "family": "gpt", "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
            "num_key_value_heads": 4, "intermediate_size": 1024, "vocab_size": 1000,
            "tie_word_embeddings": True, "hidden_act": "gelu",
        },
        "seq_len": 128,
        "cluster": {"device": "a100-sxm4-80gb", "devices_per_node": 1, "nodes": 1, "intra_node": "pcie4",
                    "network": {"kind": None, "gbps_per_node": None}},
        "devices": 1,
        "plan": {"dp": 1, "tp": 1, "pp": 1},
        "batch": {"global": 4, "micro": 4},
        "precision": "bf16",
        "optimizer": "adam",
        "runtime": "megatron",
        "runtime_options": {},
        "measured": {"step_time_s": 0.01, "memory_gib": None, "ok": True},
        "quality": "high",
        **changes,
    }  # fmt: skip


def scored(predicted: float, measured: float, **more: Any) -> Scored:
    """A case with a prediction document made by hand."""
    document = {
        "step_seconds": predicted,
        "interval": [0.8 * predicted, 1.25 * predicted],
        "fits": True,
        "memory": {"peak_bytes": 2.0**30},
        "stalls": {"compute": predicted},
        **more.pop("document", {}),
    }
    given = case(**more)
    given["measured"] = {**given["measured"], "step_time_s": measured}
    return Scored(given, document)


# --- halves -------------------------------------------------------------------------------------


def test_a_half_does_not_depend_on_what_was_measured() -> None:
    changed = case(
        id="h/2", group="h", measured={"step_time_s": 5.0}, quality="low", caveats="x", source="y"
    )
    assert half_of(changed) == half_of(case())


def test_halves_are_even_and_the_seed_draws_others() -> None:
    many = [case(batch={"global": n, "micro": 1}) for n in range(1, 401)]
    fit = [half_of(c) == "fit" for c in many]
    other = [half_of(c, seed=2) == "fit" for c in many]
    assert 160 < sum(fit) < 240
    assert fit != other


# --- figures ------------------------------------------------------------------------------------


def test_figures_of_known_errors() -> None:
    rows = [scored(1.1, 1.0), scored(0.8, 1.0), scored(1.0, 1.0)]
    found = figures(rows)
    assert found["n"] == 3
    assert found["mape"] == pytest.approx(0.1)
    assert found["median"] == pytest.approx(0.1)
    assert found["bias"] == pytest.approx(-0.1 / 3)
    assert found["coverage"] == 1.0
    assert [row["error"] for row in found["worst"]] == pytest.approx([-0.2, 0.1, 0.0])


def test_order_and_regret_within_comparable_sets() -> None:
    """Three plans: measured 1, 2, 3; predicted in the order 1, 3, 2."""
    rows = [scored(1.0, 1.0), scored(2.5, 2.0), scored(2.2, 3.0)]
    found = figures(rows)
    assert (found["pairs"], found["order"]) == (3, pytest.approx(2 / 3))
    assert found["top1_regret"] == 0.0
    wrong = figures([scored(3.0, 1.0), scored(1.0, 2.0), scored(2.2, 3.0)])
    assert wrong["top1_regret"] == pytest.approx(1.0)
    apart = figures([scored(1.0, 1.0, group="a"), scored(3.0, 2.0), scored(2.0, 3.0, group="b")])
    assert apart["pairs"] == 0


def test_runs_that_did_not_fit_count_for_verdicts_only() -> None:
    given = case(measured={"ok": False, "step_time_s": None})
    said_no = Scored(given, {**scored(1.0, 1.0).prediction, "fits": False})
    said_yes = Scored(given, scored(1.0, 1.0).prediction)
    found = figures([said_no, said_yes, scored(1.0, 1.0)])
    assert found["n"] == 1
    assert found["fits_accuracy"] == pytest.approx(2 / 3)


def test_the_mean_of_groups_weighs_groups_alike() -> None:
    rows = [scored(1.1, 1.0, group="big")] * 9 + [scored(1.5, 1.0, group="small")]
    total = report(rows, {}).total
    assert total["mape"] == pytest.approx(0.14)
    assert total["mape_of_groups"] == pytest.approx(0.3)


def test_a_row_of_a_failed_case_says_why() -> None:
    row = row_document(Scored(case(), {"id": "g/1", "error": {"kind": "Bug", "message": "odd"}}))
    assert row["predicted"] is None
    assert row["reason"] == "odd"


# --- reasons ------------------------------------------------------------------------------------


def test_reasons_name_what_stands_out() -> None:
    document = {
        "fits": False,
        "step_seconds": 1.0,
        "stalls": {"compute": 0.5, "network": 0.4, "host": 0.1},
        "assumptions": [
            "recompute none: ddp default (recompute=none|selective|full in the plan)",
            "CUDA graphs off: ddp default (--set cuda_graphs=…)",
        ],
        "warnings": ["no such units."],
    }
    text = likely_reason(document, case(assumed=["precision: not printed"]), is_inside=False)
    assert text == (
        "predicted not to fit; assumed: recompute none; network is 40 % of the step; no such "
        "units; inferred by the publisher: precision; outside its interval"
    )


@pytest.mark.parametrize(("share", "words"), [(0.1, "data sheets"), (0.9, "kernels")])
def test_without_a_great_stall_it_is_the_kernels(share: float, words: str) -> None:
    document = {"step_seconds": 1.0, "stalls": {"compute": 1.0}, "measured_share": share}
    assert words in likely_reason(document, case(), is_inside=True)


# --- reading and running ------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> Path:
    rows = [
        case(id=f"{g}/{n}", group=g, batch={"global": n, "micro": 1}, quality=q)
        for g, q in (("a", "high"), ("b", "medium"), ("c", "low"))
        for n in range(1, 21)
    ]
    path = tmp_path / "cases.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n\n", "utf-8")
    return path


def test_quality_group_and_half_choose_cases(file: Path) -> None:
    assert {c["group"] for c in read_cases([file])} == {"a", "b"}
    assert {c["group"] for c in read_cases([file], ("low",))} == {"c"}
    assert {c["group"] for c in read_cases([file], groups=("b",))} == {"b"}
    halves = [read_cases([file], split=half) for half in ("fit", "check")]
    assert sum(map(len, halves)) == 40
    assert all(half_of(c) == "fit" for c in halves[0])


def written(folder: Path, *cases: dict[str, Any]) -> Path:
    file = folder / "runs.jsonl"
    file.write_text("\n".join(map(json.dumps, cases)), encoding="utf-8")
    return file


def test_a_case_without_quality_counts(tmp_path: Path) -> None:
    own = {key: value for key, value in case().items() if key not in ("quality", "group", "source")}
    found = validate(written(tmp_path, own, case(quality="low")))
    assert found.total["n"] == 1
    assert found.total["mape"] is not None


def test_unknown_measurements_are_refused_with_what_is_meant(tmp_path: Path) -> None:
    file = written(tmp_path, case(measured={"step_seconds": 0.01}), case(measured={"memory_gb": 3}))
    with pytest.raises(CaseError) as refused:
        read_cases([file])
    assert "line 1: measured.step_seconds: unknown key. Did you mean 'step_time_s'" in str(
        refused.value
    )
    assert "line 2: measured.memory_gb: unknown key. Did you mean 'memory_gib'" in str(
        refused.value
    )


@pytest.mark.parametrize("measured", [None, {}, {"step_time_s": None, "ok": True}])
def test_cases_with_nothing_measured_are_refused(measured: Any, tmp_path: Path) -> None:
    with pytest.raises(CaseError, match=r"nothing measured in 1 case.*step_time_s"):
        validate(written(tmp_path, case(measured=measured)))
    both = written(tmp_path, case(measured=measured), case(measured={"ok": False}))
    assert validate(both).total["fits_accuracy"] is not None


def test_wrong_words_are_told(file: Path) -> None:
    with pytest.raises(InputError, match=r"'chek'.*check"):
        read_cases([file], split="chek")
    with pytest.raises(InputError, match=r"group 'bb' is not in these files.*a, b, c"):
        read_cases([file], groups=("bb",))
    with pytest.raises(CaseError, match="no case of quality best"):
        read_cases([file], ("best",))


def test_a_report_is_the_same_with_more_processes(file: Path) -> None:
    alone = validate([file], groups=("a", "b"), split="fit")
    seen: list[tuple[int, int]] = []
    together = validate(
        [file], groups=("a", "b"), jobs=2, progress=lambda done, total: seen.append((done, total))
    )
    both = {row["id"]: row for row in together.to_dict()["rows"]}
    assert seen[-1] == (40, 40)
    assert all(both[row["id"]] == row for row in alone.to_dict()["rows"])
    assert alone.total["n"] < together.total["n"] == 40
    assert all(row["error"] is not None for row in both.values())


def test_few_tasks_stay_in_this_process() -> None:
    assert run_all(lambda n: n + 1, [1, 2, 3], jobs=8) == [2, 3, 4]
