"""The journal of a search: what it keeps, and which files it refuses."""

from __future__ import annotations

import math
import os
import random
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.searches import small_task, substance

from foretrain.errors import FileError, InputError
from foretrain.planning import journal as journal_module
from foretrain.planning import planner
from foretrain.planning.executors import InOrder
from foretrain.planning.inputs import Key
from foretrain.planning.journal import Journal
from foretrain.planning.partial_result import BestPerChoice, EstimatedPlan, PartialResult
from foretrain.planning.planner import RankedPlans, Score, search, search_key
from foretrain.planning.task import Task

WHERE = ("micro<=2", "no offload")
KEY = Key("d" * 64, {"model": "gpt2", "global batch": "64"})


def survey(number: int) -> PartialResult:
    """Awkward floats, such that a single lost bit shows."""
    row = EstimatedPlan(
        f"tp{number}", math.pi * (number + 1), 1e300 / 3, math.inf, 5e-324, -0.0, 0.1, 2 / 3
    )
    told = (BestPerChoice("tp", str(number), 7, 0, None), BestPerChoice("micro", "1", 7, 3, row))
    return PartialResult(10 + number, number, {"a – reason": 3}, (row,), (row, row), told, None)


def filled(path: Path, parts: int = 5) -> dict[int, PartialResult]:
    with Journal(path, KEY) as journal:
        for number in range(parts):
            journal.add(number, survey(number))
        journal.add_simulated("tp1", Score(0.1, 2.0 / 3.0, True))
    return {number: survey(number) for number in range(parts)}


@pytest.fixture(scope="module")
def task() -> Task:
    return small_task()


@pytest.fixture(scope="module")
def expected(task: Task) -> RankedPlans:
    return search(task, where=WHERE)


# --- what it keeps ------------------------------------------------------------------------------


def test_what_is_added_is_known_to_the_last_bit(tmp_path: Path) -> None:
    path = tmp_path / "state"
    written = filled(path)
    with Journal(path, KEY) as journal:
        known = journal.known()
        assert known == written
        assert [repr(one) for one in known.values()] == [repr(one) for one in written.values()]
        assert journal.simulated() == {"tp1": Score(0.1, 2.0 / 3.0, True)}
    assert os.listdir(tmp_path) == ["state"], "closed, it is one file"


def test_the_first_row_of_a_part_stays(tmp_path: Path) -> None:
    with Journal(tmp_path / "state", KEY) as journal:
        journal.add(3, survey(3))
        journal.add(3, survey(4))
        assert journal.known() == {3: survey(3)}


class Counting(InOrder):
    """Says which parts were asked for; after `most` of them, breaks off."""

    def __init__(self, most: int = 1000) -> None:
        self.most = most
        self.asked: list[Any] = []

    def run(self, work: Callable[[Any], Any], items: Any) -> Any:
        for number, result in super().run(work, items):
            self.asked.append(items[number])
            yield number, result
            if len(self.asked) == self.most:
                raise KeyboardInterrupt


def test_a_search_goes_on_where_it_was(task: Task, expected: RankedPlans, tmp_path: Path) -> None:
    path, key = tmp_path / "state", search_key(task, where=WHERE)
    first, second = Counting(3), Counting()
    with Journal(path, key) as journal, pytest.raises(KeyboardInterrupt):
        search(task, where=WHERE, executor=first, journal=journal)
    with Journal(path, key) as journal:
        assert len(journal.known()) == 3
        found = search(task, where=WHERE, executor=second, journal=journal)
    parts = planner.space(task, WHERE).parts()
    waves = [parts[number] for wave in planner._waves(len(parts)) for number in wave]
    asked = [*first.asked, *second.asked]
    assert asked[: len(parts)] == waves, "estimated once, wave after wave"
    assert [part for part, _ in asked[len(parts) :]] == list(parts), "and refined once"
    assert substance(found) == substance(expected)


def test_simulations_are_not_repeated(
    task: Task, expected: RankedPlans, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, key = tmp_path / "state", search_key(task, where=WHERE, top=2)
    simulate, plans = planner.simulate, []

    def counted(task: Task, row: EstimatedPlan) -> Any:
        plans.append(row.plan)
        if len(plans) == 7:
            raise KeyboardInterrupt
        return simulate(task, row)

    monkeypatch.setattr(planner, "simulate", counted)
    with Journal(path, key) as journal, pytest.raises(KeyboardInterrupt):
        search(task, where=WHERE, top=2, journal=journal)
    with Journal(path, key) as journal:
        assert list(journal.simulated()) == plans[:6]
        found = search(task, where=WHERE, top=2, journal=journal)
        assert len(journal.simulated()) == planner.LEAST_SIMULATED
        again = [row.plan.text for row in found.best if row.plan.text in plans[:6]]
        # all the others, and of the known ones those that came out on top
        assert len(plans) == 7 + planner.LEAST_SIMULATED - 6 + len(again)
        third = search(task, where=WHERE, top=2, journal=journal)
        assert sorted(plans[-2:]) == sorted(row.plan.text for row in third.best)
    alone = substance(search(task, where=WHERE, top=2))
    assert substance(found) == substance(third) == alone
    assert alone["best"] == substance(expected)["best"][:2]


# --- which search it is of ----------------------------------------------------------------------


def test_a_key_says_what_decides_the_answer(task: Task) -> None:
    same = search_key(small_task(), where=WHERE)
    key = search_key(task, where=WHERE)
    assert key == same, "what a task has worked out meanwhile does not matter"
    others = [
        search_key(task),
        search_key(task, where=WHERE, objective="memory"),
        search_key(task, where=WHERE, top=30),
        search_key(
            replace(task, runtime=task.runtime.with_options({"kernel_slowdown": 1.5})), where=WHERE
        ),
        search_key(replace(task, workload=replace(task.workload, global_batch=128)), where=WHERE),
    ]
    assert len({one.digest for one in (key, *others)}) == len(others) + 1


def test_a_journal_of_another_search_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "state"
    written = filled(path)
    before = path.read_bytes()
    other = Key("e" * 64, {"model": "gpt2", "global batch": "128"})
    with pytest.raises(FileError, match="global batch: 64 there, 128 now") as caught:
        Journal(path, other)
    assert "model" not in str(caught.value)
    assert path.read_bytes() == before
    with Journal(path, KEY) as journal:
        assert journal.known() == written


def test_differences_without_a_name_are_told_too(tmp_path: Path) -> None:
    filled(tmp_path / "state")
    with pytest.raises(FileError, match="details of the model, the cluster or the runtime"):
        Journal(tmp_path / "state", replace(KEY, digest="e" * 64))


def test_restart_forgets(tmp_path: Path) -> None:
    path = tmp_path / "state"
    filled(path)
    other = replace(KEY, digest="e" * 64)
    with Journal(path, other, restart=True) as journal:
        assert journal.known() == {}
        assert journal.simulated() == {}
    with Journal(path, other):
        pass
    with pytest.raises(FileError, match="another search"):
        Journal(path, KEY)


def test_a_journal_opened_for_another_search_is_not_used(task: Task, tmp_path: Path) -> None:
    with (
        Journal(tmp_path / "state", search_key(task)) as journal,
        pytest.raises(InputError, match="another search"),
    ):
        search(task, where=WHERE, journal=journal)


# --- files that are no good ---------------------------------------------------------------------


def refused(path: Path, match: str, *, restart: bool = False) -> None:
    """With an error that says so, and no byte of the file changed."""
    before = path.read_bytes()
    with pytest.raises(FileError, match=match) as caught:
        Journal(path, KEY, restart=restart)
    assert str(path) in str(caught.value)
    assert caught.value.exit_code == 2
    assert path.read_bytes() == before


@pytest.mark.parametrize("restart", [False, True])
def test_files_of_others_are_left_alone(tmp_path: Path, restart: bool) -> None:
    path = tmp_path / "thesis.txt"
    path.write_text("Chapter one. " * 1000)
    refused(path, "not a valid search journal", restart=restart)
    path.write_text("short")
    refused(path, "too small", restart=restart)
    path.unlink()
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE parts (number INTEGER)")
    other.close()
    refused(path, "another program", restart=restart)


def test_a_newer_form_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state"
    filled(path)
    with sqlite3.connect(path) as file:
        file.execute("PRAGMA user_version=99")
    file.close()
    refused(path, "its format version is 99")


def test_places_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="directory"):
        Journal(tmp_path / "nowhere" / "state", KEY)
    with pytest.raises(FileError, match=str(tmp_path)):
        Journal(tmp_path, KEY)


def test_an_empty_file_is_taken(tmp_path: Path) -> None:
    """`mktemp` makes one; so does a search killed at the wrong moment."""
    path = tmp_path / "state"
    path.touch()
    filled(path)
    path.write_bytes(b"")
    sqlite3.connect(path).execute("PRAGMA journal_mode=WAL").connection.close()
    filled(path)


def test_a_truncated_file_is_an_error(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    written = filled(whole, 20)
    text = whole.read_bytes()
    path = tmp_path / "state"
    page = 4096
    for length in [*range(1, len(text) - page, 977), *range(page, len(text), page)]:
        path.write_bytes(text[:length])
        refused(path, "corrupted|not a valid search journal")
    for length in range(len(text) - page + 1, len(text), 101):  # … or nothing was there
        path.write_bytes(text[:length])
        try:
            with Journal(path, KEY) as journal:
                assert journal.known() == written
                assert len(journal.simulated()) == 1
        except FileError:
            assert path.read_bytes() == text[:length]


def test_a_damaged_file_is_an_error_or_right(tmp_path: Path) -> None:
    """Whatever byte is wrong: never another answer."""
    whole, path = tmp_path / "whole", tmp_path / "state"
    written = filled(whole, 20)
    text = bytearray(whole.read_bytes())
    draw = random.Random(5)
    errors = 0
    for _ in range(400):
        place = draw.randrange(len(text)) if draw.random() < 0.8 else draw.randrange(4096)
        damaged = bytearray(text)
        damaged[place] ^= 1 << draw.randrange(8)
        path.write_bytes(damaged)
        try:
            with Journal(path, KEY) as journal:
                assert journal.known() == written
                assert journal.simulated() == {"tp1": Score(0.1, 2.0 / 3.0, True)}
        except FileError:
            errors += 1
        for rest in ("-wal", "-shm"):
            Path(f"{path}{rest}").unlink(missing_ok=True)
    assert errors > 100, "damage to what is written must show"  # half of the file is not used


def test_rows_without_sense_are_damage(tmp_path: Path) -> None:
    path = tmp_path / "state"
    filled(path)
    with sqlite3.connect(path) as file:
        text = '{"seen": 1}'
        file.execute("INSERT INTO parts VALUES (9, ?, ?)", (text, journal_module._hash(9, text)))
    file.close()
    with Journal(path, KEY) as journal, pytest.raises(FileError, match="cannot be read"):
        journal.known()


def test_a_changed_row_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "state"
    filled(path)
    with sqlite3.connect(path) as file:
        file.execute("UPDATE parts SET number = 17 WHERE number = 2")
    file.close()
    refused(path, "the record of 17 does not match its hash")


def test_damage_while_it_is_open_is_told(tmp_path: Path) -> None:
    path = tmp_path / "state"
    with Journal(path, KEY) as journal:
        journal.add(0, survey(0))
        shutil.copy(path, tmp_path / "copy")
        with sqlite3.connect(path) as other:
            other.execute("DROP TABLE parts")
        other.close()
        with pytest.raises(FileError, match="parts"):
            journal.add(1, survey(1))


def test_a_full_disk_is_told_and_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "state"
    written = filled(path, 2)
    with Journal(path, KEY) as journal:
        pages = journal._file._file.execute("PRAGMA page_count").fetchone()[0]
        journal._file._file.execute(f"PRAGMA max_page_count={pages}")
        for number in range(2, 50):
            try:
                journal.add(number, survey(number))
            except FileError as error:
                told = str(error)
                break
            written[number] = survey(number)
        assert "full" in told
    with Journal(path, KEY) as journal:
        assert journal.known() == written
