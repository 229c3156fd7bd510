"""Where a portfolio lies: a folder that all workers see, or a URL that files come from."""

from __future__ import annotations

import contextlib
import hashlib
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.errors import SetupError, StoreError, UsageError
from workbench.files import PARTIAL
from workbench.run import cache_folder
from workbench.store import write_whole


@dataclass(frozen=True)
class Depot:
    """A portfolio's place: a folder, or a URL that files are sent to and fetched from."""

    place: str

    @property
    def url(self) -> str:
        """The URL; empty where the place is a folder."""
        return self.place if "://" in self.place else ""

    @property
    def folder(self) -> Path:
        """The folder that work is done in, on whatever machine we are."""
        if not self.url:
            return Path(self.place)
        scratch = hashlib.sha256(self.url.encode()).hexdigest()[:16]
        return cache_folder() / "portfolios" / scratch

    def fetch(self, name: str) -> None:
        """Bring a folder of the portfolio here; whole files only."""
        if not self.url:
            return
        files, root = self._open()
        with self._explained(name):
            for remote in files.find(f"{root}/{name}"):
                if remote.endswith(PARTIAL):
                    continue
                local = self.folder / name / remote.split(f"{root}/{name}/", 1)[-1]
                write_whole(local, files.cat_file(remote))

    def send(self, name: str) -> None:
        """Take a file or folder from here to the portfolio; hidden files stay."""
        if not self.url:
            return
        files, root = self._open()
        with self._explained(name):
            for local in _walk(self.folder / name):
                remote = f"{root}/{local.relative_to(self.folder).as_posix()}"
                files.makedirs(remote.rpartition("/")[0], exist_ok=True)
                # Whoever reads sees the old file or the new one, where the file system can move.
                files.pipe_file(f"{remote}{PARTIAL}", local.read_bytes())
                files.mv(f"{remote}{PARTIAL}", remote)

    def write(self, name: str, content: str) -> None:
        """Write a small file of the portfolio."""
        write_whole(self.folder / name, content)
        self.send(name)

    def _open(self) -> tuple[Any, str]:
        try:
            import fsspec
        except ModuleNotFoundError:
            raise SetupError("fsspec is not installed", hint="pip install fsspec") from None
        try:
            files, root = fsspec.core.url_to_fs(self.url)
        except (ValueError, ImportError) as error:
            raise UsageError(f"cannot be opened: {error}", where=self.url) from None
        files.invalidate_cache()  # others write there, too
        return files, root.rstrip("/")

    @contextlib.contextmanager
    def _explained(self, name: str):
        try:
            yield
        except (OSError, *_errors_of_s3()) as error:
            reason = getattr(error, "strerror", None) or error
            raise StoreError(
                f"cannot be read or written: {reason}", where=f"{self.url}/{name}"
            ) from None


def open_depot(place: str | Path) -> Depot:
    """The depot at a folder, or at a URL that fsspec knows (``s3://...``, ``memory://...``)."""
    scheme, found, rest = str(place).partition("://")
    if found and scheme != "file":
        return Depot(str(place).rstrip("/"))
    return Depot(str(Path("/", rest) if found else Path(place).resolve()))


def _errors_of_s3() -> tuple[type[Exception], ...]:
    """What S3 raises where there is no connection or no credentials, which is no OSError."""
    botocore = sys.modules.get("botocore.exceptions")
    return (botocore.BotoCoreError,) if botocore else ()


def _walk(path: Path) -> Iterable[Path]:
    if path.is_file():
        return [path]
    return sorted(p for p in path.rglob("*") if p.is_file() and not p.name.startswith("."))
