"""Files of fastload's own in places where other users may write.

What was not written with this user's key is not used.

A key of 48 random bytes lies where only the user may read it. From it a key is made for each purpose (the index of this
archive, this object of that store), so that no file can take another's place. Data are followed by tags of that key
(csrc/base/keyed_hash.h), which are checked before anything is made of the data, and their size before it is read.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import tempfile
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from fastload import _core
from fastload._files import open_file, user_folder

if TYPE_CHECKING:
    from pathlib import Path

    from typing_extensions import Buffer

KEY_BYTES: Final = 48
TAGS_BYTES: Final = len(_core.tags_of(b"", bytes(KEY_BYTES)))


class UserKeyError(ValueError):
    """The user's key cannot be used; the message says why."""


def key_path() -> Path:
    """Return where this user's key lies; ``$XDG_STATE_HOME`` moves it.

    Raises:
        UserKeyError: The user has no home.
    """
    try:
        return user_folder("XDG_STATE_HOME", ".local/state") / "key"
    except OSError as error:
        raise UserKeyError(f"a key needs a place: {error}") from error


def make_key() -> bytes:
    """Read this user's key; make it first if there is none.

    Raises:
        UserKeyError: It cannot be read, or others may read or write it.
        OSError: It cannot be written.
    """
    path = key_path()
    if not os.path.lexists(path):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent)  # of mode 600
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(os.urandom(KEY_BYTES))
            with suppress(FileExistsError):  # another process was first
                os.link(temporary, path)
        finally:
            os.unlink(temporary)
    try:
        with open_file(path) as file:
            about = os.fstat(file.fileno())
            key = file.read(KEY_BYTES + 1)
    except OSError as error:
        raise UserKeyError(f"the key {path} cannot be read ({error.strerror}); remove it to get another") from error
    if about.st_uid not in (os.geteuid(), 0) or about.st_mode & 0o077 or len(key) != KEY_BYTES:
        raise UserKeyError(f"the key {path} must have {KEY_BYTES} bytes, and only you may read it (chmod 600)")
    return key


def key_for(purpose: str, key: bytes) -> bytes:
    """Make the key of a purpose from the user's key."""
    return hashlib.blake2b(purpose.encode("utf-8", "surrogateescape"), key=key, digest_size=KEY_BYTES).digest()


def read(path: str | os.PathLike[str], key: bytes) -> bytes | None:
    """Read what :func:`write` has written with this key; ``None`` if it has not. Blocks."""
    return _core.read_tagged(os.fsencode(path), key)


def write(path: str | os.PathLike[str], data: Buffer, key: bytes) -> None:
    """Write data and their tags; others see all or nothing. Blocks.

    Raises:
        OSError: It cannot be written there.
    """
    temporary = f"{os.fspath(path)}.{secrets.token_hex(8)}.part"
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            file.write(_core.tags_of(data, key))
        os.replace(temporary, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
