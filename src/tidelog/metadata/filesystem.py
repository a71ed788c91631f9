"""Whether a directory is on a network filesystem, where SQLite's locks and shared memory can't be relied on.

What always holds: a filesystem that is not known to be remote is taken as local. Machines without /proc/mounts are not
checked.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

NETWORK_FILESYSTEMS: Final = frozenset(
    {
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "coda",
        "fuse.ceph-fuse",
        "fuse.gcsfuse",
        "fuse.glusterfs",
        "fuse.juicefs",
        "fuse.rclone",
        "fuse.s3fs",
        "fuse.sshfs",
        "glusterfs",
        "gpfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "ocfs2",
        "orangefs",
        "smb3",
        "smbfs",
    }
)

_OCTAL_ESCAPE = re.compile(r"\\([0-7]{3})")


def network_filesystem(directory: Path, mounts: Path = Path("/proc/mounts")) -> str | None:
    """The type of the network filesystem that the directory is on, or None."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    resolved = directory.resolve()
    best_depth, best_type = -1, ""
    for line in lines:
        fields = line.split()
        if len(fields) < 3:
            continue
        mount_point = Path(_OCTAL_ESCAPE.sub(lambda match: chr(int(match[1], 8)), fields[1]))
        # Later lines cover earlier ones at the same place.
        if resolved.is_relative_to(mount_point) and len(mount_point.parts) >= best_depth:
            best_depth, best_type = len(mount_point.parts), fields[2]
    return best_type if best_type in NETWORK_FILESYSTEMS else None
