"""The manifests and the image hold settings too: they load, fit each other, and promise what they should."""

import os
import re
from importlib.metadata import requires
from pathlib import Path

import pytest
import yaml

from proxy.config import TidegateConfig, load

ROOT = Path(__file__).parents[1]
MANIFESTS = sorted((ROOT / "deploy" / "kubernetes").glob("*.yaml"))
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
KEYS_PATH = "/etc/tidegate/keys/keys"

every_manifest = pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)


def deployment(text: str):
    """A manifest's pod, and its container with the proxy."""
    found = [one for one in yaml.safe_load_all(text) if one["kind"] == "Deployment"]
    pod = found[0]["spec"]["template"]["spec"]
    return pod, next(one for one in pod["containers"] if one["name"] == "tidegate")


def config_of(path: Path, tmp_path: Path) -> TidegateConfig:
    """The configuration that the proxy of a manifest starts with; a file takes the place of the secret."""
    keys = tmp_path / "keys"
    keys.write_text("key-for-a-test")
    text = path.read_text(encoding="utf-8").replace(KEYS_PATH, str(keys))
    files = [one["data"]["tidegate.yaml"] for one in yaml.safe_load_all(text) if one["kind"] == "ConfigMap"]
    file = None
    if files:
        file = tmp_path / "tidegate.yaml"
        file.write_text(files[0])
    _, container = deployment(text)
    environ = {one["name"]: one["value"] for one in container.get("env", ()) if one["name"] != "TIDEGATE_CONFIG"}
    urls = re.findall(r"https?://\S+", " ".join(container["args"]))
    return load(file, environ, {"backends": [{"url": url} for url in urls] or None})


@every_manifest
def test_the_settings_of_a_manifest_load(path, tmp_path):
    """They name backends, ask for keys, and listen where the cluster can reach them."""
    config = config_of(path, tmp_path)

    assert config.backends
    assert config.auth.keys
    assert config.listen.host == "0.0.0.0"
    assert config.admin.listen is not None
    assert config.admin.listen.host == "0.0.0.0"


@every_manifest
def test_the_ports_and_probes_are_the_configured_ones(path, tmp_path):
    """Probes go to the admin port, which answers until the very end."""
    config = config_of(path, tmp_path)
    _, container = deployment(path.read_text(encoding="utf-8"))

    assert config.admin.listen is not None
    assert {"api": config.listen.port, "admin": config.admin.listen.port} == {
        port["name"]: port["containerPort"] for port in container["ports"]
    }
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "admin"}
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "admin"}


@every_manifest
def test_the_grace_period_covers_the_drain(path, tmp_path):
    """Readiness is seen to fail before the listener closes, and nothing is killed while it drains."""
    timeouts = config_of(path, tmp_path).timeouts
    pod, container = deployment(path.read_text(encoding="utf-8"))
    probe = container["readinessProbe"]

    assert timeouts.drain_delay_s > probe["periodSeconds"] * probe["failureThreshold"]
    assert pod["terminationGracePeriodSeconds"] > timeouts.drain_delay_s + timeouts.drain_s


@every_manifest
def test_the_proxy_runs_with_as_little_as_it_needs(path):
    """Not as root, nothing to write to, memory for the bodies that it may hold."""
    pod, container = deployment(path.read_text(encoding="utf-8"))
    security = {**pod.get("securityContext", {}), **container["securityContext"]}

    assert security["runAsNonRoot"]
    assert security["readOnlyRootFilesystem"]
    assert not security["allowPrivilegeEscalation"]
    assert ["ALL"] == security["capabilities"]["drop"]
    assert container["resources"]["requests"]["memory"] == container["resources"]["limits"]["memory"] == "1Gi"
    assert TidegateConfig().limits.buffered_bytes <= 2**29


def test_the_settings_of_the_image_load():
    """What the image sets is a configuration, and its health check asks the port that it listens on."""
    settings = dict(re.findall(r"(TIDEGATE_\w+__\w+)=(\S+)", DOCKERFILE))

    config = load(None, settings, {})

    assert config.listen.host == "0.0.0.0"
    assert f"HEALTHCHECK_URL=http://127.0.0.1:{config.listen.port}/healthz" in DOCKERFILE
    assert f"EXPOSE {config.listen.port}\n" in DOCKERFILE


def test_the_image_installs_what_the_build_backend_needs():
    """The list of build tools in the image is what the pinned backend asks for."""
    listed = re.search(r"\^\(([\w|-]+)\)==", DOCKERFILE)
    needed = {re.split(r"[<>=;\s]", one)[0] for one in requires("hatchling") or () if "python_version <" not in one}

    assert listed is not None
    assert set(listed[1].split("|")) == {"hatchling"} | needed


def test_the_image_copies_only_what_is_let_through():
    """Every source of a COPY passes the ignore file."""
    let_through = set(re.findall(r"^!(\S+)", (ROOT / ".dockerignore").read_text(encoding="utf-8"), re.MULTILINE))
    copies = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE)

    assert {source for copy in copies for source in copy.split()} == let_through
    assert all((ROOT / source).exists() for source in let_through)


def test_ci_runs_the_command_of_the_readme():
    """What a newcomer types is what is checked."""
    script = ROOT / ".ci" / "run"

    assert os.access(script, os.X_OK)
    assert "\nmake test\n" in script.read_text(encoding="utf-8")
