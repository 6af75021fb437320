"""What a node is told: flags first, then the environment (EARNEST_*), then the file earnest.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationError
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from earnest.base.errors import EarnestError
from earnest.base.logs import HIDDEN, redacted_url

PREFIX = "EARNEST_"
FILE = Path("earnest.toml")
WHERE = f"correct the flag, the {PREFIX}* variable or {FILE}"


class SettingsError(EarnestError):
    """A flag, variable or file says something that cannot be."""


def _listed(value: Any) -> Any:
    """`a,b` as the environment gives it, or a list as the file does."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def _http(url: str) -> str:
    if not url.startswith(("http://", "https://")):
        raise ValueError("is not an http:// or https:// URL")
    return url


def _host_port(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 <= int(port) < 1 << 16:
        raise ValueError("is not HOST:PORT")
    return text


UserPath = Annotated[Path, AfterValidator(Path.expanduser)]
HttpUrl = Annotated[str, AfterValidator(_http)]


class Settings(BaseSettings):
    """One frozen object with everything that can be configured. `Settings.load(flags)` makes it."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_ignore_empty=True, extra="forbid", frozen=True, hide_input_in_errors=True
    )

    config: UserPath = FILE
    """The TOML file; the default one may be missing."""

    network: str = "devnet"
    """A name in networks.toml."""

    rpc: Annotated[tuple[HttpUrl, ...], NoDecode, BeforeValidator(_listed)] = Field(default=(), repr=False)
    """Endpoints in order of preference, separated by commas in the environment; none: the network's own."""

    manifest: UserPath | None = None
    """Where the contracts are; None: the network's manifest."""

    confirmations: int | None = Field(default=None, ge=0)
    """Blocks under the head after which a block counts as final; None: the network's."""

    keystore: UserPath | None = None
    """A keystore v3 file."""

    password_file: UserPath | None = None
    """A file with the keystore's password."""

    password: SecretStr | None = None
    """The keystore's password itself; a file is safer, since others may see flags and variables."""

    data_dir: UserPath = Path("~/.earnest").expanduser()
    """Journal and objects."""

    serve: Annotated[str, AfterValidator(_host_port)] | None = None
    """HOST:PORT on which this node's objects are served."""

    public_url: HttpUrl | None = None
    """Where others reach what `serve` serves."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"

    @classmethod
    def load(cls, flags: Mapping[str, Any] | None = None) -> Self:
        """The settings; a flag that is None was not given. Raises SettingsError with every problem."""
        given = {name: value for name, value in (flags or {}).items() if value is not None}
        try:
            return cls(**given)
        except ValidationError as error:
            problems = "; ".join(_problem(found) for found in error.errors(include_input=False))
            raise SettingsError(f"settings are wrong: {problems}", WHERE) from None
        except tomllib.TOMLDecodeError as error:
            raise SettingsError(f"the settings file is not TOML: {error}", WHERE) from error
        except OSError as error:
            raise SettingsError(f"the settings file cannot be read: {error.strerror}", WHERE) from error

    @property
    def serve_address(self) -> tuple[str, int] | None:
        """(host, port) of `serve`; an IPv6 host without its brackets."""
        if self.serve is None:
            return None
        host, _, port = self.serve.rpartition(":")
        return host.removeprefix("[").removesuffix("]"), int(port)

    def keystore_password(self) -> str | None:
        """The password given, or the first line of the file; None if there is neither. Raises SettingsError."""
        if self.password is not None:
            return self.password.get_secret_value()
        if self.password_file is None:
            return None
        try:
            return self.password_file.read_text().partition("\n")[0].removesuffix("\r")
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(
                f"password file {self.password_file} cannot be read: {error}",
                "write the password into its first line, or correct --password-file or EARNEST_PASSWORD_FILE",
            ) from error

    def redacted(self) -> dict[str, Any]:
        """What is set, fit to print: no password, endpoints without their keys."""
        shown = self.model_dump(mode="json", exclude_none=True)
        shown["rpc"] = [redacted_url(url) for url in self.rpc]
        return shown | ({"password": HIDDEN} if self.password is not None else {})

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags, then environment, then the file that either of them names."""
        flags = init_settings()
        named = flags.get("config") or env_settings().get("config")
        path = Path(named or FILE).expanduser()
        if named is not None and not path.is_file():
            raise FileNotFoundError(2, f"there is no file {path}")
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, toml_file=path)


def _problem(found: Mapping[str, Any]) -> str:
    """One of pydantic's findings in a few words: where, and what; never the value, which may be a secret."""
    where = ".".join(str(part) for part in found["loc"])
    return f"{where}: {found['msg'].removeprefix('Value error, ')}"
