"""What is measured of the requests that pass through the face: vLLM's histograms, with vLLM's bounds.

Written by the driver; read by the metrics page. Seconds are real ones, as a client would time them.
"""

from proxy.sim.histograms import Histogram

_LATENCY_S = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0)
_LONG_LATENCY_S = (*_LATENCY_S, 960.0, 1920.0, 7680.0)
_FIRST_TOKEN_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_TOKEN_GAP_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0),
)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)
_ITERATION_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


class RequestStats:
    """One engine's histograms and endings.

    Attributes:
        endings: finished requests by vLLM's `finished_reason`. A request whose client left is counted nowhere, as in
            vLLM 0.32.
    """

    def __init__(self) -> None:
        self.endings = dict.fromkeys(("stop", "length", "abort", "error", "repetition"), 0)
        self.iteration_tokens = Histogram(_ITERATION_TOKENS)
        self.prompt_tokens = Histogram(_TOKENS)
        self.generation_tokens = Histogram(_TOKENS)
        self.max_tokens = Histogram(_TOKENS)
        self.prefill_computed_tokens = Histogram(_TOKENS)
        self.preemptions = Histogram((1, 2, 3, 4, 5, 10, 20))
        self.first_token_s = Histogram(_FIRST_TOKEN_S)
        self.token_gap_s = Histogram(_TOKEN_GAP_S)
        self.per_token_s = Histogram(_TOKEN_GAP_S)
        self.whole_s = Histogram(_LONG_LATENCY_S)
        self.queue_s = Histogram(_LONG_LATENCY_S)
        self.inference_s = Histogram(_LONG_LATENCY_S)
        self.prefill_s = Histogram(_LONG_LATENCY_S)
        self.decode_s = Histogram(_LONG_LATENCY_S)
