"""What wraps every publish and every delivery.

General layout, for the next person: `tracing` and `metrics` watch, and see names and sizes alone; `rbac` decides, with
`audit`; `schemas`, `redaction`, `idempotency`, `quarantine` and `breaker` stand behind it and may see payloads; `flags`
switches any of them but `rbac`. Below are `conventions` (names), `instruments` (numbers, and how they are read),
`depth` (dead letters, counted) and `detectors` (what redaction looks for).
"""

from __future__ import annotations

import os

from events.cognitive_events import standard as standard_kinds
from events.contracts import Middleware
from events.taxonomy import Taxonomy
from middleware.audit import AuditTrail
from middleware.breaker import CircuitBreakerMiddleware
from middleware.flags import FeatureFlags
from middleware.idempotency import IdempotencyMiddleware
from middleware.metrics import MetricsMiddleware
from middleware.quarantine import QuarantineMiddleware
from middleware.rbac import RBACMiddleware
from middleware.redaction import RedactionMiddleware
from middleware.schemas import PayloadSchemaMiddleware
from middleware.tracing import TracingMiddleware
from policies.rbac import PolicyEngine

__all__ = [
    "CircuitBreakerMiddleware",
    "FeatureFlags",
    "IdempotencyMiddleware",
    "MetricsMiddleware",
    "PayloadSchemaMiddleware",
    "QuarantineMiddleware",
    "RBACMiddleware",
    "RedactionMiddleware",
    "TracingMiddleware",
    "standard",
]


def standard(
    policies: PolicyEngine | str | os.PathLike[str] | None = None,
    *yours: Middleware,
    tracing: TracingMiddleware | None = None,
    metrics: MetricsMiddleware | None = None,
    audit: AuditTrail | None = None,
    taxonomy: Taxonomy | None = None,
) -> list[Middleware]:
    """The usual chain, outermost first. `policies` is an engine, or a folder with policy.csv and topics.toml in it.

    Without policies nothing is authorised, no payload is checked against its model, and nothing redacted. `yours` stand
    behind all of it, next to the handler. `taxonomy` has the models: the cognitive ones, and what you added to them.
    """
    engine = policies if isinstance(policies, PolicyEngine | None) else PolicyEngine.of_folder(policies)
    topics = engine.topics if engine is not None else None
    metrics = metrics or MetricsMiddleware()
    return [
        tracing or TracingMiddleware(),
        metrics,
        *([RBACMiddleware(engine, audit=audit)] if engine is not None else []),
        *([PayloadSchemaMiddleware(taxonomy or standard_kinds(), topics)] if topics is not None else []),
        *([RedactionMiddleware(topics, registry=metrics.registry)] if topics is not None else []),
        *yours,
    ]
