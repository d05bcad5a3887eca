"""Fixtures of the conformance cases: where to send requests, and the real SDKs pointed at it."""

import os
from collections.abc import Generator, Iterator

import anthropic
import openai
import pytest

from tests.conformance.endpoint import Endpoint, from_environment, simulated
from tests.conformance.wire import ask


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Where every case has to be tried, one that is skipped has failed."""
    report = yield
    if report.skipped and os.environ.get("TIDEGATE_CONFORMANCE_COMPLETE") == "1":
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped, and no case may be here: {report.longrepr}"
    return report


@pytest.fixture(scope="session")
def endpoint() -> Iterator[Endpoint]:
    """What the cases run against: as the environment says, else a simulated engine behind the proxy."""
    named = from_environment(os.environ)
    if named is not None:
        yield named
        return
    with simulated() as started:
        yield started


@pytest.fixture
def base_url(endpoint: Endpoint) -> str:
    """The proxy."""
    return endpoint.base_url


@pytest.fixture
def direct_url(endpoint: Endpoint) -> str:
    """The engine itself; a case that needs it is skipped where it cannot be reached."""
    if endpoint.direct_url is None:
        pytest.skip("the engine cannot be reached past the proxy")
    return endpoint.direct_url


@pytest.fixture
def model(endpoint: Endpoint) -> str:
    """A model that the engine serves."""
    return endpoint.model


@pytest.fixture
def openai_client(base_url: str) -> Iterator[openai.OpenAI]:
    """The OpenAI SDK, without retries: a first failure counts."""
    with openai.OpenAI(base_url=f"{base_url}/v1", api_key="any", max_retries=0, timeout=50) as client:
        yield client


@pytest.fixture
def anthropic_client(base_url: str) -> Iterator[anthropic.Anthropic]:
    """The Anthropic SDK, without retries."""
    with anthropic.Anthropic(base_url=base_url, api_key="any", max_retries=0, timeout=50) as client:
        yield client


@pytest.fixture
def has_responses(direct_url: str, model: str) -> None:
    """Skips where the engine does not serve the Responses API."""
    if ask(direct_url, "/v1/responses", {"model": model}).status in {404, 405}:
        pytest.skip("the engine does not serve /v1/responses")
