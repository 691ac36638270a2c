"""What providers say when they refuse a request, and what it means."""

import json
import time
from typing import Any, ClassVar

import anthropic
import httpx2
import pytest

from compactor.refusals import Refusal, RefusalKind, classify, refusal_of

OVERFLOW, MAX_TOKENS = RefusalKind.OVERFLOW, RefusalKind.MAX_TOKENS
BYTES, BOUND, NONE = RefusalKind.TOO_MANY_BYTES, RefusalKind.BOUND_THINKING, RefusalKind.NONE


def claude(message: str, kind: str = "invalid_request_error") -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"}


def openai(message: str, code: object = None, **fields: object) -> dict[str, Any]:
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
    return {"error": {**error, **fields}}


def gemini(message: str, status: str = "INVALID_ARGUMENT") -> dict[str, Any]:
    return {"error": {"code": 400, "message": message, "status": status}}


TOO_LONG = claude("prompt is too long: 207889 tokens > 200000 maximum")
NO_ROOM = claude(
    "input length and `max_tokens` exceed context limit: 199759 + 8192 > 200000, decrease input "
    "length or `max_tokens` and try again"
)
RATE = claude(
    "This request would exceed the rate limit for your organization of 40,000 input tokens per "
    "minute. Please reduce the prompt length or the maximum tokens requested, or try again later.",
    "rate_limit_error",
)
RESULTED = (
    "This model's maximum context length is 4097 tokens. However, your messages resulted in 7575 "
    "tokens. Please reduce the length of the messages."
)
LONGER = (
    "The decoder prompt (length 17772) is longer than the maximum model length of 16384. Make sure "
    "that `max_model_len` is no smaller than the number of text tokens."
)
GEMINI = "The input token count (1054016) exceeds the maximum number of tokens allowed (1048576)."
LLAMA = "the request exceeds the available context size. try increasing the context size"
BOUND_TEXT = (
    "messages.1.content.0: Invalid `signature` in `thinking` block. The block is bound to a "
    "different conversation. Remove the block, or set "
    '`thinking.block_binding.prefix_mismatch_behavior` to "drop_block".'
)
BEDROCK = "An error occurred (ValidationException) when calling the ConverseStream operation: "

CASES: list[tuple[str, int | None, object, Refusal]] = [
    # Anthropic, and who passes its words on
    ("claude", 400, TOO_LONG, Refusal(OVERFLOW, 207_889, 200_000)),
    ("claude, no room", 400, NO_ROOM, Refusal(MAX_TOKENS, 199_759, 200_000, 241)),
    (
        "claude, size",
        413,
        {"error": {"type": "request_too_large", "message": "Request exceeds the maximum size"}},
        Refusal(BYTES),
    ),
    ("claude, thinking", 400, claude(BOUND_TEXT), Refusal(BOUND)),
    ("vertex", 413, claude("Prompt is too long"), Refusal(OVERFLOW)),
    (
        "vertex, size",
        413,
        claude("Request exceeds the maximum allowed number of bytes."),
        Refusal(BYTES),
    ),
    (
        "bedrock",
        400,
        {"message": "Input is too long for requested model."},
        Refusal(OVERFLOW),
    ),
    (
        "bedrock, boto",
        None,
        BEDROCK + "The model returned the following errors: prompt is too long: 903884 tokens > "
        "200000 maximum",
        Refusal(OVERFLOW, 903_884, 200_000),
    ),
    ("bedrock, size", None, BEDROCK + "too many total text bytes", Refusal(BYTES)),
    ("a proxy without JSON", 413, "<html>413 Request Entity Too Large</html>", Refusal(BYTES)),
    ("no body", 413, b"", Refusal(BYTES)),
    (
        "litellm",
        400,
        openai(
            "litellm.ContextWindowExceededError: litellm.BadRequestError: AnthropicError - b'{\""
            'type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: '
            "205668 tokens > 200000 maximum\"}}'",
            "400",
        ),
        Refusal(OVERFLOW, 205_668, 200_000),
    ),
    (
        "litellm, no room",
        None,
        f"litellm.BadRequestError: AnthropicException - {json.dumps(NO_ROOM)}",
        Refusal(MAX_TOKENS, 199_759, 200_000, 241),
    ),
    ("litellm, bare", 400, "litellm.ContextWindowExceededError: ?", Refusal(OVERFLOW)),
    # OpenAI, Azure, and who took its format over
    (
        "openai",
        400,
        openai(RESULTED, "context_length_exceeded"),
        Refusal(OVERFLOW, 7_575, 4_097),
    ),
    (
        "azure",
        400,
        openai(
            "This model's maximum context length is 32768 tokens. However, you requested 35969 "
            "tokens (9969 in the messages, 26000 in the completion). Please reduce the length of "
            "the messages or completion.",
            "context_length_exceeded",
        ),
        Refusal(MAX_TOKENS, 9_969, 32_768, 22_799),
    ),
    (
        "openai, tools",
        400,
        openai(
            "This model's maximum context length is 4096 tokens. However, your messages resulted "
            "in 4106 tokens (4054 in the messages, 52 in the functions).",
            "context_length_exceeded",
        ),
        Refusal(OVERFLOW, 4_106, 4_096),
    ),
    (
        "openai, completions",
        400,
        openai(
            "This model's maximum context length is 4097 tokens, however you requested 4231 tokens "
            "(3975 in your prompt; 256 for the completion). Please reduce your prompt; or "
            "completion length."
        ),
        Refusal(MAX_TOKENS, 3_975, 4_097, 122),
    ),
    (
        "openai, responses",
        400,
        openai(
            "Your input exceeds the context window of this model. Please adjust your input and try "
            "again.",
            "context_length_exceeded",
        ),
        Refusal(OVERFLOW),
    ),
    (
        "openai, responses, streamed",
        200,
        {"type": "response.failed", "response": openai("?", "context_length_exceeded")},
        Refusal(OVERFLOW),
    ),
    (
        "openai, event",
        None,
        {"type": "error", "sequence_number": 2, **openai("?", "context_length_exceeded")},
        Refusal(OVERFLOW),
    ),
    (
        "openai, gpt-5",
        400,
        openai(
            "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in "
            "289650 tokens. Please reduce the length of the messages."
        ),
        Refusal(OVERFLOW, 289_650, 272_000),
    ),
    (
        "groq",
        400,
        openai("Please reduce the length of the messages.", "context_length_exceeded"),
        Refusal(OVERFLOW),
    ),
    (
        "github",
        413,
        {
            "error": {
                "code": "tokens_limit_reached",
                "message": "Request body too large for gpt-4o model. Max size: 8000 tokens.",
            }
        },
        Refusal(OVERFLOW, None, 8_000),
    ),
    (
        "copilot",
        400,
        openai("prompt token count of 130000 exceeds the limit of 128000"),
        Refusal(OVERFLOW, 130_000, 128_000),
    ),
    (
        "openrouter",
        400,
        openai(
            "This endpoint's maximum context length is 163840 tokens. However, you requested about "
            "172900 tokens (4429 of text input, 4631 of tool input, 163840 in the output). Please "
            "reduce the length of either one.",
            400,
        ),
        Refusal(MAX_TOKENS, 9_060, 163_840, 154_780),
    ),
    (
        "openrouter, long",
        200,
        openai(
            "This endpoint's maximum context length is 32768 tokens. However, you requested about "
            "42832 tokens (42832 of text input).",
            400,
        ),
        Refusal(OVERFLOW, 42_832, 32_768),
    ),
    (
        "xai",
        400,
        {
            "error": "This model's maximum prompt length is 131072 but the request contains 136973 "
            "tokens."
        },
        Refusal(OVERFLOW, 136_973, 131_072),
    ),
    (
        "kimi",
        400,
        openai(
            "Invalid request: Your request exceeded model token limit: 131072 (requested: 140000)"
        ),
        Refusal(OVERFLOW, 140_000, 131_072),
    ),
    (
        "mistral",
        400,
        {
            "object": "error",
            "message": "Prompt contains 34000 tokens and 0 draft tokens, too large "
            "for model with 32768 maximum context length",
            "type": "invalid_request_error",
        },
        Refusal(OVERFLOW, 34_000, 32_768),
    ),
    # Google
    ("gemini", 400, gemini(GEMINI), Refusal(OVERFLOW, 1_054_016, 1_048_576)),
    ("gemini, list", 400, [gemini(GEMINI)], Refusal(OVERFLOW, 1_054_016, 1_048_576)),
    (
        "gemini, JSON in JSON",
        400,
        json.dumps({"error": {"message": json.dumps(gemini(GEMINI)), "code": 400}}),
        Refusal(OVERFLOW, 1_054_016, 1_048_576),
    ),
    # Servers of one's own
    (
        "vllm",
        400,
        {"object": "error", "message": LONGER, "type": "BadRequestError", "code": 400},
        Refusal(OVERFLOW, 17_772, 16_384),
    ),
    (
        "vllm, prompt",
        400,
        openai("Prompt length of 2048 is longer than the maximum model length of 2048."),
        Refusal(OVERFLOW, 2_048, 2_048),
    ),
    (
        "vllm, total",
        400,
        "The prompt (total length 25938) is too long to fit into the model (context length 4096).",
        Refusal(OVERFLOW, 25_938, 4_096),
    ),
    (
        "vllm, no room",
        400,
        openai(
            "'max_tokens' or 'max_completion_tokens' is too large: 2000. This model's maximum "
            "context length is 4096 tokens and your request has 2104 input tokens (2000 > 4096 - "
            "2104)."
        ),
        Refusal(MAX_TOKENS, 2_104, 4_096, 1_992),
    ),
    (
        "vllm, messages",
        400,
        openai(
            "This model's maximum context length is 16384 tokens. However, you requested 122946 "
            "tokens (112946 in the messages, 10000 in the completion)."
        ),
        Refusal(OVERFLOW, 112_946, 16_384),
    ),
    (
        "llama.cpp",
        500,
        {
            "error": {
                "code": 500,
                "message": LLAMA,
                "type": "exceed_context_size_error",
                "n_prompt_tokens": 1_407,
                "n_ctx": 256,
            }
        },
        Refusal(OVERFLOW, 1_407, 256),
    ),
    (
        "llama.cpp, words",
        400,
        openai("request (9000 tokens) exceeds the available context size (8192 tokens)"),
        Refusal(OVERFLOW, 9_000, 8_192),
    ),
    (
        "llama-cpp-python",
        400,
        "Requested tokens (2285) exceed context window of 2048",
        Refusal(OVERFLOW, 2_285, 2_048),
    ),
    (
        "lm studio",
        400,
        "The number of tokens to keep from the initial prompt is greater than the context length",
        Refusal(OVERFLOW),
    ),
    ("ollama", 400, {"error": "input exceeds context length"}, Refusal(OVERFLOW)),
    (
        "tgi",
        422,
        {
            "error": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4097. "
            "Given: 4098 `inputs` tokens and 1024 `max_new_tokens`"
        },
        Refusal(OVERFLOW, 4_098, 4_097),
    ),
    # Something else
    ("rate", 429, RATE, Refusal(NONE)),
    ("rate, no status", None, RATE, Refusal(NONE)),
    ("rate, text", None, f"litellm.RateLimitError: {json.dumps(RATE)}", Refusal(NONE)),
    (
        "rate, long context",
        429,
        claude("Extra usage is required for long context requests.", "rate_limit_error"),
        Refusal(NONE),
    ),
    (
        "rate, a 413 of groq's",
        413,
        openai(
            "Request too large for model: Limit 6000, Requested 7000",
            "rate_limit_exceeded",
            type="tokens",
        ),
        Refusal(NONE),
    ),
    ("rate in a success", 200, openai("Too many requests", 429), Refusal(NONE)),
    ("bedrock, throttled", 429, "ThrottlingException: Too many tokens, please wait", Refusal(NONE)),
    ("overloaded", 529, claude("Overloaded", "overloaded_error"), Refusal(NONE)),
    ("broken", 500, claude("Internal server error", "api_error"), Refusal(NONE)),
    ("key", 401, claude("invalid x-api-key", "authentication_error"), Refusal(NONE)),
    ("model", 404, claude("model: prompt is too long", "not_found_error"), Refusal(NONE)),
    ("roles", 400, claude("messages: roles must alternate"), Refusal(NONE)),
    (
        "too much asked",
        400,
        claude(
            "max_tokens: 99999 > 64000, which is the maximum allowed number of output tokens for "
            "claude-sonnet-4-5"
        ),
        Refusal(NONE),
    ),
    (
        "one image",
        400,
        claude("messages.0.content.1.image.source: image exceeds 5 MB maximum"),
        Refusal(NONE),
    ),
    ("nothing", None, None, Refusal(NONE)),
    # Replies
    (
        "a full window",
        200,
        {
            "type": "message",
            "content": [],
            "stop_reason": "model_context_window_exceeded",
            "usage": {
                "input_tokens": 5,
                "cache_read_input_tokens": 195_000,
                "output_tokens": 4_995,
            },
        },
        Refusal(OVERFLOW, 195_005, 200_000),
    ),
    (
        "a reply that speaks of it",
        200,
        {"type": "message", "content": [{"type": "text", "text": "prompt is too long"}]},
        Refusal(NONE),
    ),
    (
        "the same, no status",
        None,
        {"type": "message", "content": [{"type": "text", "text": "prompt is too long"}]},
        Refusal(NONE),
    ),
]


@pytest.mark.parametrize(
    ("status", "body", "meant"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_what_providers_say(status: int | None, body: object, meant: Refusal) -> None:
    """Each provider's words for "too long" are understood, with the numbers in them."""
    assert classify(status, body) == meant


@pytest.mark.parametrize(
    ("status", "body", "meant"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_however_it_is_wrapped(status: int | None, body: object, meant: Refusal) -> None:
    """A body means the same as JSON in text or bytes."""
    text = body if isinstance(body, str | bytes) else json.dumps(body)
    assert classify(status, text) == meant
    assert classify(status, text if isinstance(text, bytes) else text.encode()) == meant


def test_exceptions() -> None:
    """An SDK's exception is understood by its status and its body, else by its words."""
    response = httpx2.Response(400, request=httpx2.Request("POST", "http://test/"))
    error = anthropic.BadRequestError("Error code: 400", response=response, body=TOO_LONG)
    assert refusal_of(error) == Refusal(OVERFLOW, 207_889, 200_000)

    class ContextWindowExceededError(Exception):
        pass

    class ClientError(Exception):
        response: ClassVar = {
            "Error": {"Code": "ValidationException", "Message": "Input is too long"}
        }

    assert refusal_of(ContextWindowExceededError("?")).kind is OVERFLOW
    assert refusal_of(ClientError("?")).kind is OVERFLOW
    assert refusal_of(ValueError("no")).kind is NONE


@pytest.mark.parametrize(
    "body",
    [
        "prompt (" * 1_000_000,
        "input token count " * 500_000,
        "9" * 5_000_000,
        "[" * 5_000_000,
        '{"a":' * 3_000 + "1" + "}" * 3_000,
        {"error": [{"message": "1 in the a"}] * 1_000_000},
        b"\xff" * 5_000_000,
    ],
    ids=["phrase", "gap", "digits", "open", "deep", "wide", "bytes"],
)
def test_hostile_bodies(body: object) -> None:
    """A body of any size and shape is looked at for a moment only."""
    start = time.perf_counter()
    assert classify(400, body).kind is NONE
    assert time.perf_counter() - start < 2
