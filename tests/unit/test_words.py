"""Words that users write for networks, clusters and models, and what is said of those that are not known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from foretrain.cluster import catalog
from foretrain.cluster.cluster import Cluster
from foretrain.cluster.network_words import _table, nearest_network, network_word
from foretrain.errors import ClusterError, FileError, InputError, hint
from foretrain.model.load import load_model
from foretrain.resolving import ask
from foretrain.runtime import runtime

GBPS = 1e9 / 8


@pytest.mark.parametrize(
    ("text", "kind", "gbps"),
    [
        ("rdma", "infiniband", None),
        ("IB", "infiniband", None),
        ("InfiniBand", "infiniband", None),
        ("RoCE v2", "roce", None),
        ("roce", "roce", None),
        ("100GbE", "ethernet", 100),
        ("400G", "roce", 400),
        ("25 Gb/s", "ethernet", 25),
        ("ndr", "infiniband", 400),
        ("HDR InfiniBand", "infiniband", 200),
        ("efa", "efa", None),
        ("tcp", "ethernet", None),
        ("eth", "ethernet", None),
        ("Omni-Path", "omnipath", None),
    ],
)
def test_network_words_are_understood_everywhere(text: str, kind: str, gbps: float | None) -> None:
    word = network_word(text)
    assert word is not None
    assert word.kind == kind
    assert word.bandwidth == (None if gbps is None else pytest.approx(gbps * GBPS))
    drawn = Cluster.from_dict({"nodes": ["2 x dgx-h100"], "network": {"kind": text}})
    machine = Cluster.from_dict({"nodes": [{"node": "dgx-h100", "nics": {"kind": text}}]})
    case = {"device": "h100", "nodes": 2, "devices_per_node": 8, "network": {"kind": text}}
    asked, _, warnings = Cluster.read(case)
    assert warnings == ()
    for cluster in (drawn, machine, asked):
        nics = cluster.runs[0].node.nics
        assert nics is not None
        assert nics.kind == cluster.network.kind == kind
        assert gbps is None or nics.bandwidth == pytest.approx(gbps * GBPS)


def test_what_is_said_of_the_speed_goes_before_the_word() -> None:
    told = {"nodes": ["2 x dgx-h100"], "network": {"kind": "ndr", "bandwidth": "200Gb/s"}}
    nics = Cluster.from_dict(told).runs[0].node.nics
    assert nics is not None
    assert nics.bandwidth == pytest.approx(200 * GBPS)


def test_a_network_behind_on() -> None:
    cluster = Cluster.of("4 x dgx-h100 on 100GbE")
    nics = cluster.runs[0].node.nics
    assert nics is not None
    assert (nics.kind, nics.bandwidth) == ("ethernet", 100 * GBPS)
    assert cluster.network.kind == "ethernet"
    assert cluster.network.topology == "star"


@pytest.mark.parametrize(
    ("word", "kind", "ports"), [("4x100GbE", "ethernet", 4), ("2X100G-RoCE", "roce", 2)]
)
def test_a_network_of_several_ports(word: str, kind: str, ports: int) -> None:
    nics = Cluster.of(f"4 x dgx-h100 on {word}").runs[0].node.nics
    assert nics is not None
    assert (nics.kind, nics.count, nics.bandwidth) == (kind, ports, 100 * GBPS)


@pytest.mark.parametrize("word", ["0x100GbE", "4xfoo", "4x", "400x100GbE"])
def test_ports_that_are_none_are_refused(word: str) -> None:
    with pytest.raises(InputError, match="Unknown topology"):
        Cluster.of(f"4 x dgx-h100 on {word}")


@pytest.mark.parametrize(
    ("text", "gbps", "kind"),
    [
        ("infinband", None, "infiniband"),
        ("frobnet", 10, "ethernet"),
        ("frobnet", 3200, "roce"),
        ("quantum ndr fabric", None, "infiniband"),
    ],
)
def test_an_unknown_network_of_a_case_is_a_warning(
    text: str, gbps: float | None, kind: str
) -> None:
    network = {"kind": text, "gbps_per_node": gbps}
    cluster, _, warnings = Cluster.read(
        {"device": "h100", "nodes": 2, "devices_per_node": 8, "network": network}
    )
    assert cluster.network.kind == kind == nearest_network(text, gbps).kind
    assert warnings == (f"cluster.network.kind {text!r} is unknown; falling back to {kind}.",)


def test_an_unknown_network_of_a_file_is_an_error_with_a_short_hint() -> None:
    with pytest.raises(ClusterError) as refused:
        Cluster.from_dict({"nodes": ["2 x dgx-h100"], "network": {"kind": "infinband"}})
    assert "Did you mean 'infiniband'?" in str(refused.value)
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize(
    ("words", "kind", "gbps"),
    [
        ("100 GbE", "ethernet", 100),
        ("IB HDR", "infiniband", 200),
        ("RoCE v2", "roce", 400),
        ("200Gb/s", "roce", 200),
        ("50 Gb/s InfiniBand", "infiniband", 50),
    ],
)
def test_a_network_of_several_words_is_understood_after_on(
    words: str, kind: str, gbps: float
) -> None:
    cluster = Cluster.of(f"4 x dgx-h100 on {words}")
    nics = cluster.runs[0].node.nics
    assert nics is not None
    assert (cluster.network.kind, nics.bandwidth * 8e-9) == (kind, pytest.approx(gbps))


def test_a_network_of_unknown_words_is_named() -> None:
    with pytest.raises(ClusterError, match="Unknown topology 'wobble net'"):
        Cluster.of("4 x dgx-h100 on wobble net")


def test_every_network_word_has_a_source_and_a_link() -> None:
    table = _table()
    networks = {name for name, link in catalog.links().items() if link.tier == "network"}
    for word, row in table["words"].items():
        assert row["source"], word
        assert row["kind"] in networks, word
    assert networks <= set(table["words"])
    for row in table["speeds"].values():
        assert row["source"]
        assert row.get("kind", "ethernet") in networks


def test_the_speed_from_which_networks_have_rdma_is_that_of_the_catalogue() -> None:
    cards = [node.nics for node in catalog.nodes().values() if node.nics is not None]
    fast = [nics for nics in cards if nics.bandwidth >= 200 * GBPS]
    with_rdma = [nics for nics in fast if nics.kind != "ethernet"]
    assert (
        f"{len(with_rdma)} of the catalog's {len(fast)} machines" in _table()["rdma_from"]["source"]
    )


@pytest.mark.parametrize(
    ("text", "runs"),
    [
        ("8 H100", [("dgx-h100", 1, 8)]),
        ("H100:8", [("dgx-h100", 1, 8)]),
        ("8xH100", [("dgx-h100", 1, 8)]),
        ("16 x h100", [("dgx-h100", 2, 8)]),
        ("12 h100", [("dgx-h100", 1, 8), ("dgx-h100", 1, 4)]),
        ("2 nodes of 8 H100", [("dgx-h100", 2, 8)]),
        ("2 Machines with 4 h100", [("dgx-h100", 2, 4)]),
        ("2 x 8 h100", [("dgx-h100", 2, 8)]),
        ("3 dgx-h100", [("dgx-h100", 3, 8)]),
        ("4090", [("server-rtx-4090", 1, 1)]),
        ("1 4090", [("server-rtx-4090", 1, 1)]),
        ("8 x RTX 4090", [("server-rtx-4090", 1, 8)]),
        ("8 x RTX4090", [("server-rtx-4090", 1, 8)]),
        ("GeForce RTX 4090", [("server-rtx-4090", 1, 1)]),
        ("2 nodes of 4 3090", [("server-rtx-3090", 2, 4)]),
        ("aws:p4d.24xlarge:2", [("aws:p4d.24xlarge", 2, 8)]),
        ("aws:p4d.24xlarge", [("aws:p4d.24xlarge", 1, 8)]),
    ],
)
def test_clusters_as_people_count_them(text: str, runs: list[tuple[str, int, int]]) -> None:
    found = Cluster.of(text)
    assert [(run.node.name, run.count, run.used) for run in found.runs] == runs


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("2 nodes of 16 H100", "the default node, dgx-h100, has 8"),
        ("2 nodes of 8 h10O", "Did you mean 'h100'"),
        ("9999999999 nodes of 8 H100", "too many nodes"),
        ("frobnicator", "foretrain catalog list nodes"),
        ("8 6000", "Unknown node or device '6000'"),  # RTX PRO 6000 or A6000
        ("8 141gb", "Unknown node or device '141gb'"),
        ("8 90", "Unknown node or device '90'"),
    ],
)
def test_clusters_that_cannot_be_understood(text: str, words: str) -> None:
    with pytest.raises(ClusterError) as refused:
        Cluster.of(text)
    assert words in str(refused.value)
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize(
    ("name", "zoo"),
    [
        ("meta-llama/Llama-3.1-8B", "llama3.1-8b"),
        ("meta-llama/Meta-Llama-3-8B-Instruct", "llama3-8b"),
        ("Qwen/Qwen3-14B", "qwen3-14b"),
        ("mistralai/Mistral-7B-v0.1", "mistral-7b"),
    ],
)
def test_a_hub_name_that_is_not_on_disk_names_the_zoo(
    name: str, zoo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileError, match=f"nothing is downloaded.* Did you mean '{zoo}'\\?"):
        load_model(name)


def test_a_path_below_a_folder_that_is_there_is_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    for name in ("models/llama3-8b", "gone/model.yaml"):
        with pytest.raises(FileError, match="does not exist; expected a model"):
            load_model(name)


def test_a_folder_with_a_config_is_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 100}
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    by_file = load_model(folder / "config.json")
    assert load_model(str(folder)) == by_file
    assert by_file.name == "my-model"
    monkeypatch.chdir(tmp_path)
    assert load_model("my-model") == by_file
    monkeypatch.chdir(folder)
    assert load_model("config.json") == by_file


def test_hints_are_short() -> None:
    few = hint("rng", ["ring", "tree"])
    assert few == " Did you mean 'ring'? Known: ring, tree."
    many = [f"word-{number:03d}" for number in range(1000)]
    assert hint("word-001", many, "foretrain catalog list words").endswith(
        "'foretrain catalog list words' lists all."
    )
    assert len(hint("zzz", many)) < 250
    assert "(1000 in all)" in hint("zzz", many)
    for unknown in (lambda: runtime("x" * 10_000), lambda: load_model("y" * 10_000)):
        with pytest.raises(InputError) as refused:
            unknown()
        assert len(str(refused.value)) < 400


def test_a_batch_that_tokens_were_meant_by() -> None:
    asked = {"on": "2 x dgx-h100", "plan": "tp4 pp2 dp2", "micro_batch": 1}
    with pytest.raises(InputError, match="Write 4Mtok"):
        ask("llama3-8b", batch="4M", **asked)
    assert ask("llama3-8b", batch="4Mtok", **asked).workload.global_batch == 512
