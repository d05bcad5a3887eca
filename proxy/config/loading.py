"""Merges file, environment and command line into one checked configuration.

Called by the command line and by `app.py` on a reload. Never prints a value that may be a secret.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from proxy.config import faults as wording
from proxy.config.backend import BackendConfig, repeated
from proxy.config.faults import ConfigError
from proxy.config.sections import TidegateConfig
from proxy.config.values import VISIBLE_ASCII
from proxy.config.yaml_text import parse

PREFIX = "TIDEGATE_"
_COMMAND_LINE = "the command line"
# Kubernetes gives every pod such variables for each Service of its namespace; one named `tidegate` would otherwise
# stop the proxy. Their values are addresses, and the first two name no section of ours, so no typo hides behind them.
_KUBERNETES = re.compile(
    r"\w*SERVICE_HOST=.*|\w*SERVICE_PORT(_\w+)?=\d+|\w*PORT(_\d+_\w+)?=(tcp|udp|sctp)://.*|\w*PORT_\d+_\w+_(PROTO|PORT|ADDR)=.*"
)


def load(path: Path | None, environ: Mapping[str, str], overrides: Mapping[str, Any]) -> TidegateConfig:
    """The configuration that the sources give together: command line over environment over file over defaults.

    Args:
        path: a YAML file, or None.
        environ: environment; only `TIDEGATE_` variables and those that an `api_key_env` names are looked at.
        overrides: dotted names to values, e.g. `{"listen.port": 9000, "backends": [{"url": "..."}]}`; a value of
            None means that the option was not given. Mappings are merged, lists replaced.

    Raises:
        ConfigError: with every fault, one a line; none of them shows a secret.
    """
    sources = _Sources()
    if path is not None:
        sources.add_file(path)
    sources.add_environment(environ)
    for name, value in overrides.items():
        if value is not None:
            sources.put(tuple(name.split(".")), value, _COMMAND_LINE)
    sources.resolve_backend_keys(environ)
    sources.read_keys_file()
    try:
        config = TidegateConfig.model_validate(sources.data)
    except ValidationError as error:
        raise ConfigError(sources.faults + sources.describe(error)) from None
    if sources.faults:
        raise ConfigError(sources.faults)
    return config


class _Sources:
    """Collects values by place, remembers where each came from, and what was wrong on the way."""

    def __init__(self) -> None:
        self.data: dict[str, Any] = {}
        self.origins: dict[wording.Path, str] = {}
        self.faults: list[str] = []

    def put(self, path: tuple[str, ...], value: Any, origin: str) -> None:
        parent = self.data
        for step in path[:-1]:
            if not isinstance(parent.get(step), dict):
                parent[step] = {}
            parent = parent[step]
        self.origins[path] = origin
        if value is None and len(path) == 1:
            parent.pop(path[0], None)  # a section with nothing in it means its defaults
        elif isinstance(value, dict):
            if not isinstance(parent.get(path[-1]), dict):
                parent[path[-1]] = {}
            self._put_all(path, value, origin)
        else:
            parent[path[-1]] = value

    def _put_all(self, path: tuple[str, ...], mapping: Mapping[Any, Any], origin: str) -> None:
        for key, value in mapping.items():
            if isinstance(key, str):
                self.put((*path, key), value, origin)
            else:
                named = (*path, str(key))
                self.faults.append(wording.fault(named, "a setting's name must be text", {named: origin}))

    def add_file(self, path: Path) -> None:
        try:
            text = path.read_bytes().decode("utf-8-sig")
        except OSError as error:
            self.faults.append(f"{path}: cannot be read: {error.strerror}")
            return
        except UnicodeDecodeError:
            self.faults.append(f"{path}: is not UTF-8 text")
            return
        value, faults = parse(text)
        self.faults += [f"{path}: {what}" for what in faults]
        if isinstance(value, dict):
            self._put_all((), value, str(path))
        elif value is not None:
            self.faults.append(f"{path}: must be a mapping of sections")

    def add_environment(self, environ: Mapping[str, str]) -> None:
        for variable in sorted(environ):
            name, text = variable.removeprefix(PREFIX), environ[variable]
            if name == variable or _KUBERNETES.fullmatch(f"{name}={text}"):
                continue
            path = tuple(name.lower().split("__"))
            value, faults = parse(text)
            if not text.strip():
                faults = ["is empty; unset it, or write null"]
            if faults:
                self.faults += [wording.fault(path, what, {path: variable}) for what in faults]
            else:
                self.put(path, value, variable)

    def resolve_backend_keys(self, environ: Mapping[str, str]) -> None:
        """Put what each `api_key_env` names into its `api_key`."""
        backends = self.data.get("backends")
        if not isinstance(backends, list):
            return
        backends = self.data["backends"] = [dict(one) if isinstance(one, dict) else one for one in backends]
        for index, backend in enumerate(backends):
            variable = backend.get("api_key_env") if isinstance(backend, dict) else None
            if not isinstance(variable, str):
                continue
            what = ""
            if backend.get("api_key") is not None:
                what = "give api_key or api_key_env, not both"
            elif variable.startswith(PREFIX):
                what = f"names a variable that begins with {PREFIX}, and those are settings"
            elif not environ.get(variable):
                what = "names an environment variable that is not set or is empty"
            else:
                backend["api_key"] = environ[variable]
            if what:
                self.faults.append(wording.fault(("backends", index, "api_key_env"), what, self.origins))

    def read_keys_file(self) -> None:
        """Add the keys of `auth.keys_file` to `auth.keys`."""
        auth = self.data.get("auth")
        if not isinstance(auth, dict) or not isinstance(auth.get("keys_file"), str):
            return
        keys, faults = _keys_of(Path(auth["keys_file"]))
        self.faults += [wording.fault(("auth", "keys_file"), what, self.origins) for what in faults]
        inline = auth.get("keys", [])
        if isinstance(inline, list):
            auth["keys"] = [*inline, *keys]

    def describe(self, error: ValidationError) -> list[str]:
        """What the models found; backends are also compared when some of them are wrong, which the models do not."""
        faults = wording.describe(error, TidegateConfig, self.origins)
        if any(len(one["loc"]) > 1 and one["loc"][0] == "backends" for one in error.errors()):
            sound = [backend for backend in map(_sound_backend, self.data["backends"]) if backend is not None]
            faults += [wording.fault(("backends",), what, self.origins) for what in repeated(sound)]
        return faults


def _sound_backend(value: Any) -> BackendConfig | None:
    try:
        return BackendConfig.model_validate(value)
    except ValidationError:
        return None


def _keys_of(path: Path) -> tuple[list[str], list[str]]:
    try:
        lines = path.read_bytes().decode("utf-8-sig").splitlines()
    except OSError as error:
        return [], [f"cannot be read: {error.strerror}"]
    except (UnicodeDecodeError, ValueError):
        return [], ["is not a UTF-8 text file"]
    keys, faults = [], []
    for number, line in enumerate(lines, start=1):
        key = line.strip()
        if not key or key.startswith("#"):
            continue
        if VISIBLE_ASCII.fullmatch(key):
            keys.append(key)
        else:
            faults.append(f"line {number} is no key: only visible ASCII without spaces can travel in a header")
    if not keys and not faults:
        faults.append("holds no key; leave it out to let everybody in")
    return keys, faults
