import pytest

from proxy.config import ConfigError, TidegateConfig, load


@pytest.fixture
def write(tmp_path):
    """Writes a config file and says where it is."""

    def write_file(text):
        path = tmp_path / "tidegate.yaml"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    return write_file


def faults_of(path=None, environ=None, overrides=None):
    """What a configuration that must be refused is refused for."""
    with pytest.raises(ConfigError) as refused:
        load(path, environ or {}, overrides or {})
    return refused.value.faults


def test_nothing_given_means_the_defaults():
    """Every setting has a default."""
    assert load(None, {"PATH": "/bin", "TIDEGATES": "x"}, {}) == TidegateConfig()


def test_later_sources_win(write):
    """Command line over environment over file over default, each setting by itself."""
    path = write("listen: {host: 0.0.0.0, port: 1}\ntimeouts: {connect_s: 1, idle_s: 2, body_s: 3}\n")
    environ = {"TIDEGATE_TIMEOUTS__IDLE_S": "20", "TIDEGATE_LISTEN__PORT": "2"}

    config = load(path, environ, {"listen.port": 3, "listen.host": None})

    assert (config.listen.host, config.listen.port) == ("0.0.0.0", 3)
    assert (config.timeouts.connect_s, config.timeouts.idle_s, config.timeouts.body_s) == (1, 20, 3)
    assert config.timeouts.headers_s == 10


def test_the_environment_can_hold_lists_and_mappings():
    """Values are YAML, so JSON works too."""
    environ = {"TIDEGATE_BACKENDS": '[{"url": "http://a:1"}]', "TIDEGATE_ADMIN__LISTEN": "{port: 9100}"}

    config = load(None, environ, {})

    assert [backend.name for backend in config.backends] == ["a:1"]
    assert config.admin.listen is not None
    assert (config.admin.listen.host, config.admin.listen.port) == ("127.0.0.1", 9100)


def test_a_list_is_replaced_and_a_null_section_is_reset(write):
    """Lists are not mixed from several sources."""
    path = write("backends: [{url: 'http://a'}, {url: 'http://b'}]\nlisten: {port: 1}\nretry:\n")

    config = load(path, {"TIDEGATE_LISTEN": "null"}, {"backends": [{"url": "http://c"}]})

    assert [backend.url for backend in config.backends] == ["http://c"]
    assert config.listen.port == 8900
    assert config.retry.max_attempts == 3


def test_the_variables_that_kubernetes_sets_are_passed_over():
    """A Service called `tidegate` gives every pod variables that begin like settings."""
    environ = {
        "TIDEGATE_SERVICE_HOST": "10.0.0.1",
        "TIDEGATE_SERVICE_PORT": "8900",
        "TIDEGATE_SERVICE_PORT_HTTP": "8900",
        "TIDEGATE_PORT": "tcp://10.0.0.1:8900",
        "TIDEGATE_PORT_8900_TCP": "tcp://10.0.0.1:8900",
        "TIDEGATE_PORT_8900_TCP_PROTO": "tcp",
        "TIDEGATE_PORT_8900_TCP_PORT": "8900",
        "TIDEGATE_PORT_8900_TCP_ADDR": "10.0.0.1",
        "TIDEGATE_METRICS_SERVICE_HOST": "10.0.0.2",
        "TIDEGATE_METRICS_PORT": "tcp://10.0.0.2:8901",
    }

    assert load(None, environ, {}) == TidegateConfig()


def test_every_fault_is_reported_at_once_with_place_and_source(write):
    """One look is enough to mend a configuration."""
    path = write(
        "listen: {prot: 1}\nhealt: {}\ntimeouts: {connect_s: 0, idle_s: .inf}\n7: x\n"
        "backends: [{url: 'ftp://h'}, {name: a}, {url: 'http://h'}, {url: 'http://h'}]\n"
    )
    environ = {
        "TIDEGATE_HEALTH__FALL": "none",
        "TIDEGATE_LISTEN_PORT": "1",
        "TIDEGATE_HEALTH__PATH": "",
        "TIDEGATE_RETRY": "'x",
    }

    faults = faults_of(path, environ, {"listen.port": 70000})

    assert set(faults) == {
        f"listen.prot: there is no such setting; did you mean port? [from {path}]",
        "listen.port: must be less than or equal to 65535 (got 70000) [from the command line]",
        f"healt: there is no such setting; did you mean health? [from {path}]",
        f"timeouts.connect_s: must be greater than 0 (got 0) [from {path}]",
        f"timeouts.idle_s: must be a finite number (got inf) [from {path}]",
        f"7: a setting's name must be text [from {path}]",
        f"backends[0].url: must begin with http:// or https:// (got 'ftp://h') [from {path}]",
        f"backends[1].url: is required [from {path}]",
        f"backends: name 'h:80' is used 2 times [from {path}]",
        f"backends: url 'http://h' is used 2 times [from {path}]",
        "health.fall: must be a valid integer (got 'none') [from TIDEGATE_HEALTH__FALL]",
        "health.path: is empty; unset it, or write null [from TIDEGATE_HEALTH__PATH]",
        "listen_port: there is no such setting; did you mean listen? [from TIDEGATE_LISTEN_PORT]",
        "retry: line 1, column 3: is not valid YAML: found unexpected end of stream [from TIDEGATE_RETRY]",
    }
    assert len(faults) == len(set(faults))


@pytest.mark.parametrize(
    "text",
    [
        "auth: {keys: sk-SECRET}",
        "auth: sk-SECRET",
        "auth: {keys: [[sk-SECRET]]}",
        "auth: {keys: ['sk SECRET']}",
        "auth: {keys_file: sk-SECRET}",
        "auth: {key: sk-SECRET}",
        "telemetry: sk-SECRET",
        "sk-key: sk-SECRET",
        "backends: [sk-SECRET]",
        "backends: sk-SECRET",
        "backends: [{url: 'http://me:SECRET@h'}]",
        "backends: [{url: 'http://h', api_kye: sk-SECRET}]",
        "backends: [{url: 'http://h', api_key: {a: sk-SECRET}}]",
        "backends: [{url: 'http://h', api_key_env: sk-SECRET}]",
        "backends: [{url: 'http://h', api_key: sk-SECRET, api_key_env: HOME}]",
        "auth: {keys: [*SECRET]}",
    ],
)
def test_no_fault_shows_a_secret(write, text):
    """A key may stand in the wrong place; it is still not printed."""
    message = "\n".join(faults_of(write(text)))

    assert message
    assert "SECRET" not in message


def test_a_secret_in_the_environment_is_not_shown_either():
    """Variables are named, their values are not."""
    faults = faults_of(None, {"TIDEGATE_API_KEY": "SECRET", "TIDEGATE_AUTH__KEYS": "[SECRET"})

    assert "SECRET" not in "".join(faults)
    assert {"TIDEGATE_API_KEY" in fault or "TIDEGATE_AUTH__KEYS" in fault for fault in faults} == {True}


@pytest.mark.parametrize(
    ("text", "what"), [(b"\xff\xfe", "not UTF-8"), (b"- a", "mapping of sections"), (b"a: [", "not valid")]
)
def test_an_unreadable_file_is_a_fault(write, text, what):
    """Whatever is in the file, it ends in a sentence."""
    (fault,) = faults_of(write(text))

    assert what in fault


def test_a_missing_file_is_a_fault_beside_the_others(tmp_path):
    """The other sources are checked all the same."""
    faults = faults_of(tmp_path / "none.yaml", {"TIDEGATE_LISTEN__PORT": "x"})

    assert [fault.rsplit(": ")[-1] for fault in faults[:1]] == ["No such file or directory"]
    assert len(faults) == 2


def test_a_backend_key_comes_from_its_variable():
    """The key itself need not be in a file."""
    given = [{"url": "http://h", "api_key_env": "ENGINE_KEY"}]

    config = load(None, {"ENGINE_KEY": "sk-1"}, {"backends": given})

    assert config.backends[0].api_key is not None
    assert config.backends[0].api_key.get_secret_value() == "sk-1"
    assert given == [{"url": "http://h", "api_key_env": "ENGINE_KEY"}]


@pytest.mark.parametrize("variable", ["NOT_THERE", "EMPTY", "TIDEGATE_KEY", "not a name"])
def test_a_key_variable_that_cannot_be_used_stops_the_start(variable):
    """No engine is ever called without the key it was meant to get."""
    faults = faults_of(None, {"EMPTY": ""}, {"backends": [{"url": "http://h", "api_key_env": variable}]})

    assert all(fault.startswith("backends[0].api_key_env: ") for fault in faults)


def test_keys_come_from_a_file_too(tmp_path):
    """Keys of the file join those of the configuration; comments and blank lines are skipped."""
    keys_file = tmp_path / "keys"
    keys_file.write_text("# team a\nsk-a\n\n  sk-b  \n")

    config = load(None, {}, {"auth.keys": ["sk-0"], "auth.keys_file": str(keys_file)})

    assert [key.get_secret_value() for key in config.auth.keys] == ["sk-0", "sk-a", "sk-b"]


@pytest.mark.parametrize(
    ("content", "what"),
    [(b"# none\n", "holds no key"), (b"sk a\nsk-b\n", "line 1 is no key"), (b"\xff", "is not a UTF-8")],
)
def test_a_keys_file_that_is_wrong_never_opens_the_proxy(tmp_path, content, what):
    """A mistake in the file is a fault, because no keys would mean that everybody may come in."""
    keys_file = tmp_path / "keys"
    keys_file.write_bytes(content)

    (fault,) = faults_of(None, {}, {"auth.keys_file": str(keys_file)})

    assert fault.startswith(f"auth.keys_file: {what}")
