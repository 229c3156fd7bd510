"""The native runner for another machine with all its libraries, from pip and apt, in a folder."""

import hashlib
import platform
import shutil
import subprocess
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from workbench import WorkbenchError
from workbench.api import Host
from workbench.jobs import Toolchain, unknown_name

#: Of the architectures with a runner, by ``uname -m``: Debian's name, and the dynamic loader.
ARCHITECTURES = {
    "aarch64": ("arm64", "ld-linux-aarch64.so.1"),
    "x86_64": ("amd64", "ld-linux-x86-64.so.2"),
}
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
#: The Debian release that packages come from, and its backports for newer ones.
SUITE, BACKPORTS = "trixie", "trixie-backports"
BY_HAND = "use a Debian machine or container, or install by hand as in the README"

#: Besides those that the runner is linked with: loaded at run time.
KERNELS = ("executorch_kernels_optimized", "executorch_kernels_quantized")
BACKENDS = ("executorch_backend_xnnpack",)
C_LIBRARIES = ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1")
CPP_LIBRARIES = ("libstdc++.so.6", "libgcc_s.so.1")


def install_bundle(target: Host) -> tuple[list[str], Path, Path]:
    """Copy a bundle to a target, as `Host.install_runner`; it is made on first use, and cached."""
    machine = target.machine
    if machine not in ARCHITECTURES:
        raise unknown_name("architecture", machine, ARCHITECTURES)
    toolchain = Toolchain.of(machine)
    name = f"bundles/{machine}-{toolchain.key}"
    folder = Toolchain.cached(name, partial(_fill, machine, toolchain))
    there, (_, loader) = target.push_folder(folder), ARCHITECTURES[machine]
    start = [f"{there}/{loader}", "--library-path", there]
    command = target.command([*start, f"{there}/runner", "--lib_dir", there])
    return command, folder / "runner", folder


def _fill(machine: str, toolchain: Toolchain, folder: Path) -> None:
    debian, loader = ARCHITECTURES[machine]
    names = (loader, *C_LIBRARIES, *CPP_LIBRARIES)
    files = [f"usr/lib/{machine}-linux-gnu/{name}" for name in names]
    packages = ("libc6", "libstdc++6", "libgcc-s1")
    shutil.copytree(fetch_debian(packages, files, architecture=debian), folder)
    for name in (*KERNELS, *BACKENDS):
        shutil.copy(toolchain.sdk / "lib" / f"lib{name}.so", folder)
    toolchain.compile(folder)


def fetch_debian(
    packages: Sequence[str], files: Sequence[str], *, architecture: str, suite: str = SUITE
) -> Path:
    """The ``files`` of some Debian packages, all in one folder, by apt."""
    digest = hashlib.sha256("\n".join([*packages, "", *files]).encode()).hexdigest()
    name = f"debian/{packages[0]}-{suite}-{architecture}-{digest[:8]}"
    return Toolchain.cached(name, partial(_unpack_debian, packages, files, architecture, suite))


def fetch_tool(package: str, file: str) -> Path:
    """A program of a package of Debian's backports, for this machine."""
    name, machine = Path(file).name, platform.machine()
    if machine not in ARCHITECTURES:
        raise WorkbenchError(f"no {name} for {machine}", where=package, hint=BY_HAND)
    architecture = ARCHITECTURES[machine][0]
    return fetch_debian([package], [file], architecture=architecture, suite=BACKPORTS) / name


def _unpack_debian(
    packages: Sequence[str], files: Sequence[str], architecture: str, suite: str, folder: Path
) -> None:
    workplace, everything = folder.parent, folder.parent / "everything"
    _download_debian(packages, architecture, suite, workplace)
    for deb in workplace.glob("*.deb"):
        Toolchain.download(["dpkg-deb", "--extract", str(deb), str(everything)], what=deb.name)
    folder.mkdir()
    for file in files:
        if not (everything / file).is_file():
            raise WorkbenchError(f"no {file} in Debian's {', '.join(packages)}")
        shutil.copy(everything / file, folder)


def _download_debian(packages: Sequence[str], architecture: str, suite: str, folder: Path) -> None:
    """Download packages from the first mirror that has them all."""
    apt = ["apt-get", "--quiet=2", *_apt_options(folder, architecture)]
    signed = f"Signed-By: {KEYRING}\n" if KEYRING.exists() else ""
    failure = WorkbenchError("apt knows no mirror of Debian", hint=BY_HAND)
    for mirror in _mirrors():
        source = f"Types: deb\nURIs: {mirror}\nSuites: {suite}\nComponents: main\n{signed}"
        (folder / "etc" / "mirror.sources").write_text(source)
        try:
            Toolchain.download([*apt, "update"], what=f"Debian {suite}", cwd=folder)
            Toolchain.download([*apt, "download", *packages], what=", ".join(packages), cwd=folder)
            return
        except WorkbenchError as error:
            failure = error
    raise failure


def _mirrors() -> list[str]:
    """The mirrors of Debian's main archive that apt is configured for."""
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        raise WorkbenchError("no apt to download Debian packages with", hint=BY_HAND)
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)"]
    targets = subprocess.run(command, capture_output=True, text=True).stdout
    rows = [line.split() for line in targets.splitlines()]
    mirrors = [row[0] for row in rows if row[-1:] == ["main"] and "-" not in row[1]]
    return list(dict.fromkeys(mirrors))


def _apt_options(folder: Path, architecture: str) -> list[str]:
    """Options that make apt work in ``folder`` alone, as any user, for any architecture."""
    for name in ("etc", "lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "status").touch()
    options = {
        "APT::Architecture": architecture,
        "APT::Architectures": architecture,
        "APT::Sandbox::User": "",
        # Only packages that Debian's keys vouch for, whatever this machine's configuration allows.
        "APT::Get::AllowUnauthenticated": "false",
        "Acquire::AllowInsecureRepositories": "false",
        "Acquire::AllowWeakRepositories": "false",
        "Dir::State": str(folder),
        "Dir::State::lists": str(folder / "lists"),
        "Dir::State::status": str(folder / "status"),
        "Dir::Cache": str(folder / "cache"),
        "Dir::Etc::sourcelist": "/dev/null",
        "Dir::Etc::sourceparts": str(folder / "etc"),
    }
    return [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
