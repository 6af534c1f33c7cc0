"""What if an option of the runtime were set: the words of `predict --set`, in what-ifs and sweeps."""

from __future__ import annotations

from typing import Any

import pytest

import foretrain
from foretrain.cli import run
from foretrain.errors import InputError

ASKED: dict[str, Any] = {"on": "2 x dgx-h100", "plan": "tp2 zero1", "batch": 64, "micro_batch": 1}


def figures(found: foretrain.Prediction) -> dict[str, Any]:
    """All but advice, which predictions have and parts of other answers leave to them."""
    document = found.to_dict()
    return {name: document[name] for name in document if name != "what_would_help"}


@pytest.mark.parametrize(
    "changes",
    [
        {"cuda_graphs": True},
        {"attention": "unfused"},
        {"overlap_grad_reduce": True},
        {"host_seconds_per_kernel": 1e-4, "cuda_graph": False},
    ],
    ids=str,
)
def test_a_changed_option_is_as_predict_has_it(changes: dict[str, Any]) -> None:
    found = foretrain.whatif("gpt3-1.3b", **ASKED, changes=changes)
    told = foretrain.predict("gpt3-1.3b", **ASKED, runtime_options=changes)
    assert figures(found.changed) == figures(told)
    assert figures(found.base) == figures(foretrain.predict("gpt3-1.3b", **ASKED))
    assert found.base.provenance["inputs_sha256"] != found.changed.provenance["inputs_sha256"]


def test_compiling_speeds_up_a_stack_that_does_not_by_itself() -> None:
    asked = {"on": "1 x dgx-h100", "plan": "dp8", "batch": 64}
    assert foretrain.whatif("gpt2", **asked, changes={"compile": True}).speedup > 1.05


def test_a_whole_runtime_and_an_option_change_together() -> None:
    changes = {"runtime": "deepspeed", "attention": "unfused"}
    found = foretrain.whatif("gpt3-1.3b", **ASKED, changes=changes)
    options = {"runtime": "deepspeed", "runtime_options": {"attention": "unfused"}}
    assert figures(found.changed) == figures(foretrain.predict("gpt3-1.3b", **ASKED, **options))


def test_a_change_overrules_what_was_said_in_other_spelling() -> None:
    """`cuda_graph` is another spelling of `cuda_graphs`."""
    options = {"cuda_graph": True, "attention": "unfused"}
    asked = {**ASKED, "runtime_options": options}
    found = foretrain.whatif("gpt3-1.3b", **asked, changes={"cuda_graphs": False})
    told = foretrain.predict(
        "gpt3-1.3b", **ASKED, runtime_options={"cuda_graphs": False, "attention": "unfused"}
    )
    assert found.changed.provenance["inputs_sha256"] == told.provenance["inputs_sha256"]
    assert found.base.provenance["inputs_sha256"] != told.provenance["inputs_sha256"]


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("cuda_grafs", True, "cuda_grafs: cannot be changed. Did you mean 'cuda_graphs'"),
        ("attention", "flsh", "Did you mean 'flash'"),
        ("runtime", "deepsped", "Did you mean 'deepspeed'"),
        ("stages", 4, "Use pp in the plan"),
    ],
)
def test_a_wrong_word_gets_a_hint(key: str, value: Any, told: str) -> None:
    with pytest.raises(InputError, match=told.replace("'", ".")):
        foretrain.whatif("gpt3-1.3b", **ASKED, changes={key: value})


def test_options_are_swept() -> None:
    found = foretrain.sweep("gpt3-1.3b", **ASKED, vary={"attention": ["flash", "unfused"]})
    first, second = (row["step_seconds"] for row in found.rows())
    assert first < second
    with pytest.raises(InputError, match="attention: specified twice, as flash"):
        foretrain.sweep(
            "gpt3-1.3b",
            **ASKED,
            runtime_options={"attention": "flash"},
            vary={"attention": ["unfused"]},
        )


def test_switches_are_told_as_they_are_written(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["whatif", "gpt2", "--on", "1 x dgx-h100", "--plan", "dp8", "--batch", "64", "-q"]
    assert run([*words, "--set", "cuda_graphs=true"]) == 0
    assert "with cuda_graphs=true" in " ".join(capsys.readouterr().out.split())
