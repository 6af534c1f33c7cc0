"""Launch commands taken apart and put together again."""

from __future__ import annotations

import subprocess
import sys

import pytest

from foretrain.errors import InputError
from foretrain.measurement.launching import Launch, free_port
from foretrain.measurement.protocol import StallProtocol, _groups, _notes, wanted_runs


def test_a_plain_command_is_left_as_it_is() -> None:
    launch = Launch.of(["python", "train.py", "--nproc-per-node", "8"])
    assert launch.words == ["python", "train.py", "--nproc-per-node", "8"]
    assert (launch.per_host, launch.hosts, launch.host_rank) == (1, 1, 0)
    assert wanted_runs(launch, StallProtocol()) == ("T0", "T3", "T2", "P", "F", "P2", "F2")
    assert len(_groups(launch, StallProtocol(), wanted_runs(launch, StallProtocol()))) == 1


@pytest.mark.parametrize(
    "command",
    [
        "torchrun --nproc-per-node 2 train.py --lr 1",
        "/some/bin/torchrun --nproc_per_node=2 train.py --lr 1",
        "python -m torch.distributed.run --nproc_per_node 2 train.py --lr 1",
    ],
)
def test_torchrun_on_one_host(command: str) -> None:
    launch = Launch.of(command.split())
    assert (launch.per_host, launch.hosts) == (2, 1)
    assert launch.script == ("train.py", "--lr", "1")
    one = launch.on_one_host(1).words
    assert one[one.index("--nproc-per-node") + 1] == "1"
    assert one[-3:] == ["train.py", "--lr", "1"]
    groups = _groups(launch, StallProtocol(), wanted_runs(launch, StallProtocol()))
    assert groups == [("one", ("T0",)), ("all", ("T1", "T3", "T2", "P", "F", "P2", "F2"))]


def test_options_of_the_launcher_stay() -> None:
    launch = Launch.of(
        [
            "torchrun",
            "--standalone",
            "--max-restarts",
            "0",
            "--nproc-per-node",
            "4",
            "-m",
            "pkg.train",
        ]
    )
    assert launch.script == ("pkg.train",)
    words = launch.on_one_host(1).words
    assert "--standalone" not in words  # it would start a meeting point of its own
    assert words[-2:] == ["-m", "pkg.train"]
    assert words[words.index("--max-restarts") + 1] == "0"


def test_several_hosts_meet_at_the_same_new_place() -> None:
    words = "torchrun --nnodes 2 --node-rank {} --nproc-per-node 2 --master-addr a --master-port 5000 t.py"
    first, second = (Launch.of(words.format(rank).split()) for rank in (0, 1))
    assert (first.hosts, second.host_rank) == (2, 1)
    assert wanted_runs(first, StallProtocol()) == (
        "T0",
        "T1",
        "T5",
        "T3",
        "T2",
        "P",
        "F",
        "P2",
        "F2",
    )
    assert [kind for kind, _ in _groups(first, StallProtocol(), ("T0", "T1", "T5", "T2"))] == ["one", "host", "all"]  # fmt: skip
    assert _groups(second, StallProtocol(), ("T0", "T1", "T5", "T2")) == [("all", ("T5", "T2"))]
    ports = {launch.numbered(3).words[launch.numbered(3).words.index("--master-port") + 1] for launch in (first, second)}  # fmt: skip
    assert ports == {"5003"}


def test_a_rendezvous_is_numbered() -> None:
    words = "torchrun --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=a:1 --rdzv-id=job t.py"
    assert "job-2" in Launch.of(words.split()).numbered(2).words


def test_mistakes() -> None:
    with pytest.raises(InputError, match="no command"):
        Launch.of([])
    with pytest.raises(InputError, match="contains no script"):
        Launch.of(["torchrun", "--nproc-per-node", "2"])
    with pytest.raises(InputError, match="a value is missing"):
        Launch.of(["torchrun", "--nproc-per-node"])


def test_runs_that_were_left_out_are_told_with_the_reason() -> None:
    assert _notes([]) == []
    (no_data,) = _notes(["T2", "F", "F2"])
    assert "T2 and F and F2 skipped: no training data" in no_data
    (no_workers,) = _notes(["P2", "F2"])
    assert "P2 and F2 skipped" in no_workers
    assert "workers" in no_workers
    assert len(_notes(["T2", "F", "P2", "F2"])) == 2


def test_a_process_that_is_done_ends_before_anything_can_abort_it() -> None:
    code = "import atexit, os; atexit.register(os.abort); print('told')\n"
    code += "from foretrain.measurement.launching import end_at_once; end_at_once()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "told\n")


def test_a_free_port_can_be_had_by_anyone() -> None:
    assert 1024 <= free_port() <= 65535
