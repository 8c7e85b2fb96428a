"""The command `pagoda`: runs an InferencePool on one machine.

Rules: imports protocol and runtime alone; the other parts are programs that it starts.
"""
