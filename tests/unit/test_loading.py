"""Files from strangers: bounded before they are parsed, and refused with a message that helps."""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretrain.errors import ClusterError, FileError, InputError
from foretrain.loading import Quantity, load_json, load_yaml, read_text, validated
from foretrain.units import parse_bytes


def laughs(levels: int) -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    for level in range(1, levels):
        many = ", ".join([f"*a{level - 1}"] * 9)
        lines.append(f"a{level}: &a{level} [{many}]")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("load", "text"),
    [
        (load_json, "[" * 1_000_000),
        (load_json, '{"a":' * 500_000),
        (load_json, "[" * 65 + "]" * 65),
        (load_yaml, "[" * 1_000_000),
        (load_yaml, "{" * 1_000_000),
        (load_yaml, "- " * 100_000 + "\n"),
        (load_yaml, "\n".join(" " * depth + "a:" for depth in range(100)) + " 1\n"),
    ],
)
def test_deep_nesting_is_refused_quickly(load, text):
    start = time.perf_counter()
    with pytest.raises(FileError, match="nested deeper than 64"):
        load(text)
    assert time.perf_counter() - start < 5.0


def test_nesting_within_the_limit_is_read():
    text = "[" * 60 + "]" * 60 + "\n"
    assert load_json(text) == load_yaml(text)


def test_brackets_inside_strings_do_not_count_as_nesting():
    text = json.dumps(['[[[[{{{{\\"' * 50, "\\"])
    assert load_json(text) == json.loads(text)


def test_a_few_aliases_are_fine_and_a_bomb_is_not():
    assert load_yaml("a: &a [1, 2]\nb: *a\n") == {"a": [1, 2], "b": [1, 2]}
    with pytest.raises(FileError, match="YAML aliases"):
        load_yaml(laughs(9))


def test_an_alias_to_itself_is_refused():
    with pytest.raises(FileError, match="refers to itself"):
        load_yaml("a: &a\n  - *a\n")


@pytest.mark.parametrize(
    ("load", "text", "word"),
    [
        (load_yaml, "a: 1\nb: 2\na: 3\n", "duplicate key 'a'"),
        (load_yaml, "a: {b: 1, b: 2}\n", "duplicate key 'b'"),
        (load_json, '{"a": 1, "a": 2}', "duplicate key 'a'"),
        (load_json, "[1, NaN]", "NaN"),
        (load_json, "[1, ]", "line 1, column 5"),
        (load_yaml, "a: [1\nb: 2\n", "line 2"),
        (load_yaml, "a: !!python/object:os.system x\n", "could not determine"),
        (load_yaml, "? [a]\n: 1\n", "unhashable"),
        (load_yaml, "a: 1\n---\nb: 1\n", "another document"),
        (load_json, "[" + "1" * 10_000 + "]", "integer"),
        (load_json, '{"a": -' + "1" * 400 + "}", "too large"),
        (load_yaml, "a: 1\nb: " + "1" * 400 + "\n", "line 2, column 4: 1111"),
    ],
)
def test_malformed_text_says_where_and_why(load, text, word):
    with pytest.raises(FileError) as refused:
        load(text, "a test file")
    assert word in str(refused.value)
    assert "a test file" in str(refused.value)


def test_a_date_stays_text():
    assert load_yaml("date: 2026-08-22\nnone: none\n") == {"date": "2026-08-22", "none": "none"}


def test_a_merge_key_may_be_overridden():
    text = "base: &base {a: 1, b: 2}\nown:\n  <<: *base\n  b: 3\n"
    assert load_yaml(text)["own"] == {"a": 1, "b": 3}


def test_a_missing_file_names_its_neighbours(tmp_path):
    (tmp_path / "cluster.yaml").write_text("a: 1\n")
    with pytest.raises(FileError) as refused:
        load_yaml(tmp_path / "clutser.yaml", "a cluster")
    assert "Did you mean 'cluster.yaml'?" in str(refused.value)
    assert "a cluster" in str(refused.value)
    with pytest.raises(FileError, match="does not exist"):
        load_yaml(tmp_path / "nowhere" / "x.yaml")


@pytest.mark.parametrize("raw", [b"\x89PNG\r\n\x1a\n", b"a: 1\x00\n", b"\xff\xfe\x00a"])
def test_binary_is_refused_by_name(tmp_path, raw):
    path = tmp_path / "picture.yaml"
    path.write_bytes(raw)
    with pytest.raises(FileError) as refused:
        load_yaml(path, "a cluster")
    assert str(path) in str(refused.value)
    assert "expected a cluster" in str(refused.value)


def test_folders_large_files_and_odd_names_are_refused(tmp_path):
    with pytest.raises(FileError, match="is a directory"):
        read_text(tmp_path)
    big = tmp_path / "big"
    big.write_bytes(b"x" * 1000)
    with pytest.raises(FileError, match="larger than 999"):
        read_text(big, limit=999)
    assert read_text(big, limit=1000) == "x" * 1000
    for name in ("x" * 5000, "a\x00b"):
        with pytest.raises(FileError):
            read_text(name)


def test_a_byte_order_mark_is_dropped(tmp_path):
    path = tmp_path / "bom.json"
    path.write_bytes(b"\xef\xbb\xbf[1]")
    assert load_json(path) == [1]


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused_but_never_crashes(text):
    for load in (load_yaml, load_json):
        with contextlib.suppress(FileError):
            load(text + "\n")


@given(
    st.recursive(
        st.none() | st.integers() | st.text(), lambda t: st.lists(t) | st.dictionaries(st.text(), t)
    )
)
def test_what_json_writes_is_read_back(value):
    assert load_json("\n" + json.dumps(value)) == value


# --- validated --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Inner:
    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}
    size: Annotated[float, Quantity(parse_bytes)]
    zero: Annotated[float, Quantity(parse_bytes, zero_allowed=True)] = 0.0


@dataclass(frozen=True, slots=True)
class Outer:
    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}
    name: str
    inner: tuple[Inner, ...] = ()
    more: dict[str, Inner] | None = None


def test_quantities_are_parsed_on_the_way():
    data = {"name": "x", "inner": [{"size": "80GB"}], "more": {"y": {"size": 5, "zero": 0}}}
    made = validated(Outer, data, "test")
    assert made == Outer("x", (Inner(80e9),), {"y": Inner(5.0)})


def test_all_faults_come_at_once_with_paths_and_hints():
    data = {
        "nam": "x",
        "inner": [{"size": "80 apples"}, {"siz": 1, "size": -1}, {"size": 0}],
        "more": {"y": {"size": float("nan"), "zreo": 1}},
    }
    with pytest.raises(ClusterError) as refused:
        validated(Outer, data, "cluster.yaml", ClusterError)
    text = "\n".join(refused.value.faults)
    assert "cluster.yaml" in str(refused.value)
    assert "name: missing" in text
    assert "nam: unknown key. Did you mean 'name'?" in text
    assert "inner[0].size: '80 apples' is not a size in bytes" in text
    assert "inner[1].siz: unknown key. Did you mean 'size'?" in text
    assert "inner[1].size: -1 must be positive" in text
    assert "inner[2].size: 0 must be positive" in text
    assert "more.y.zreo: unknown key. Did you mean 'zero'?" in text
    assert "more.y.size" in text
    assert len(refused.value.faults) == 8


@pytest.mark.parametrize("data", [None, 3, "x", [], [1], {"name": 3}, {"name": ["x"]}])
def test_wrong_shapes_are_faults_too(data):
    with pytest.raises(InputError):
        validated(Outer, data, "test")
