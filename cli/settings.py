"""Settings: flags override environment variables (EARNEST_*), which override the file earnest.toml."""

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

PREFIX = "EARNEST_"
FILE = Path("earnest.toml")
WHERE = f"correct the flag, the {PREFIX}* variable or {FILE}"


class SettingsError(EarnestError):
    """A flag, an environment variable or the settings file has an invalid value."""


def _listed(value: Any) -> Any:
    """Splits the text `a,b` of an environment variable; returns a list from the file as it is."""
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
    """Everything that can be configured, immutable. Made by `Settings.load(flags)`."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_ignore_empty=True, extra="forbid", frozen=True, hide_input_in_errors=True
    )

    config: UserPath = FILE
    """Settings file; the default file may be missing."""

    network: str = "devnet"
    """Name of a network in networks.toml."""

    rpc: Annotated[tuple[HttpUrl, ...], NoDecode, BeforeValidator(_listed)] = Field(default=(), repr=False)
    """Endpoints in order of preference; separated by commas in the environment. Empty: the network's own."""

    manifest: UserPath | None = None
    """Manifest file of the deployment; None: the network's."""

    confirmations: int | None = Field(default=None, ge=0)
    """A block is final once it is this many blocks below the newest; None: the network's."""

    keystore: UserPath | None = None
    """Key file (keystore v3)."""

    password_file: UserPath | None = None
    """File whose first line is the key file's password."""

    password: SecretStr | None = None
    """Password of the key file. A file is safer: other users may see flags and variables."""

    data_dir: UserPath = Path("~/.earnest").expanduser()
    """Folder for keys, journals, objects and local manifests."""

    serve: Annotated[str, AfterValidator(_host_port)] | None = None
    """HOST:PORT to serve this account's public objects on."""

    public_url: HttpUrl | None = None
    """URL at which others fetch these objects."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"

    @classmethod
    def load(cls, flags: Mapping[str, Any] | None = None) -> Self:
        """Loads the settings; ignores flags that are None. Raises SettingsError, which lists every problem."""
        values = {name: value for name, value in (flags or {}).items() if value is not None}
        try:
            return cls(**values)
        except ValidationError as error:
            problems = "; ".join(_problem(problem) for problem in error.errors(include_input=False))
            raise SettingsError(f"settings are wrong: {problems}", WHERE) from None
        except tomllib.TOMLDecodeError as error:
            raise SettingsError(f"the settings file is not TOML: {error}", WHERE) from error
        except OSError as error:
            raise SettingsError(f"the settings file cannot be read: {error.strerror}", WHERE) from error

    @property
    def serve_address(self) -> tuple[str, int] | None:
        """Host and port of `serve`; an IPv6 host without brackets."""
        if self.serve is None:
            return None
        host, _, port = self.serve.rpartition(":")
        return host.removeprefix("[").removesuffix("]"), int(port)

    def keystore_password(self) -> str | None:
        """Returns the password, or the first line of the password file; None without both. Raises SettingsError."""
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

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Orders the sources: flags, environment, then the file that one of them names."""
        flags = init_settings()
        named = flags.get("config") or env_settings().get("config")
        path = Path(named or FILE).expanduser()
        if named is not None and not path.is_file():
            raise FileNotFoundError(2, f"there is no file {path}")
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, toml_file=path)


def _problem(error: Mapping[str, Any]) -> str:
    """Formats one of pydantic's errors: setting and message, never the value, which may be a secret."""
    setting = ".".join(str(part) for part in error["loc"])
    return f"{setting}: {error['msg'].removeprefix('Value error, ')}"
