"""The global batch: samples, or tokens that come to a number of samples."""

from __future__ import annotations

from foretrain.errors import InputError
from foretrain.model.graph import Model
from foretrain.resolving.defaults import defaults
from foretrain.resolving.notes import Notes
from foretrain.units import parse_batch, show_count


def samples_of(asked: int | str, model: Model, notes: Notes) -> int:
    """Samples of a global batch as it was asked for: `512`, `"4Mtok"`."""
    count, unit = parse_batch(asked)
    if unit == "tokens":
        if model.seq_len is None:
            raise InputError(
                f"batch {asked}: {model.name} has no tokens. Specify the batch in samples."
            )
        count = _of_tokens(count, model.seq_len, asked, notes)
    if count < 1:
        raise InputError(f"global batch {asked} is not a positive whole number.")
    tokens = count * (model.seq_len or 0)
    if tokens > defaults()["batch"]["most_tokens"]:
        if str(asked).strip()[-1] in "kKMGBT":  # 4M: no batch of samples is written so
            raise InputError(
                f"batch {asked}: {count:,} samples are {show_count(tokens)} tokens per step, more than any published run."
                f" Write {asked}tok for tokens, or '{asked} samples'."
            )
        notes.warn(
            f"a global batch of {count:,} samples is {show_count(tokens)} tokens per step. "
            f"If you meant tokens, write '{asked} tokens'."
        )
    return count


def _of_tokens(tokens: int, length: int, asked: int | str, notes: Notes) -> int:
    """Of a batch in tokens. 4M is 4 x 1,024 x 1,024 where that is a number of samples and four million is not, as
    batches are mostly powers of two."""
    for power in (3, 2, 1):
        if tokens % length and tokens % 1000**power == 0:
            binary = tokens // 1000**power * 1024**power
            if binary % length == 0:
                what = f"batch {asked} = {binary:,} tokens"
                notes.assume(what, f"a multiple of {length:,}", "--batch")
                return binary // length
    samples = max(1, round(tokens / length))
    if samples * length != tokens:
        notes.warn(
            f"batch {asked} is not a multiple of the sequence length ({length:,} tokens); rounded to {samples:,} samples."
        )
    return samples
