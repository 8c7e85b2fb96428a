"""The operator: makes, scales, drains and reports what an InferencePool asks for."""
