"""The study: the law it fits, and that the simulator is asked about the very networks that are trained."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foretrain.errors import InputError
from foretrain.report import render
from studies.stall_scaling.__main__ import main
from studies.stall_scaling.networks import FAMILY, Net
from studies.stall_scaling.page import study_document as shown
from studies.stall_scaling.prediction import graph_of, predicted_stalls
from studies.stall_scaling.study import (
    LAW,
    _results,
    fitted_law,
    measure_study,
    rank_correlation,
    study_document,
)

CURVE = [[float(2**power), 5e-5 + 2.0**power / 1e9] for power in range(8, 25, 2)]


def row(net: Net, devices: int, seconds: float = 0.0) -> dict[str, Any]:
    return {
        "net": net.name, "kind": net.kind, "devices": devices, **net.facts(), "alone_seconds": 0.01,
        "together_seconds": 0.01 + seconds, "stall_seconds": seconds, "predicted_stall_seconds": seconds, "waited_seconds": seconds,
    }  # fmt: skip


def test_a_law_is_found_again() -> None:
    rows = [row(net, devices) for net in FAMILY for devices in (2, 4)]
    stalls = np.array(
        [
            2e-5 * r["tensors"] + 3e-9 * r["bytes"] * 2 * (r["devices"] - 1) / r["devices"]
            for r in rows
        ]
    )
    law = fitted_law(rows, stalls)
    assert law["per_tensor"] == pytest.approx(2e-5, rel=1e-6)
    assert law["per_byte"] == pytest.approx(3e-9, rel=1e-6)
    assert law["per_layer"] == pytest.approx(0.0, abs=1e-9)
    assert law["r_squared"] == pytest.approx(1.0)
    assert sum(law["shares"].values()) == pytest.approx(1.0)


def test_no_term_of_a_law_is_negative() -> None:
    rows = [row(net, 2) for net in FAMILY]
    stalls = np.linspace(1.0, 0.1, len(rows))  # falls with everything
    assert all(fitted_law(rows, stalls)[name] >= 0 for name in LAW)


def test_the_family_tells_causes_apart() -> None:
    facts = np.array(
        [[row(n, 2)[k] for k in ("layers", "tensors", "bytes")] for n in FAMILY], float
    )
    assert np.linalg.matrix_rank(facts / facts.max(axis=0)) == 3


@pytest.mark.parametrize("net", FAMILY, ids=lambda net: net.name)
def test_the_simulator_sees_the_trained_tensors(net: Net) -> None:
    torch = pytest.importorskip("torch")
    from studies.stall_scaling.worker import Chain

    chain = Chain(net)
    assert [4 * p.numel() for p in chain.parameters()] == net.tensor_bytes()
    assert 4 * graph_of(net).parameters == net.facts()["bytes"]
    assert chain(torch.zeros(2, 3, 8, 8)).shape == (2, 10)


def test_the_simulated_stall_grows_with_bytes_and_hides_behind_longer_steps() -> None:
    nets = (Net(8, 16), Net(8, 64), Net(8, 128))
    small, middle, large = predicted_stalls(nets, 2, 4, CURVE, [0.01] * 3)
    assert 0 < small < middle < large
    deep = Net(16, 256)  # of its three buckets the first two can be sent while backward goes on
    (short,) = predicted_stalls([deep], 2, 4, CURVE, [1e-3])
    (long,) = predicted_stalls([deep], 2, 4, CURVE, [10.0])
    assert long < 0.5 * short


def test_rank_correlation() -> None:
    a = np.array([1.0, 2.0, 3.0, 4.0])
    assert rank_correlation(a, a**3) == pytest.approx(1.0)
    assert rank_correlation(a, -a) == pytest.approx(-1.0)
    assert rank_correlation(a, np.ones(4)) is None


def test_the_page() -> None:
    rows = [row(net, 2, 1e-3 + net.facts()["bytes"] / 1e9) for net in FAMILY]
    page = shown(study_document(rows, {2: CURVE}, 4))
    assert "networks measured" in page.headline
    html = str(render(page, "html"))
    assert html.count("<svg") == 3
    assert "no batch norm" in html
    assert "a gradient tensor" in str(render(page, "txt"))


def test_one_process_is_nothing_to_compare() -> None:
    with pytest.raises(InputError, match="2 or more"):
        measure_study(devices=(1,))


def test_a_study_too_small_is_refused_before_it_starts(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--quick", "--steps", "4", "--repeats", "0"])
    complaint = capsys.readouterr().err
    assert "steps 4: must be 5 or more" in complaint
    assert "repeats 0: must be 1 or more" in complaint


@pytest.mark.parametrize("has_results", [True, False])
def test_processes_that_are_aborted_count_if_all_was_measured(
    monkeypatch: pytest.MonkeyPatch, has_results: bool
) -> None:
    def aborted(words: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        if has_results:
            (Path(words[-1]) / "results.json").write_text('{"nets": []}')
        return subprocess.CompletedProcess(words, 1, "", "Signal 6 (SIGABRT)")

    monkeypatch.setattr(subprocess, "run", aborted)
    if has_results:
        assert _results({}, 2, 1) == {"nets": []}
    else:
        with pytest.raises(
            InputError, match=r"exited with code 1 before reporting all results[^!]*SIGABRT"
        ):
            _results({}, 2, 1)
