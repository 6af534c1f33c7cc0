"""Quantities are read with any usual unit and shown in the one people expect."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretrain import units
from foretrain.errors import InputError


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (units.parse_bytes, "80GB", 80e9),
        (units.parse_bytes, "64 GiB", 64 * 2**30),
        (units.parse_bytes, "1.5MiB", 1.5 * 2**20),
        (units.parse_bytes, "7EiB", 7 * 2**60),
        (units.parse_bytes, "1,500GB", 1.5e12),
        (units.parse_bytes, "12", 12.0),
        (units.parse_bytes, 7, 7.0),
        (units.parse_bandwidth, "200Gb/s", 25e9),
        (units.parse_bandwidth, "200Gbps", 25e9),
        (units.parse_bandwidth, "25 GB/s", 25e9),
        (units.parse_bandwidth, "1 GiB/s", 2.0**30),
        (units.parse_bandwidth, "800 Gbit/s", 100e9),
        (units.parse_seconds, "3us", 3e-6),
        (units.parse_seconds, "14d", 14 * 86400.0),
        (units.parse_seconds, "2.5", 2.5),
        (units.parse_seconds, "5 min", 300.0),
        (units.parse_seconds, "2 weeks", 14 * 86400.0),
        (units.parse_seconds, "1 week", 7 * 86400.0),
        (units.parse_seconds, "1.5 days", 1.5 * 86400.0),
        (units.parse_seconds, "36h", 36 * 3600.0),
        (units.parse_seconds, "36 hours", 36 * 3600.0),
        (units.parse_seconds, "90 minutes", 5400.0),
        (units.parse_seconds, "10 mins", 600.0),
        (units.parse_amount, "15T", 15e12),
        (units.parse_amount, "300B", 300e9),
        (units.parse_amount, "1e12", 1e12),
        (units.parse_amount, "4k", 4000.0),
        (units.parse_amount, "1,000", 1000.0),
        (units.parse_amount, 2.5, 2.5),
        (units.parse_flops, "312TFLOPS", 312e12),
        (units.parse_flops, "19.5 TFLOP/s", 19.5e12),
        (units.parse_flops, "1.2 PFLOPs", 1.2e15),
        (units.parse_count, "4k", 4096),
        (units.parse_count, "1.5M", 1_500_000),
        (units.parse_count, "1e12", 10**12),
        (units.parse_count, "1,024", 1024),
        (units.parse_count, 3.0, 3),
    ],
)
def test_a_quantity_is_read_with_its_unit(parse, text, value):
    assert parse(text) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (units.parse_bytes, "80 apples"),
        (units.parse_bytes, ""),
        (units.parse_bytes, math.nan),
        (units.parse_bytes, math.inf),
        (units.parse_bandwidth, "200"),
        (units.parse_bandwidth, "25GB"),
        (units.parse_seconds, "3 fortnights"),
        (units.parse_seconds, "3 ds"),
        (units.parse_seconds, "3 hs"),
        (units.parse_amount, "15 apples"),
        (units.parse_amount, math.nan),
        (units.parse_flops, "312T"),
        (units.parse_count, "1.5"),
        (units.parse_count, 1.5),
        (units.parse_count, "many"),
    ],
)
def test_what_is_no_quantity_is_refused_with_the_text_in_the_message(parse, text):
    with pytest.raises(InputError) as refused:
        parse(text)
    assert repr(text) in str(refused.value)


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (units.show_seconds(0.0456), "45.60 ms"),
        (units.show_seconds(7.8e-6), "7.80 µs"),
        (units.show_seconds(3 * 86400), "3.0 d"),
        (units.rounded_seconds(5.526 * 86400), "5.53 d"),
        (units.rounded_seconds(6.756 * 3600), "6.76 h"),
        (units.rounded_seconds(1027.4 * 86400), "1,027 d"),
        (units.show_seconds(3 * 3600), "3.0 h"),
        (units.show_bytes(80 * 2**30), "80.0 GiB"),
        (units.show_bytes(0), "0.0 B"),
        (units.show_bandwidth(25e9), "25.0 GB/s"),
        (units.show_count(1024), "1,024"),
        (units.show_count(175.2e9), "175.20 B"),
    ],
)
def test_a_quantity_is_shown_in_the_unit_people_expect(shown, text):
    assert shown == text


@given(st.floats(min_value=1e-3, max_value=1e15))
def test_reading_a_plain_number_gives_it_back(value):
    assert units.parse_bytes(value) == value
    assert units.parse_bytes(f"{value!r}B") == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("512", (512, "samples")),
        (512, (512, "samples")),
        ("4M", (4_000_000, "samples")),
        ("4Mtok", (4_000_000, "tokens")),
        ("4M tokens", (4_000_000, "tokens")),
        ("1,024 samples", (1024, "samples")),
        ("2k sequences", (2048, "samples")),
    ],
)
def test_a_batch_is_in_samples_or_tokens(text, expected):
    assert units.parse_batch(text) == expected


@pytest.mark.parametrize("text", ["", "tokens", "4 M frogs", "many tokens", "1e400 tokens", True])
def test_a_batch_that_is_none(text):
    with pytest.raises(InputError):
        units.parse_batch(text)


def test_durations_in_words():
    assert units.parse_seconds("2 weeks") == 14 * 86400
    assert units.parse_seconds("1 day") == 86400
    assert units.parse_seconds("36 hours") == units.parse_seconds("1.5 days")


@pytest.mark.parametrize(
    "parse",
    [units.parse_bytes, units.parse_bandwidth, units.parse_seconds, units.parse_flops],
)
@pytest.mark.parametrize("value", [10**400, float("nan"), "1e999", "9" * 5000, None, True, []])
def test_no_quantity_is_beyond_numbers(parse, value):
    with pytest.raises(InputError) as refused:
        parse(value)
    assert len(str(refused.value)) < 200


def test_a_month_has_thirty_days() -> None:
    assert units.parse_seconds("1 month") == units.parse_seconds("30d")
    assert units.parse_seconds("2 months") == units.parse_seconds("60 days")


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ((19.5, 0.526, 0.0407), ("19.500 s", "0.526 s", "0.041 s")),
        ((0.0384, 0.0200), ("38.4 ms", "20.0 ms")),
        ((68.34, 4.43, 0.44), ("68.34 s", "4.43 s", "0.44 s")),
        ((4000.0, 0.9), ("4,000.00 s", "0.90 s")),
        ((3.3437, 0.0342, 5e-6), ("3.344 s", "0.034 s", "0.000005 s")),
        ((1.0, 0.0, 1e-12), ("1.00 s", "0 s", "0 s")),
        ((200_000.0, 7200.0), ("2.315 d", "0.083 d")),
        ((2.5, float("inf")), ("2.50 s", "unknown")),
        ((0.0,), ("0 s",)),
        ((), ()),
    ],
    ids=str,
)
def test_figures_of_a_column_have_one_unit(
    values: tuple[float, ...], shown: tuple[str, ...]
) -> None:
    assert units.alike(values) == shown


@given(st.lists(st.floats(1e-6, 1e7), min_size=1, max_size=8))
def test_a_column_shows_two_digits_of_what_is_not_far_smaller(values: list[float]) -> None:
    for value, text in zip(values, units.alike(values), strict=True):
        number, unit = text.split()
        told = float(number.replace(",", "")) * units.TIMES[unit]
        if value > 1e-4 * max(values):
            assert told == pytest.approx(value, rel=0.051)


@pytest.mark.parametrize("text", ["1,5GiB", "1,50GB", "12,34,567B", "1__0", "1_"])
def test_decimal_commas_are_no_thousands(text: str) -> None:
    with pytest.raises(InputError, match="is not a size"):
        units.parse_bytes(text)


@pytest.mark.parametrize("value", [[], {}, object()])
def test_amounts_of_another_kind_are_refused(value: object) -> None:
    with pytest.raises(InputError, match="is not an amount"):
        units.parse_amount(value)  # type: ignore[arg-type]
