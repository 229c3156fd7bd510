"""Where a runner runs: this machine, or one reached over adb, ssh or QEMU."""
