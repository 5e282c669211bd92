"""The middlewares, under the name by which the bus's users know them."""

from middleware import (
    CircuitBreakerMiddleware,
    FeatureFlags,
    IdempotencyMiddleware,
    MetricsMiddleware,
    PayloadSchemaMiddleware,
    QuarantineMiddleware,
    RBACMiddleware,
    RedactionMiddleware,
    TracingMiddleware,
    standard,
)

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
