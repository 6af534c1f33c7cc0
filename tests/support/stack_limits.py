"""What the main stacks can run, written down by hand from their sources and apart from `presets.yaml`: a second table, so that a
wrong rule there does not pass because searches keep to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from foretrain.model.precision import precisions
from foretrain.plan.parallelism import expert_tensor_degree
from foretrain.plan.schedules import meant
from foretrain.plan.short_form import Words
from foretrain.plan.strategy import recompute_kind

Facts = Mapping[str, Any]
SIXTEEN_BITS = ("fp32", "tf32", "fp16", "bf16")
MEGATRON_ORDERS = ("tp-cp-pp-dp", "tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp")


class Look:
    """A plan and its work by short names."""

    def __init__(self, words: Words, facts: Facts) -> None:
        self.w, self.facts = words, facts
        self.tp, self.pp, self.vpp, self.cp = words.tp, words.pp, words.vpp, words.cp
        self.ep, self.dp, self.zero = words.ep, words.dp or 1, words.zero
        self.etp = expert_tensor_degree(words)
        self.schedule = meant(words.schedule, words.pp, words.vpp)[0].name if words.pp > 1 else None
        self.count = facts["batch"] // (self.dp * (words.micro or 1))
        self.recompute = recompute_kind(words.recompute or "none")
        self.kv = facts.get("kv-heads", self.tp)  # a model without any has none to split

    @property
    def sp(self) -> bool:
        return self.w.sp and self.tp > 1

    @property
    def order(self) -> str:
        return "-".join(self.w.order or ())

    @property
    def layout(self) -> str:
        counts = self.w.layers or (1,)
        if len(set(counts)) == 1:
            return "even"
        return "ends" if len(set(counts[1:-1])) < 2 else "uneven"


Complaints = Iterator[str]
Limits = Callable[[Look], Complaints]


def _when(is_wrong: object, what: str) -> Complaints:
    if is_wrong:
        yield what


def _kind(p: Look, *able: str) -> Complaints:
    """Models of an unknown kind may be of any."""
    yield from _when(p.facts["model"] not in (*able, "other"), "model")


def _formats(p: Look, *able: str) -> Complaints:
    yield from _when(p.facts["precision"] not in able, "precision")


def _replicas_alone(p: Look) -> Complaints:
    yield from _when((p.tp, p.pp, p.cp, p.ep) != (1, 1, 1, 1), "model parallelism")
    yield from _when(p.w.order, "order")
    yield from _when(p.w.offload, "offload")


def ddp(p: Look) -> Complaints:
    yield from _replicas_alone(p)
    yield from _when(p.zero or p.w.shard, "states")
    yield from _when(p.w.tables != "replicated", "tables")


def tables(p: Look) -> Complaints:
    yield from _when(p.facts["model"] != "recommender", "model")
    yield from _replicas_alone(p)
    yield from _when(p.zero or p.w.shard, "states")


def fsdp(p: Look) -> Complaints:
    yield from _replicas_alone(p)
    yield from _when(p.zero == 1 or (p.w.shard and p.zero < 2), "states")
    yield from _when(p.w.tables != "replicated", "tables")


def fsdp2(p: Look) -> Complaints:
    yield from _replicas_alone(p)
    yield from _when(p.dp > 1 and p.zero < 2, "states")
    yield from _when(p.w.tables != "replicated", "tables")


def _megatron_schedules(p: Look, *more: str) -> Complaints:
    yield from _when(p.pp > 1 and p.schedule not in ("1f1b", "interleaved", *more), "schedule")


def _whole_groups(p: Look) -> Complaints:
    yield from _when(p.vpp > 1 and p.count % p.pp, "micro-batches")


def _zigzag(p: Look) -> Complaints:
    yield from _when(p.cp > 1 and p.facts.get("seq", 0) % (2 * p.cp), "sequence")


def _groups(p: Look) -> Complaints:
    yield from _when(p.tp > 1 and p.kv % p.tp and p.tp % p.kv, "kv heads")


def _core(p: Look) -> Complaints:
    """What all releases of Megatron Core have in common."""
    yield from _kind(p, "transformer")
    yield from _groups(p)
    yield from _zigzag(p)
    yield from _when(p.ep > 1 and p.tp > 1 and not p.sp, "sp")
    yield from _when(p.w.order and p.order not in MEGATRON_ORDERS, "order")


def _core_before_0_10(p: Look) -> Complaints:
    yield from _whole_groups(p)
    yield from _when(p.ep > 1 and p.etp != p.tp, "etp")
    yield from _when(p.w.offload, "offload")
    yield from _formats(p, *SIXTEEN_BITS, "fp8")


def _offload_with_states(p: Look) -> Complaints:
    yield from _when(p.w.offload and (p.w.offload != ("optimizer",) or not p.zero), "offload")


def _instances(p: Look) -> Complaints:
    yield from _when(p.w.shard and not p.zero, "shard")


def _fsdp_without_pipelines(p: Look) -> Complaints:
    yield from _when(p.zero >= 2 and (p.pp > 1 or p.w.order), "states")


def megatron(p: Look) -> Complaints:
    for part in (
        _core,
        _megatron_schedules,
        _offload_with_states,
        _instances,
        _fsdp_without_pipelines,
    ):
        yield from part(p)


def megatron_2024(p: Look) -> Complaints:
    for part in (_core, _megatron_schedules, _core_before_0_10):
        yield from part(p)
    yield from _when(p.zero > 1 or p.w.shard, "states")
    yield from _when(p.layout == "uneven", "layers")


def megatron_2021(p: Look) -> Complaints:
    yield from _kind(p, "transformer")
    yield from _formats(p, *SIXTEEN_BITS)
    yield from _megatron_schedules(p)
    yield from _whole_groups(p)
    yield from _when(p.vpp > 1 and p.pp < 3, "two stages")
    yield from _when(p.zero or p.w.shard or p.w.offload, "states")
    yield from _when(p.sp or p.cp > 1 or p.ep > 1, "parallelism")
    yield from _when(p.recompute == "selective", "recompute")
    yield from _when(p.w.order or p.layout != "even", "order or layers")


def nemo(p: Look) -> Complaints:
    for part in (_core, _megatron_schedules, _instances):
        yield from part(p)
    yield from _when(p.zero > 1 or p.w.offload, "states")
    yield from _when(p.layout == "uneven", "layers")


def nemo_1(p: Look) -> Complaints:
    for part in (_core, _megatron_schedules, _core_before_0_10):
        yield from part(p)
    is_fsdp = p.zero >= 2
    yield from _when(is_fsdp and (p.pp > 1 or p.ep > 1 or p.facts["precision"] == "fp8"), "FSDP")
    yield from _when(p.w.shard and not is_fsdp, "shard")
    yield from _when(p.layout != "even", "layers")


def megatron_bridge(p: Look) -> Complaints:
    for part in (_core, _megatron_schedules, _offload_with_states, _instances):
        yield from part(p)
    yield from _when(p.zero >= 2 and p.w.order, "order")


def primus(p: Look) -> Complaints:
    split = ("zb-h1", "zb-v", "v-half", "v-min")
    for part in (_core, _offload_with_states, _instances, _fsdp_without_pipelines):
        yield from part(p)
    yield from _megatron_schedules(p, *split)
    yield from _when(p.schedule in split and p.recompute != "none", "recompute")


def _deepspeed_pipelines(p: Look) -> Complaints:
    yield from _when(p.pp > 1 and (p.zero > 1 or p.vpp > 1 or p.schedule != "1f1b"), "pipeline")
    yield from _when(p.w.offload and (p.w.offload != ("optimizer",) or not p.zero), "offload")
    yield from _when(p.w.order, "order")


def megatron_deepspeed(p: Look) -> Complaints:
    yield from _kind(p, "transformer")
    yield from _formats(p, *SIXTEEN_BITS)
    yield from _deepspeed_pipelines(p)
    yield from _when(p.sp or p.cp > 1 or p.ep > 1, "parallelism")
    yield from _when(p.w.shard or p.recompute == "selective", "shard or recompute")


def deepspeed(p: Look) -> Complaints:
    yield from _formats(p, *SIXTEEN_BITS)
    yield from _deepspeed_pipelines(p)
    yield from _when(p.sp or p.cp > 1, "sequence")
    yield from _when(p.w.shard and (p.zero < 3 or p.ep > 1), "shard")
    yield from _when(p.ep > 1 and p.tp > 1 and p.zero == 3, "experts")


def nanotron(p: Look) -> Complaints:
    yield from _kind(p, "transformer")
    yield from _formats(p, *SIXTEEN_BITS)
    yield from _groups(p)
    yield from _zigzag(p)
    yield from _when(p.cp > 1 and p.w.exchange != "ring", "ring")
    yield from _when(p.pp > 1 and (p.schedule not in ("1f1b", "gpipe") or p.vpp > 1), "schedule")
    yield from _when(p.zero > 1 or p.w.shard or p.w.offload, "states")
    yield from _when(p.ep > 1 or p.w.order or p.layout != "even", "experts, order or layers")
    yield from _when(p.recompute not in ("none", "full"), "recompute")


def torchtitan(p: Look) -> Complaints:
    yield from _kind(p, "transformer")
    yield from _when(p.tp > 1 and (not p.sp or p.kv % p.tp), "tp")
    yield from _when(p.cp > 1 and p.facts.get("seq", 0) % (2 * p.cp * p.tp), "sequence")
    yield from _when(p.dp > 1 and (p.tp > 1 or p.pp > 1 or p.cp > 1) and not p.zero, "replicas")
    yield from _when(p.zero == (1 if p.pp == 1 else 2), "states")
    yield from _when(p.w.offload or p.w.order, "offload or order")
    if p.ep > 1:
        lent = p.cp if p.etp == p.tp else p.cp * p.tp
        group = (p.w.shard or 0) * (1 if p.etp == p.tp else p.tp)
        yield from _when(not p.zero or p.etp not in (1, p.tp), "experts")
        yield from _when(p.ep % lent or group % p.ep, "experts")
    if p.pp > 1:
        able = ("1f1b", "interleaved", "gpipe", "zb-v", "dualpipev")
        yield from _when(p.schedule not in able, "schedule")
        yield from _when(p.schedule == "1f1b" and p.count < p.pp, "micro-batches")
        rounds = max(1, p.count // p.pp)
        yield from _when(p.schedule == "interleaved" and p.count % rounds, "micro-batches")
        yield from _when(p.facts["tied"] == "yes", "tied weights")


def maxtext(p: Look) -> Complaints:
    yield from _kind(p, "transformer")
    yield from _when(p.pp > 1 and (p.schedule != "gpipe" or p.vpp > 1), "schedule")
    yield from _when(p.pp > 1 and p.count % p.pp, "micro-batches")
    yield from _when(p.zero == 2 or (p.w.shard and p.zero < 3), "states")
    yield from _when(p.recompute in ("none", "selective"), "recompute")
    yield from _when(p.w.offload not in ((), ("optimizer",)), "offload")
    yield from _when(p.w.order or p.layout != "even", "order or layers")


def alpa(p: Look) -> Complaints:
    yield from _kind(p, "transformer", "cnn")
    yield from _formats(p, *SIXTEEN_BITS)
    yield from _when(p.pp > 1 and (p.schedule not in ("1f1b", "gpipe") or p.vpp > 1), "schedule")
    yield from _when(p.sp or p.cp > 1, "sequence")
    yield from _when(p.zero == 1 or p.w.shard or (p.pp > 1 and p.zero == 3), "states")
    yield from _when(p.w.offload or p.w.order, "offload or order")
    yield from _when(p.recompute not in ("none", "full"), "recompute")


def libai(p: Look) -> Complaints:
    yield from _kind(p, "transformer")
    yield from _formats(p, *SIXTEEN_BITS)
    yield from _when(p.sp or p.cp > 1 or p.ep > 1, "parallelism")
    yield from _when(p.zero > 1 or p.w.shard or p.w.offload, "states")
    yield from _when(p.pp > 1 and (p.schedule != "1f1b" or p.vpp > 1), "schedule")
    yield from _when(p.recompute not in ("none", "full") or p.w.order, "recompute or order")


def accelerate_fsdp(p: Look) -> Complaints:
    yield from _zigzag(p)
    yield from _when(p.pp > 1 or p.ep > 1 or p.sp or p.w.order, "parallelism")
    yield from _when(p.dp > 1 and p.zero < 2, "states")
    yield from _when(p.w.offload or p.w.tables != "replicated", "offload or tables")


LIMITS: Mapping[str, Limits] = {
    **dict.fromkeys(("ddp", "ddp-2020", "hf-eager", "adaptdl", "horovod", "bluefog", "cpu-gloo"), ddp),
    **dict.fromkeys(("torchrec", "hugectr", "pytorch-dlrm"), tables),
    **dict.fromkeys(("fsdp", "composer", "fms-fsdp"), fsdp),
    "fsdp2": fsdp2, "accelerate-fsdp": accelerate_fsdp, "torchtitan": torchtitan, "megatron": megatron,
    "megatron-2024": megatron_2024, "megatron-2021": megatron_2021, "megatron-bridge": megatron_bridge,
    "megatron-deepspeed": megatron_deepspeed, "nemo": nemo, "nemo-1": nemo_1, "primus": primus, "deepspeed": deepspeed,
    "nanotron": nanotron, "maxtext": maxtext, "alpa": alpa, "libai": libai,
}  # fmt: skip


def complaints(stack: str, words: Words, facts: Facts) -> list[str]:
    """What a stack does not have of a plan; nothing of stacks that are not written down here."""
    limits = LIMITS.get(stack)
    return [] if limits is None else list(limits(Look(words, facts)))


assert {*SIXTEEN_BITS} < {*precisions()}
