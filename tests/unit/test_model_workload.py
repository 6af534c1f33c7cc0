"""Workloads and optimizers."""

from __future__ import annotations

import pytest

from foretrain.errors import InputError, ModelError
from foretrain.model.optimizer import optimizer
from foretrain.model.precision import precision
from foretrain.model.workload import DataSource, Workload


def test_built_from_names() -> None:
    work = Workload.of("llama3-8b", batch=256, seq=4096, precision="fp8", optimizer="adamw")
    assert (work.seq_len, work.tokens) == (4096, 4096 * 256)
    assert work.precision.matmul == "fp8"
    assert work.optimizer.name == "adamw"


def test_images_have_no_tokens() -> None:
    work = Workload.of("resnet50", batch=256, data=DataSource(110e3, 0.004, 8))
    assert work.seq_len is None
    assert work.tokens is None


@pytest.mark.parametrize("batch", [0, -1, 2.5, True, "8"])
def test_batch_must_be_positive(batch: object) -> None:
    with pytest.raises(ModelError, match="not a positive whole number"):
        Workload.of("gpt2", batch=batch)  # type: ignore[arg-type]


def test_length_and_model_must_agree() -> None:
    work = Workload.of("gpt2", batch=8)
    with pytest.raises(ModelError, match="was built with"):
        Workload(work.model, 8, 77, work.precision, work.optimizer)


def test_unknown_precision_and_optimizer() -> None:
    with pytest.raises(ModelError, match="Did you mean 'bf16'"):
        Workload.of("gpt2", batch=8, precision="bf17")
    with pytest.raises(ModelError, match="Did you mean 'adam"):
        Workload.of("gpt2", batch=8, optimizer="adamm")


def test_data_source_faults_come_together() -> None:
    with pytest.raises(InputError) as caught:
        DataSource(-1.0, -1.0, 0)
    assert len(caught.value.faults) == 3


def test_adam_update_traffic() -> None:
    """Mixed precision: read 2 (gradient) + 8 (moments) + 4 (master), write 8 + 4 + 2 (weight)."""
    adam = optimizer("adam")
    assert adam.update_bytes(1e9, precision("bf16")) == 28e9
    assert adam.update_bytes(1e9, precision("fp32")) == 1e9 * (4 + 16 + 8)
    assert adam.memory_bytes(1e9, precision("bf16")) == 12e9
    assert adam.update_flops(1e9) == 12e9


def test_no_optimizer_costs_nothing() -> None:
    none = optimizer("none")
    assert none.update_bytes(1e9, precision("bf16")) == 0
    assert none.memory_bytes(1e9, precision("bf16")) == 0
    assert optimizer("plain-sgd").update_bytes(1.0, precision("fp32")) == 12
