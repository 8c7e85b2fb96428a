"""What `helm test` runs: two requests with one prefix, of which the second has to be answered from the cache.

python reuse.py URL SECONDS        Standard library only; SECONDS are for everything together.
"""

import http.client
import json
import sys
import time
import urllib.error
import urllib.request

# Longer than any block of 128 tokens, so that whatever the pool's blockTokens are, whole blocks are shared.
PREFIX = " ".join(f"Rule {number}: the bell of floor {number} rings {number} times." for number in range(1, 21))
QUESTIONS = ("Which bell rings twice?", "Which bell rings four times?")
MAX_TOKENS = 4
# A request to a small model takes seconds; one that hangs is an answer too.
REQUEST_SECONDS = 60.0
PAUSE_SECONDS = 2.0


def main(url: str, seconds: float) -> int:
    """Wait for the pool, ask twice, look at where the second prompt came from."""
    deadline = time.monotonic() + seconds
    reason = "it was not asked"
    while time.monotonic() < deadline:
        try:
            call(f"{url}/ready", None, deadline)
            model = call(f"{url}/v1/models", None, deadline)["data"][0]["id"]
            answers = [ask(url, model, question, deadline) for question in QUESTIONS]
        except (OSError, http.client.HTTPException, ValueError, LookupError) as error:
            # Not there yet, or moving: a pool that becomes ready in time is good enough.
            reason = f"{type(error).__name__}: {error}"
            time.sleep(max(0.0, min(PAUSE_SECONDS, deadline - time.monotonic())))
            continue
        return verdict(*answers)
    say(f"FAILED: {url} did not answer two requests within {seconds:.0f} s; last: {reason}")
    return 1


def ask(url: str, model: str, question: str, deadline: float) -> dict:
    """Return the usage of one chat completion."""
    messages = [{"role": "system", "content": PREFIX}, {"role": "user", "content": question}]
    body = {"model": model, "messages": messages, "max_tokens": MAX_TOKENS, "temperature": 0}
    return call(f"{url}/v1/chat/completions", body, deadline)["usage"]


def call(url: str, body: dict | None, deadline: float) -> dict:
    """Return the JSON that `url` answers with; `/ready` of a router that is not raises."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    patience = max(0.1, min(REQUEST_SECONDS, deadline - time.monotonic()))
    try:
        with urllib.request.urlopen(request, timeout=patience) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise OSError(f"{error.code} {error.read(300).decode(errors='replace')}") from error


def verdict(first: dict, second: dict) -> int:
    """Say what was found, and return the exit status."""
    for order, usage in (("first", first), ("second", second)):
        say(f"{order}: {usage['prompt_tokens']} prompt tokens, {usage['prompt_tokens_details']}")
    cached = second["prompt_tokens_details"]["cached_tokens"]
    if cached > 0:
        say(f"PASSED: {cached} tokens of the second prompt came from the cache")
        return 0
    say("FAILED: nothing of the second prompt came from the cache although both share a long prefix")
    return 1


def say(line: str) -> None:
    """Write one line to the log of the pod."""
    sys.stdout.write(line + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1].rstrip("/"), float(sys.argv[2])))
