"""Qwen3's way of writing conversations for the tiny tokenizer: its markers, and a chat template that says the same as its own.

The template is ours; tests/cli/test_qwen3_tokenizer.py holds the renderer against the model's own.
"""

from __future__ import annotations

from transformers import PreTrainedTokenizerFast

from tests.models import tiny_tokenizer

MARKERS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]

_TOOLS = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>"
)
_CALLS = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
    '<tool_call></tool_call> XML tags:\n<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
)

TEMPLATE = """
{%- macro turn(role, text) -%}<|im_start|>{{ role }}{{ "\\n" }}{{ text }}<|im_end|>{{ "\\n" }}{%- endmacro -%}
{%- macro call(one) -%}
{%- set arguments = one.arguments if one.arguments is string else one.arguments|tojson -%}
<tool_call>{{ "\\n" }}{"name": "{{ one.name }}", "arguments": {{ arguments }}}{{ "\\n" }}</tool_call>
{%- endmacro -%}
{%- set state = namespace(question=messages|length - 1) -%}
{%- for message in messages -%}
    {%- set by_tool = message.content.startswith("<tool_response>") and message.content.endswith("</tool_response>") -%}
    {%- if message.role == "user" and not by_tool -%}{%- set state.question = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- set given = messages[0].content if messages[0].role == "system" else none -%}
{%- if tools -%}
    {%- set head = namespace(text=(given + "\\n\\n" if given is not none else "") + "@TOOLS@") -%}
    {%- for tool in tools -%}{%- set head.text = head.text + "\\n" + tool|tojson -%}{%- endfor -%}
    {{- turn("system", head.text + '@CALLS@') -}}
{%- elif given is not none -%}
    {{- turn("system", given) -}}
{%- endif -%}
{%- for message in messages -%}
    {%- if message.role == "user" or (message.role == "system" and not loop.first) -%}
        {{- turn(message.role, message.content) -}}
    {%- elif message.role == "tool" -%}
        {%- if loop.first or loop.previtem.role != "tool" -%}<|im_start|>user{%- endif -%}
        {{- "\\n<tool_response>\\n" + message.content + "\\n</tool_response>" -}}
        {%- if loop.last or loop.nextitem.role != "tool" -%}<|im_end|>{{- "\\n" -}}{%- endif -%}
    {%- elif message.role == "assistant" -%}
        {%- set said = namespace(text=message.content, thought="") -%}
        {%- if message.reasoning_content is string -%}
            {%- set said.thought = message.reasoning_content -%}
        {%- elif "</think>" in said.text -%}
            {%- set pieces = said.text.split("</think>") -%}
            {%- set said.thought = pieces[0].rstrip("\\n").split("<think>")[-1].lstrip("\\n") -%}
            {%- set said.text = pieces[-1].lstrip("\\n") -%}
        {%- endif -%}
        {%- set shown = said.text -%}
        {%- if loop.index0 > state.question and (loop.last or said.thought) -%}
            {%- set shown = "<think>\\n" + said.thought.strip("\\n") + "\\n</think>\\n\\n" + said.text.lstrip("\\n") -%}
        {%- endif -%}
        {%- set calls = namespace(text="") -%}
        {%- for one in message.tool_calls or [] -%}
            {%- set calls.text = calls.text + ("\\n" if said.text or not loop.first else "") + call(one.function or one) -%}
        {%- endfor -%}
        {{- turn("assistant", shown + calls.text) -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant{{- "\\n" -}}@OPENING@{%- endif -%}
"""


def tiny_qwen3_tokenizer(*, thinking: bool) -> PreTrainedTokenizerFast:
    """The tiny tokenizer with Qwen3's markers and template; ``thinking``: the generation prompt opens the reasoning block."""
    tokenizer = tiny_tokenizer()
    tokenizer.unk_token = None  # as in Qwen3's own
    tokenizer.add_tokens(MARKERS)
    template = TEMPLATE.strip().replace("@OPENING@", '<think>{{- "\\n" -}}' if thinking else "")
    tokenizer.chat_template = template.replace("@TOOLS@", _quoted(_TOOLS)).replace("@CALLS@", _quoted(_CALLS))
    return tokenizer


def _quoted(text: str) -> str:
    return text.replace("\n", "\\n")
