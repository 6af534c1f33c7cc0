"""Features of software stacks: every field is read, named once, and set by a preset or a reason."""

from __future__ import annotations

import ast
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

import foretrain
from foretrain.resolving import ask
from foretrain.runtime import (
    RENAMED,
    Runtime,
    changed_options,
    option_table,
    preset_file,
    presets,
    runtime,
)
from foretrain.runtime.presets import fitted_file
from foretrain.runtime.runtime import CORE, OPTIONAL

HOME = Path(foretrain.__file__).parent
FEATURES = {**CORE, **OPTIONAL}
IDENTITY = {"name", "title", "source", "release", "aliases"}
ROW = IDENTITY - {"name"} | {"like", "releases"}
ASKED: dict[str, Any] = {"on": "1 x dgx-h100", "plan": "dp8", "batch": 8}


@cache
def attributes_read() -> dict[str, frozenset[str]]:
    """Names read as attributes, by module, and the modules it imports from."""
    return {
        path.relative_to(HOME).as_posix(): frozenset(
            node.attr if isinstance(node, ast.Attribute) else str(node.module).rpartition(".")[2]
            for node in ast.walk(ast.parse(path.read_text("utf-8")))
            if isinstance(node, ast.ImportFrom)
            or (isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load))
        )
        for path in HOME.rglob("*.py")
    }


@pytest.mark.parametrize("feature", FEATURES)
def test_every_field_is_read_where_its_feature_is(feature: str) -> None:
    """A switch that nobody interprets is a fault."""
    own = f"runtime/features/{feature}.py"
    modules = attributes_read().items()
    reading = [names for path, names in modules if path == own or feature in names]
    read = frozenset().union(*reading)
    assert {field.name for field in fields(FEATURES[feature])} <= read


def test_names_are_unique_over_all_features() -> None:
    names = [field.name for kind in FEATURES.values() for field in fields(kind)]
    assert len(names) == len({*names, *FEATURES, *IDENTITY}) - len({*FEATURES, *IDENTITY})
    assert not RENAMED.keys() & option_table().keys()
    assert {*RENAMED.values()} <= option_table().keys()


def test_a_runtime_is_its_identity_and_features() -> None:
    assert [field.name for field in fields(Runtime)] == [
        "name", "title", "source", "release", "aliases", *CORE, *OPTIONAL,
    ]  # fmt: skip


@pytest.mark.parametrize("feature", FEATURES)
def test_a_feature_stands_in_its_own_file(feature: str) -> None:
    assert FEATURES[feature].__module__ == f"foretrain.runtime.features.{feature}"


@pytest.mark.parametrize("feature", OPTIONAL)
def test_an_optional_feature_is_some_presets_and_not_all(feature: str) -> None:
    having = [name for name, preset in presets().items() if getattr(preset, feature) is not None]
    assert 0 < len(having) < len(presets()) / 2
    assert OPTIONAL[feature]().is_idle
    assert not any(getattr(presets()[name], feature).is_idle for name in having)


@pytest.mark.parametrize("feature", CORE)
def test_a_core_feature_differs_between_presets(feature: str) -> None:
    assert len({getattr(preset, feature) for preset in presets().values()}) > 1


def test_presets_name_features_and_their_fields() -> None:
    for name, row in preset_file()["presets"].items():
        assert row.keys() <= ROW | FEATURES.keys(), name
        for feature in row.keys() & FEATURES.keys():
            known = {field.name for field in fields(FEATURES[feature])}
            assert (row[feature] or {}).keys() <= known, (name, feature)
        for release in row.get("releases", ()):
            assert release.keys() <= {"before", "architectures", "heads", "sets", "rules"}
            assert release.keys() & {"sets", "rules"}, (name, release)
            assert release.get("sets", {}).keys() <= option_table().keys(), name


# --- facts and what is fitted --------------------------------------------------------------------------


def test_a_scalar_rests_on_runs_or_on_an_estimate_and_stands_nowhere_else() -> None:
    for name, features in fitted_file()["presets"].items():
        facts = preset_file()["presets"][name]
        for feature, values in features.items():
            for field, row in values.items():
                assert row.keys() in ({"value", "fitted_on"}, {"value", "estimate"}), (name, field)
                assert field in option_table(), (name, field)
                assert field not in (facts.get(feature) or {}), (name, field)


def test_what_tools_fitted_is_what_presets_have() -> None:
    path = HOME / "cost" / "calibration" / "fitted.yaml"
    recorded = {
        row["where"].partition(": ")[2]: row
        for row in yaml.safe_load(path.read_text("utf-8"))["fitted"]
        if row["where"].startswith("runtime/fitted.yaml: ")
    }
    listed = {
        f"presets.{name}.{feature}.{field}.value": row
        for name, features in fitted_file()["presets"].items()
        for feature, values in features.items()
        for field, row in values.items()
        if "fitted_on" in row
    }
    assert recorded.keys() == listed.keys()
    for where, row in listed.items():
        assert row["value"] == recorded[where]["value"], where
        assert row["fitted_on"] == recorded[where]["groups"], where


# --- options -------------------------------------------------------------------------------------------


def test_an_option_of_a_missing_feature_brings_it() -> None:
    stack = runtime("ddp").with_options({"cycle_seconds": "1ms"})
    assert runtime("ddp").fusion_cycles is None
    assert stack.fusion_cycles is not None
    assert stack.fusion_cycles.cycle_seconds == 1e-3
    assert stack.with_options({"cycle_seconds": 0}) == runtime("ddp")


def test_an_option_that_changes_nothing_brings_no_feature() -> None:
    usual = runtime("megatron")
    same = usual.with_options({"kernels_per_tensor": 0, "fuses_casts": False, "aligned_to": 1})
    assert same == usual


@pytest.mark.parametrize("old", RENAMED)
def test_options_are_known_by_the_names_they_had(old: str) -> None:
    usual = runtime("megatron").option(RENAMED[old])
    other = not usual if isinstance(usual, bool) else usual + 1
    changed = runtime("megatron").with_options({old: other})
    assert changed.option(RENAMED[old]) == other
    asked = ask("gpt2", **ASKED, runtime="megatron", runtime_options={old: other})
    assert asked.runtime.option(RENAMED[old]) == other


@pytest.mark.parametrize(
    "options",
    [
        {"exchanges_in_pieces": True},
        {"exchanges_in_pieces": True, "overlaps_tensor_backward": True, "kernel_pace": 1.1},
        {"tp_comm_overlap": True},
        {"cycle_seconds": 1e-3, "negotiation_rounds": 2},
        {"rank_order": "dp-pp-cp-tp", "algorithms": "all_reduce:tree", "gathers_quantised": "fp8"},
        {"priorities": "tensor:4"},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["megatron", "nemo", "horovod"])
def test_changed_options_give_the_same_stack_again(name: str, options: dict[str, Any]) -> None:
    first = ask("gpt2", **ASKED, runtime=name, runtime_options=options)
    again = ask("gpt2", **ASKED, runtime=name, runtime_options=changed_options(first.runtime))
    assert again.runtime == first.runtime
    assert again.sha256 == first.sha256


def test_a_switch_with_the_name_of_a_field_may_set_more() -> None:
    def overlaps(**options: bool) -> tuple[bool, bool]:
        found = ask("gpt2", **ASKED, runtime="megatron", runtime_options=options).runtime
        return found.tensor_parallel.tp_comm_overlap, found.tensor_parallel.tp_dgrad_overlap

    assert overlaps(tp_comm_overlap=True) == (True, True)
    assert overlaps(tp_comm_overlap=True, tp_dgrad_overlap=False) == (True, False)
    assert overlaps(exchanges_in_pieces=True) == (True, False)


def test_slower_hosts_are_slower_at_all_they_do() -> None:
    stack = runtime("nanotron")
    slow = stack.with_host(2.0)
    for name in ("host_seconds_per_kernel", "host_seconds_per_collective", "host_delay_on_network"):
        assert slow.option(name) == 2.0 * stack.option(name)
    assert runtime("ddp").with_host(2.0).network_polling is None
