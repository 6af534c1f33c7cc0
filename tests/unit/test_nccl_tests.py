"""Results of nccl-tests: the shapes its output had over the years, as text and JSON, and what is none."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from foretrain.adapters.read.nccl_tests import LinkTable, read_nccl_tests
from foretrain.errors import FileError, InputError
from foretrain.measurement.trace_records import link_measurements

RANKS = "".join(
    f"#  Rank  {n} Group  0 Pid   {6899 + n} on node-{n // 8} device  {n % 8} [0000:04:00] NVIDIA H100 80GB HBM3\n"
    for n in range(16)
)
NOW = f"""# nccl-tests version 2.17.6 nccl-headers=22803 nccl-library=22803
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 1 minBytes 8 maxBytes 8589934592 step: 2(factor) warmup iters: 1 iters: 20 agg iters: 1
#
# Using devices
{RANKS}#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
        1024           256     float     sum      -1    41.68    0.02    0.05       0    39.92    0.03    0.05       0
  1073741824     268435456     float     sum      -1   5620.1  191.06  358.24       0   5610.0  191.40  358.88     N/A
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 179.3
#
"""
OLD = """$ mpirun -np 2 ./build/all_gather_perf -b 8 -e 16
# Rank 0 Pid 10 on a device 0 [0x01] Tesla V100
# Rank 1 Pid 11 on b device 0 [0x02] Tesla V100
#                                                 out-of-place                       in-place
#       size         count    type     time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)             (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
           8             2   float    163.4    0.00    0.00  2e-07    164.4    0.00    0.00  1e-07
          16             4   float    162.9    0.00    0.00  2e+00    162.3    0.00    0.00  1e-07
"""
BLANK = """# Rank 0 Group 0 Pid 1 on a device 0 [0x01] H100
# Rank 1 Group 0 Pid 1 on a device 1 [0x01] H100
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
        1024           256     float                    41.68    0.02    0.05      0    39.92    0.03    0.05    N/A
"""


def read(folder: Path, text: str, name: str = "out.txt", **told: Any) -> LinkTable:
    path = folder / name
    path.write_text(text)
    return read_nccl_tests(path, **told)


def test_the_table_of_today(tmp_path: Path) -> None:
    table = read(tmp_path, NOW)
    assert table.device == "NVIDIA H100 80GB HBM3"
    assert table.warnings == ()
    rows = [(row.bytes, row.in_place, row.seconds, row.bus_bandwidth) for row in table.rows]
    assert rows == [
        (1024.0, False, pytest.approx(41.68e-6), pytest.approx(0.05e9)),
        (1024.0, True, pytest.approx(39.92e-6), pytest.approx(0.05e9)),
        (2.0**30, False, pytest.approx(5620.1e-6), pytest.approx(358.24e9)),
        (2.0**30, True, pytest.approx(5610e-6), pytest.approx(358.88e9)),
    ]
    assert {(row.collective, row.ranks, row.nodes, row.dtype) for row in table.rows} == {
        ("all_reduce", 16, 2, "float")
    }
    assert [row.is_right for row in table.rows] == [True, True, True, None]


def test_gzip_and_windows_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "out.txt.gz"
    path.write_bytes(gzip.compress(NOW.replace("\n", "\r\n").encode()))
    assert read_nccl_tests(path).rows == read(tmp_path, NOW).rows


def test_the_table_of_2019(tmp_path: Path) -> None:
    table = read(tmp_path, OLD)
    assert [(row.collective, row.ranks, row.nodes) for row in table.rows] == [
        ("all_gather", 2, 2)
    ] * 4
    assert [row.is_right for row in table.rows] == [True, True, False, True]
    assert "reported as wrong" in table.warnings[0]


def test_blank_columns_and_a_collective_named_by_the_file(tmp_path: Path) -> None:
    table = read(tmp_path, BLANK, name="alltoall_perf.log")
    assert [(row.collective, row.seconds) for row in table.rows] == [
        ("all_to_all", pytest.approx(41.68e-6)),
        ("all_to_all", pytest.approx(39.92e-6)),
    ]


def test_per_iteration_columns_and_time_stamps(tmp_path: Path) -> None:
    head = "# size count type redop root time algbw busbw #wrong i_min i_max i_p99 i_cv%"
    head += " time algbw busbw #wrong i_min i_max i_p99 i_cv% timestamp\n"
    line = (
        "1024 256 float sum -1 41 0.02 0.05 0 1 2 3 4 39 0.03 0.06 0 1 2 3 4 2026-01-02 03:04:05\n"
    )
    table = read(tmp_path, RANKS + head + line, collective="all_reduce")
    assert [row.seconds for row in table.rows] == pytest.approx([41e-6, 39e-6])
    assert [row.bus_bandwidth for row in table.rows] == pytest.approx([0.05e9, 0.06e9])


def test_several_runs_in_one_file(tmp_path: Path) -> None:
    table = read(tmp_path, NOW + OLD)
    assert {(row.collective, row.ranks) for row in table.rows} == {
        ("all_reduce", 16),
        ("all_gather", 2),
    }


def document(**more: Any) -> dict[str, Any]:
    return {
        "version": 2, "args": ["/opt/build/reduce_scatter_perf_mpi", "-J", "x.json"], "nccl_version": 22803,
        "config": {
            "nthreads": 1, "ngpus": 4,
            "devices": [{"rank": 4 * n, "hostname": f"h{n}", "device_info": "NVIDIA A100"} for n in range(2)],
        },
        "results": [
            {
                "size": 4096, "count": 1024, "type": "float", "redop": "sum", "root": "-1",
                "out_of_place": {"time": 50.0, "alg_bw": 0.08, "bus_bw": 0.07, "nwrong": 0.0},
                "in_place": {"time": 51.0, "alg_bw": 0.08, "bus_bw": 0.07, "nwrong": None},
            },
            {"size": 8192, "type": "float", "out_of_place": None, "in_place": {"cpu_time": 60.0, "bus_bw": "nan"}},
        ],
        **more,
    }  # fmt: skip


def test_json(tmp_path: Path) -> None:
    table = read(tmp_path, json.dumps(document()))
    assert [(row.bytes, row.in_place, row.seconds, row.is_right) for row in table.rows] == [
        (4096.0, False, pytest.approx(50e-6), True),
        (4096.0, True, pytest.approx(51e-6), None),
        (8192.0, True, pytest.approx(60e-6), None),
    ]
    assert {(row.collective, row.ranks, row.nodes) for row in table.rows} == {
        ("reduce_scatter", 8, 2)
    }
    assert table.device == "NVIDIA A100"


def test_what_is_told_goes_before_what_is_found(tmp_path: Path) -> None:
    for text in (NOW, json.dumps(document())):
        table = read(tmp_path, text, collective="broadcast_perf", ranks=32, nodes=4)
        assert {(row.collective, row.ranks, row.nodes) for row in table.rows} == {
            ("broadcast", 32, 4)
        }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no nccl-tests results"),
        ("nothing here\n1 2 3\n", "no nccl-tests results"),
        ("# size count type redop root time algbw busbw\nx y z\n", "no nccl-tests results"),
        ("{}", "no nccl-tests results"),
        ('{"results": 3}', "no nccl-tests results"),
        ('{"results": [1, null, {}]}', "does not state"),
        ('{"results": [' + "[" * 1_000_000, "nested deeper"),
        ("{" * 1_000_000, "nested deeper"),
        ('{"a": 1', "not valid JSON"),
        ("# size count type redop root time algbw busbw #wrong\n8 2 float sum -1 1 1 1 0\n", "--ranks"),
        (RANKS + "# size count type redop root time algbw busbw #wrong\n8 2 float sum -1 1 1 1 0\n", "--coll"),
    ],
)  # fmt: skip
def test_what_is_not_there_is_said(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(FileError) as error:
        read(tmp_path, text)
    assert said in str(error.value)


def test_lines_with_faults_are_left_out_and_counted(tmp_path: Path) -> None:
    bad = "\n".join(
        [
            "8 2",
            "8 2 float sum -1 nan 1 1 0 inf 1 1 0",
            "8 2 float sum -1 -5 1 1 0 0 1 1 0",
            "9" * 9000,
        ]
    )
    table = read(tmp_path, NOW.replace("# Out of", bad + "\n# Out of"))
    assert len(table.rows) == 4
    assert table.warnings == ("4 result lines cannot be parsed and were skipped",)


def test_faults_of_the_call(tmp_path: Path) -> None:
    for told in ({"ranks": 0}, {"nodes": -1}, {"collective": "all_dance"}):
        with pytest.raises(InputError):
            read(tmp_path, NOW, **told)


def test_a_file_that_is_too_large_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "big.txt"
    with path.open("wb") as stream:
        stream.truncate(70_000_000)
    with pytest.raises(FileError, match="larger than"):
        read_nccl_tests(path)


def test_both_places_are_repeats_of_one_measurement(tmp_path: Path) -> None:
    rows = link_measurements([read(tmp_path, NOW)])
    assert [(row.key["bytes"], row.repeats) for row in rows] == [(1024.0, 2), (2.0**30, 2)]
    assert rows[0].seconds == pytest.approx(40.8e-6)
    assert {(row.key["ranks"], row.key["nodes"], row.key["device"]) for row in rows} == {
        (16, 2, "NVIDIA H100 80GB HBM3")
    }
    assert {row.machine.devices for row in rows} == {("NVIDIA H100 80GB HBM3",)}


def test_wrong_results_are_no_measurement(tmp_path: Path) -> None:
    rows = link_measurements([read(tmp_path, OLD)])
    assert [(row.key["bytes"], row.repeats) for row in rows] == [(8.0, 2), (16.0, 1)]
