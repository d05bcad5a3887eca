import pytest

from tests.real import run_agents, run_conformance, run_vllm
from tests.real.verdicts import judge, table


def report(turns_per_s=1.0, **engine):
    """What `tidegate replay` says of one run, as far as it is looked at."""
    return {
        "turns_per_s": turns_per_s,
        "good_turns_per_s": 0.5,
        "output_tokens_per_s": 70.0,
        "first_token_s": {"p50": 1.0, "p90": 20.0, "p99": None},
        "own_cached_ratio": 0.8,
        "slowest_agent_turns": 2,
        "fastest_agent_turns": 9,
        "refusals": {},
        "errors": {"timeout": 2},
        "engine": {
            "prefix_hit_ratio": 0.9,
            "waiting_mean": 0.0,
            "waiting_max": 0,
            "running_mean": 2.5,
            "preemptions": 0,
            **engine,
        },
    }


PAST = [report(0.5), report(0.7)]


def failed(through):
    """The verdicts that do not hold, by their first word."""
    return [verdict.what.split()[0] for verdict in judge(PAST, through) if not verdict.holds]


def test_everything_holds_at_the_very_limits():
    """The thresholds themselves are good enough; the runs past the proxy count by their mean."""
    assert failed(report(1.8 * 0.6, prefix_hit_ratio=0.85, waiting_mean=0.5)) == []


@pytest.mark.parametrize(
    ("through", "what"),
    [
        (report(1.07), "turns/s"),
        (report(1.2, preemptions=1), "preemptions"),
        (report(1.2, waiting_mean=0.51), "mean"),
        (report(1.2, prefix_hit_ratio=0.849), "hit"),
    ],
)
def test_one_miss_is_one_failed_verdict(through, what):
    """No figure makes up for another."""
    assert failed(through) == [what]


def test_what_is_not_known_does_not_hold():
    """An engine that says nothing proves nothing, and nothing is faster than no turns at all."""
    silent = report(preemptions=None, waiting_mean=None, prefix_hit_ratio=None)

    assert [verdict.holds for verdict in judge([report(0.0)], silent)] == [False] * 4
    assert {verdict.seen for verdict in judge([report(0.0)], silent)} == {"not known"}


def test_the_table_has_a_column_a_run():
    """Every line has the same columns; what is missing is a dash."""
    lines = table(["past", "through"], [report(0.5), report(1.25)]).splitlines()

    assert lines[0].split() == ["past", "through"]
    assert lines[1].split() == ["turns/s", "0.5", "1.25"]
    assert "1.0 / 20.0 / -" in lines[4]


@pytest.mark.parametrize(("half", "ran"), [("both", ["c", "a"]), ("conformance", ["c"]), ("agents", ["a"])])
def test_halves(half, ran, monkeypatch, tmp_path):
    """One half or both, and a failure of the first does not hide the second."""
    seen = []

    def ending(name, status):
        def main(*_):
            seen.append(name)
            return status

        return main

    monkeypatch.setattr(run_conformance, "main", ending("c", 3))
    monkeypatch.setattr(run_agents, "main", ending("a", 0))

    assert run_vllm.main(tmp_path, half, []) == (3 if "c" in ran else 0)
    assert seen == ran


def test_an_unknown_half_is_used_wrong(tmp_path, capsys):
    """Nothing is started for a typing mistake."""
    assert run_vllm.main(tmp_path, "agent", []) == 2
    assert "both, conformance, agents" in capsys.readouterr().err
