"""Hypothesis strategies for whole questions: small models, odd clusters, every kind of plan that divides.

Layers and micro-batches are few, because they are what a prediction's tasks grow with; widths are those of real
models, because bandwidth only matters where messages are long.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from hypothesis import strategies as st

from foretrain.cluster.cluster import Cluster
from foretrain.errors import PlanError
from foretrain.model.graph import Model
from foretrain.model.load import load_model
from foretrain.model.workload import DataSource
from foretrain.model.zoo.resnet import resnet
from foretrain.scenario import Scenario
from foretrain.testing.asking import ask

Draw = Callable[[st.SearchStrategy[Any]], Any]

MOST_DEVICES = 8
_TRANSFORMER: Mapping[str, Any] = {
    "hidden_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "vocab_size": 2048,
}
_SHAPES: Mapping[str, Mapping[str, Any]] = {
    "gpt": {"dropout": 0.1, "tie_word_embeddings": True},
    "llama": {
        "num_key_value_heads": 2,
        "hidden_act": "silu-gated",
        "norm": "rmsnorm",
        "position": "rope",
        "intermediate_size": 2816,
        "biases": "none",
    },
    "moe": {
        "hidden_act": "silu-gated",
        "position": "rope",
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 1408,
        "biases": "none",
    },
}
MODELS = (*_SHAPES, "cnn")

# Machines with a switch, a mesh of links, and a tree of buses: their routes share links in different ways.
NODES = ("dgx-a100-80gb", "dgx-1-v100-32gb", "aws:g5.48xlarge")
RUNTIMES = ("megatron", "nemo", "fsdp", "ddp", "deepspeed", "generic")


@cache
def tiny_model(name: str) -> Model:
    """A model of four layers: gpt (tied, dropout), llama (grouped queries), moe (eight experts) or cnn."""
    if name == "cnn":
        return resnet("tiny-cnn", (2, 2), 0, 16, True)
    shape = {**_TRANSFORMER, **_SHAPES[name]}
    return load_model({"name": f"tiny-{name}", "transformer": shape, "seq": 64})


@cache
def _machines(nodes: tuple[str, ...], is_ring: bool) -> Cluster:
    network: dict[str, Any] = {"topology": "star"}
    if is_ring:  # neighbours only, so that far pairs share the links between
        count = len(nodes)
        edges = [
            {"ends": [index, (index + 1) % count], "bandwidth": "10GB/s", "latency": "5us"}
            for index in range(count)
        ]
        network = {"topology": "graph", "kind": "ethernet", "edges": edges}
    data = {"name": "+".join(nodes), "nodes": [{"node": n} for n in nodes], "network": network}
    return Cluster.of(data)


@st.composite
def clusters(draw: Draw) -> Cluster:
    """One to four nodes, up to eight devices in use in all, placed unevenly, sometimes of two kinds."""
    count = draw(st.integers(1, 4))
    used = [draw(st.integers(1, min(8, MOST_DEVICES // count))) for _ in range(count)]
    if draw(st.booleans()):  # even placements fold best, so they must not be rare
        used = [used[0]] * count
    first = draw(st.sampled_from(NODES))
    other = draw(st.sampled_from(NODES)) if draw(st.booleans()) else first
    cut = draw(st.integers(0, count))
    nodes = tuple(first if index < cut else other for index in range(count))
    is_ring = count > 2 and draw(st.integers(0, 3)) == 0
    return _machines(nodes, is_ring).placed(used)


@st.composite
def plan_words(draw: Draw, devices: int, model: str) -> tuple[str, int]:
    """A short form for that many devices, and the multiple its micro-batches must come in."""
    tp = draw(st.sampled_from(_divisors(devices))) if model != "cnn" else 1
    pp = draw(st.sampled_from([d for d in _divisors(devices // tp) if d <= 4]))
    cp = draw(st.sampled_from(_divisors(devices // tp // pp))) if model != "cnn" else 1
    dp = devices // tp // pp // cp
    words = [f"tp{tp}", f"pp{pp}", f"dp{dp}", f"cp{cp}"]
    multiple = 1
    if pp == 2 and draw(st.booleans()):
        words.append("vpp2")
        multiple = pp
    elif pp > 1:  # models of four layers, which two stages share out in four chunks
        folded = ("zb-v",) if pp == 2 else ()
        words.append(draw(st.sampled_from(("1f1b", "gpipe", "zb-h1", *folded))))
    words += _sharding(draw, dp * cp)
    if model == "moe":
        words += _experts(draw, tp, dp * cp)
    if tp > 1 and draw(st.booleans()):
        words.append("sp")
    if cp > 1 and draw(st.booleans()):
        words.append("cp=ring")
    words.append(f"recompute={draw(st.sampled_from(('none', 'none', 'selective', 'full')))}")
    if draw(st.integers(0, 3)) == 0:
        words.append(f"offload={draw(st.sampled_from(('optimizer', 'activations')))}")
    if draw(st.booleans()):
        words.append(f"order={'-'.join(draw(st.permutations(('tp', 'cp', 'dp', 'pp'))))}")
    if draw(st.booleans()):
        words.append(f"buckets={draw(st.sampled_from((1, 4, 25)))}MB")
    return " ".join(words), multiple


@st.composite
def image_trees(draw: Draw, devices: int) -> tuple[dict[str, Any], int, int]:
    """A strategy tree that cuts samples, rows, columns and channels of a convolutional network.

    Also gives the replicas, and the multiple the micro-batches must come in.
    """
    sizes, left = {}, devices
    for axis in ("pp", "rows", "columns", "channels"):
        sizes[axis] = draw(st.sampled_from([d for d in _divisors(left) if d <= 4]))
        left //= sizes[axis]
    sizes["dp"] = left
    order = draw(st.permutations(tuple(sizes)))
    split = {"batch": "dp", "height": "rows", "width": "columns", "channel_out": "channels"}
    # the second convolution of a pair adds up over the channels that the first one made
    children: dict[str, Any] = {}
    if draw(st.booleans()):
        children["2_conv"] = {"split": {"channel_in": "channels"}}
    if draw(st.booleans()):
        children["stage1"] = {"recompute": "full"}
    tree: dict[str, Any] = {"split": split, "schedule": {"stages": sizes["pp"]}}
    tree["children"] = children
    return {"mesh": {axis: sizes[axis] for axis in order}, "tree": tree}, left, 1


def _divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0 and d in (1, 2, 4, 8)]


def _sharding(draw: Draw, replicas: int) -> list[str]:
    zero = draw(st.integers(0, 3))
    if not zero:
        return []
    words = [f"zero{zero}"]
    shards = [d for d in _divisors(replicas) if 1 < d < replicas]
    if shards and draw(st.booleans()):
        words.append(f"shard={draw(st.sampled_from(shards))}")
    return words


def _experts(draw: Draw, tp: int, replicas: int) -> list[str]:
    etp = draw(st.sampled_from(_divisors(tp)))
    ranks = replicas * tp // etp
    ep = draw(st.sampled_from([d for d in _divisors(ranks) if d % (tp // etp) == 0]))
    return [f"ep{ep}", f"etp{etp}"] if ep > 1 else []


@st.composite
def runtime_options(draw: Draw) -> dict[str, Any]:
    """Habits of the software that change what runs beside what."""
    options: dict[str, Any] = {}
    if draw(st.booleans()):
        options |= {"host_seconds_per_kernel": 0.0, "host_seconds_per_collective": 0.0}
    habits = ("overlaps_gradients", "overlaps_parameter_gather", "overlaps_pipeline", "tp_dgrad_overlap",
              "regathers_sequence", "scatters_pipeline", "clips_gradients", "host_blocks_on_pipeline",
              "adds_gradients", "copies_gathered", "gathers_rerun", "scatters_gradients")  # fmt: skip
    for habit in draw(st.lists(st.sampled_from(habits), max_size=3, unique=True)):
        options[habit] = draw(st.booleans())
    if draw(st.integers(0, 3)) == 0:
        options |= {"tp_comm_overlap": True, "expert_overlap": 0.5}
    return options


@st.composite
def questions(draw: Draw, models: tuple[str, ...] = MODELS) -> Scenario:
    """A whole question; combinations that a plan rightly refuses are drawn again."""
    from hypothesis import assume

    cluster = draw(clusters())
    model = draw(st.sampled_from(models))
    runtime = draw(st.sampled_from(RUNTIMES))
    plan: str | dict[str, Any]
    if model == "cnn" and draw(st.booleans()):
        plan, replicas, multiple = draw(image_trees(cluster.device_count))
    else:
        words, multiple = draw(plan_words(cluster.device_count, model))
        replicas = next(int(word[2:]) for word in words.split() if word.startswith("dp"))
        plan = words
    micro = draw(st.sampled_from((1, 2)))
    rounds = multiple * draw(st.integers(1, 3))
    data = None
    if draw(st.integers(0, 4)) == 0:
        data = DataSource(draw(st.sampled_from((1e3, 1e9))), draw(st.sampled_from((0.0, 1e-3))))
    try:
        question = ask(
            tiny_model(model),
            on=cluster,
            plan=plan,
            batch=replicas * micro * rounds,
            micro_batch=micro,
            runtime=runtime,
            optimizer=draw(st.sampled_from(("adam", "adam", "sgd", "none"))),
            runtime_options=draw(runtime_options()),
            data=data,
        )
    except PlanError:
        assume(False)
        raise
    return replace(question, id=f"{model} on {cluster.name} {_used(cluster)}: {plan}")


def _used(cluster: Cluster) -> list[int]:
    return [run.used for run in cluster.runs for _ in range(run.count)]
