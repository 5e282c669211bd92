"""What wraps every publish and every delivery: tracing, metrics, RBAC, redaction."""
