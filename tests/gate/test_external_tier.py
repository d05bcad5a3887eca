from dataclasses import replace

import pytest

from proxy.engines import parse_page
from proxy.gate.reporting import EngineWatch
from tests.engines.pages import page
from tests.gate.stage import Stage

PAGES = {"vllm-0.24-hybrid": (600, 400), "sglang-0.5-underscores": (350, 1_650)}
"""Tokens from outside and computed ones, on pages of engines with such a tier."""


def watched(name, *, sources=True):
    """A stage after an engine's page was told fifty times, each time with as many tokens more as it counts in all."""
    stage = Stage(batch=8_192)
    watch = EngineWatch(stage.gate)
    (report,) = parse_page(page(name))
    by_source = report.counters.prompt_tokens_by_source if sources else {}
    for number in range(1, 51):
        grown = {source: number * tokens for source, tokens in by_source.items()}
        counters = replace(report.counters, prompt_tokens_by_source=grown)
        watch.take("a", [replace(report, counters=counters)], stage.now + number)
    return stage


@pytest.mark.parametrize("name", PAGES)
def test_the_share_is_learned_from_what_engines_count(name):
    """vLLM by source, SGLang by the tier of its cache."""
    fetched, computed = PAGES[name]

    assert watched(name).room().external.ratio == pytest.approx(fetched / (fetched + computed))


def test_an_engine_that_does_not_tell_has_no_such_share():
    """Unknown is never free: leases and the prefill gate are what they were."""
    stage, plain = watched("vllm-0.24-hybrid", sources=False), Stage(batch=8_192)

    assert stage.room().external.ratio is None
    assert stage.room().external.ratio == plain.room().external.ratio


def after_half_of_a_lease(share):
    """Whether a newcomer gets the place of a session that has been away for two thirds of its usual lease.

    Args:
        share: of what is not cached, how much comes from outside.
    """
    stage = Stage(blocks=200)  # 0.7 times 200,000 by 3,000 a second: 46.7 s
    stage.room().external.on_report(int(10_000 * share), int(10_000 * (1 - share)))
    stage.rest("away", 150)
    stage.wait(31)
    return stage.ask("new", 100) is not None


def test_leases_shrink_with_what_comes_back_from_outside():
    """A session whose prefix lies in LMCache as well is cheaper to lose, so it keeps its place for less long."""
    assert not after_half_of_a_lease(0.0)
    assert after_half_of_a_lease(1.0)


def test_twice_as_many_prompts_go_in_where_all_come_from_outside():
    """They count for half in the prefill gate, since half is what they cost."""
    both = []
    for fetched in (0, 10_000):
        stage = Stage(blocks=200, batch=8_192)
        stage.room().external.on_report(fetched, 10_000 - fetched)
        first = stage.ask("one", 12)
        assert first is not None
        both.append(stage.ask("two", 12) is not None)

    assert both == [False, True]


def test_tokens_from_outside_are_no_ghost_miss():
    """Engines count them among the cached tokens of an answer, wherever they lay, and so do we."""
    stage = Stage()
    stage.rest("one", 20)
    stage.finish(stage.enter("one", 21), cached=20_000)  # all of it from outside, for all that the answer says
    assert stage.room().ghost_misses == 0

    stage.finish(stage.enter("one", 22), cached=0)

    assert stage.room().ghost_misses == 1


def test_an_engine_of_another_size_has_to_show_its_tier_again():
    """It is another one."""
    stage = Stage()
    stage.room().external.on_report(90_000, 10_000)
    assert stage.room().external.ratio is not None
    stage.size("a", 50)

    assert stage.room().external.ratio is None


def test_a_restarted_engine_has_to_show_its_tier_again():
    """What offload kept in the host's memory went with the process."""
    stage = watched("vllm-0.24-hybrid")
    stage.gate.see_restart("a", stage.now)

    assert stage.room().external.ratio is None
