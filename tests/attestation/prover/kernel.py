"""Imitates the kernel's part of configfs-tsm, as drivers/virt/coco/guest/report.c has it, in a temporary folder.

Making a folder makes the request's files; the blob is taken when its file is closed, and counts in `generation`;
reading `outblob` without one fails with EINVAL; a request goes away whole.
"""

from __future__ import annotations

import errno
import io
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path, PosixPath
from typing import Any

INBLOB_BYTES = 64


@dataclass
class Kernel:
    """`sign` is the quoting service. The hooks let a test meddle: before a blob is taken, before it is signed."""

    base: Path
    sign: Callable[[bytes], bytes]
    provider: str = "tdx_guest"
    driver: bool = True
    failures: list[int] = field(default_factory=list)
    """Errnos that the next readings of `outblob` fail with."""

    generation: str | None = None
    """What a broken driver would have in `generation`."""

    meddle: Callable[[Kernel, str], None] = lambda kernel, request: None
    requests: dict[str, dict[str, Any]] = field(default_factory=dict)
    made: list[str] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        """What to use as /sys/kernel/config/tsm/report."""
        self.base.mkdir(exist_ok=True)
        return _folder_of(self)(self.base)

    def mkdir(self, name: str) -> None:
        if not self.driver:
            raise OSError(errno.ENXIO, "No such device or address")
        if name in self.requests:
            raise FileExistsError(errno.EEXIST, "File exists")
        self.made.append(name)
        self.requests[name] = {"inblob": b"", "generation": 0}

    def write(self, name: str, attribute: str, content: bytes) -> None:
        if attribute != "inblob":
            raise PermissionError(errno.EACCES, "Permission denied")
        if len(content) > INBLOB_BYTES:
            raise OSError(errno.EFBIG, "File too large")
        self.requests[name].update(inblob=content, generation=self.requests[name]["generation"] + 1)

    def read(self, name: str, attribute: str) -> bytes:
        request = self.requests[name]
        if attribute == "provider":
            return f"{self.provider}\n".encode()
        if attribute == "generation":
            told = request["generation"] if self.generation is None else self.generation
            return f"{told}\n".encode()
        if attribute != "outblob":
            raise PermissionError(errno.EACCES, "Permission denied")
        if len(request["inblob"]) != INBLOB_BYTES:  # the TDX driver takes no other length
            raise OSError(errno.EINVAL, "Invalid argument")
        if self.failures:
            number = self.failures.pop(0)
            raise OSError(number, errno.errorcode[number])
        quote = self.sign(request["inblob"])
        self.meddle(self, name)
        return quote


class _Taken(io.BytesIO):
    """A binary attribute that is being written: the kernel looks at it when it is closed."""

    def __init__(self, take: Callable[[bytes], None]) -> None:
        super().__init__()
        self._take = take

    def close(self) -> None:
        if not self.closed:
            content = self.getvalue()
            super().close()
            self._take(content)


def _folder_of(kernel: Kernel) -> type[PosixPath]:
    class Folder(PosixPath):
        def mkdir(self, *_: Any, **__: Any) -> None:
            kernel.mkdir(self.name)
            super().mkdir()
            for attribute in ("inblob", "outblob", "generation", "provider"):
                (Path(self) / attribute).touch()

        def rmdir(self) -> None:
            del kernel.requests[self.name]
            shutil.rmtree(self)

        def open(self, mode: str = "r", *_: Any, **__: Any) -> Any:
            request, attribute = self.parent.name, self.name
            if "w" in mode:
                return _Taken(lambda content: kernel.write(request, attribute, content))
            return io.BytesIO(kernel.read(request, attribute))

    return Folder
