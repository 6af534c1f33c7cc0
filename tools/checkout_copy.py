"""A copy of the checkout in which source may be changed and tests run, while the checkout stays as it is.

Tests in the copy import the copy: an editable install leads every import of the package to the checkout, so its finder
is taken out of each process (`sitecustomize`). The compiled engine is the installed one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import foretrain.engine

HERE = Path(__file__).resolve().parents[1]
PACKAGE = Path("src/foretrain")
_OWN_FINDERS_ONLY = """\
import sys
sys.meta_path[:] = [f for f in sys.meta_path if "editable" not in type(f).__module__]
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What tests said of the copy. `first`: the test that failed first, where one did."""

    verdict: str  # caught, survived, broken (no test ran)
    seconds: float
    first: str = ""


@dataclass(frozen=True, slots=True)
class CheckoutCopy:
    root: Path

    @contextmanager
    def replaced(self, path: Path, text: str) -> Iterator[None]:
        """Another text for one file of the copy, for a while."""
        target = self.root / path
        before = target.read_text()
        self._write(target, text)
        try:
            yield
        finally:
            self._write(target, before)

    @staticmethod
    def _write(target: Path, text: str) -> None:
        target.write_text(text)
        # two versions of one length within a second look alike to the import system
        for stale in (target.parent / "__pycache__").glob(f"{target.stem}.*.pyc"):
            stale.unlink()

    def run(self, tests: Sequence[str], *options: str, timeout: float = 300.0) -> Outcome:
        """Tests in a process of their own, up to the first that fails. One that takes too long is a failure."""
        began = monotonic()
        line = (sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--tb=no",
                "--no-header", "-r", "fE", *options, *tests)  # fmt: skip
        try:
            done = subprocess.run(
                line,
                cwd=self.root,
                env=self.environment(),
                timeout=timeout,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        except subprocess.TimeoutExpired:
            return Outcome("caught", monotonic() - began, f"more than {timeout:.0f} s")
        failed = [x for x in done.stdout.splitlines() if x.startswith(("FAILED ", "ERROR "))]
        first = failed[0].split(" ")[1] if failed else done.stdout.strip()[-200:]
        verdict = {0: "survived", 1: "caught"}.get(done.returncode, "broken")
        return Outcome(verdict, monotonic() - began, "" if verdict == "survived" else first)

    def expect_own_imports(self) -> None:
        """Tests of the copy that import the checkout would let every change pass."""
        line = (sys.executable, "-c", "import foretrain; print(foretrain.__file__)")
        done = subprocess.run(
            line, cwd=self.root, env=self.environment(), capture_output=True, text=True
        )
        if not done.stdout.startswith(str(self.root)):
            sys.exit(f"a copy of the checkout imports {done.stdout.strip() or done.stderr}")

    def environment(self) -> dict[str, str]:
        paths = os.pathsep.join(str(self.root / part) for part in ("site", "src"))
        return {**os.environ, "PYTHONPATH": paths, "HYPOTHESIS_STORAGE_DIRECTORY": str(self.root / "drawn")}  # fmt: skip


@contextmanager
def checkout_copy() -> Iterator[CheckoutCopy]:
    """Every file that git knows or would add."""
    asked = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    names = subprocess.run(asked, cwd=HERE, check=True, capture_output=True, text=True).stdout
    with tempfile.TemporaryDirectory(prefix="foretrain-copy-") as folder:
        root = Path(folder)
        for name in filter(None, names.split("\0")):
            if (HERE / name).is_file():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(HERE / name, root / name)
        _with_engine(root)
        (root / "site").mkdir()
        (root / "site/sitecustomize.py").write_text(_OWN_FINDERS_ONLY)
        copy = CheckoutCopy(root)
        copy.expect_own_imports()
        yield copy


def _with_engine(root: Path) -> None:
    for place in foretrain.engine.__path__:
        for built in Path(place).glob("_native.*"):
            shutil.copy2(built, root / PACKAGE / "engine")
