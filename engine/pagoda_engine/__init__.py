"""The engine: a torch paged-KV model behind an OpenAI API. `model` computes, `core` decides, `text` and `serving` talk.

Rules: torch is imported in `model` alone; of the sidecar only `pagoda_sidecar.client` is known.
"""
