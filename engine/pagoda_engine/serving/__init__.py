"""The HTTP half of the engine: OpenAI's API in front of the scheduler.

Runs on an asyncio thread that never waits for a model step, a tokenizer, a template or a large JSON document. Deciding
code (request parsing, stop strings, coverage of digests) is pure; `server` and the handlers are the thin edge.
"""
