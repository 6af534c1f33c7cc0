"""Lines of a given width: names are whole, figures stay with their units, nothing is lost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from foretrain.report.document import Document, Table
from foretrain.report.text import Line, Sheet, TextTable, cells, laid_out, lines, sheet, wrapped

PLAN = "tp8 pp16 dp8 zero1 sp recompute=selective micro=1"
INSTANCE = "16 x aws:p6-b200.48xlarge"


def shown(grid: TextTable, width: int, whole: tuple[str, ...] = ()) -> list[str]:
    """The lines of a table, as indented as a page has them."""
    text = laid_out(Sheet((("", ""),), blocks=(("", (grid,)),), whole=whole), width)
    return text.splitlines()[3:]


def grid(columns: str, *rows: tuple[str, ...], head: tuple[str, ...] = ()) -> TextTable:
    return TextTable(columns, tuple(tuple((text, "") for text in row) for row in rows), 2, head)


# --- sentences --------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", range(1, 90))
def test_a_phrase_that_is_kept_is_never_broken(width: int) -> None:
    text = f"Best of 5,490 plans: {PLAN}, on {INSTANCE}."
    found = wrapped(text, width, (PLAN, INSTANCE))
    assert any(PLAN in line for line in found)
    assert any(INSTANCE in line for line in found)
    assert all(cells(line) <= width or PLAN in line or INSTANCE in line for line in found)


def test_without_it_the_phrase_is_broken() -> None:
    assert not any(PLAN in line for line in wrapped(f"Best of 5,490: {PLAN}", 40))


@pytest.mark.parametrize(
    "figure", ["50 %", "12.3 ms", "79.1 GiB", "25.0 GB/s", "14.1 d", "136.66 k", "1.9 ×"]
)
def test_figures_stay_with_their_units(figure: str) -> None:
    for width in range(8, 40):
        assert any(figure in line for line in wrapped(f"it takes or has {figure} in all", width))


def test_a_word_longer_than_a_line_is_folded_unless_it_is_a_name() -> None:
    assert wrapped("ab" * 10, 8) == ["abababab", "abababab", "abab"]
    assert wrapped("see out/launch-script.sh.", 8, ("out/launch-script.sh",)) == [
        "see",
        "out/launch-script.sh.",
    ]


def test_wide_and_combining_characters_count_as_terminals_show_them() -> None:
    assert [cells(text) for text in ("abc", "日本", "e\u0301", "–×→", "🙂")] == [3, 4, 1, 3, 2]
    assert all(cells(line) <= 10 for line in wrapped("日本語" * 7, 10))


def test_styles_follow_their_words_over_lines() -> None:
    told = Sheet((("it takes one second, ", "bold"), ("DOES NOT FIT: 5 of 4", "red")))
    found: list[Line] = list(lines(told, 12))
    red = "".join(text for line in found for text, style in line if style == "red")
    assert red.replace(" ", "") == "DOESNOTFIT:5of4"
    assert " ".join("".join(text for text, _ in line) for line in found) == (
        "it takes one second, DOES NOT FIT: 5 of 4"
    )


# --- tables -----------------------------------------------------------------------------------------

PLANS = replace(
    grid(
        "rnrrb", ("1", PLAN, "14.8 s", "64.1 GiB", ""), ("2", "dp16", "9.1 s", "5.0 GiB", ""),
        head=("#", "plan", "step", "peak", ""),
    ),
    shares=(1.0, 0.01),
)  # fmt: skip


def test_with_room_a_row_is_a_line() -> None:
    head, first, second = shown(PLANS, 120)
    assert head.split() == ["#", "plan", "step", "peak"]
    assert first.split("  ")[1:] == ["1", PLAN, "14.8 s", "64.1 GiB", "█" * 40]
    assert second.index("9.1 s") == first.index("14.8 s") + 1


def test_bars_shrink_then_go_first() -> None:
    assert shown(PLANS, 84)[1].endswith("64.1 GiB  " + "█" * 10)
    found = shown(PLANS, 79)
    assert "█" not in "".join(found)
    assert len(found) == 3


def test_optional_columns_go_before_bars() -> None:
    told = grid("lrbL", ("compute", "7 s", "", "kernels running"), head=("", "", "", ""))
    told = replace(told, shares=(1.0,))
    assert shown(told, 80)[0].endswith("█" * 40 + "  kernels running")
    assert shown(told, 60)[0].endswith("7 s  " + "█" * 40)
    assert shown(told, 30)[0].endswith("7 s  " + "█" * 14)
    assert shown(told, 20)[0].endswith("7 s")


@pytest.mark.parametrize("width", [60, 50, 40, 30, 20, 12])
def test_then_names_have_lines_of_their_own(width: int) -> None:
    found = shown(PLANS, width)
    assert sum(PLAN in line for line in found) == 1
    assert all(len(line) <= width or PLAN in line for line in found)
    for figure in ("14.8 s", "64.1 GiB", "9.1 s", "5.0 GiB"):
        assert any(figure in line for line in found), figure


def test_sentences_wrap_before_names_move() -> None:
    why = grid("nw", ("aws:p4d.24xlarge", "too slow for the deadline by two days"))
    found = shown(why, 40)
    assert found[0].startswith("  aws:p4d.24xlarge  too slow")
    assert len(found) == 2
    assert all(line.startswith(" " * 20) for line in found[1:])


def test_figures_that_have_no_room_side_by_side_are_told() -> None:
    wide = grid("nrrrr", ("name", *["123,456,789"] * 4), head=("", "one", "two", "three", "four"))
    found = shown(wide, 34)
    assert found[0].strip() == ""
    assert found[1] == "  name"
    assert "one 123,456,789 ·" in found[2]
    assert " ".join(line.strip() for line in found[2:]).count("123,456,789") == 4


def test_a_table_of_names_alone_has_them_below_each_other() -> None:
    found = shown(grid("lnn", ("plan", PLAN, PLAN), head=("", "A", "B")), 40)
    assert sum(PLAN in line for line in found) == 2
    assert found[1].strip() == "plan"


def test_a_table_without_names_keeps_its_figures() -> None:
    found = shown(grid("lrr", ("interconnect", "3.26 s", "15 %")), 14)
    assert [line.strip() for line in found] == ["interconnect", "3.26 s 15 %"]


@pytest.mark.parametrize("width", [60, 80, 100])
def test_documents_keep_their_names(width: int) -> None:
    table = Table(
        "Offers", ("offer", "time", "cost", "plan"), ((INSTANCE, "18.2 h", "$2,077", PLAN),), "nrrp",
        notes=(f"{INSTANCE}: {PLAN}; Pareto-optimal: no cheaper offer is as fast",),
    )  # fmt: skip
    document = Document(
        f"{INSTANCE} trains it with {PLAN}", dict, lambda: (table,), whole=(INSTANCE, PLAN)
    )
    text = laid_out(sheet(document), width)
    assert text.count(INSTANCE) == 3
    assert text.count(PLAN) == 3
