"""Megatron-LM's argument parser as recorded data, with the checks that it makes of what it has parsed.

The table is `tests/unit/published/megatron.yaml`. Checks are those of validate_args (megatron/training/arguments.py) and of
TransformerConfig.__post_init__ (megatron/core/transformer/transformer_config.py) that exported arguments can meet.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from foretrain.adapters.write.job import ExportJob
from foretrain.scenario import Scenario

TABLES = Path(__file__).parents[1] / "unit" / "published"
MODULES = {"core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts"}


class Refusing(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise ValueError(message)


@cache
def arguments() -> dict[str, Any]:
    loaded = yaml.safe_load((TABLES / "megatron.yaml").read_text("utf-8"))
    assert loaded["source"]
    table: dict[str, Any] = loaded["arguments"]
    return table


def parser() -> Refusing:
    made = Refusing(allow_abbrev=False)
    kinds = {"int": int, "float": float, "str": str}
    for name, form in arguments().items():
        flag = f"--{name}"
        if form == "flag":
            made.add_argument(flag, action="store_true")
        elif isinstance(form, str):
            made.add_argument(flag, type=kinds[form])
        elif form[0] == "+":
            made.add_argument(flag, nargs="+", choices=form[1:])
        else:
            made.add_argument(flag, choices=form)
    return made


def parse(files: Mapping[str, str]) -> argparse.Namespace:
    """The arguments of `megatron_args.txt` and those that the script adds."""
    script = files["launch.sh"]
    own = script[script.index("--train-iters") : script.index("--eval-iters")]
    plain = own.replace('"${TRAIN_ITERS:-100}"', "100").replace('"${LR:-1e-4}"', "1e-4")
    words = [*shlex.split(files["megatron_args.txt"]), *shlex.split(plain.replace("\\\n", " "))]
    args = parser().parse_args(words)
    args.connections = "CUDA_DEVICE_MAX_CONNECTIONS=1" in script
    return args


def refusals(args: argparse.Namespace, world: int) -> Iterator[str]:
    """Which of its checks arguments fail, on so many processes."""
    for holds, what in (*_sizes(args, world), *_stages(args), *_states(args), *_model(args)):
        if not holds:
            yield f"Megatron-LM refuses: {what}"


Check = tuple[Any, str]


def _sizes(a: argparse.Namespace, world: int) -> Iterator[Check]:
    tp, pp = a.tensor_model_parallel_size or 1, a.pipeline_model_parallel_size or 1
    cp, ep = a.context_parallel_size or 1, a.expert_model_parallel_size or 1
    yield world % (tp * pp * cp) == 0, "world size is not divisible by tp x pp x cp"
    replicas = world // (tp * pp * cp)
    yield a.global_batch_size % (a.micro_batch_size * replicas) == 0, "batch per replica"
    yield world % ((a.expert_tensor_parallel_size or tp) * ep * pp) == 0, "expert groups"
    yield a.max_position_embeddings >= a.seq_length, "max_position_embeddings below seq_length"
    yield cp == 1 or a.seq_length % (2 * cp) == 0, "sequence % (2 x context parallel)"
    yield a.num_attention_heads % tp == 0, "heads % tensor parallel"
    groups = a.num_query_groups or a.num_attention_heads
    yield groups % tp == 0 or tp % groups == 0, "query groups and tensor parallel"
    yield a.sequence_parallel is False or a.seq_length % tp == 0, "sequence % tensor parallel"
    yield ep == 1 or bool(a.num_experts), "expert parallelism without experts"
    yield ep == 1 or a.num_experts % ep == 0, "experts % expert parallel"
    yield not (ep > 1 and a.fp16), "expert parallelism in fp16"
    is_fsdp = a.use_megatron_fsdp
    yield is_fsdp or (tp == 1 and cp == 1) or a.connections, "CUDA_DEVICE_MAX_CONNECTIONS is not 1"
    yield not (is_fsdp and a.connections), "CUDA_DEVICE_MAX_CONNECTIONS is 1 with FSDP"


def _stages(a: argparse.Namespace) -> Iterator[Check]:
    pp, layout = a.pipeline_model_parallel_size or 1, a.pipeline_model_parallel_layout
    ways = (a.num_layers_per_virtual_pipeline_stage, a.num_virtual_stages_per_pipeline_rank, layout)
    yield sum(way is not None for way in ways) <= 1, "more than one way to lay out stages"
    virtual = a.num_virtual_stages_per_pipeline_rank or 1
    if layout is not None:
        parts = laid_out(layout)
        yield len(parts) % pp == 0, "length of the layout % pipeline parallel"
        virtual = len(parts) // pp
        text = "".join(parts)
        yield text.count("t") == a.num_layers, "layers of the layout"
        yield text.count("m") == (a.mtp_num_layers or 0), "modules of the layout"
        yield parts[0].startswith("E") and text.count("E") == 1, "embedding of the layout"
        yield parts[-1].endswith("L") and text.count("L") == 1, "loss of the layout"
        yield "m" not in "".join(parts[::pp]), "modules of the layout on the first rank"
        yield sum("m" in part for part in parts) <= 1, "modules of the layout in several stages"
    else:
        yield a.num_layers % (pp * virtual) == 0, "layers % stages"
    least = 2 if a.no_overlap_p2p_communication else 1
    yield virtual == 1 or pp > least, "interleaving on so few stages"


def _states(a: argparse.Namespace) -> Iterator[Check]:
    sharded = a.use_distributed_optimizer or a.use_megatron_fsdp
    yield not a.overlap_param_gather or (sharded and a.overlap_grad_reduce), "overlap-param-gather"
    yield not a.tp_comm_overlap or a.sequence_parallel, "tp-comm-overlap without sequence parallel"
    aware = a.use_precision_aware_optimizer
    yield not a.optimizer_cpu_offload or aware, "optimizer-cpu-offload"
    yield not aware or (a.use_distributed_optimizer and a.optimizer == "adam"), "precision-aware"
    yield a.use_megatron_fsdp == (a.ckpt_format == "fsdp_dtensor"), "ckpt-format of FSDP"
    yield not (a.fp16 and a.bf16), "fp16 and bf16"
    yield not (a.fp8_format and a.fp4_format), "fp8 and fp4"
    modules = set(a.recompute_modules or ())
    kind = a.recompute_granularity
    yield (kind == "full") == (a.recompute_method is not None), "recompute-method"
    yield (kind == "full") == (a.recompute_num_layers is not None), "recompute-num-layers"
    yield modules <= MODULES and (not modules or kind == "selective"), "recompute-modules"
    yield "moe_act" not in modules or a.moe_grouped_gemm, "moe_act without grouped GEMMs"
    yield "mla_up_proj" not in modules or a.multi_latent_attention, "mla_up_proj"
    discards = modules & {"moe_act", "layernorm"}
    yield not (discards and a.fp8_format and a.fp8_recipe == "delayed"), "recompute and delayed fp8"


def _model(a: argparse.Namespace) -> Iterator[Check]:
    if a.kv_channels is None and not a.multi_latent_attention:
        yield a.hidden_size % a.num_attention_heads == 0, "hidden size % heads"
    yield not (a.squared_relu and a.swiglu), "squared-relu and swiglu"
    fuses = not (a.disable_bias_linear or a.no_bias_gelu_fusion or a.swiglu)
    yield not (fuses and a.squared_relu), "fused bias with squared ReLU"
    is_placed = a.position_embedding_type in ("rope", "none")
    yield not a.mtp_num_layers or is_placed, "multi-token prediction and positions"
    yield a.rope_type in (None, "rope") or a.multi_latent_attention, "rope-type of plain attention"
    if not a.num_experts:
        return
    score = a.moe_router_score_function or "softmax"
    yield not a.moe_router_enable_expert_bias or score == "sigmoid", "expert bias without sigmoid"
    one = (a.moe_router_topk, score) == (1, "softmax")
    yield not one or a.moe_router_pre_softmax, "top 1 without pre-softmax"
    groups, chosen = a.moe_router_num_groups, a.moe_router_group_topk
    yield not chosen or (groups and a.num_experts % groups == 0), "experts % groups"
    yield not chosen or chosen <= (groups or 0), "groups to choose"
    yield a.bf16 or not a.moe_grouped_gemm, "grouped GEMMs need bf16"
    yield a.moe_expert_capacity_factor or not a.moe_pad_expert_input_to_capacity, "capacity"
    tp = a.tensor_model_parallel_size or 1
    yield tp == 1 or a.sequence_parallel, "experts with tensor but no sequence parallelism"
    is_biased = not a.disable_bias_linear
    yield not is_biased or (a.expert_tensor_parallel_size or tp) == 1, "biases of split experts"
    yield not a.moe_enable_deepep or a.moe_token_dispatcher_type == "flex", "DeepEP"


def laid_out(layout: str) -> list[str]:
    """A layout as Megatron Core unrolls it: x*n is n times x, parts end at |."""
    parts = []
    for part in layout.split("|"):
        text = part
        while "*" in text:
            at = text.index("*")
            end = at + 1
            while end < len(text) and text[end].isdigit():
                end += 1
            text = text[: at - 1] + text[at - 1] * int(text[at + 1 : end]) + text[end:]
        parts.append(text)
    return parts


def differences(a: argparse.Namespace, run: Scenario) -> Iterator[str]:
    """Where parsed arguments are not the plan and the model of a scenario."""
    job = ExportJob.of(run)
    words, shape, details = job.words, job.transformer("Megatron-LM"), job.details
    fsdp = {"optim_grads": 2, "optim_grads_params": 3}.get(a.data_parallel_sharding_strategy, 1)
    zero = fsdp if a.use_megatron_fsdp else int(a.use_distributed_optimizer)
    scaling = details.rope_scaling
    rows: tuple[tuple[str, Any, Any], ...] = (
        ("tp", a.tensor_model_parallel_size, words.tp),
        ("pp", a.pipeline_model_parallel_size, words.pp),
        ("cp", a.context_parallel_size or 1, words.cp),
        ("ep", a.expert_model_parallel_size or 1, words.ep),
        ("sp", a.sequence_parallel, words.sp and words.tp > 1),
        ("zero", zero, words.zero),
        ("micro", a.micro_batch_size, job.micro),
        ("batch", a.global_batch_size, job.batch),
        ("seq", a.seq_length, run.workload.seq_len),
        ("layers", a.num_layers, shape.num_hidden_layers),
        ("hidden", a.hidden_size, shape.hidden_size),
        ("ffn", a.ffn_hidden_size, shape.ffn),
        ("heads", a.num_attention_heads, shape.num_attention_heads),
        ("kv heads", a.num_query_groups or a.num_attention_heads, shape.kv_heads),
        ("vocabulary", a.vocab_size + 1, shape.vocab_size),
        ("tied", not a.untie_embeddings_and_output_weights, shape.tie_word_embeddings),
        ("qk norm", a.qk_layernorm, shape.qk_norm or shape.is_latent),
        ("epsilon", a.norm_epsilon, details.norm_eps),
        ("rotary base", a.rotary_base, details.rope_theta),
        ("rotary share", a.rotary_percent, details.partial_rotary_factor),
        ("rope scaling", a.use_rope_scaling, bool(scaling and scaling.rope_type == "llama3")),
        ("experts", a.num_experts, shape.num_experts),
        ("top k", a.moe_router_topk, shape.num_experts_per_tok),
        ("modules", a.mtp_num_layers or 0, shape.num_nextn_predict_layers),
        ("score", a.moe_router_score_function, details.scoring_func),
        ("update rate", a.moe_router_bias_update_rate, details.bias_update_rate),
        ("balance", (a.moe_router_load_balancing_type or [None])[0], details.balance),
        ("weight of modules", a.mtp_loss_scaling_factor, details.mtp_loss_weight),
    )
    for what, parsed, meant in rows:
        if meant is not None and parsed != meant and not _is_left_out(what, run):
            yield f"{what}: parsed {parsed}, meant {meant}"


def _is_left_out(what: str, run: Scenario) -> bool:
    """Details of parts that the model does not have, as it is trained."""
    shape = ExportJob.of(run).transformer("Megatron-LM")
    lacks = {
        "weight of modules": not shape.num_nextn_predict_layers,
        "rope scaling": shape.is_latent,
    }
    return lacks.get(what, False)
