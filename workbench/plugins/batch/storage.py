"""Where a portfolio is: a folder that all workers see, or a URL that fsspec knows."""

import contextlib
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench import WorkbenchError
from workbench.api import StoreError, UsageError, atomic_write
from workbench.jobs import cache_folder


@dataclass(frozen=True)
class Storage:
    """A portfolio; ``url`` is empty if it is the local folder."""

    folder: Path
    url: str = ""

    def fetch(self, name: str) -> None:
        """Download a file or folder of the portfolio."""
        if not self.url:
            return
        with open_url(self.url) as (files, root):
            for remote in files.find(f"{root}/{name}"):
                local = self.folder / remote.removeprefix(root).lstrip("/")
                if not local.resolve().is_relative_to((self.folder / name).resolve()):
                    raise StoreError(f"has a file {remote!r:.100}", where=self.url)
                atomic_write(local, files.cat_file(remote))

    def find(self, name: str) -> Path:
        """The local path of a file or folder of the portfolio; StoreError if it is elsewhere."""
        path = self.folder / name
        if not path.resolve().is_relative_to(self.folder.resolve()):
            raise StoreError(f"has a file {name!r:.100}", where=self.folder)
        return path

    def send(self, name: str) -> None:
        """Upload a file or folder, without hidden files."""
        if not self.url:
            return
        path = self.folder / name
        with open_url(self.url) as (files, root):
            for local in (path, *sorted(path.rglob("[!.]*"))):
                if local.is_file():
                    remote = f"{root}/{local.relative_to(self.folder).as_posix()}"
                    files.makedirs(remote.rpartition("/")[0], exist_ok=True)
                    files.pipe_file(remote, local.read_bytes())

    def write(self, name: str, content: str) -> None:
        """Write a small file."""
        atomic_write(self.folder / name, content)
        self.send(name)


@contextlib.contextmanager
def open_url(url: str) -> Iterator[tuple[Any, str]]:
    """The file system behind a URL and the path there, as others have left it by now."""
    try:
        import fsspec
    except ModuleNotFoundError:
        what, install = "fsspec is not installed", "executorch-workbench[batch]"
        raise WorkbenchError(what, install=install) from None
    try:
        files, root = fsspec.core.url_to_fs(url)
        files.invalidate_cache()
        yield files, root.rstrip("/")
    except WorkbenchError:
        raise
    except (ValueError, ImportError) as error:
        raise UsageError(f"cannot be opened: {error}", where=url) from None
    except Exception as error:  # those of S3 are no OSError
        reason = getattr(error, "strerror", None) or error
        raise StoreError(f"cannot be read or written: {reason}", where=url) from None


def open_storage(location: str | Path) -> Storage:
    """The portfolio at a folder or a URL (``s3://...``, ``memory://...``)."""
    scheme, separator, rest = str(location).partition("://")
    if not separator or scheme == "file":
        return Storage(Path("/", rest) if separator else Path(location).resolve())
    url = str(location).rstrip("/")
    name = hashlib.sha256(url.encode()).hexdigest()[:16]
    return Storage(cache_folder() / "portfolios" / name, url)
