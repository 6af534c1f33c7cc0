"""What is made of profiler traces: stalls with known answers, tables, overheads, pages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from support.traces import Written, training

from foretrain.adapters.read.kineto import read_trace
from foretrain.analysis.prediction import STALLS
from foretrain.errors import InputError
from foretrain.measurement.trace_records import trace_measurements
from foretrain.measurement.traces import TraceReport, analyse

US = 1e-6


def report(
    folder: Path,
    *ranks: Written,
    devices_per_node: int | None = None,
    steps: int | None = None,
) -> TraceReport:
    traces = [read_trace(one.save(folder / f"{n}.json")) for n, one in enumerate(ranks)]
    found = analyse(traces, devices_per_node=devices_per_node, steps=steps)
    assert tuple(found.stalls) == STALLS
    assert sum(found.stalls.values()) == found.step_seconds
    means = [sum(rank.step_seconds) / len(rank.step_seconds) for rank in found.ranks]
    assert found.step_seconds == pytest.approx(sum(means) / len(means), rel=1e-12)
    for rank in found.ranks:
        assert sum(rank.stalls.values()) == pytest.approx(
            sum(rank.step_seconds) / len(rank.step_seconds), rel=1e-12
        )
    return found


def expect(found: TraceReport, **microseconds: float) -> None:
    """The stalls in microseconds, to a nanosecond; those not named are nothing."""
    for name in STALLS:
        assert found.stalls[name] / US == pytest.approx(microseconds.get(name, 0.0), abs=2e-3), name


# --- on a device ------------------------------------------------------------------------------------


def one_step(world: int = 8, ranks: Sequence[int] | None = None) -> Written:
    """0..1000: data 0..100, work 120..420 and 450..500, all-reduce 300..600, update 600..700, copy 720..750."""
    trace = Written(world=world)
    trace.step(0, 0, 1000)
    trace.mark("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 0, 100)
    for at, length, begin in ((105, 300, 120), (130, 50, 450)):
        op = trace.op("aten::mm", at, 10, [[2, 3], [3, 4]])
        trace.kernel("gemm", begin, length, trace.launch(at + 2), op)
    trace.collective(300, 300, launched=trace.launch(150), ranks=ranks)
    trace.mark("Optimizer.step#AdamW.step", 200, 100)
    trace.kernel("multi_tensor_apply", 600, 100, trace.launch(210), trace.op("aten::add_", 205, 20))
    trace.kernel(
        "Memcpy HtoD (Pinned -> Device)", 720, 30, trace.launch(310, name="cudaMemcpyAsync"), cat="gpu_memcpy"
    )  # fmt: skip
    return trace


def test_every_moment_of_a_step_has_its_cause(tmp_path: Path) -> None:
    found = report(tmp_path, one_step(ranks=range(8)))
    expect(found, compute=350, optimizer=100, interconnect=130 + 30, prep=100, host=20 + 20 + 250)
    assert found.step_seconds == pytest.approx(1000 * US, rel=1e-9)
    assert found.communication_seconds == pytest.approx(300 * US, abs=1e-9)
    assert found.exposed_seconds == pytest.approx(130 * US, abs=1e-9)
    assert found.bottleneck == "compute"
    assert found.devices_per_node == 8


@pytest.mark.parametrize(
    ("ranks", "told", "network"),
    [
        (range(16), None, True),  # 16 ranks, 8 devices seen
        (range(8), None, False),
        (range(8), 4, True),
        ([0, 8], None, True),
        ([8, 9], None, False),
        ([7, 8], None, True),
        (None, None, True),  # the group is not told: the world decides
        (None, 16, False),
    ],
)
def test_the_group_decides_between_interconnect_and_network(
    tmp_path: Path, ranks: Sequence[int] | None, told: int | None, network: bool
) -> None:
    found = report(tmp_path, one_step(16, ranks), devices_per_node=told)
    over = {"network": 130.0, "interconnect": 30.0} if network else {"interconnect": 160.0}
    expect(found, compute=350, optimizer=100, prep=100, host=290, **over)


def test_without_a_word_on_nodes_it_is_interconnect_and_said_so(tmp_path: Path) -> None:
    trace = one_step(16)
    trace.frame["deviceProperties"] = []
    found = report(tmp_path, trace)
    assert found.stalls["network"] == 0.0
    assert any("--devices-per-node" in line for line in found.assumptions)


def test_copies_inside_the_device_are_work(tmp_path: Path) -> None:
    trace = Written()
    trace.step(0, 0, 100)
    trace.kernel("Memcpy DtoD (Device -> Device)", 10, 20, trace.launch(2), cat="gpu_memcpy")
    trace.kernel("Memset (Device)", 40, 10, trace.launch(3), cat="gpu_memset")
    expect(report(tmp_path, trace), compute=30, host=70)


def test_steps_follow_the_device_where_the_host_is_ahead(tmp_path: Path) -> None:
    """The host issues three steps in 30, the device takes 100 for each."""
    trace = Written()
    for number in range(3):
        trace.step(number, 10 * number, 10)
        trace.kernel("gemm", 5 + 100 * number, 100, trace.launch(10 * number + 2))
    found = report(tmp_path, trace)
    assert [s / US for s in found.ranks[0].step_seconds] == pytest.approx([105, 100, 100])
    expect(found, compute=100, host=5 / 3)


def test_work_of_before_the_first_step_is_not_of_it(tmp_path: Path) -> None:
    trace = Written()
    trace.kernel("gemm", 20, 80, trace.launch(5))
    trace.step(0, 30, 20)
    trace.kernel("gemm", 100, 50, trace.launch(35))
    found = report(tmp_path, trace)
    assert found.step_seconds / US == pytest.approx(50)
    expect(found, compute=50)


def test_a_trace_without_marks_is_one_step_or_as_many_as_told(tmp_path: Path) -> None:
    trace = Written()
    trace.kernel("gemm", 0, 30)
    trace.kernel("gemm", 50, 50)
    found = report(tmp_path, trace)
    expect(found, compute=80, host=20)
    assert any("ProfilerStep" in line for line in found.warnings)
    found = report(tmp_path, trace, steps=2)
    expect(found, compute=40, host=10)
    assert found.steps == 2


def test_the_busiest_of_several_devices_is_read(tmp_path: Path) -> None:
    trace = Written()
    trace.step(0, 0, 100)
    trace.kernel("gemm", 0, 60)
    trace.event("kernel", "gemm", 50, 40, 1, 7, stream=7)
    found = report(tmp_path, trace)
    expect(found, compute=60, host=40)
    assert any("2 devices" in line for line in found.warnings)


def test_slow_receives_are_the_pipeline(tmp_path: Path) -> None:
    """The quickest of the same size is the transfer; what others take beyond it is waiting for a stage."""
    trace = Written(world=4)
    trace.step(0, 0, 300)
    for at, length in ((0, 10), (50, 100), (200, 30)):
        trace.collective(at, length, kind="recv", ranks=[0, 1], launched=trace.launch(at))
    trace.kernel("gemm", 60, 20, trace.launch(1))
    expect(report(tmp_path, trace), interconnect=30, bubble=70 + 20, compute=20, host=160)


# --- several ranks ----------------------------------------------------------------------------------


def test_early_ranks_wait_for_the_last(tmp_path: Path) -> None:
    """Clocks differ by hours; what counts is that a collective ends at once for all."""
    ranks = []
    for rank, (work, wait) in enumerate(((50, 40), (90, 0), (70, 20))):
        trace = Written(rank, 3, origin=1e12 + 3.6e9 * rank)
        trace.step(5, 0, 200)
        trace.kernel("gemm", 0, work, trace.launch(1))
        trace.collective(work, wait + 60, ranks=range(3), launched=trace.launch(2))
        trace.kernel("gemm", 150, 50, trace.launch(3))
        ranks.append(trace)
    found = report(tmp_path, *ranks, devices_per_node=8)
    expect(found, compute=(100 + 140 + 120) / 3, imbalance=20, interconnect=60)
    assert [r.stalls["imbalance"] / US for r in found.ranks] == pytest.approx([40, 0, 20], abs=2e-3)
    (row,) = found.collectives
    assert row.seconds == pytest.approx(60 * US, abs=1e-9)
    assert row.wait_seconds == pytest.approx(20 * US, abs=1e-9)
    assert (row.ranks, row.bytes, row.count) == (3, 4000.0, 3)


def test_a_wait_behind_work_is_hidden(tmp_path: Path) -> None:
    ranks = []
    for rank, begin in enumerate((0, 60)):
        trace = Written(rank, 2)
        trace.step(0, 0, 100)
        trace.collective(begin, 90 - begin, ranks=range(2), launched=trace.launch(1))
        trace.kernel("gemm", 0, 50, trace.launch(0))
        ranks.append(trace)
    found = report(tmp_path, *ranks, devices_per_node=8)
    first, second = found.ranks
    assert first.stalls["imbalance"] / US == pytest.approx(10, abs=2e-3)
    assert first.stalls["interconnect"] / US == pytest.approx(30, abs=2e-3)
    assert second.stalls["host"] / US == pytest.approx(20, abs=2e-3)


def test_groups_and_steps_are_not_mixed(tmp_path: Path) -> None:
    """Two pairs of ranks, each with a group of its own of the same name and size."""
    ranks = []
    for rank in range(4):
        trace = Written(rank, 4)
        for step in range(2):
            at = 1000 * step
            trace.step(step, at, 1000)
            length = 100 + 10 * (rank % 2) + 400 * (rank // 2) + 50 * step
            pair = [rank // 2 * 2, rank // 2 * 2 + 1]
            trace.collective(at + 10, length, ranks=pair, launched=trace.launch(at + 2))
        ranks.append(trace)
    found = report(tmp_path, *ranks)
    assert [r.stalls["imbalance"] / US for r in found.ranks] == pytest.approx(
        [0, 10, 0, 10], abs=2e-3
    )


def test_unequal_calls_are_left_as_communication_and_said_so(tmp_path: Path) -> None:
    ranks = []
    for rank in range(2):
        trace = Written(rank, 2)
        trace.step(0, 0, 100)
        for number in range(1 + rank):
            trace.collective(10 + 30 * number, 20, ranks=range(2), launched=trace.launch(1))
        ranks.append(trace)
    found = report(tmp_path, *ranks)
    assert found.stalls["imbalance"] == 0.0
    assert any("not called equally often" in line for line in found.warnings)


def test_one_rank_of_many_says_what_it_cannot_tell(tmp_path: Path) -> None:
    found = report(tmp_path, one_step(ranks=range(8)))
    assert any("1 of 8 ranks" in line for line in found.assumptions)


def test_a_rank_twice_is_refused(tmp_path: Path) -> None:
    path = one_step().save(tmp_path / "t.json")
    with pytest.raises(InputError, match="rank 0 has more than one trace"):
        analyse([read_trace(path), read_trace(path)])
    with pytest.raises(InputError, match="no trace"):
        analyse([])
    for wrong in (0, -3, 10**9):
        with pytest.raises(InputError, match="must be 1 or more"):
            analyse([read_trace(path)], devices_per_node=wrong)


# --- on a CPU ---------------------------------------------------------------------------------------


def cpu_step(rank: int = 0, late: float = 0.0) -> Written:
    """Data 0..50 (with an operator in it), forward 60..160 with one inside, all-reduce on another thread, update."""
    trace = Written(rank, 2, devices=0, host="box")
    trace.step(0, 0, 500)
    trace.mark("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 50)
    trace.op("aten::stack", 10, 30)
    trace.op("aten::linear", 60, 100, [[8, 4], [4, 4]])
    trace.op("aten::addmm", 70, 80, [[4], [8, 4], [4, 4]])
    trace.op("c10d::allreduce_", 170, 10)
    trace.mark(
        "gloo:all_reduce", 175 + late, 125 - late, tid=9, **{"Input Dims": [[1000]], "Input type": ["float"]}
    )  # fmt: skip
    trace.op("aten::mul", 200, 40)
    trace.mark("Optimizer.step#SGD.step", 310, 100)
    trace.op("aten::add_", 320, 60)
    return trace


def test_the_cpu_is_the_device_where_there_is_no_other(tmp_path: Path) -> None:
    found = report(tmp_path, cpu_step(0), cpu_step(1, late=75.0))
    assert not found.on_device
    assert found.devices_per_node == 2
    first, second = found.ranks
    # 175..300 but for 200..240; the first 75 are waiting for the other rank, of which 35 lie bare
    assert first.stalls["imbalance"] / US == pytest.approx(25 + 10, abs=2e-3)
    assert first.stalls["interconnect"] / US == pytest.approx(50, abs=2e-3)
    assert second.stalls["interconnect"] / US == pytest.approx(50, abs=2e-3)
    for rank in found.ranks:
        assert rank.stalls["prep"] / US == pytest.approx(50, abs=2e-3)
        assert rank.stalls["compute"] / US == pytest.approx(140, abs=2e-3)
        assert rank.stalls["optimizer"] / US == pytest.approx(60, abs=2e-3)
    (row,) = found.collectives
    assert (row.collective, row.bytes, row.ranks) == ("all_reduce", 4000.0, 2)
    assert row.seconds == pytest.approx(50 * US, abs=1e-9)


# --- tables -----------------------------------------------------------------------------------------


def test_operators_by_name_and_shapes(tmp_path: Path) -> None:
    found = report(tmp_path, one_step())
    rows = {(row.name, row.shapes): row for row in found.ops}
    gemm = rows["aten::mm", "[[2, 3], [3, 4]]"]
    assert gemm.dims == [[2, 3], [3, 4]]
    assert (gemm.count, gemm.on_device) == (2, True)
    assert gemm.seconds == pytest.approx((300 + 50) / 2 * US, abs=1e-9)
    assert gemm.total_seconds == pytest.approx(350 * US, abs=1e-9)
    assert rows["aten::add_", ""].seconds == pytest.approx(100 * US, abs=1e-9)


def test_an_operator_on_the_cpu_owns_what_is_not_inside_it(tmp_path: Path) -> None:
    found = report(tmp_path, cpu_step(0), cpu_step(1))
    rows = {row.name: row for row in found.ops}
    assert rows["aten::linear"].seconds == pytest.approx(100 * US, abs=1e-9)
    assert rows["aten::linear"].total_seconds == pytest.approx(2 * 20 * US, abs=1e-9)
    assert rows["aten::addmm"].total_seconds == pytest.approx(2 * 80 * US, abs=1e-9)
    assert rows["aten::addmm"].count == 2


def test_spread_is_robust(tmp_path: Path) -> None:
    trace = Written()
    trace.step(0, 0, 2000)
    for number, length in enumerate((10, 11, 12, 13, 500)):
        at = 100 * number
        op = trace.op("aten::mm", at, 20, [[1]])
        trace.kernel("gemm", at + 30, length, trace.launch(at + 5), op)
    (row,) = report(tmp_path, trace).ops
    assert row.seconds == pytest.approx(12 * US, abs=1e-9)
    assert row.spread == pytest.approx(1.4826 / 12, rel=1e-3)


def test_host_overheads_after_lin_et_al(tmp_path: Path) -> None:
    """Two operators 30 apart under one mark. The first: 20 to a launch (one event inside), 9 to the next (one
    event), 25 to the end (two events); the second has no launch and two events inside. An event costs 2."""
    trace = Written()
    trace.step(0, 0, 1000)
    trace.op("aten::linear", 100, 63)
    trace.op("aten::t", 101, 2)
    first = trace.launch(120, 5)
    trace.op("aten::x", 126, 1)
    second = trace.launch(134, 4)
    trace.op("aten::y", 140, 1)
    trace.op("aten::z", 150, 1)
    trace.op("aten::view", 193, 15)
    trace.op("aten::as_strided", 194, 3)
    trace.op("aten::a", 198, 3)
    trace.kernel("gemm", 150, 10, first)
    trace.kernel("gemm", 170, 10, second)
    rows = {(row.stretch, row.name): row for row in report(tmp_path, trace).overheads}
    expected = {
        ("T1", "(all)"): 30 - 2, ("T2", "aten::linear"): 20 - 2, ("T3", "aten::linear"): 25 - 4,
        ("T4", "cudaLaunchKernel"): 4.5 - 2, ("T5", "aten::linear"): 9 - 2, ("T5", "aten::view"): 15 - 4,
    }  # fmt: skip
    assert set(rows) == set(expected)
    for key, microseconds in expected.items():
        assert rows[key].seconds / US == pytest.approx(microseconds, abs=2e-3), key
    assert rows["T4", "cudaLaunchKernel"].count == 2


def test_gaps_of_t1_are_neither_the_profilers_nor_between_pieces_of_work(tmp_path: Path) -> None:
    trace = Written()
    trace.step(0, 0, 5000)
    at = 10.0
    for gap in (1.0, 20.0, 250.0, 20.0):
        trace.op("aten::relu", at, 10)
        at += 10 + gap
    trace.op("aten::relu", at, 10)
    rows = [row for row in report(tmp_path, trace).overheads if row.stretch == "T1"]
    assert [(row.count, round(row.seconds / US, 3)) for row in rows] == [(2, 18.0)]


# --- for the store ----------------------------------------------------------------------------------


def test_what_was_timed_becomes_measurements(tmp_path: Path) -> None:
    from foretrain.measurement.store import Store

    rows = trace_measurements(report(tmp_path, cpu_step(0), cpu_step(1, late=75.0)))
    kinds = {row.kind for row in rows}
    assert kinds == {"op", "link", "host"}
    (link,) = (row for row in rows if row.kind == "link")
    assert link.key["collective"] == "all_reduce"
    assert (link.key["ranks"], link.key["bytes"], link.key["nodes"]) == (2, 4000.0, 1)
    assert link.seconds == pytest.approx(50 * US, abs=1e-9)
    with Store.open(tmp_path / "store.sqlite") as store:
        store.add(*rows)
        store.add(*rows)  # a trace has its own date: read twice, it is kept once
        assert len(store.rows()) == len(rows)


def test_collectives_of_some_ranks_are_no_measurement(tmp_path: Path) -> None:
    rows = trace_measurements(report(tmp_path, one_step(ranks=range(8))))
    assert not [row for row in rows if row.kind == "link"]
    assert next(row.key["device"] for row in rows if row.kind == "op").startswith("NVIDIA H100")


# --- a whole run ------------------------------------------------------------------------------------


def test_a_run_of_many_steps(tmp_path: Path) -> None:
    found = report(tmp_path, training(6, 20))
    assert found.steps == 6
    assert found.stalls["compute"] / US == pytest.approx(20 * 80, abs=0.1)
    assert found.stalls["optimizer"] / US == pytest.approx(120, abs=0.1)
    assert found.stalls["prep"] / US == pytest.approx(40, abs=0.1)
    assert found.collectives[0].count == 30
