"""Stores around stores: each adds one behaviour to every operation and to every feature.

They nest in any order; `Limit(Retry(store))` is what a URL opens. `Retry` is the only retry there is.
"""

from wstore.stores.wrap.base import Call, Wrapper
from wstore.stores.wrap.faults import Fault, Faults, cut_body, delay, fail, lose_answer
from wstore.stores.wrap.latency import Latency
from wstore.stores.wrap.limit import Limit
from wstore.stores.wrap.retry import Retry, RetryPolicy
from wstore.stores.wrap.tracing import Trace, TraceRecord

__all__ = [
    "Call",
    "Fault",
    "Faults",
    "Latency",
    "Limit",
    "Retry",
    "RetryPolicy",
    "Trace",
    "TraceRecord",
    "Wrapper",
    "cut_body",
    "delay",
    "fail",
    "lose_answer",
]
