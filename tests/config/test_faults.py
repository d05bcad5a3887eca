import pytest

from proxy.config import AddressConfig, AdminConfig, BackendConfig, ConfigError, TidegateConfig
from proxy.config.faults import Path, fault, section_of, show_path


@pytest.mark.parametrize(
    ("path", "shown"), [((), "configuration"), (("a",), "a"), (("a", 0, "b"), "a[0].b"), (("a", "b"), "a.b")]
)
def test_a_place_is_shown_as_people_write_it(path, shown):
    """Indices stand in brackets, names behind dots."""
    assert show_path(path) == shown


def test_the_nearest_known_source_is_named():
    """A value within a list came from where the list came from."""
    origins: dict[Path, str] = {("backends",): "a.yaml", ("listen", "port"): "TIDEGATE_LISTEN__PORT"}

    assert fault(("backends", 0, "url"), "is required", origins) == "backends[0].url: is required [from a.yaml]"
    assert fault(("retry",), "is odd", origins) == "retry: is odd"


def test_the_message_is_all_faults():
    """Printing the error prints everything, one fault a line."""
    error = ConfigError(["a: x", "b: y"])

    assert (str(error), error.faults) == ("a: x\nb: y", ("a: x", "b: y"))


def test_sections_are_found_behind_options_and_lists():
    """Suggestions work at every depth."""
    assert section_of(AdminConfig, "listen") is AddressConfig
    assert section_of(TidegateConfig, "backends") is BackendConfig
    assert section_of(AddressConfig, "port") is None
    assert section_of(AddressConfig, "nothing") is None
