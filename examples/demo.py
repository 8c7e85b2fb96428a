"""A pool on this machine, four conversations with it, and a crash in the middle: `python examples/demo.py`.

Four conversations share a long system prompt. Each request shows where the keys and values of its prompt came from.
Then the engine that holds most conversations is killed, and they go on at the other pod: what they had said so far
comes out of the pool that both share, instead of being computed again.
"""

import asyncio
import signal
import statistics
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from demo_pool import DemoError, Pool, running_pool
from demo_table import SOURCES, Row, Rows
from openai import AsyncOpenAI, OpenAIError

HERE = Path(__file__).resolve().parent
MANIFEST = HERE / "laptop.yaml"
HANDBOOK = (HERE / "handbook.md").read_text("utf-8").strip()
QUESTIONS = {
    "tower": (
        "How can a tower without nails survive a storm?",
        "And what happened to the finial?",
        "How high is the tower, and who built it?",
        "Which of the painted panels is the oldest one?",
    ),
    "first day": (
        "I start work here tomorrow. What do I have to wear, and where?",
        "What do I do when the bell rings three times?",
        "I found something that looks like writing. What now?",
        "Who sharpens the broad axes?",
    ),
    "visit": (
        "We would like to visit on Monday with two children. When are you open?",
        "Can the children, who are eight and ten, join a tour?",
        "What does it cost for all of us?",
        "May we bring the dog?",
    ),
    "joinery": (
        "What does the brass tag 4-2-17 mean?",
        "When is an old piece of wood kept?",
        "How is a joint with new wood marked?",
        "How do we clean the old paint?",
    ),
}
NUM_TURNS_BEFORE_CRASH = 3
MAX_ANSWER_TOKENS = 24
READING_SECONDS = 0.5  # a person reads before asking on; meanwhile the router learns what each pod now holds
BLOCK_TOKENS = 16
REQUEST_SECONDS = 90.0
TALK_SECONDS = 300.0


@dataclass
class Conversation:
    """What has been said so far, and which pod answered last."""

    name: str
    messages: list[dict[str, str]] = field(default_factory=lambda: [{"role": "system", "content": HANDBOOK}])
    rows: list[Row] = field(default_factory=list)

    @property
    def pod(self) -> str:
        """The pod that answered last."""
        return self.rows[-1].pod


async def ask(client: AsyncOpenAI, model: str, talk: Conversation) -> Row:
    """Ask the conversation's next question; return what the answer tells about itself."""
    turn = len(talk.rows) + 1
    talk.messages.append({"role": "user", "content": QUESTIONS[talk.name][turn - 1]})
    asked = time.monotonic()
    response = await client.chat.completions.with_raw_response.create(
        model=model,
        messages=talk.messages,  # type: ignore[arg-type]
        max_tokens=MAX_ANSWER_TOKENS,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    pieces: list[str] = []
    times: list[float] = []
    usage: Any = None
    async for chunk in response.parse():
        if chunk.choices and chunk.choices[0].delta.content:
            pieces.append(chunk.choices[0].delta.content)
            times.append(time.monotonic())
        usage = chunk.usage or usage
    if not times or usage is None:
        raise DemoError(f"{talk.name}, turn {turn}: the answer was empty or came without usage")
    talk.messages.append({"role": "assistant", "content": "".join(pieces)})
    route = dict(item.split("=", 1) for item in response.headers["x-pagoda-route"].split(";"))
    writing = times[-1] - times[0]
    return Row(
        conversation=talk.name,
        turn=turn,
        pod=route["pod"],
        reason=route["reason"],
        prompt_tokens=usage.prompt_tokens,
        sources=_sources(usage),
        ttft_seconds=times[0] - asked,
        tokens_per_second=(usage.completion_tokens - 1) / writing if writing > 0 else 0.0,
    )


def _sources(usage: Any) -> dict[str, int]:
    given = usage.prompt_tokens_details.model_extra["sources"]
    sources = {source: int(given.get(source, 0)) for source in SOURCES}
    if sum(sources.values()) != usage.prompt_tokens:
        raise DemoError(f"the sources {sources} do not sum to {usage.prompt_tokens} prompt tokens")
    return sources


async def take_turns(client: AsyncOpenAI, pool: Pool, talks: list[Conversation], num_turns: int, rows: Rows) -> None:
    """Let all `talks` go on at the same time, each for `num_turns` turns."""
    model = pool.model

    async def go_on(talk: Conversation) -> None:
        for turn in range(num_turns):
            await asyncio.sleep(READING_SECONDS if turn else 0)
            row = await ask(client, model, talk)
            talk.rows.append(row)
            rows.add(row)

    async with asyncio.timeout(TALK_SECONDS):
        await asyncio.gather(*(go_on(talk) for talk in talks))


async def converse(pool: Pool, rows: Rows) -> str:
    """Hold the conversations through the crash; return the summary."""
    talks = [Conversation(name) for name in QUESTIONS]
    async with AsyncOpenAI(
        base_url=pool.url, api_key="none is asked for", max_retries=0, timeout=REQUEST_SECONDS
    ) as client:
        await take_turns(client, pool, talks, NUM_TURNS_BEFORE_CRASH, rows)
        dead_pod = Counter(talk.pod for talk in talks).most_common(1)[0][0]
        homeless = [talk for talk in talks if talk.pod == dead_pod]
        pool.kill_engine(dead_pod)
        rows.say(f"engine {dead_pod} was killed; its sidecar brings its blocks to the pool …")
        num_stored = await asyncio.to_thread(pool.wait_until_pushed, dead_pod)
        rows.say(f"… it has stored {num_stored} in all; {len(homeless)} conversations go on at the other pod")
        if pool.part("engine", dead_pod).state == "ready":
            raise DemoError(f"engine {dead_pod} was back before its conversations could go on elsewhere")
        await take_turns(client, pool, homeless, 1, rows)
    check_history(pool, talks, homeless, dead_pod)
    return summary(rows.all, homeless, dead_pod)


def check_history(pool: Pool, talks: list[Conversation], homeless: list[Conversation], dead_pod: str) -> None:
    """Insist that each homeless conversation got a block of its own history out of the pool, on the other pod."""
    for talk in homeless:
        row = talk.rows[-1]
        if row.pod == dead_pod:
            raise DemoError(f"{talk.name} went on at {dead_pod}, whose engine was killed")
        if history_from_pool(row, talks) < BLOCK_TOKENS:
            why = "\n".join(pool.metrics("engine", row.pod, "pagoda_tier_loads_skipped_total"))
            raise DemoError(f"{talk.name} got no block of its own history from the pool: {row.sources}\n{why}")


def history_from_pool(row: Row, talks: list[Conversation]) -> int:
    """Return how many tokens beyond the system prompt must have come from the pool.

    The shortest first prompt is the longest that the system prompt can be; the part of it that did not come from the
    device or RAM may have come from the pool and does not count.
    """
    system_tokens = min(talk.rows[0].prompt_tokens for talk in talks)
    nearer = row.sources["device"] + row.sources["ram"]
    return row.sources["pool"] - max(0, system_tokens - nearer)


def summary(rows: list[Row], homeless: list[Conversation], dead_pod: str) -> str:
    """Return the one sentence that stays."""
    cold = [row.ttft_seconds for row in rows if row.reused_tokens == 0]
    reused = [row.ttft_seconds for row in rows if row.turn > 1 and row.reused_tokens >= row.prompt_tokens / 2]
    if not cold or not reused:
        raise DemoError(f"there were {len(cold)} cold and {len(reused)} reused requests; both are needed")
    cold_median, reused_median = statistics.median(cold), statistics.median(reused)
    from_pool = sum(talk.rows[-1].sources["pool"] for talk in homeless)
    return (
        f"{len(rows)} requests were answered, {len(homeless)} of them after the crash of {dead_pod} with {from_pool} "
        f"prompt tokens from the pool; median time to first token {cold_median:.2f} s cold and {reused_median:.2f} s "
        f"reused, {cold_median / reused_median:.1f} times faster."
    )


def tell(pool: Pool) -> str:
    """Wait for the pool and hold the conversations; return the summary."""
    pool.wait_until_ready()
    if not any(part.kind == "memcached" for part in pool.parts()):
        raise DemoError("memcached is not installed, and the demo is about the pool: apt-get install memcached")
    return asyncio.run(converse(pool, Rows()))


def main() -> int:
    """Run the demo; return the exit status."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with running_pool(MANIFEST) as pool:
            try:
                sentence = tell(pool)
            except (DemoError, OpenAIError, TimeoutError):
                print(pool.explain(), file=sys.stderr)
                raise
        print(sentence)
        return 0
    except KeyboardInterrupt:
        return 130
    except (DemoError, OpenAIError, TimeoutError) as error:
        print(f"demo: {type(error).__name__}: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    raise SystemExit(main())
