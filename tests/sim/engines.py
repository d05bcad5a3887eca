"""Small engines and requests for the tests of the scheduler."""

from proxy.sim.engine import Engine
from proxy.sim.presets import EngineConfig
from proxy.sim.prompts import Prompt
from proxy.sim.sequence import EngineRequest
from proxy.sim.step_time import StepTime

ONE_SECOND_STEPS = StepTime(1.0, 0.0, 0.0, 0.0, 0.0)


def config(**changes):
    """Ten blocks of ten tokens, every step one second."""
    values = {
        "name": "test",
        "description": "for tests",
        "block_tokens": 10,
        "num_gpu_blocks": 11,
        "max_model_len": 60,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 100,
        "step_time": ONE_SECOND_STEPS,
    }
    return EngineConfig(**{**values, **changes})


def engine(seed=0, **changes):
    """A small engine."""
    return Engine(config(**changes), seed=seed)


def request(name, tokens, output=1, keys=None):
    """A request with a prompt of its own, or with the given keys."""
    own = [(name, index) for index in range((tokens + output) // 10)]
    return EngineRequest(name, Prompt(tokens, own if keys is None else keys), output)


def run(engine, until=None, now=0.0):
    """Run to the end; when each request finished, and every step's result."""
    finished: dict[str, float] = {}
    results = []
    while engine.has_work:
        result = engine.step(now, until)
        now += result.duration_s
        finished |= dict.fromkeys(result.finished, now)
        results.append(result)
        assert len(results) < 100_000
    return finished, results
