"""A transformer's shape as arguments of Megatron-LM."""

from __future__ import annotations

from foretrain.adapters.write.job import Account, ExportJob
from foretrain.model.shape import TransformerShape

_TITLE = "Megatron-LM"
_POSITIONS = {"learned": "learned_absolute", "rope": "rope", "relative": "relative"}
_ACTIVATIONS = {"silu-gated": "swiglu", "squared-relu": "squared-relu"}


class Arguments:
    """Arguments in the order they were added, each once."""

    def __init__(self) -> None:
        self._rows: dict[str, tuple[str, ...]] = {}

    def add(self, name: str, *values: object) -> None:
        self._rows[f"--{name}"] = tuple(str(value) for value in values)

    def text(self) -> str:
        return "".join(f"{' '.join((name, *values))}\n" for name, values in self._rows.items())


def model_arguments(job: ExportJob, account: Account, arguments: Arguments) -> str:
    """Add what describes the model; the script that trains it."""
    shape = job.transformer(_TITLE)
    seq = job.question.workload.seq_len or 1
    arguments.add("num-layers", shape.num_hidden_layers)
    arguments.add("hidden-size", shape.hidden_size)
    arguments.add("ffn-hidden-size", shape.ffn)
    arguments.add("seq-length", seq)
    arguments.add("max-position-embeddings", max(shape.max_position_embeddings or 0, seq))
    _attention(shape, account, arguments)
    _layers(shape, account, arguments)
    _experts(shape, job, account, arguments)
    if shape.num_nextn_predict_layers:
        arguments.add("mtp-num-layers", shape.num_nextn_predict_layers)
    _vocabulary(shape, job, arguments)
    if shape.head == "lm" and shape.causal:
        return "pretrain_gpt.py"
    if shape.head == "span":
        account.note("question-answering head: Megatron-LM's BERT trains masked tokens")
    return "examples/bert/pretrain_bert.py"


def _attention(shape: TransformerShape, account: Account, arguments: Arguments) -> None:
    arguments.add("num-attention-heads", shape.num_attention_heads)
    if shape.is_latent:
        arguments.add("multi-latent-attention")
        if shape.q_lora_rank:
            arguments.add("q-lora-rank", shape.q_lora_rank)
        arguments.add("kv-lora-rank", shape.kv_lora_rank)
        arguments.add("qk-head-dim", shape.qk_nope_head_dim)
        arguments.add("qk-pos-emb-head-dim", shape.qk_rope_head_dim)
        arguments.add("v-head-dim", shape.v_head_dim)
        arguments.add("qk-layernorm")  # of the latent vectors, which have norms
    else:
        arguments.add("kv-channels", shape.head_width)
    if shape.kv_heads != shape.num_attention_heads:
        arguments.add("group-query-attention")
        arguments.add("num-query-groups", shape.kv_heads)
    if shape.qk_norm and not shape.is_latent:
        arguments.add("qk-layernorm")
    if shape.sliding_window:
        arguments.add("window-size", f"{shape.sliding_window},0")
        every = shape.sliding_window_every or 1
        if every > 1:
            pattern = [int((i + 1) % every == 0) for i in range(shape.num_hidden_layers)]
            arguments.add("window-attn-skip-freq", str(pattern).replace(" ", ""))
    arguments.add("position-embedding-type", _POSITIONS.get(shape.position, "none"))
    if shape.position == "alibi":
        account.note("ALiBi position biases: not supported by Megatron-LM; omitted")
    arguments.add("attention-dropout", shape.dropout)
    arguments.add("hidden-dropout", shape.dropout)


def _layers(shape: TransformerShape, account: Account, arguments: Arguments) -> None:
    arguments.add("normalization", "RMSNorm" if shape.norm == "rmsnorm" else "LayerNorm")
    if shape.norm == "layernorm" and not shape.has_norm_bias:
        account.note("layer norms without biases: Megatron-LM's have biases")
    if shape.placement == "post":
        account.note("post-norm: Megatron-LM uses pre-norm")
    if shape.placement == "parallel":
        account.note("parallel attention and feed-forward: Megatron-LM runs them sequentially")
    if shape.embedding_norm and shape.head == "lm":
        account.note("norm after the embedding: not supported by Megatron-LM")
    if shape.hidden_act in _ACTIVATIONS:
        arguments.add(_ACTIVATIONS[shape.hidden_act])
        if shape.hidden_act == "squared-relu" and shape.biases == "all":
            arguments.add("no-bias-gelu-fusion")  # which is for GELU alone
    elif not shape.hidden_act.startswith("gelu") or shape.is_gated:
        account.note(f"activation {shape.hidden_act}: no Megatron-LM argument for it; gelu is used")
    if shape.biases != "all":
        arguments.add("disable-bias-linear")
    if shape.biases == "qkv":
        arguments.add("add-qkv-bias")


def _experts(
    shape: TransformerShape, job: ExportJob, account: Account, arguments: Arguments
) -> None:
    if not shape.num_experts:
        return
    runtime = job.question.runtime
    arguments.add("num-experts", shape.num_experts)
    arguments.add("moe-router-topk", shape.num_experts_per_tok or 1)
    arguments.add("moe-ffn-hidden-size", shape.moe_intermediate_size or shape.ffn)
    if shape.num_shared_experts:
        width = shape.num_shared_experts * (shape.moe_intermediate_size or shape.ffn)
        arguments.add("moe-shared-expert-intermediate-size", width)
    if shape.dense_layers:
        sparse = shape.num_hidden_layers - shape.dense_layers
        arguments.add("moe-layer-freq", f"([0]*{shape.dense_layers}+[1]*{sparse})")
    if shape.capacity_factor != 1.0:
        arguments.add("moe-expert-capacity-factor", f"{shape.capacity_factor:g}")
        arguments.add("moe-pad-expert-input-to-capacity")
    if (
        runtime.expert_parallel.groups_experts
        and job.question.workload.precision.attention == "bf16"
    ):
        arguments.add("moe-grouped-gemm")
    if runtime.expert_parallel.sends_tokens_once:
        arguments.add("moe-token-dispatcher-type", "flex")
        arguments.add("moe-enable-deepep")
    else:
        arguments.add("moe-token-dispatcher-type", "alltoall")
    if runtime.expert_parallel.expert_overlap:
        account.note(
            "overlapped expert all-to-all: Megatron-LM's --overlap-moe-expert-parallel-comm "
            "needs more than the plan specifies and is not set"
        )


def _vocabulary(shape: TransformerShape, job: ExportJob, arguments: Arguments) -> None:
    """Made-up tokens; the tokenizer without words adds one for the end of a text."""
    if not shape.tie_word_embeddings:
        arguments.add("untie-embeddings-and-output-weights")
    arguments.add("vocab-size", shape.vocab_size - 1)
    arguments.add("make-vocab-size-divisible-by", job.question.runtime.plan.pads_vocabulary_to)
    arguments.add("tokenizer-type", "NullTokenizer")
    arguments.add("mock-data")
