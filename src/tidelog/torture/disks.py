"""Disks that fill up, stall, fail or lose their power: small file systems in files, and errors put into system calls.

What always holds: a disk is a file with an ext4 file system, mounted by a loop device; `remove` unmounts it, and the
kernel frees the device. Everything takes root (CAP_SYS_ADMIN), and errors in system calls take strace (CAP_SYS_PTRACE).
Only what is on such a disk is ever harmed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tidelog.torture import programs
from tidelog.torture.errors import TortureError

# As include/uapi/linux/fs.h numbers them: no process may write to a frozen file system, each one that tries waits.
_FIFREEZE: Final = 0xC0045877
_FITHAW: Final = 0xC0045878

_PACKAGES: Final = {
    "mkfs.ext4": "e2fsprogs",
    "fsck.ext4": "e2fsprogs",
    "mount": "mount",
    "umount": "mount",
    "findmnt": "util-linux",
}
_ATTACH_S_MAX: Final = 30.0
# The kernel shall write back nothing of its own accord within the time of a test.
_KEEP_IN_MEMORY: Final = "commit=1000"
_FILL_BYTES: Final = (1 << 26, 1 << 16, 4096, 1)


class DiskError(TortureError):
    """A disk can't be made or harmed; the text says why."""


class DiskImage:
    """A disk of its own, whose contents are a file: it can lose its power, or be found broken by the kernel.

    With `keep_in_memory`, what is not flushed stays in memory, so that a power cut shows what was not flushed.
    """

    def __init__(self, directory: Path, size_mb: int, options: str = "", *, keep_in_memory: bool = True) -> None:
        directory.mkdir(parents=True)
        self.path = directory / "mounted"
        self.path.mkdir()
        self._options = ",".join(filter(None, ("loop", _KEEP_IN_MEMORY if keep_in_memory else "", options)))
        self._image = directory / "image-0"
        self._cuts = 0
        self.is_broken = False
        """Whether it was broken, and not mended since."""
        with self._image.open("wb") as image:
            image.truncate(size_mb << 20)
        _run("mkfs.ext4", "-q", "-F", "-b", "4096", str(self._image))
        self._mount()

    def _mount(self) -> None:
        _run("mount", "-o", self._options, str(self._image), str(self.path))

    def cut_power(self) -> None:
        """What was not flushed is gone: the disk is mounted anew with what had reached it by now.

        Nobody may have files open on it.
        """
        self._cuts += 1
        survivor = self._image.with_name(f"image-{self._cuts}")
        _run("cp", "--sparse=always", str(self._image), str(survivor))
        self.unmount()
        self._image.unlink()
        self._image = survivor
        self._mount()
        for boot_id in self.path.rglob(".boot_id"):
            # The machine that runs this did not restart; its name for this run of it is what would tell.
            boot_id.write_text("00000000-0000-4000-8000-000000000000\n")

    @property
    def device(self) -> Path:
        source = subprocess.check_output(["findmnt", "-no", "SOURCE", str(self.path)], text=True)
        return Path(source.strip())

    @property
    def is_mounted(self) -> bool:
        return os.path.ismount(self.path)

    @property
    def free_bytes(self) -> int:
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize

    @property
    def _ballast(self) -> Path:
        return self.path / "ballast"

    def fill(self) -> None:
        """Take all the room there is, and again if some has become free."""
        if not self.is_mounted:
            raise DiskError(f"{self.path} is not mounted")
        with self._ballast.open("ab", buffering=0) as file:
            end = file.tell()
            for size_bytes in _FILL_BYTES[:2]:
                # Room is taken without being written to, so that this takes no time.
                with _until_full():
                    while True:
                        os.posix_fallocate(file.fileno(), end, size_bytes)
                        end += size_bytes
            os.lseek(file.fileno(), end, os.SEEK_SET)
            for size_bytes in _FILL_BYTES[2:]:
                with _until_full():
                    while file.write(bytes(size_bytes)) == size_bytes:
                        pass

    def make_room(self) -> None:
        self._ballast.unlink(missing_ok=True)

    def break_file_system(self) -> None:
        """Let the kernel find an error in it, whereupon it lets nobody write to it any more.

        What was not flushed is lost once it is mended, as on a disk that fails.
        """
        self.is_broken = True
        _run("mount", "-o", "remount,errors=remount-ro", str(self.path))
        Path(f"/sys/fs/ext4/{self.device.name}/trigger_fs_error").write_text("1")

    def mend_file_system(self) -> None:
        """Check it and mount it anew. Nobody may have files open on it."""
        if self.is_mounted:
            self.unmount()
        # Exit code 1 says that there were errors and that they were put right.
        done = subprocess.run([_program("fsck.ext4"), "-f", "-y", str(self._image)], capture_output=True, text=True)
        if done.returncode not in (0, 1):
            raise DiskError(f"fsck.ext4 could not mend {self._image}: {done.stdout}{done.stderr}")
        self._mount()
        self.is_broken = False

    def freeze(self) -> None:
        """Keep everybody who writes to it waiting, until `thaw`; nobody can be killed while waiting."""
        self._control(_FIFREEZE, errno.EBUSY)

    def thaw(self) -> None:
        self._control(_FITHAW, errno.EINVAL)

    def _control(self, request: int, already: int) -> None:
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            # Never the file system of the machine, on which the mount point is.
            if os.fstat(descriptor).st_dev == self.path.parent.stat().st_dev:
                raise DiskError(f"{self.path} is not mounted")
            fcntl.ioctl(descriptor, request, 0)
        except OSError as error:
            if error.errno != already:
                raise
        finally:
            os.close(descriptor)

    def unmount(self, *, lazily: bool = False) -> None:
        _run("umount", *(["--lazy"] if lazily else []), str(self.path))

    def remove(self) -> None:
        """Unmount it, whatever state it is in, even while somebody still has files open; the image stays."""
        if self.is_mounted:
            self.thaw()
            self.unmount(lazily=True)


class Tracing:
    """strace on a running process: it notes system calls, and delays or fails those that it is told to."""

    def __init__(self, pid: int, output: Path, *options: str) -> None:
        if shutil.which("strace") is None:
            raise DiskError("strace was not found: install it, system calls are made to fail with it")
        self._output = output
        command = ["strace", "-f", "-q", "-o", str(output), *options, "-p", str(pid)]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        deadline_s = time.monotonic() + _ATTACH_S_MAX
        try:
            while not self._is_attached(pid):
                if self._process.poll() is not None:
                    raise DiskError(f"strace can't trace process {pid} (CAP_SYS_PTRACE?): {self._errors()}")
                if time.monotonic() > deadline_s:
                    raise DiskError(f"strace does not attach to process {pid}")
                time.sleep(0.01)
        except BaseException:
            self.stop()
            raise

    def _is_attached(self, pid: int) -> bool:
        """To all threads: those that are made later are followed from their beginning."""
        statuses = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/status")]
        return all(f"TracerPid:\t{self._process.pid}\n" in status for status in statuses)

    def _errors(self) -> str:
        return self._process.stderr.read() if self._process.stderr is not None else ""

    def calls(self) -> list[str]:
        """The calls so far, a line each; it begins with the thread."""
        return self._output.read_text().splitlines()

    def stop(self) -> None:
        """Let the process go its way again."""
        if self._process.poll() is None:
            self._process.terminate()
        self._process.wait()
        if self._process.stderr is not None:
            self._process.stderr.close()


def reason_against_disks() -> str | None:
    """Why disks can't be made here, and what to do about it; None if they can."""
    if os.geteuid() != 0:
        return "it gives each broker a disk of its own, which takes root: run it with sudo"
    if (reason := programs.missing(_PACKAGES)) is not None:
        return reason
    if not Path("/dev/loop-control").exists():
        return (
            "there are no loop devices (/dev/loop-control): load the kernel module loop, or use a machine that has it"
        )
    return None


@contextlib.contextmanager
def _until_full() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise


def _program(name: str) -> str:
    found = programs.find(name)
    if found is None:
        raise DiskError(f"{name} was not found: install {_PACKAGES.get(name, 'coreutils')}")
    return found


def _run(*command: str) -> None:
    """Run a command that can't be done without; where it can't be run, say what is missing."""
    done = subprocess.run([_program(command[0]), *command[1:]], capture_output=True, text=True)
    if done.returncode != 0:
        raise DiskError(
            f"{' '.join(command)}: {done.stderr.strip()}; disks of their own for servers take root "
            "(CAP_SYS_ADMIN), loop devices (/dev/loop-control) and ext4"
        )
