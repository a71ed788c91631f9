"""Which directories count as lying on a network filesystem."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidelog.metadata.filesystem import network_filesystem

MOUNTS = r"""/dev/vda / ext4 rw 0 0
server:/home /home nfs4 rw 0 0
/dev/vdb /home/local xfs rw 0 0
host:/x /mnt/with\040space cifs rw 0 0
server:/old /data nfs rw 0 0
/dev/vdc /data ext4 rw 0 0
broken
"""


@pytest.fixture
def mounts(tmp_path: Path) -> Path:
    path = tmp_path / "mounts"
    path.write_text(MOUNTS)
    return path


@pytest.mark.parametrize(
    ("directory", "expected"),
    [
        ("/var/lib/tidelog", None),
        ("/home/ann/data", "nfs4"),
        ("/home", "nfs4"),
        ("/home2", None),
        ("/home/local/data", None),
        ("/mnt/with space/data", "cifs"),
        ("/data/tidelog", None),
    ],
)
def test_the_deepest_and_last_mount_decides(mounts: Path, directory: str, expected: str | None) -> None:
    assert network_filesystem(Path(directory), mounts) == expected


def test_without_a_list_of_mounts_nothing_is_refused(tmp_path: Path) -> None:
    assert network_filesystem(Path("/home"), tmp_path / "missing") is None
