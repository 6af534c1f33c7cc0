"""What the fuzzer calls, and valid inputs to begin from."""

from __future__ import annotations

import contextlib
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[1] / "examples"
LAYERS = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 128}
TINY: dict[str, Any] = {
    "transformer": {**LAYERS, "num_key_value_heads": 2, "intermediate_size": 128},
    "seq": 64,
}
DETAILS: dict[str, Any] = {
    "rope_theta": 1e4,
    "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "mscale": 1.0, "beta_fast": 32.0},
    "norm_eps": 1e-6,
    "scoring_func": "sigmoid",
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 2.5,
    "bias_update_rate": 0.001,
}
MOE = {**TINY, "transformer": {**TINY["transformer"], "num_experts": 4, "num_experts_per_tok": 2}}
ON = ["--on", "1 x dgx-a100-80gb"]
STEP = ["--batch", "16", "--micro-batch", "1", "--seq", "64"]


@dataclass(frozen=True)
class Target:
    """A command with `{file}` or `{word}` in it, and what may stand there."""

    name: str
    args: tuple[str, ...]
    seeds: tuple[bytes, ...]
    form: str = "tree"  # tree (JSON, which is YAML too), text or bytes
    file: str = "input.json"
    answers: str = "document"  # one JSON document, or one on every line
    variable: str = ""  # of the environment, that names the file's folder

    @property
    def is_file(self) -> bool:
        return bool(self.variable) or any("{file}" in arg for arg in self.args)


def targets(folder: Path) -> tuple[Target, ...]:
    """Every reader. `folder` is for files that inputs refer to."""
    tiny = folder / "tiny.json"
    tiny.write_text(json.dumps(TINY))
    moe = folder / "moe.json"
    moe.write_text(json.dumps(MOE))
    ask = [str(tiny), *ON, *STEP]
    return (
        *_models(),
        *_clusters(ask),
        *_plans(ask, [str(moe), *ON, *STEP]),
        *_words(str(tiny), ask),
        *_recommended(folder),
        *_cases(),
        *_documents(ask),
        *_measured(folder, ask),
    )


def _trees(*values: Any) -> tuple[bytes, ...]:
    return tuple(json.dumps(value).encode() for value in values)


def _texts(*values: str) -> tuple[bytes, ...]:
    return tuple(value.encode() for value in values)


def _yaml(name: str) -> Any:
    import yaml

    return yaml.safe_load((EXAMPLES / name).read_text())


def _models() -> tuple[Target, ...]:
    from foretrain.model.document import model_to_dict
    from foretrain.model.load import load_model

    own = (
        TINY,
        {"zoo": "gpt2", "seq": 128, "overrides": {"num_hidden_layers": 2}},
        {"zoo": "llama3-8b", "num_hidden_layers": 2},
        {
            "transformer": {
                **LAYERS,
                "num_experts": 8,
                "num_experts_per_tok": 2,
                "first_dense_layers": 1,
                "position": "rope",
                **DETAILS,
            }
        },
        model_to_dict(load_model(TINY)),
    )
    width = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 128}
    wide = {**width, "intermediate_size": 128}
    latent = {"kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16}
    routed = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    configs = (
        {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 128, "n_positions": 64},
        {"model_type": "llama", **wide, "num_key_value_heads": 2, "tie_word_embeddings": False, "rope_theta": 1e4, "rope_scaling": DETAILS["rope_scaling"]},
        {"model_type": "mixtral", **wide, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 32},
        {"model_type": "deepseek_v3", **wide, **latent, **routed, "n_shared_experts": 1, "first_k_dense_replace": 1},
        {"model_type": "bert", **wide, "type_vocab_size": 2, "max_position_embeddings": 64},
        {"model_type": "mpt", "d_model": 64, "n_layers": 2, "n_heads": 4, "vocab_size": 128, "attn_config": {"alibi": True}},
        {"model_type": "falcon", **width, "multi_query": True, "new_decoder_architecture": False},
        {"model_type": "t5", "d_model": 64, "num_layers": 2, "num_heads": 4, "d_kv": 16, "d_ff": 128, "vocab_size": 128},
        {"model_type": "vit", **wide, "patch_size": 16, "image_size": 224, "id2label": {"0": "a"}},
    )  # fmt: skip
    call = ("predict", "{file}", "--on", "1 x a100", "--batch", "2", "--json")
    out = ("export", "{file}", "--to", "megatron", *ON, *STEP, "--plan", "ep2 zero1", "--json")
    return (
        Target("model file", call, _trees(*own)),
        Target("exported model", out, _trees(own[3])),
        Target(
            "model YAML text", call, _texts(_as_yaml(own[0]), _as_yaml(own[4])), "text", "m.yaml"
        ),
        Target("Hugging Face config", call, _trees(*configs), file="config.json"),
    )


def _as_yaml(value: Any) -> str:
    import yaml

    return str(yaml.safe_dump(value, sort_keys=False))


def _clusters(ask: list[str]) -> tuple[Target, ...]:
    names = ("drawn_cluster.yaml", "fat_tree_cluster.yaml", "mixed_cluster.yaml")
    own = {
        "nodes": [{"node": "dgx-h100", "count": 2, "price": {"usd_per_hour": 98.0}, "host": {"cpu_cores": 64}}],
        "network": {"kind": "ndr", "cards": 4, "topology": "torus", "dims": 2},
        "devices": {"d": {"like": "t4", "peak_flops": {"bf16": "10TFLOPS"}, "memory_bandwidth": "300GB/s"}},
    }  # fmt: skip
    call = ("predict", ask[0], "--on", "{file}", "--seq", "64", "--json")
    rows = {"my-gpu": {"memory_bytes": "32GB", "memory_bandwidth": "320GB/s", "peak_flops": {"fp32": "8TFLOPS"},
                       "pcie_bandwidth": "16GB/s", "aliases": ["mine"], "source": "me"}}  # fmt: skip
    nodes = {
        "nodes": {"my-box": {"devices": {"device": "t4", "count": 4}, "interconnect": "pcie4"}}
    }
    links = {
        "links": {"my-net": {"title": "x", "tier": "network", "latency": "3us", "source": "me"}}
    }
    return (
        Target("cluster file", call, _trees(own, *map(_yaml, names)), file="c.yaml"),
        Target("cluster YAML text", call, tuple((EXAMPLES / n).read_bytes() for n in names), "text", "c.yaml"),
        _catalogue("devices", rows),
        _catalogue("nodes", nodes),
        _catalogue("links", links),
    )  # fmt: skip


def _catalogue(table: str, rows: Any) -> Target:
    call = ("catalog", "check", "--json")
    return Target(
        f"catalog {table}", call, _trees(rows), file=f"{table}.yaml", variable="FORETRAIN_CATALOG"
    )


def _plans(ask: list[str], ask_experts: list[str]) -> tuple[Target, ...]:
    from foretrain.plan import Plan
    from foretrain.runtime import runtime

    text = "tp2 pp2 vpp1 dp2 zero1 sp recompute=full 1f1b"
    written = _yaml("recompute_some_layers.yaml")
    written["tree"]["children"] = {"layers[0:1]": {"recompute": "none"}}
    written["tree"]["split"]["batch"] = "dp"
    trees = (
        Plan.of(text, devices=8, runtime=runtime("megatron")).to_dict(),
        {**written, "mesh": {**written["mesh"], "tp": 4, "dp": 2}},
    )
    words = (text, "tp4 dp2 zero3 shard=2", "pp2 interleaved vpp2", "cp2 cp=ring order=tp-cp-dp-pp", "dp8 buckets=25MB",
             "pp2 layers=2,2 offload=optimizer+activations micro=1")  # fmt: skip
    return (
        Target(
            "plan file",
            ("predict", *ask, "--plan", "{file}", "--json"),
            _trees(*trees),
            file="p.yaml",
        ),
        Target(
            "plan words", ("predict", *ask, "--plan", "{word}", "--json"), _texts(*words), "text"
        ),
        Target(
            "plan words of experts",
            ("predict", *ask_experts, "--plan", "{word}", "--json"),
            _texts("ep2 etp1 tp2", "dp8 ep4 zero1"),
            "text",
        ),
    )


def _words(tiny: str, ask: list[str]) -> tuple[Target, ...]:
    clusters = ("2 x dgx-h100", "8 H100", "H100:8", "2 nodes of 8 H100", "1 x dgx-a100-80gb + 2 x dgx-h100",
                "4 x dgx-h100 on torus(dims=2)", "4 x dgx-h100 on fat-tree(oversubscription=2, leaf_nodes=2)",
                "2 x dgx-h100 on 100GbE", "16 x aws:p4d.24xlarge")  # fmt: skip
    options = ("bucket_bytes=25MB", "attention=flash", "expert_overlap=0.5", "host_seconds_per_kernel=3us",
               "algorithms=all_reduce:tree", "priorities=data:2", "rank_order=tp-cp-dp-pp", "uses_cuda_graphs=true",
               "library=mpi", "overlaps_pipeline=false", "fragmentation=0.1")  # fmt: skip
    changes = ("network.bandwidth=2x", "device.compute=0.5x", "host=0x", "plan=tp2 dp4", "batch=32", "seq=4k",
               "device.memory=2x", "interconnect.latency=1.5x", "precision=fp16")  # fmt: skip
    axes = (
        "seq=32,64",
        "batch=8,16",
        "network.bandwidth=1x,2x",
        "plan='tp2 dp4','dp8'",
        "runtime=ddp,fsdp",
    )
    numbers = ("16", "4k", "0.5k", "1e3", "64")
    where = (
        "tp<=2, pp=1|2, zero>=1",
        "no recompute",
        "sp",
        "schedule=1f1b, dp=4",
        "order=tp-cp-pp-dp",
        "buckets=25MB",
    )
    call = ("predict", *ask, "--json")
    find = (
        "search",
        tiny,
        "--on",
        "4 x a100",
        "--batch",
        "8",
        "--seq",
        "64",
        "--top",
        "2",
        "--json",
    )
    return (
        Target("cluster words", ("predict", tiny, "--seq", "64", "--json", "--on", "{word}"), _texts(*clusters), "text"),
        Target("runtime options", (*call, "--set", "{word}"), _texts(*options), "text"),
        Target("stragglers", (*call, "--stragglers", "{word}"), _texts("3:1.5,7:1.2", "sigma=0.05,seed=1"), "text"),
        Target("names", (*call, "--runtime", "{word}"), _texts("megatron", "fsdp", "pytorch ddp"), "text"),
        Target("precision", (*call, "--precision", "{word}"), _texts("bf16", "fp8", "fp32"), "text"),
        Target("optimizer", (*call, "--optimizer", "{word}"), _texts("adam", "sgd", "lamb"), "text"),
        Target("what-if", ("whatif", *ask, "--json", "--set", "{word}"), _texts(*changes), "text"),
        Target("sweep", ("sweep", tiny, *ON, "--json", "--vary", "{word}"), _texts(*axes), "text"),
        Target("batch", ("predict", tiny, *ON, "--seq", "64", "--json", "--batch", "{word}"), _texts(*numbers), "text"),
        Target("micro-batch", ("predict", tiny, *ON, "--json", "--micro-batch", "{word}"), _texts(*numbers), "text"),
        Target("sequence", ("predict", tiny, *ON, "--batch", "8", "--json", "--seq", "{word}"), _texts(*numbers), "text"),
        Target("constraints", (*find, "--where", "{word}"), _texts(*where), "text"),
        Target("why", (*find, "--where", "pp=1", "--why", "{word}"), _texts("tp=4", "no zero", "tp=2, dp=2"), "text"),
    )  # fmt: skip


def _recommended(folder: Path) -> tuple[Target, ...]:
    call = (
        "recommend",
        "resnet50",
        "--instances",
        "aws:p3.8*",
        "--max-devices",
        "8",
        "--batch",
        "64",
        "--json",
    )
    rows = "instance,usd_per_hour,spot_usd_per_hour,reserved_usd_per_hour,quota,date,source\n"
    prices = {
        "prices": [
            {"instance": "aws:p3.8xlarge", "usd_per_hour": 12.0, "quota": 4, "date": "2026-11-01"}
        ]
    }
    data = (
        "imagenet-1k",
        "samples=1.3M,sample=110kB,prep=5ms,workers=8",
        "size=146GB,samples=1M,sharded",
    )
    steps = (*call, "--steps", "100")
    csv = _texts(rows + "aws:p3.8xlarge,12.2,,10,4,2026-11-01,our contract\n")
    return (
        Target("prices file", (*steps, "--prices", "{file}"), _trees(prices), file="prices.yaml"),
        Target("prices CSV", (*steps, "--prices", "{file}"), csv, "text", "prices.csv"),
        Target("quota", (*steps, "--quota", "{word}"), _texts("16", "aws:p3*=8"), "text"),
        Target("instances", ("recommend", "resnet50", "--steps", "9", "--batch", "64", "--quota", "1", "--json",
                             "--max-devices", "4", "--instances", "{word}"), _texts("aws:p3.2*", "gcp:a2-highgpu-1g"), "text"),
        Target("data", (*call, "--epochs", "2", "--data", "{word}"), _texts(*data), "text"),
        Target("deadline", (*steps, "--deadline", "{word}"), _texts("14d", "2 weeks", "36h"), "text"),
        Target("length", (*call, "--steps", "{word}"), _texts("100", "1e6", "4k"), "text"),
    )  # fmt: skip


def _cases() -> tuple[Target, ...]:
    lines = [
        json.loads(line)
        for line in (EXAMPLES / "cases.jsonl").read_text().splitlines()
        if line.strip()
    ]
    small = {
        "num_hidden_layers": 4,
        "hidden_size": 512,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "intermediate_size": 2048,
    }
    seeds = []
    for line in lines[:6]:
        if "family" in line["model"]:
            line["model"] |= small
        measured = {"step_time_s": 1.5, "memory_gib": 12.0, "ok": True}
        seeds.append({**line, "group": "g", "quality": "high", "measured": measured})
    call = ("predict", "--cases", "{file}")
    return (
        Target("case", call, _trees(*seeds), file="cases.jsonl", answers="lines"),
        Target("case lines", call, (b"\n".join(_trees(*seeds)),), "text", "cases.jsonl", "lines"),
        Target(
            "measured case",
            ("validate", "{file}", "--jobs", "1", "--json"),
            _trees(*seeds),
            file="cases.jsonl",
        ),
    )


def _documents(ask: list[str]) -> tuple[Target, ...]:
    from foretrain import predict

    found = predict(TINY, on="1 x dgx-a100-80gb", plan="tp2 pp2 dp2 zero1", batch=16, micro_batch=1)
    seeds = _trees(found.to_dict(), found.to_dict(in_full=False))
    return (
        Target("explain", ("explain", "{file}", "--json"), seeds),
        Target("compare", ("compare", "{file}", "{file}", "--json"), seeds),
    )


NCCL = """# nccl-tests version 2.17.6 nccl-headers=22803 nccl-library=22803
# Collective test starting: all_reduce_perf
# Using devices
#  Rank  0 Group  0 Pid    101 on     node0 device  0 [0000:1b:00] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid    101 on     node0 device  1 [0000:2b:00] NVIDIA H100 80GB HBM3
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
        1024           256     float     sum      -1    41.68    0.02    0.05       0    39.92    0.03    0.05       0
  1073741824     268435456     float     sum      -1   5620.1  191.06  358.24       0   5610.0  191.40  358.88     N/A
"""


def _measured(folder: Path, ask: list[str]) -> tuple[Target, ...]:
    from support.traces import training

    from foretrain.cli import run
    from foretrain.measurement.exchange import to_csv, to_document
    from foretrain.measurement.store import Store

    rows = _measurements()
    with Store.open(folder / "seed.sqlite") as store:
        store.add(*rows)
    document = to_document(rows)
    (folder / "rows.json").write_text(json.dumps(document))
    calibration = folder / "calibration.json"
    with contextlib.redirect_stdout(io.StringIO()):
        run(["calibrate", str(folder / "rows.json"), "-q", "-o", str(calibration)])
    journal = folder / "journal.sqlite"
    find = [
        "search",
        ask[0],
        "--on",
        "4 x a100",
        "--batch",
        "8",
        "--seq",
        "64",
        "--top",
        "1",
        "--json",
    ]
    with contextlib.redirect_stdout(io.StringIO()):
        run([*find, "--state", str(journal)])
    stored = (folder / "seed.sqlite").read_bytes()
    place = {"time": 41.68, "alg_bw": 0.02, "bus_bw": 0.05, "nwrong": 0}
    row = {
        "size": 1024,
        "count": 256,
        "type": "float",
        "redop": "sum",
        "out_of_place": place,
        "in_place": place,
    }
    devices = [{"rank": 4 * n, "hostname": f"h{n}", "device_info": "NVIDIA A100"} for n in range(2)]
    args = ["/opt/build/all_reduce_perf", "-J", "x.json"]
    nccl = {
        "version": 2,
        "args": args,
        "config": {"nthreads": 1, "ngpus": 4, "devices": devices},
        "results": [row],
    }
    target = ("--store", "{folder}/own.sqlite")
    return (
        Target("calibration", ("predict", *ask, "--calibration", "{file}", "--json"), (calibration.read_bytes(),)),
        Target("measurements", ("calibrate", "{file}", "--json"), _trees(document)),
        Target("measurements CSV", ("measure", "import", "{file}", *target, "--json"), _texts(to_csv(rows)), "text", "m.csv"),
        Target("store", ("measure", "export", "--store", "{file}"), (stored,), "bytes", "s.sqlite"),
        Target("journal", (*find, "--state", "{file}"), (journal.read_bytes(),), "bytes", "j.sqlite"),
        Target("trace", ("import", "trace", "{file}", "--json"), _texts(training(2, 4).text())),
        Target("trace text", ("import", "trace", "{file}", "--json"), _texts(training(2, 2).text()), "text"),
        Target("nccl-tests", ("import", "nccl-tests", "{file}", "--json"), _texts(NCCL), "text", "all_reduce.txt"),
        Target("nccl-tests JSON", ("import", "nccl-tests", "{file}", "--json"), _trees(nccl)),
    )  # fmt: skip


def _measurements() -> list[Any]:
    from foretrain.measurement.machine import Machine
    from foretrain.measurement.records import Measurement, host_key, link_key, op_key
    from foretrain.model.ops.base import Kernel

    machine = Machine(
        cpu="a CPU", cores=4, memory_gib=16, devices=(), driver="", host="0123456789abcdef", system="Linux 6",
        software=(("python", "3.11.1"), ("torch", "2.13.0")),
    )  # fmt: skip
    at = "2026-01-01T00:00:00.000000+00:00"
    found = []
    for size in (64, 256, 1024):
        kernel = Kernel(
            "gemm", "forward", 2.0 * size**3, 12.0 * size**2, "fp32", (1, size, size, size)
        )
        samples = [kernel.flops / 8e10 * (1 + 0.01 * n) for n in range(3)]
        found.append(Measurement.of("op", op_key(kernel, threads=1), samples, machine, at=at))
    for size in (1e3, 1e5, 1e7):
        found.append(
            Measurement.of(
                "link", link_key("all_reduce", 2, size), [6e-5 + size / 1.5e9] * 3, machine, at=at
            )
        )
    found.append(
        Measurement.of(
            "host",
            host_key("kernel", runtime="eager", device="cpu", threads=1),
            [5e-6] * 3,
            machine,
            at=at,
        )
    )
    return found
