"""A phone that is none: Debian's adbd in a network namespace, with stand-ins for Android's tools.

adbd lets anybody in who can reach its port, so it gets a network of its own; adb's server lives
there too, and is reached through a socket in the file system.
"""

import os
import shutil
import subprocess
import time

from workbench.errors import WorkbenchError
from workbench.plugins.targets.android import Android
from workbench.plugins.targets.bundle import fetch_debian
from workbench.plugins.targets.qemu import Qemu
from workbench.plugins.targets.remote import Remote

SERIAL = "127.0.0.1:5555"

_TOOLS = "usr/lib/android-sdk/platform-tools"
_LIBRARIES = "usr/lib/x86_64-linux-gnu"
_ANDROID = ("libbase", "libcrypto", "libcutils", "liblog", "libssl", "libziparchive")
_OTHERS = (
    *("ld-linux-x86-64.so.2", "libc.so.6", "libm.so.6", "libstdc++.so.6", "libgcc_s.so.1"),
    *("libbrotlicommon.so.1", "libbrotlidec.so.1", "libbrotlienc.so.1", "liblz4.so.1"),
    *("libprotobuf.so.32", "libusb-1.0.so.0", "libzstd.so.1", "libxxhash.so.0", "libz.so.1"),
    *("libudev.so.1", "libcap.so.2"),
)
_PACKAGES = (
    *("adb", "adbd", "android-libbase", "android-libboringssl", "android-libcutils"),
    *("android-liblog", "android-libziparchive", "libbrotli1", "libc6", "libgcc-s1", "liblz4-1"),
    *("libprotobuf32t64", "libstdc++6", "libzstd1", "libusb-1.0-0", "zlib1g", "libudev1"),
    *("libcap2", "libxxhash0"),
)

#: Obeys "plug" and "unplug"; ends with its input, and everything with it.
_NAMESPACE = """
ip link set lo up
cd "$1" || exit
PATH="$1/bin:$PATH"; export PATH; HOME="$1"; export HOME
plug() { "$2" --library-path "$3" "$3/adbd" >> adbd.log 2>&1 & phone=$!; }
plug "$@"
"$2" --library-path "$3" "$3/adb" -L "$4" nodaemon server >> server.log 2>&1 &
while read word; do
  case $word in
    plug) plug "$@" ;;
    unplug) kill -9 $phone ;;
  esac
done
"""

#: Global settings, a file each.
_SETTINGS = """#!/bin/sh
cd "$(dirname "$0")/../settings" || exit
case $1 in
  get) cat "$3" 2>/dev/null || echo null ;;
  put) echo "$4" > "$3" ;;
  delete) rm -f "$3" ;;
esac
echo "$@" >> ../settings.log
"""
_SVC = '#!/bin/sh\necho "svc $*" >> "$(dirname "$0")/../settings.log"\n'
_GETPROP = '#!/bin/sh\necho "$1 of a stand-in"\n'


class Phone:
    """The phone's folder is ``home``; ``adb`` lies in ``home/client``."""

    def __init__(self, home):
        self.home = home
        tools = fetch_debian(
            _PACKAGES,
            [
                *(f"{_TOOLS}/{name}" for name in ("adb", "adbd")),
                *(f"{_LIBRARIES}/android/{name}.so.0" for name in _ANDROID),
                *(f"{_LIBRARIES}/{name}" for name in _OTHERS),
            ],
            architecture="amd64",
        )
        loader = str(tools / "ld-linux-x86-64.so.2")
        self.socket = f"localfilesystem:{home}/adb.socket"
        for name, text in (("settings", _SETTINGS), ("svc", _SVC), ("getprop", _GETPROP)):
            self._write(f"bin/{name}", text)
        client = f'#!/bin/sh\nexec {loader} --library-path {tools} {tools}/adb "$@"\n'
        self._write("client/adb", client)
        (home / "settings").mkdir()
        words = [str(home), loader, str(tools), self.socket]
        flags = ("--user", "--map-root-user", "--net", "--pid", "--fork", "--kill-child")
        self._process = subprocess.Popen(
            ["unshare", *flags, "sh", "-c", _NAMESPACE, "sh", *words], stdin=subprocess.PIPE
        )

    def settings(self):
        return {path.name: path.read_text().strip() for path in (self.home / "settings").iterdir()}

    def unplug(self):
        self._tell("unplug")

    def plug(self):
        self._tell("plug")
        time.sleep(0.5)

    def end(self):
        self._process.stdin.close()
        self._process.kill()
        self._process.wait()

    def wait(self, seconds=20):
        """Until adb's server answers."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self._process.poll() is None:
            if (self.home / "adb.socket").exists():
                return
            time.sleep(0.1)
        raise WorkbenchError("no namespaces for a phone here")

    def _tell(self, word):
        self._process.stdin.write(f"{word}\n".encode())
        self._process.stdin.flush()

    def _write(self, name, text):
        path = self.home / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)


def missing():
    """Why there can be no phone here; empty if there can."""
    if os.uname().machine != "x86_64" or os.uname().sysname != "Linux":
        return "the stand-in for a phone is for Linux on x86-64"
    for tool in ("unshare", "ip", "apt-get"):
        if not shutil.which(tool):
            return f"no {tool} on this machine"
    return ""


def use_folder(patch, base):
    """Let the workbench use this folder of the device: there is no ``/data`` here."""
    patch.setattr("workbench.plugins.targets.android.BASE", base)


def emulate(patch):
    """Give the phone an aarch64 CPU: what is run there, QEMU runs."""
    qemu = Qemu("max")
    patch.setattr(Android, "machine", "aarch64")
    patch.setattr(Android, "emulated", True)
    patch.setattr(Android, "command", lambda self, argv: Remote.command(self, qemu.command(argv)))
