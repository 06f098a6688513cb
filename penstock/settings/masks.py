"""Keys of masks."""

import base64
import binascii
import json
from typing import Annotated

from pydantic import AfterValidator, BaseModel, Field, SecretStr

from penstock.errors import SettingError

LEAST_BYTES = 16
"""Of the key of a hash."""
AES_BYTES = (16, 24, 32)
KEY_HINT = "write 32 random bytes in base64, as `openssl rand -base64 32` prints them"


def texts_of_keys(value: SecretStr) -> dict[str, str]:
    """The keys of the setting, in base64, by name.

    Raises:
        ValueError: It is no JSON object of texts. The message holds no key.
    """
    text = value.get_secret_value().strip()
    try:
        keys = json.loads(text or "{}")
    except ValueError:
        keys = None
    if not isinstance(keys, dict) or not all(isinstance(key, str) for key in keys.values()):
        raise ValueError('write a JSON object of names and keys in base64: {"pii": "..."}')
    return keys


def _check(value: SecretStr) -> SecretStr:
    texts_of_keys(value)
    return value


def decode_key(name: str, text: str, *, encrypts: bool) -> bytes:
    """The bytes of a key.

    Args:
        name: Its name, for errors.
        text: The key in base64.
        encrypts: Whether it is a key of AES.

    Raises:
        SettingError: It is not base64, or of a length that is not usable. The message does not hold it.
    """
    try:
        key = base64.b64decode(text.strip(), validate=True)
    except (binascii.Error, ValueError):
        raise SettingError(f"key {name} of masks is not base64", got="(a secret)", hint=KEY_HINT) from None
    if encrypts and len(key) not in AES_BYTES:
        raise SettingError(f"key {name} has no length of an AES key", got=f"{len(key)} bytes", hint=KEY_HINT)
    if len(key) < LEAST_BYTES:
        raise SettingError(f"key {name} of masks is too short", got=f"{len(key)} bytes", hint=KEY_HINT)
    return key


class MaskSettings(BaseModel):
    """Keys of masks."""

    mask_keys: Annotated[SecretStr, AfterValidator(_check)] = Field(
        SecretStr(""),
        description='keys of masks in base64 by their names, as JSON: `{"pii": "..."}`; other names are ids of '
        "Connections of Airflow",
    )
